"""Spans: what the attention of each layer sees, by windows, chunks and layers that are not rotated."""

from collections.abc import Callable
from dataclasses import dataclass

from compiler.frontend.facts import Facts
from compiler.frontend.patterns import Part, Pattern, bits, last_of, words

_WINDOWED = (Part.FULL, Part.SLIDING)


@dataclass(frozen=True, slots=True)
class Span:
    """The tokens an attention sees (a window of the last ones, a chunk, or all), and whether heads are rotated."""

    window: int | None = None
    chunk: int | None = None
    rotated: bool = True


Spans = Callable[[Facts, int], tuple[Span, ...]]


def no_windows(facts: Facts, layers: int) -> tuple[Span, ...]:
    """All layers see all tokens. A layer_types list may say so, and nothing else."""
    return _uniform(facts, layers, None)


def same_window(facts: Facts, layers: int) -> tuple[Span, ...]:
    """All layers have the window `sliding_window` (null: none). Absent is not null: the key is needed (mistral)."""
    return _uniform(facts, layers, _stated(facts, "window", "sliding_window", "no window"))


def optional_window(facts: Facts, layers: int) -> tuple[Span, ...]:
    """All layers have the window `sliding_window`; none when absent (mixtral)."""
    window = facts.maybe_integer("window")
    if window is None:
        facts.assume("window", None, f"{facts.family} has no window when the key is absent")
    return _uniform(facts, layers, window)


def gated_same_window(facts: Facts, layers: int) -> tuple[Span, ...]:
    """All layers have the window when `use_sliding_window` is true (qwen3_moe)."""
    facts.ignore("window_layers", f"{facts.family} gives all layers the same window")
    return _uniform(facts, layers, _gated(facts))


def gated_windows(facts: Facts, layers: int) -> tuple[Span, ...]:
    """Windows by `layer_types`, else from layer `max_window_layers` on, when `use_sliding_window` is true (qwen)."""
    window = _gated(facts)
    types = words(facts, "layer_types", layers, _WINDOWED)
    if window is None:
        facts.ignore("window_layers", "there is no window")
        return _uniform(facts, layers, None)
    if types is None:
        first = facts.integer("window_layers", low=0)
        return tuple(Span(window if index >= first else None) for index in range(layers))
    facts.ignore("window_layers", "layer_types says it")
    return _sliding(types, window)


def typed_windows(facts: Facts, layers: int) -> tuple[Span, ...]:
    """Windows by `layer_types`, which is needed (gpt_oss)."""
    types = words(facts, "layer_types", layers, _WINDOWED)
    if types is None:
        raise facts.missing("layer_types")
    return _sliding(types, _needed_window(facts, types))


@dataclass(frozen=True, slots=True)
class Alternating:
    """Windows by `layer_types`, else in all but the last layer of every `sliding_window_pattern`.

    every: the pattern when that key is absent too. full_rotated: whether layers without a window are rotated.
    null_window: a null window means that no layer has one, and all are rotated (exaone4).
    """

    every: int
    full_rotated: bool = True
    null_window: bool = False

    def __call__(self, facts: Facts, layers: int) -> tuple[Span, ...]:
        if self.null_window and _stated(facts, "window", "sliding_window", "no window") is None:
            facts.ignore("window_pattern", "there is no window")
            facts.ignore("layer_types", "there is no window")
            return (Span(),) * layers
        types = words(facts, "layer_types", layers, _WINDOWED)
        if types is None:
            full = last_of(facts, "window_pattern", layers, self.every)
            types = tuple(Part.FULL if last else Part.SLIDING for last in full)
        else:
            facts.ignore("window_pattern", "layer_types says it")
        window = _needed_window(facts, types)
        return tuple(Span(window) if kind is Part.SLIDING else Span(rotated=self.full_rotated) for kind in types)


def chunked(facts: Facts, layers: int) -> tuple[Span, ...]:
    """Chunks of `attention_chunk_size` (null: none) by `layer_types`, else in the rotated layers (llama4)."""
    rotated = _rotations(facts, layers)
    chunk = _stated(facts, "chunk", "attention_chunk_size", "no chunks")
    types = words(facts, "layer_types", layers, (Part.FULL, Part.CHUNKED))
    if types is None:
        types = tuple(Part.CHUNKED if chunk and there else Part.FULL for there in rotated)
    if chunk is None and Part.CHUNKED in types:
        raise facts.missing("chunk")
    return tuple(
        Span(chunk=chunk if kind is Part.CHUNKED else None, rotated=there)
        for kind, there in zip(types, rotated, strict=True)
    )


def some_rotated(facts: Facts, layers: int) -> tuple[Span, ...]:
    """Rotation by `no_rope_layers`; with `use_sliding_window`, a window where `layer_types` says so (smollm3)."""
    rotated = _rotations(facts, layers)
    window = _gated(facts)
    types = words(facts, "layer_types", layers, _WINDOWED)
    if types is None:
        types = tuple(Part.SLIDING if window and not there else Part.FULL for there in rotated)
    if window is None and Part.SLIDING in types:
        what = f"has {Part.SLIDING} layers, and use_sliding_window is false"
        raise facts.error("layer_types", what, "use_sliding_window true, or full_attention")
    return tuple(
        Span(window if kind is Part.SLIDING else None, rotated=there)
        for kind, there in zip(types, rotated, strict=True)
    )


def _rotations(facts: Facts, layers: int) -> tuple[bool, ...]:
    """1 in `no_rope_layers` is rotated; without the list the last of every `no_rope_layer_interval` (4) is not."""
    stated = bits(facts, "no_rope_layers", layers)
    if stated is not None:
        facts.ignore("no_rope_interval", "no_rope_layers says it")
        return stated
    return tuple(not last for last in last_of(facts, "no_rope_interval", layers, 4))


def _sliding(types: Pattern, window: int | None) -> tuple[Span, ...]:
    return tuple(Span(window if kind is Part.SLIDING else None) for kind in types)


def _needed_window(facts: Facts, types: Pattern) -> int | None:
    window = facts.maybe_integer("window")
    if window is None and Part.SLIDING in types:
        raise facts.missing("window")
    return window


def _stated(facts: Facts, fact: str, key: str, none: str) -> int | None:
    """A number of tokens, or null; absent is not null: the key is needed."""
    tokens = facts.maybe_integer(fact)
    if tokens is None and not facts.states(fact):
        raise facts.missing(fact, f"add {key}: a number of tokens, or null for none")
    if tokens is None:
        facts.assume(fact, None, f"null: {none}")
    return tokens


def _gated(facts: Facts) -> int | None:
    if facts.flag("use_window", False):
        return facts.integer("window")
    facts.ignore("window", "use_sliding_window is false")
    return None


def _uniform(facts: Facts, layers: int, window: int | None) -> tuple[Span, ...]:
    types = words(facts, "layer_types", layers, _WINDOWED)
    expected = Part.FULL if window is None else Part.SLIDING
    if types is not None and set(types) != {expected}:
        what = f"has layers that are not {expected}, which {facts.family} as described here gives all its layers"
        raise facts.error("layer_types", what, f"{expected} for all layers, or a model_type that mixes them")
    return (Span(window),) * layers
