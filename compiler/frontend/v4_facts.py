"""Read DeepSeek-V4: compressed attention by layer, hash-routed experts, hyper-connections (DeepseekV4Config)."""

from dataclasses import replace
from typing import Final

from compiler.frontend.compressed import CompressedAttention, Compressor, HyperConnections
from compiler.frontend.facts import Facts
from compiler.frontend.family import Shell
from compiler.frontend.ffn_facts import routed
from compiler.frontend.layouts import V4_EXPERTS
from compiler.frontend.patterns import Part, Pattern, listed, per_layer, resolve
from compiler.frontend.read import describe
from compiler.frontend.spec import Ffn, Mixer, MoE, Scoring, SparseIndexer

_PARTS: Final = (Part.SLIDING, Part.SPARSE, Part.HEAVY)
#: `compress_ratios` names a kind of layer by its ratio.
_RATIOS: Final = {0: Part.SLIDING, 4: Part.SPARSE, 128: Part.HEAVY}
#: The facts of the ratio of each kind, and the ratio when the config is silent.
_RATES: Final = {Part.SPARSE: ("sparse_ratio", 4), Part.HEAVY: ("heavy_ratio", 128)}


def mixers(facts: Facts, layers: int) -> tuple[Mixer | None, ...]:
    """Attention over a window, over it and chosen compressed rows, or over it and all heavily compressed rows."""
    pattern = resolve(facts, layers, _PARTS, {"compress_ratios": _ratios, "layer_types": listed("layer_types")})
    heads, groups, dim = facts.integer("heads"), facts.integer("o_groups"), facts.integer("head_dim")
    if heads % groups:
        raise facts.error("o_groups", f"is {groups}, which does not divide the {heads} heads", f"a divisor of {heads}")
    facts.ignore("kv_heads", "one row a token is key and value of all heads")
    if facts.flag("attention_bias", False):
        raise facts.error("attention_bias", f"is true: {facts.family} has no biases", "false, or no key")
    base = CompressedAttention(
        heads=heads,
        head_dim=dim,
        q_lora=facts.integer("q_lora"),
        window=facts.integer("window"),
        o_groups=groups,
        o_rank=facts.integer("o_lora"),
        rotary=_rotary(facts, dim),
    )
    made = {part: _with_rows(facts, base, part) for part in dict.fromkeys(pattern)}
    return tuple(made[part] for part in pattern)


def _ratios(facts: Facts, layers: int, allowed: tuple[Part, ...]) -> Pattern | None:
    """compress_ratios: a number a layer."""
    items = per_layer(facts, "compress_ratios", layers)
    if items is None:
        return None
    for index, item in enumerate(items):
        if type(item) is not int or item not in _RATIOS:
            raise facts.error("compress_ratios", f"is {describe(item)}", "0, 4 or 128", f"[{index}]")
    return tuple(_RATIOS[item] for item in items if isinstance(item, int))


def _rotary(facts: Facts, dim: int) -> int:
    """Elements of a row that are rotated: qk_rope_head_dim, or a share of the row."""
    share = facts.number("rotary_share")
    rotated = facts.maybe_integer("rope")
    if rotated is None and share is None:
        raise facts.missing("rope", "add qk_rope_head_dim, or partial_rotary_factor")
    if rotated is None:
        rotated = int(dim * (share or 0))
    elif share is not None and int(dim * share) != rotated:
        raise facts.error("rotary_share", f"makes {int(dim * share)} elements", f"{rotated}, as qk_rope_head_dim says")
    if rotated > dim:
        raise facts.error("rope", f"is {rotated}, more than the {dim} of a row", f"1 to {dim}")
    facts.fixed("rotary_share", rotated / dim, "the share of a row that is rotated")
    return rotated


def _with_rows(facts: Facts, base: CompressedAttention, part: Part) -> CompressedAttention:
    if part is Part.SLIDING:
        return base
    fact, usual = _RATES[part]
    ratio = facts.maybe_integer(fact, low=2)
    if ratio is None:
        facts.assume(fact, usual, f"{facts.family} takes {usual} when the config is silent")
        ratio = usual
    if part is Part.HEAVY:
        return replace(base, compressor=Compressor(ratio))
    indexer = SparseIndexer(facts.integer("index_heads"), facts.integer("index_dim"), facts.integer("index_topk"))
    return replace(base, compressor=Compressor(ratio, overlap=True), indexer=indexer)


def ffns(facts: Facts, layers: int) -> tuple[Ffn | None, ...]:
    """Experts and one shared expert of their width in all layers; by a token's id in the first, or where listed."""
    usual = Scoring("sqrtsoftplus", scale=1.5)
    experts, top_k, scoring = routed(facts, usual)
    facts.word("topk_method", ("noaux_tc",), "noaux_tc")
    if not scoring.normalise:
        raise facts.error("normalise", f"is false: gates of {facts.family} add up to 1", "true, or no key")
    shared = facts.maybe_integer("shared_experts")
    if shared not in (None, 1):
        raise facts.error("shared_experts", f"is {shared}: {facts.family} has one shared expert", "1, or no key")
    facts.number("activation_limit")
    if facts.flag("mlp_bias", False):
        raise facts.error("mlp_bias", "is true: biases of the shared expert are not modelled", "false, or no key")
    width = facts.integer("expert_width")
    moe = MoE(experts, top_k, width, width, scoring=scoring, names=V4_EXPERTS)
    hashed = replace(moe, hashed=True)
    return tuple(hashed if there else moe for there in _hashed(facts, layers))


def _hashed(facts: Facts, layers: int) -> list[bool]:
    items = per_layer(facts, "ffn_types", layers)
    if items is None:
        first = facts.maybe_integer("hash_layers", low=0)
        if first is None:
            raise facts.missing("hash_layers", "add num_hash_layers, or mlp_layer_types with a word a layer")
        return [index < first for index in range(layers)]
    facts.ignore("hash_layers", "mlp_layer_types says it")
    for index, item in enumerate(items):
        if item not in ("hash_moe", "moe"):
            raise facts.error("ffn_types", f"is {describe(item)}", "hash_moe or moe", f"[{index}]")
    return [item == "hash_moe" for item in items]


def streams(facts: Facts, shell: Shell) -> Shell:
    """hc_mult streams, mixed by matrices made doubly stochastic in hc_sinkhorn_iters."""
    return replace(shell, hyper=HyperConnections(facts.integer("streams"), facts.integer("sinkhorn")))
