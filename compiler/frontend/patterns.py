"""Layer patterns: which layer has what. The only place where a pattern in a config becomes one value a layer.

Patterns are word lists (`layer_types`), lists of 0 and 1 (`no_rope_layers`), lists of indices (`mlp_only_layers`) and
numbers (`moe_layer_freq`: every n-th). A list whose length is not the layer count is an InputError, unless the further
entries are those of the MTP modules.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from compiler.frontend.facts import Facts
from compiler.frontend.read import describe

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
#: Names of layer types: today's, and the older name transformers still accepts.
_LAYER_TYPES: Final[dict[str, str]] = {FULL: FULL, "attention": FULL, SLIDING: SLIDING, CHUNKED: CHUNKED}


# --- lists and numbers


def words(facts: Facts, layers: int, known: tuple[str, ...] = (FULL, SLIDING)) -> tuple[str, ...] | None:
    """The type of each layer by `layer_types`, None when absent; each must be `known`."""
    items = per_layer(facts, "layer_types", layers)
    if items is None:
        return None
    for index, item in enumerate(items):
        if not isinstance(item, str) or _LAYER_TYPES.get(item) not in known:
            what = f"is {describe(item)}, which {facts.family} as described here has not got"
            raise facts.error("layer_types", what, " or ".join(known), f"[{index}]")
    return tuple(_LAYER_TYPES[str(item)] for item in items)


def per_layer(facts: Facts, fact: str, layers: int) -> list[object] | None:
    """A list with one entry a layer, None when absent. Entries beyond the layers must be those of the MTP modules."""
    items = facts.items(fact)
    if items is None:
        return None
    extra = facts.maybe_integer("mtp_modules", low=0) or 0
    if len(items) not in (layers, layers + extra):
        mtp = f" (or {layers + extra} with the MTP modules)" if extra else ""
        raise facts.error(fact, f"has {len(items)} entries for {layers} layers", f"one entry a layer{mtp}")
    return items[:layers]


def bits(facts: Facts, fact: str, layers: int, right: str = "one 0 or 1 a layer") -> tuple[bool, ...] | None:
    """A list of 0 and 1, one a layer; None when absent or empty."""
    if not facts.items(fact):
        return None
    items = per_layer(facts, fact, layers) or []
    bad = next((item for item in items if type(item) is not int or item not in (0, 1)), None)
    if bad is not None:
        raise facts.error(fact, f"has the entry {describe(bad)}", right)
    return tuple(item == 1 for item in items)


def indices(facts: Facts, fact: str, layers: int) -> frozenset[int] | None:
    """A list of layer indices, None when absent."""
    items = facts.items(fact)
    if items is None:
        return None
    chosen = [item for item in items if type(item) is int and 0 <= item < layers]
    if len(chosen) != len(items):
        raise facts.error(fact, f"is {items!r:.60}", f"layer indices from 0 to {layers - 1}")
    return frozenset(chosen)


def frequency(facts: Facts, fact: str, layers: int) -> tuple[bool, ...]:
    """A number n (layer i when n divides i) or a list of 0 and 1, one a layer; 1 when absent."""
    found = facts.find(fact)
    if found is not None and isinstance(found.value, list):
        chosen = bits(facts, fact, layers, "one 0 or 1 a layer, or a number")
        if chosen is not None:
            return chosen
        raise facts.error(fact, f"has 0 entries for {layers} layers", "one 0 or 1 a layer, or a number")
    every = facts.maybe_integer(fact)
    if every is None:
        every = 1
        facts.assume(fact, 1, "every layer after the dense ones is MoE when the key is absent")
    return tuple(index % every == 0 for index in range(layers))


def last_of(facts: Facts, fact: str, layers: int, default: int | None = None) -> tuple[bool, ...]:
    """The last layer of every n, n being `fact`. default: n when absent (assumed), None where it is needed."""
    every = facts.maybe_integer(fact)
    if every is None:
        if default is None:
            raise facts.missing(fact)
        every = default
        facts.assume(fact, every, f"{facts.family} takes {every} when the key is absent")
    return tuple((index + 1) % every == 0 for index in range(layers))


# --- spans: what the attention of each layer sees


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
    types = words(facts, layers)
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
    types = words(facts, layers)
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
        types = words(facts, layers)
        if types is None:
            full = last_of(facts, "window_pattern", layers, self.every)
            types = tuple(FULL if last else SLIDING for last in full)
        else:
            facts.ignore("window_pattern", "layer_types says it")
        window = _needed_window(facts, types)
        return tuple(Span(window) if kind == SLIDING else Span(rotated=self.full_rotated) for kind in types)


def chunked(facts: Facts, layers: int) -> tuple[Span, ...]:
    """Chunks of `attention_chunk_size` (null: none) by `layer_types`, else in the rotated layers (llama4)."""
    rotated = _rotations(facts, layers)
    chunk = _stated(facts, "chunk", "attention_chunk_size", "no chunks")
    types = words(facts, layers, (FULL, CHUNKED))
    if types is None:
        types = tuple(CHUNKED if chunk and there else FULL for there in rotated)
    if chunk is None and CHUNKED in types:
        raise facts.missing("chunk")
    return tuple(
        Span(chunk=chunk if kind == CHUNKED else None, rotated=there)
        for kind, there in zip(types, rotated, strict=True)
    )


def some_rotated(facts: Facts, layers: int) -> tuple[Span, ...]:
    """Rotation by `no_rope_layers`; with `use_sliding_window`, a window where `layer_types` says so (smollm3)."""
    rotated = _rotations(facts, layers)
    window = _gated(facts)
    types = words(facts, layers)
    if types is None:
        types = tuple(SLIDING if window and not there else FULL for there in rotated)
    if window is None and SLIDING in types:
        what = f"has {SLIDING} layers, and use_sliding_window is false"
        raise facts.error("layer_types", what, "use_sliding_window true, or full_attention")
    return tuple(
        Span(window if kind == SLIDING else None, rotated=there) for kind, there in zip(types, rotated, strict=True)
    )


def _rotations(facts: Facts, layers: int) -> tuple[bool, ...]:
    """1 in `no_rope_layers` is rotated; without the list the last of every `no_rope_layer_interval` (4) is not."""
    stated = bits(facts, "no_rope_layers", layers)
    if stated is not None:
        facts.ignore("no_rope_interval", "no_rope_layers says it")
        return stated
    return tuple(not last for last in last_of(facts, "no_rope_interval", layers, 4))


def _sliding(types: tuple[str, ...], window: int | None) -> tuple[Span, ...]:
    return tuple(Span(window if kind == SLIDING else None) for kind in types)


def _needed_window(facts: Facts, types: tuple[str, ...]) -> int | None:
    window = facts.maybe_integer("window")
    if window is None and SLIDING in types:
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
    types = words(facts, layers)
    expected = FULL if window is None else SLIDING
    if types is not None and set(types) != {expected}:
        what = f"has layers that are not {expected}, which {facts.family} as described here gives all its layers"
        raise facts.error("layer_types", what, f"{expected} for all layers, or a model_type that mixes them")
    return (Span(window),) * layers
