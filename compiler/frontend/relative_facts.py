"""What the relatives of the main families read in their own way: spans, experts, what surrounds the layers."""

from dataclasses import dataclass, replace
from typing import Final

from compiler.frontend.alias import LIMITS, spellings
from compiler.frontend.facts import Facts
from compiler.frontend.family import Shell
from compiler.frontend.ffn_facts import Ffns, choose, first_dense, routed, with_shared
from compiler.frontend.hybrid_ffn_facts import deepseek_v32
from compiler.frontend.layouts import GRANITE_EXPERTS, LLAMA_EXPERTS
from compiler.frontend.linear_facts import sparse_latent
from compiler.frontend.mixer_facts import latent
from compiler.frontend.patterns import Part, per_layer, words
from compiler.frontend.read import describe
from compiler.frontend.spans import Span
from compiler.frontend.spec import LatentAttention, Mixer, MoE, Scoring

_WINDOWED: Final = (Part.FULL, Part.SLIDING)
_SIGMOID: Final = Scoring("sigmoid")
#: Rows of a table of positions before that of the first token (OPTLearnedPositionalEmbedding).
_POSITION_OFFSET: Final = 2


# --- spans


@dataclass(frozen=True, slots=True)
class FirstOf:
    """Windows by `layer_types`, else in all but the first layer of every `every` (cwm)."""

    every: int

    def __call__(self, facts: Facts, layers: int) -> tuple[Span, ...]:
        types = words(facts, "layer_types", layers, _WINDOWED)
        if types is None:
            note = f"full attention in the first of every {self.every} layers, when the key is absent"
            facts.assume("layer_types", f"every {self.every}", note)
            types = tuple(Part.SLIDING if index % self.every else Part.FULL for index in range(layers))
        return _typed(facts, types)


def window_or_types(facts: Facts, layers: int) -> tuple[Span, ...]:
    """Windows by `layer_types`, else in all layers; `sliding_window` is null where no layer has one (ministral)."""
    types = words(facts, "layer_types", layers, _WINDOWED)
    if types is not None:
        return _typed(facts, types)
    return (Span(_nullable_window(facts)),) * layers


def late_windows(facts: Facts, layers: int) -> tuple[Span, ...]:
    """Windows by `layer_types`, else from layer `max_window_layers` on; a null window is none (dots1)."""
    types = words(facts, "layer_types", layers, _WINDOWED)
    if types is not None:
        facts.ignore("window_layers", "layer_types says it")
        return _typed(facts, types)
    window = _nullable_window(facts)
    if window is None:
        facts.ignore("window_layers", "there is no window")
        return (Span(),) * layers
    first = _edge(facts)
    return tuple(Span(window if index >= first else None) for index in range(layers))


def early_windows(facts: Facts, layers: int) -> tuple[Span, ...]:
    """With `use_sliding_window`: windows by `layer_types`, else in every other layer before `max_window_layers`.

    As in Qwen2MoeConfig of transformers.
    """
    types = words(facts, "layer_types", layers, _WINDOWED)
    if not facts.flag("use_window", False):
        facts.ignore("window", "use_sliding_window is false")
        facts.ignore("window_layers", "there is no window")
        if types is not None and Part.SLIDING in types:
            what = f"has {Part.SLIDING} layers, and use_sliding_window is false"
            raise facts.error("layer_types", what, "use_sliding_window true, or full_attention")
        return (Span(),) * layers
    window = facts.integer("window")
    if types is None:
        first = _edge(facts)
        return tuple(Span(window if index % 2 == 0 and index < first else None) for index in range(layers))
    facts.ignore("window_layers", "layer_types says it")
    return _typed(facts, types)


def local_windows(facts: Facts, layers: int) -> tuple[Span, ...]:
    """attention_types: pairs of a list of `global` and `local`, and how often it is repeated (gpt_neo).

    `attention_layers` is that list written out; local layers have the window `window_size`.
    """
    kinds = _attention_types(facts)
    if len(kinds) != layers:
        raise facts.error("attention_types", f"has {len(kinds)} entries for {layers} layers", "one a layer in all")
    stated = per_layer(facts, "attention_kinds", layers)
    if stated is not None and stated != kinds:
        raise facts.error("attention_kinds", "differs from attention_types", "the same, or no key")
    window = facts.integer("local_window") if "local" in kinds else None
    return tuple(Span(window if kind == "local" else None) for kind in kinds)


