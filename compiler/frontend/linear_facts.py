"""Read the mixers of a hybrid model: linear attention, state spaces, short convolutions, the attention between them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from compiler.frontend.alias import ALIASES, LIMIT
from compiler.frontend.facts import Facts
from compiler.frontend.linear import GatedDeltaNet, KimiDelta, LightningAttention, Mamba2, MambaOne, ShortConv
from compiler.frontend.mixer_facts import STATED, Dim, Heads, Kv, QkRule, Rotary, latent_mixer
from compiler.frontend.patterns import Part, Pattern, interval, letters, listed, named, period, resolve, words, zero_one
from compiler.frontend.spans import Span
from compiler.frontend.spec import Attention, Beside, Mixer, QkNorm, SparseIndexer

Mixers = tuple[Mixer | None, ...]

_HEAD_RMS: Final = QkRule(QkNorm.HEAD)


def _everywhere(facts: Facts, layers: int) -> tuple[Span, ...]:
    """No window in any layer; the layer pattern is read elsewhere."""
    return (Span(),) * layers


def _attention(facts: Facts, heads: Heads) -> Attention:
    mixer = heads(facts, 1)[0]
    assert isinstance(mixer, Attention)
    return mixer


#: Ranks and widths of latent attention.
LATENT = ("q_lora", "kv_lora", "nope", "rope", "v_dim", "qk_dim")
#: What the config says about a part, and means nothing where no layer is that part.
_FACTS = {
    Part.FULL: ("heads", "kv_heads", "head_dim", "attention_bias", "rotary_share", *LATENT),
    Part.LINEAR: (
        *(fact for fact in ALIASES if fact.startswith(("delta_", "kimi_head", "ssm_", "conv_"))),
        "use_bias",
    ),
    Part.CONV: ("conv_kernel", "conv_bias"),
}


def _place(facts: Facts, pattern: Pattern, made: dict[Part, Callable[[], Mixer]]) -> Mixers:
    """The mixer of each layer, None where the pattern has a part that is no mixer; reads only what is there."""
    for part in (part for part in made if part not in pattern):
        for fact in _FACTS[part]:
            facts.ignore(fact, f"no layer is {part}")
    built = {part: make() for part, make in made.items() if part in pattern}
    return tuple(built.get(part) for part in pattern)


# --- gated delta net (Qwen3-Next, Qwen3.5)


def qwen3_next(facts: Facts, layers: int) -> Mixers:
    """Gated delta nets, and gated attention with normalised heads that are rotated in part."""
    sources = {"layer_types": listed("layer_types"), "full_interval": interval}
    pattern = resolve(facts, layers, (Part.LINEAR, Part.FULL), sources)
    _no_windows(facts)
    return _place(facts, pattern, {Part.LINEAR: lambda: _delta(facts), Part.FULL: lambda: _gated_attention(facts)})


def _delta(facts: Facts) -> GatedDeltaNet:
    heads, keys = facts.integer("delta_heads"), facts.integer("delta_key_heads")
    if heads % keys:
        what = f"is {keys}, which does not divide the {heads} value heads"
        raise facts.error("delta_key_heads", what, f"a divisor of {heads}")
    k_dim, v_dim = facts.integer("delta_key_dim"), facts.integer("delta_value_dim")
    return GatedDeltaNet(keys, heads, k_dim, v_dim, facts.integer("conv_kernel"))


def _gated_attention(facts: Facts) -> Attention:
    heads = Heads(_everywhere, dim=Dim.NEEDED, bias=(STATED,), qk_norm=_HEAD_RMS, rotary=Rotary(0.25))
    facts.fixed("gate", True, f"{facts.family} multiplies the output of attention by a sigmoid")
    return replace(_attention(facts, heads), gate=True)


def _no_windows(facts: Facts) -> None:
    if facts.flag("use_window", False):
        raise facts.error("use_window", f"is true: {facts.family} has no windows", "false")
    facts.ignore("window", f"{facts.family} has no windows")
    facts.ignore("window_layers", f"{facts.family} has no windows")


# --- Kimi delta attention


def kimi_linear(facts: Facts, layers: int) -> Mixers:
    """Kimi delta attention, and latent attention without positions."""
    sources = {"layer_types": listed("layer_types"), "kimi_delta_layers": _one_based}
    pattern = resolve(facts, layers, (Part.LINEAR, Part.FULL), sources)

    def delta() -> KimiDelta:
        dim = facts.integer("kimi_head_dim")
        return KimiDelta(facts.integer("kimi_heads"), dim, dim, facts.integer("conv_kernel"))

    facts.fixed("rotary", 0, f"attention of {facts.family} has no positions")
    return _place(facts, pattern, {Part.LINEAR: delta, Part.FULL: lambda: replace(latent_mixer(facts), rotary=False)})


def _one_based(facts: Facts, layers: int, allowed: tuple[Part, ...]) -> Pattern | None:
    """kda_layers and full_attn_layers count from 1 (the checkpoint of Kimi-Linear-48B-A3B)."""
    linear, full = facts.items("kimi_delta_layers"), facts.items("kimi_full_layers")
    if linear is None and full is None:
        return None
    for fact, items in (("kimi_delta_layers", linear), ("kimi_full_layers", full)):
        if items is None:
            raise facts.missing(fact)
    made = {item: Part.LINEAR for item in linear or () if type(item) is int}
    made |= {item: Part.FULL for item in full or () if type(item) is int}
    if sorted(made) != list(range(1, layers + 1)) or len(linear or ()) + len(full or ()) != layers:
        what = "and full_attn_layers do not name every layer once"
        raise facts.error("kimi_delta_layers", what, f"the layers 1 to {layers}, counted from 1")
    return tuple(made[index] for index in range(1, layers + 1))


# --- lightning attention (MiniMax-Text-01)


def minimax(facts: Facts, layers: int) -> Mixers:
    """Lightning attention with as many heads as the attention between has queries."""
    sources = {"layer_types": listed("layer_types"), "attention_flags": zero_one}
    pattern = resolve(facts, layers, (Part.LINEAR, Part.FULL), sources)
    full = _attention(facts, Heads(_everywhere, rotary=Rotary(1.0, dim=True)))
    if facts.maybe_integer("window") is not None:
        raise facts.error("window", "is set: windows of a hybrid model are not modelled", "null")
    linear = LightningAttention(full.kv_heads * full.q_group, full.head_dim)
    return tuple(linear if part is Part.LINEAR else full for part in pattern)


# --- state spaces


def mamba2(facts: Facts, layers: int) -> Mixers:
    """Mamba-2 in all layers. The heads must fill expand x hidden_size."""
    heads, dim, width = facts.integer("ssm_heads"), facts.integer("head_dim"), _inner(facts)
    if heads * dim != width:
        what = f"is {heads}: {heads} heads of {dim} are not expand x hidden_size = {width}"
        raise facts.error("ssm_heads", what, f"{width // dim}")
    facts.ignore("ssm_rank", "Mamba-2 has a step a head")
    return (_state_space(facts, heads, dim, facts.flag("use_bias", False)),) * layers


def nemotron_h(facts: Facts, layers: int) -> Mixers:
    """Layers of one part each: Mamba-2, attention without positions, or a feed-forward part."""
    facts.ignore("ssm_expand", "the width is mamba_num_heads x mamba_head_dim")
    facts.ignore("ssm_rank", "Mamba-2 has a step a head")
    facts.ignore("ssm_proj_bias", "use_bias says it")
    facts.ignore("rotary_share", "attention of Nemotron-H has no positions")
    pattern = nemotron_pattern(facts, layers)
    window = facts.maybe_integer("window")
    if window is not None:
        raise facts.error("window", f"is {window}: windows of a hybrid model are not modelled", "null")

    def space() -> Mamba2:
        heads, dim = facts.integer("ssm_heads"), facts.integer("ssm_head_dim")
        return _state_space(facts, heads, dim, facts.flag("use_bias", False))

    return _place(facts, pattern, {Part.LINEAR: space, Part.FULL: lambda: _unrotated(facts, Dim.NEEDED)})


def nemotron_layers(facts: Facts) -> int:
    """As many layers as the config says, else as its pattern has entries (its class counts those)."""
    stated = facts.maybe_integer("layers")
    if stated is not None:
        return stated
    for fact in ("letters", "block_types", "layer_types"):
        found = facts.find(fact)
        if found is not None and isinstance(found.value, str | list) and found.value:
            facts.assume("layers", len(found.value), f"the entries of {found.key}, when the key is absent")
            return len(found.value)
    raise facts.missing("layers")


def nemotron_pattern(facts: Facts, layers: int) -> Pattern:
    """What each layer is: `layers_block_type` or `hybrid_override_pattern`."""
    sources = {"letters": letters, "block_types": listed("block_types"), "layer_types": listed("layer_types")}
    return resolve(facts, layers, (Part.LINEAR, Part.FULL, Part.MLP, Part.MOE), sources)


def _unrotated(facts: Facts, dim: Dim) -> Attention:
    """Attention without positions."""
    facts.fixed("rotary", 0, f"attention of {facts.family} has no positions")
    return _attention(facts, Heads(_everywhere, dim=dim, rotary=Rotary(no=True)))


def bamba(facts: Facts, layers: int) -> Mixers:
    """Mamba-2, and attention of which half a head is rotated, as its class fixes it."""
    sources = {
        "attention_layers": named(Part.LINEAR),
        "block_types": listed("block_types"),
        "layer_types": listed("layer_types"),
    }
    pattern = resolve(facts, layers, (Part.LINEAR, Part.FULL), sources, Part.LINEAR)

    def full() -> Attention:
        base = _attention(facts, Heads(_everywhere, bias=(STATED,), rotary=Rotary(no=True)))
        return replace(base, rotary=base.head_dim // 2)

    facts.ignore("rotary_share", "Bamba rotates half a head")
    return _place(facts, pattern, {Part.LINEAR: lambda: _expanded(facts), Part.FULL: full})


def granite_hybrid(facts: Facts, layers: int) -> Mixers:
    """Mamba-2, and attention with positions only where `position_embedding_type` is rope."""
    sources = {"layer_types": listed("layer_types"), "block_types": listed("block_types")}
    pattern = resolve(facts, layers, (Part.LINEAR, Part.FULL), sources)
    rope = facts.word("position_kind", ("rope", "nope"), "nope") == "rope"

    def full() -> Attention:
        return _attention(facts, Heads(_everywhere, kv=Kv.RULE, bias=(STATED,), rotary=Rotary(no=not rope)))

    return _place(facts, pattern, {Part.LINEAR: lambda: _expanded(facts), Part.FULL: full})


def falcon_h1(facts: Facts, layers: int) -> Mixers:
    """In every layer Mamba-2 beside attention; the width of Mamba-2 may be stated, its norm is optional."""
    base = _attention(facts, Heads(_everywhere, bias=(STATED,)))
    width = facts.maybe_integer("ssm_width")
    if width is not None:
        facts.ignore("ssm_expand", "mamba_d_ssm says the width")
    elif not facts.states("ssm_width") or facts.find("ssm_expand") is None:
        raise facts.missing("ssm_width", "add mamba_d_ssm: a width, or null for mamba_expand x hidden_size")
    norm, out_bias = facts.flag("ssm_norm", False), facts.flag("ssm_out_bias", False)
    space = replace(_expanded(facts, width), norm=norm, out_bias=out_bias)
    return (Beside(base, space),) * layers


def _expanded(facts: Facts, stated: int | None = None) -> Mamba2:
    """Mamba-2 as wide as `stated`, else expand x hidden_size; `mamba_d_head` may be "auto"."""
    heads, width = facts.integer("ssm_heads"), _inner(facts) if stated is None else stated
    found = facts.find("ssm_head_dim")
    if found is not None and found.value != "auto":
        dim = facts.integer("ssm_head_dim")
    else:
        facts.assume("ssm_head_dim", width // heads, "auto: expand x hidden_size / heads")
        dim = width // heads
    if heads * dim != width:
        what = f"is {heads}: {heads} heads of {dim} do not fill a width of {width}"
        raise facts.error("ssm_heads", what, "heads that fill mamba_d_ssm, or expand x hidden_size")
    return _state_space(facts, heads, dim, facts.flag("ssm_proj_bias", False))


def _state_space(facts: Facts, heads: int, dim: int, bias: bool) -> Mamba2:
    groups = facts.integer("ssm_groups")
    if heads % groups:
        raise facts.error("ssm_groups", f"is {groups}, which does not divide the {heads} heads", f"divides {heads}")
    state, kernel = facts.integer("ssm_state"), facts.integer("conv_kernel")
    return Mamba2(groups, heads, state, dim, kernel, facts.flag("conv_bias", True), bias, bias)


def _inner(facts: Facts) -> int:
    expand = facts.number("ssm_expand")
    if expand is None:
        raise facts.missing("ssm_expand")
    width = int(expand * facts.integer("hidden"))
    if not 1 <= width <= LIMIT:
        raise facts.error("ssm_expand", f"is {expand:g}: {width} channels", f"1 to {LIMIT} channels")
    return width


def mamba(facts: Facts, layers: int) -> Mixers:
    """Mamba in all layers."""
    width, stated = _inner(facts), facts.maybe_integer("ffn_width")
    if stated not in (None, width):
        what = f"is {stated}: the width of the mixer is expand x hidden_size, which is {width}"
        raise facts.error("ffn_width", what, f"{width}, or no key")
    return (_selective(facts, facts.flag("use_bias", False), norms=False),) * layers


def jamba(facts: Facts, layers: int) -> Mixers:
    """Mamba with norms of step, B and C, and attention without positions every `attn_layer_period` layers."""
    sources = {
        "attention_period": period,
        "block_types": listed("block_types"),
        "layer_types": listed("layer_types"),
    }
    pattern = resolve(facts, layers, (Part.LINEAR, Part.FULL), sources)

    def space() -> MambaOne:
        return _selective(facts, facts.flag("ssm_proj_bias", False), norms=True)

    return _place(facts, pattern, {Part.LINEAR: space, Part.FULL: lambda: _unrotated(facts, Dim.RULE)})


def _selective(facts: Facts, bias: bool, norms: bool) -> MambaOne:
    """The rank of the step is hidden_size / 16, rounded up, where it is "auto" (as published, when absent)."""
    found = facts.find("ssm_rank")
    if found is None or found.value == "auto":
        rank = -(-facts.integer("hidden") // 16)
        facts.assume("ssm_rank", rank, "auto: hidden_size / 16, rounded up")
    else:
        rank = facts.integer("ssm_rank")
    state, kernel = facts.integer("ssm_state"), facts.integer("conv_kernel")
    return MambaOne(_inner(facts), state, rank, kernel, facts.flag("conv_bias", True), bias, norms)


# --- short convolution (LFM2)


def lfm2(facts: Facts, layers: int) -> Mixers:
    """Gated short convolutions, and attention with normalised heads."""
    sources = {"layer_types": listed("layer_types"), "attention_layers": named(Part.CONV)}
    pattern = resolve(facts, layers, (Part.CONV, Part.FULL), sources)

    def conv() -> ShortConv:
        return ShortConv(facts.integer("hidden"), facts.integer("conv_kernel"), facts.flag("conv_bias", False))

    full = Heads(_everywhere, qk_norm=_HEAD_RMS)
    return _place(facts, pattern, {Part.CONV: conv, Part.FULL: lambda: _attention(facts, full)})


# --- sparse attention on latents (DeepSeek-V3.2)


def sparse_latent(facts: Facts, layers: int) -> Mixers:
    """Latent attention that reads the rows an indexer selects, in all layers."""
    pattern = words(facts, "layer_types", layers, (Part.INDEXED,))
    if pattern is None:
        facts.fixed("layer_types", str(Part.INDEXED), f"{facts.family} has an indexer in all layers")
    facts.integer("q_lora")
    indexer = SparseIndexer(facts.integer("index_heads"), facts.integer("index_dim"), facts.integer("index_topk"))
    return (replace(latent_mixer(facts), indexer=indexer),) * layers
