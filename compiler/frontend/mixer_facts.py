"""Read the mixer of each layer: heads, biases, windows, latent ranks."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from compiler.frontend.facts import Facts
from compiler.frontend.read import describe
from compiler.frontend.spec import Attention, LatentAttention, Mixer, QkNorm

FULL, SLIDING = "full_attention", "sliding_attention"
#: Names of layer types: today's, and the older name transformers still accepts.
_LAYER_TYPES = {FULL: FULL, "attention": FULL, SLIDING: SLIDING}

Windows = Callable[[Facts, int], tuple[int | None, ...]]


class Bias(StrEnum):
    """Which projections of the attention have a bias."""

    NONE = "none"
    QKV = "qkv"  # fixed by the family's code
    STATED = "stated"  # attention_bias, false when absent
    NEEDED = "needed"  # attention_bias, needed


@dataclass(frozen=True, slots=True)
class Heads:
    """How a family's code reads its attention.

    kv_rule: an absent num_key_value_heads means as many as query heads (else it is needed).
    dim_rule: an absent head_dim means hidden / heads (else it is needed).
    """

    windows: Windows
    kv_rule: bool = False
    dim_rule: bool = True
    bias: Bias = Bias.NONE
    qk_norm: bool = False
    sinks: bool = False

    def __call__(self, facts: Facts, layers: int) -> tuple[Mixer, ...]:
        """The attention of each layer."""
        heads = facts.integer("heads")
        kv_heads = self._kv_heads(facts, heads)
        q, o = self._biases(facts)
        base = Attention(
            kv_heads=kv_heads,
            q_group=heads // kv_heads,
            head_dim=self._head_dim(facts, heads),
            sinks=self.sinks,
            qk_norm=QkNorm.HEAD if self.qk_norm else QkNorm.NONE,
            q_bias=q,
            k_bias=q,
            v_bias=q,
            o_bias=o,
        )
        if self.qk_norm:
            facts.fixed("qk_norm", True, f"{facts.family} normalises queries and keys")
        if self.sinks:
            facts.fixed("sinks", True, f"{facts.family} has an attention sink a head")
        made = {window: replace(base, window=window) for window in (*self.windows(facts, layers), None)}
        return tuple(made[window] for window in self.windows(facts, layers))

    def _kv_heads(self, facts: Facts, heads: int) -> int:
        found = facts.maybe_integer("kv_heads")
        if found is None:
            if not self.kv_rule:
                raise facts.missing("kv_heads")
            facts.assume("kv_heads", heads, f"{facts.family} takes num_attention_heads when the key is absent")
            return heads
        if heads % found:
            what = f"is {found}, which does not divide the {heads} attention heads"
            raise facts.error("kv_heads", what, f"a divisor of {heads}")
        return found

    def _head_dim(self, facts: Facts, heads: int) -> int:
        found = facts.maybe_integer("head_dim")
        if found is not None:
            return found
        if not self.dim_rule and not facts.source.defaults:
            raise facts.missing("head_dim")
        hidden = facts.integer("hidden")
        if hidden % heads:
            what = f"is {hidden}, which the {heads} attention heads do not divide, and there is no head_dim"
            raise facts.error("hidden", what, f"head_dim, or a multiple of {heads}")
        facts.assume("head_dim", hidden // heads, "hidden_size / num_attention_heads when the key is absent")
        return hidden // heads

    def _biases(self, facts: Facts) -> tuple[bool, bool]:
        """(bias of q, k and v; bias of o)."""
        if self.bias is Bias.NONE:
            return False, False
        if self.bias is Bias.QKV:
            facts.ignore("attention_bias", f"{facts.family} has a bias on q, k and v whatever the config says")
            facts.fixed("attention_bias", "q, k, v", f"{facts.family} has a bias on q, k and v, none on o")
            return True, False
        stated = facts.flag("attention_bias", None if self.bias is Bias.NEEDED else False)
        return stated, stated


def latent(facts: Facts, layers: int) -> tuple[Mixer, ...]:
    """Multi-head latent attention in all layers."""
    mixer = latent_mixer(facts)
    no_windows(facts, layers)
    return (mixer,) * layers


def latent_mixer(facts: Facts) -> LatentAttention:
    """Multi-head latent attention. The kv heads of the config mean nothing here."""
    facts.ignore("kv_heads", "latent attention caches one row a token for all heads")
    facts.ignore("head_dim", "latent attention has qk_nope_head_dim, qk_rope_head_dim and v_head_dim")
    facts.ignore("qk_dim", "it is qk_nope_head_dim + qk_rope_head_dim")
    q_lora = facts.maybe_integer("q_lora")
    if q_lora is None:
        if not facts.states("q_lora"):
            raise facts.missing("q_lora", "add q_lora_rank: a rank, or null for one plain q projection")
        facts.assume("q_lora", None, "null: one plain q projection")
    return LatentAttention(
        heads=facts.integer("heads"),
        q_lora=q_lora,
        kv_lora=facts.integer("kv_lora"),
        nope=facts.integer("nope"),
        rope=facts.integer("rope"),
        v_dim=facts.integer("v_dim"),
        bias=facts.flag("attention_bias", False),
    )


# --- windows: one a layer, None for all tokens


def no_windows(facts: Facts, layers: int) -> tuple[int | None, ...]:
    """All layers see all tokens. A layer_types list may say so, and nothing else."""
    return _uniform(facts, layers, None)


def same_window(facts: Facts, layers: int) -> tuple[int | None, ...]:
    """All layers have the window `sliding_window` (null: none). Absent is not null: the key is needed (mistral)."""
    window = facts.maybe_integer("window")
    if window is None and not facts.states("window"):
        raise facts.missing("window", "add sliding_window: a number of tokens, or null for none")
    if window is None:
        facts.assume("window", None, "null: no window")
    return _uniform(facts, layers, window)


def optional_window(facts: Facts, layers: int) -> tuple[int | None, ...]:
    """All layers have the window `sliding_window`; none when absent (mixtral)."""
    window = facts.maybe_integer("window")
    if window is None:
        facts.assume("window", None, f"{facts.family} has no window when the key is absent")
    return _uniform(facts, layers, window)


def gated_same_window(facts: Facts, layers: int) -> tuple[int | None, ...]:
    """All layers have the window when `use_sliding_window` is true (qwen3_moe)."""
    facts.ignore("window_layers", f"{facts.family} gives all layers the same window")
    return _uniform(facts, layers, _gated(facts))


def gated_windows(facts: Facts, layers: int) -> tuple[int | None, ...]:
    """Windows by `layer_types`, else from layer `max_window_layers` on, when `use_sliding_window` is true (qwen)."""
    window = _gated(facts)
    types = _layer_types(facts, layers)
    if window is None:
        facts.ignore("window_layers", "there is no window")
        return _uniform(facts, layers, None)
    if types is None:
        first = facts.integer("window_layers", low=0)
        return tuple(window if index >= first else None for index in range(layers))
    facts.ignore("window_layers", "layer_types says it")
    return tuple(window if kind == SLIDING else None for kind in types)


def typed_windows(facts: Facts, layers: int) -> tuple[int | None, ...]:
    """Windows by `layer_types`, which is needed (gpt_oss)."""
    types = _layer_types(facts, layers)
    if types is None:
        raise facts.missing("layer_types")
    window = facts.maybe_integer("window")
    if window is None and SLIDING in types:
        raise facts.missing("window")
    return tuple(window if kind == SLIDING else None for kind in types)


def _gated(facts: Facts) -> int | None:
    if facts.flag("use_window", False):
        return facts.integer("window")
    facts.ignore("window", "use_sliding_window is false")
    return None


def _uniform(facts: Facts, layers: int, window: int | None) -> tuple[int | None, ...]:
    types = _layer_types(facts, layers)
    expected = FULL if window is None else SLIDING
    if types is not None and set(types) != {expected}:
        what = f"has layers that are not {expected}, which {facts.family} as described here gives all its layers"
        raise facts.error("layer_types", what, f"{expected} for all layers, or a model_type that mixes them")
    return (window,) * layers


def _layer_types(facts: Facts, layers: int) -> tuple[str, ...] | None:
    """The type of each layer, None when absent. Entries beyond the layers must be those of the MTP modules."""
    items = facts.items("layer_types")
    if items is None:
        return None
    extra = facts.maybe_integer("mtp_modules", low=0) or 0
    if len(items) not in (layers, layers + extra):
        mtp = f" (or {layers + extra} with the MTP modules)" if extra else ""
        raise facts.error("layer_types", f"has {len(items)} entries for {layers} layers", f"one entry a layer{mtp}")
    for index, item in enumerate(items):
        if not isinstance(item, str) or item not in _LAYER_TYPES:
            what = f"is {describe(item)}, which {facts.family} as described here has not got"
            raise facts.error("layer_types", what, f"{FULL} or {SLIDING}", f"[{index}]")
    return tuple(_LAYER_TYPES[str(item)] for item in items[:layers])