def _attention_types(facts: Facts) -> list[object]:
    items = facts.items("attention_types")
    if items is None:
        raise facts.missing("attention_types")
    out: list[object] = []
    for index, item in enumerate(items):
        names, times = item if isinstance(item, list) and len(item) == 2 else (None, None)
        known = isinstance(names, list) and bool(names) and all(name in ("global", "local") for name in names)
        if not known or not isinstance(times, int) or not 1 <= times <= LIMITS["layers"]:
            right = "a pair of names (global, local) and a number"
            raise facts.error("attention_types", f"is {describe(item)}", right, f"[{index}]")
        out += list(names or ()) * times
    return out


def _typed(facts: Facts, types: tuple[Part, ...]) -> tuple[Span, ...]:
    window = facts.maybe_integer("window")
    if window is None and Part.SLIDING in types:
        raise facts.missing("window")
    return tuple(Span(window if kind is Part.SLIDING else None) for kind in types)


def _edge(facts: Facts) -> int:
    first = facts.maybe_integer("window_layers", low=0)
    if first is None:
        raise facts.missing("window_layers", "add max_window_layers, or layer_types with a word a layer")
    return first


def _nullable_window(facts: Facts) -> int | None:
    window = facts.maybe_integer("window")
    if window is None and not facts.states("window"):
        raise facts.missing("window", "add sliding_window: a number of tokens, or null for none")
    if window is None:
        facts.assume("window", None, "null: no window")
    return window


# --- mixers


#: Whether a layer shares the indexer of an earlier one, by its word or letter.
_INDEXERS = {"full": False, "F": False, "shared": True, "S": True}
#: Layers before the schedule of shared indexers begins (GlmMoeDsaConfig).
_OFFSET = 2


def indexed_latent(facts: Facts, layers: int) -> tuple[Mixer | None, ...]:
    """Latent attention behind an indexer, which a layer has itself or shares with an earlier one (glm_moe_dsa)."""
    shared = _shared_indexers(facts, layers)
    if shared[0]:
        raise facts.error("indexer_types", "begins with a layer that shares an indexer", "full first")
    made = sparse_latent(facts, layers)
    pairs = zip(made, shared, strict=True)
    return tuple(replace(m, borrows_choice=there) if isinstance(m, LatentAttention) else m for m, there in pairs)


def rope_head_latent(facts: Facts, layers: int) -> tuple[Mixer | None, ...]:
    """Latent attention whose config spells `qk_rope_head_dim` as `head_dim` too (Glm4MoeLiteConfig)."""
    mixers, stated = latent(facts, layers), facts.find("head_dim")
    if stated is not None and facts.integer("head_dim") != facts.integer("rope"):
        what = f"is {stated.value}, but qk_rope_head_dim {facts.value('rope')}"
        raise facts.error("head_dim", what, f"one value: {facts.family} takes both for the same")
    return mixers


def _shared_indexers(facts: Facts, layers: int) -> list[bool]:
    """Which layers share: a word or a letter a layer, else the schedule of `index_topk_freq` and its offset."""
    for fact in ("indexer_types", "indexer_pattern"):
        found = facts.find(fact)
        if found is None:
            continue
        modes = list(found.value) if isinstance(found.value, str | list) else []
        if len(modes) != layers:
            raise facts.error(fact, f"has {len(modes)} entries for {layers} layers", "one entry a layer")
        bad = next((n for n, mode in enumerate(modes) if mode not in _INDEXERS), None)
        if bad is not None:
            raise facts.error(fact, f"is {describe(modes[bad])}", "full or shared (F or S)", f"[{bad}]")
        facts.record(fact, found)
        for other in ("indexer_frequency", "indexer_offset"):
            facts.ignore(other, f"{found.key} says it")
        return [_INDEXERS[mode] for mode in modes]
    every, offset = facts.maybe_integer("indexer_frequency"), facts.maybe_integer("indexer_offset", low=0)
    if every is None:
        facts.assume("indexer_frequency", 1, f"{facts.family} has an indexer in every layer when the key is absent")
        facts.ignore("indexer_offset", "every layer has an indexer of its own")
        return [False] * layers
    if offset is None:
        facts.assume("indexer_offset", _OFFSET, f"{facts.family} takes {_OFFSET} when the key is absent")
        offset = _OFFSET
    return [max(index - offset + 1, 0) % every != 0 for index in range(layers)]


# --- feed-forward parts


def dots(facts: Facts, layers: int) -> Ffns:
    """Dense layers first; sigmoid scores, a correction buffer in the choice, shared experts (Dots1MoE)."""
    moe = with_shared(facts, Scoring("sigmoid", normalise=False), LLAMA_EXPERTS)
    first = first_dense(facts, layers)
    return choose(facts, [index >= first for index in range(layers)], moe, bias=False)


def glm_lite(facts: Facts, layers: int) -> Ffns:
    """By `mlp_layer_types`, else dense in the first layer alone (Glm4MoeLiteConfig)."""
    if facts.find("ffn_types") is None and facts.integer("first_dense", low=0) != 1:
        what = f"is {facts.value('first_dense')}: {facts.family} has one dense layer unless mlp_layer_types says other"
        raise facts.error("first_dense", what, "1, or mlp_layer_types with a word a layer")
    return deepseek_v32(facts, layers)


def solar_open(facts: Facts, layers: int) -> Ffns:
    """Experts and shared ones in all layers."""
    facts.ignore("ffn_width", "all layers are MoE, with experts of their own width")
    return (with_shared(facts, _SIGMOID, LLAMA_EXPERTS),) * layers


def granite_shared(facts: Facts, layers: int) -> Ffns:
    """Experts, and a shared part beside them unless its width is 0 (as it is when the key is absent)."""
    experts, top_k, scoring = routed(facts, Scoring())
    shared = facts.maybe_integer("shared_width", low=0)
    if shared is None:
        facts.assume("shared_width", 0, f"{facts.family} has no shared part when the key is absent")
        shared = 0
    moe = MoE(experts, top_k, facts.integer("ffn_width"), shared, scoring=scoring, names=GRANITE_EXPERTS)
    return (moe,) * layers


# --- what surrounds the layers


def offset_positions(facts: Facts, shell: Shell) -> Shell:
    """A table of learned positions, with rows before the first token's."""
    return replace(shell, positions=facts.integer("positions") + _POSITION_OFFSET)


def opt(facts: Facts, shell: Shell) -> Shell:
    """Norms before the parts, an embedding as wide as the layers; anything else is an InputError."""
    for fact, right in (("norm_before", True), ("no_final_norm", False), ("norm_affine", True)):
        if facts.flag(fact, right) is not right:
            raise facts.error(fact, f"is {str(not right).lower()}, which is not modelled", f"{str(right).lower()}")
    hidden, width = facts.integer("hidden"), facts.maybe_integer("embed_width")
    if width is None:
        facts.assume("embed_width", hidden, "the hidden size, when the key is absent")
    elif width != hidden:
        what = f"is {width}: projections between embedding and layers are not modelled"
        raise facts.error("embed_width", what, f"{hidden}, the hidden size")
    return offset_positions(facts, shell)


def mpt(facts: Facts, shell: Shell) -> Shell:
    """MptModel: no biases, ALiBi, plain queries and keys, a width of four times the hidden size."""
    for fact, right in (("no_bias", True), ("alibi", True), ("qk_layernorm", False)):
        if facts.flag(fact, right) is not right:
            what = f"is {str(not right).lower()}: the class of mpt has not got this"
            raise facts.error(fact, what, f"{str(right).lower()}, or no key")
    facts.word("attention_kind", ("multihead_attention",), "multihead_attention")
    facts.word("ffn_kind", ("mptmlp",), "mptmlp")
    if facts.number("expansion", 4.0) != 4:
        raise facts.error("expansion", "is not 4, the only one that the class of mpt has", "4, or no key")
    return shell


def optional_post_norm(facts: Facts, shell: Shell) -> Shell:
    """`use_post_norm` (true when absent): a norm behind each part."""
    return replace(shell, post_norm=facts.flag("post_norm", True))


def narrow_logits(facts: Facts, shell: Shell) -> Shell:
    """`dim_model_base`: the head's input is divided by hidden / that; a fact, no shape (minicpm3)."""
    facts.maybe_integer("logit_width")
    return shell


def same_bias(facts: Facts, shell: Shell) -> Shell:
    """InternLM3Config: attention and feed-forward part both have biases, or neither."""
    if facts.value("qkv_flag") != facts.value("other_bias"):
        what = f"({', '.join(spellings('other_bias'))}) differs from {', '.join(spellings('qkv_flag'))}"
        raise facts.error("other_bias", what, "the same for both")
    return shell
