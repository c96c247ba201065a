"""Read the feed-forward parts of the hybrid families."""

from dataclasses import replace
from typing import Final

from compiler.frontend.alias import LIMIT
from compiler.frontend.facts import Facts
from compiler.frontend.ffn_facts import Ffns, choose, first_dense, no_frequency, qwen3_moe, routed, with_shared
from compiler.frontend.layouts import (
    GRANITE_EXPERTS,
    JAMBA_EXPERTS,
    KIMI_EXPERTS,
    LFM_EXPERTS,
    LLAMA_EXPERTS,
    MIXTRAL_EXPERTS,
    NEMOTRON_EXPERTS,
    QWEN_EXPERTS,
)
from compiler.frontend.linear_facts import nemotron_pattern
from compiler.frontend.patterns import Part, every_nth, per_layer
from compiler.frontend.read import describe
from compiler.frontend.spec import Dense, Ffn, MoE, Scoring

SIGMOID: Final = Scoring(function="sigmoid")


def none(facts: Facts, layers: int) -> Ffns:
    """Mixers only."""
    return (None,) * layers


def qwen3_next(facts: Facts, layers: int) -> Ffns:
    """As in Qwen3-MoE, with a shared expert behind a sigmoid gate; the gates of the chosen add up to 1 when silent."""
    return _gated_shared(facts, layers, True)


def qwen2_moe(facts: Facts, layers: int) -> Ffns:
    """As in Qwen3-Next; the gates of the chosen do not add up to 1 when silent."""
    return _gated_shared(facts, layers, False)


def _gated_shared(facts: Facts, layers: int, silent: bool) -> Ffns:
    """silent: whether the gates of the chosen add up to 1 when the config does not say."""
    ffns = qwen3_moe(facts, layers)
    if all(isinstance(ffn, Dense) for ffn in ffns):
        return ffns
    if facts.find("normalise") is None:
        facts.assume("normalise", silent, f"{facts.family} takes {str(silent).lower()} when the key is absent")
    width, normalise = facts.integer("shared_width"), facts.find("normalise")
    scoring = Scoring(normalise=silent if normalise is None else normalise.value is True)

    def shared(moe: MoE) -> MoE:
        return replace(moe, shared_width=width, shared_gate=True, scoring=scoring, names=QWEN_EXPERTS)

    return tuple(shared(ffn) if isinstance(ffn, MoE) else ffn for ffn in ffns)


def qwen3_5_moe(facts: Facts, layers: int) -> Ffns:
    """Experts, and a shared one behind a sigmoid gate, in all layers."""
    experts, top_k, scoring = routed(facts, Scoring())
    width, shared = facts.integer("expert_width"), facts.integer("shared_width")
    moe = MoE(experts, top_k, width, shared, shared_gate=True, scoring=scoring, names=QWEN_EXPERTS)
    return (moe,) * layers


def nemotron_h(facts: Facts, layers: int) -> Ffns:
    """Where the layer is one: an MLP of two projections, or experts of two, perhaps on a narrower latent."""
    pattern = nemotron_pattern(facts, layers)
    bias = facts.flag("mlp_bias", False)
    made: dict[Part, Ffn] = {}
    if Part.MLP in pattern:
        made[Part.MLP] = Dense(facts.integer("ffn_width"), gated=False, bias=bias)
    else:
        facts.ignore("ffn_width", "no layer is an MLP")
    if Part.MOE in pattern:
        made[Part.MOE] = _nemotron_moe(facts, bias)
    else:
        for fact in ("experts", "top_k", "expert_width", "shared_width", "shared_experts", "latent_width"):
            facts.ignore(fact, "no layer has experts")
        for fact in ("expert_groups", "top_groups", "normalise", "routed_scale"):
            facts.ignore(fact, "no layer has experts")
    return tuple(made.get(part) for part in pattern)


def _nemotron_moe(facts: Facts, bias: bool) -> MoE:
    """Experts without a gate, and always one shared expert, of `moe_shared_expert_intermediate_size`."""
    experts, top_k, scoring = routed(facts, SIGMOID)
    facts.ignore("shared_experts", "there is one shared expert, of its own width")
    return MoE(
        experts,
        top_k,
        facts.integer("expert_width"),
        facts.integer("shared_width"),
        gated=False,
        shared_bias=bias,
        latent=facts.maybe_integer("latent_width") or 0,
        latent_bias=bias,
        scoring=scoring,
        names=NEMOTRON_EXPERTS,
    )


def kimi_linear(facts: Facts, layers: int) -> Ffns:
    """Dense layers first, or as `mlp_layer_types` says; experts as in DeepSeek-V3."""
    return choose(facts, _sparse(facts, layers), with_shared(facts, SIGMOID, KIMI_EXPERTS), bias=False)


def deepseek_v32(facts: Facts, layers: int) -> Ffns:
    """As Kimi Linear, under DeepSeek's names."""
    facts.word("topk_method", ("noaux_tc",), "noaux_tc")
    return choose(facts, _sparse(facts, layers), with_shared(facts, SIGMOID, LLAMA_EXPERTS), bias=True)


def _sparse(facts: Facts, layers: int) -> list[bool]:
    items = per_layer(facts, "ffn_types", layers)
    no_frequency(facts)
    if items is None:
        if facts.maybe_integer("first_dense", low=0) is None:
            raise facts.missing("first_dense", "add first_k_dense_replace, or mlp_layer_types with a word a layer")
        first = first_dense(facts, layers)
        return [index >= first for index in range(layers)]
    facts.ignore("first_dense", "mlp_layer_types says it")
    for index, item in enumerate(items):
        if item not in ("dense", "sparse"):
            raise facts.error("ffn_types", f"is {describe(item)}", "dense or sparse", f"[{index}]")
    return [item == "sparse" for item in items]


def lfm2(facts: Facts, layers: int) -> Ffns:
    """A gated part; its width is two thirds of the one stated, times a factor, in whole multiples (Lfm2MLP)."""
    stated = facts.maybe_integer("lfm_width")
    if stated is None:
        stated = facts.integer("ffn_width")
    else:
        facts.ignore("ffn_width", "block_ff_dim says it")
    return (Dense(_lfm_width(facts, stated)),) * layers


def _lfm_width(facts: Facts, stated: int) -> int:
    names = ("lfm_multiplier", "lfm_multiple")
    if not facts.flag("lfm_adjust", True):
        for fact in names:
            facts.ignore(fact, "block_auto_adjust_ff_dim is false")
        return stated
    factor, multiple = facts.number("lfm_multiplier"), facts.maybe_integer("lfm_multiple")
    if multiple is None:
        raise facts.missing("lfm_multiple")
    if factor is None:
        raise facts.missing("lfm_multiplier")
    width = -(-int(factor * int(2 * stated / 3)) // multiple) * multiple
    if not 1 <= width <= LIMIT:
        what = f"is {factor:g}: it makes {width} out of the width {stated}"
        raise facts.error("lfm_multiplier", what, f"a width from 1 to {LIMIT}")
    return width


def lfm2_moe(facts: Facts, layers: int) -> Ffns:
    """Dense layers first; sigmoid scores, with a correction buffer in the choice."""
    first = first_dense(facts, layers)
    experts, top_k, scoring = routed(facts, SIGMOID)
    moe = MoE(experts, top_k, facts.integer("expert_width"), scoring=scoring, names=LFM_EXPERTS)
    plain = Dense(facts.integer("ffn_width"))
    return tuple(plain if index < first else moe for index in range(layers))


def minimax(facts: Facts, layers: int) -> Ffns:
    """Experts of width `intermediate_size` in all layers."""
    shared = facts.maybe_integer("shared_width", low=0)
    if shared:
        raise facts.error("shared_width", f"is {shared}: no shared expert is modelled in {facts.family}", "0")
    experts, top_k, scoring = routed(facts, Scoring())
    return (MoE(experts, top_k, facts.integer("ffn_width"), scoring=scoring, names=MIXTRAL_EXPERTS),) * layers


def jamba(facts: Facts, layers: int) -> Ffns:
    """Experts of width `intermediate_size` every `expert_layer_period` layers, a dense part of it elsewhere."""
    width, sparse = facts.integer("ffn_width"), every_nth(facts, layers, "expert_period", "expert_offset")
    if sparse is None:
        raise facts.missing("expert_period")
    experts, top_k, scoring = routed(facts, Scoring(normalise=False))
    # A single expert is a dense part (JambaDecoderLayer).
    moe: Ffn = Dense(width) if experts == 1 else MoE(experts, top_k, width, scoring=scoring, names=JAMBA_EXPERTS)
    return tuple(moe if chosen else Dense(width) for chosen in sparse)


def granite_hybrid(facts: Facts, layers: int) -> Ffns:
    """A shared part of `shared_intermediate_size` in all layers, and experts beside it unless there are 0."""
    shared, count = facts.integer("shared_width"), facts.integer("experts", low=0)
    if count == 0:
        for fact in ("top_k", "ffn_width"):
            facts.ignore(fact, "there are no experts")
        return (Dense(shared),) * layers
    experts, top_k, scoring = routed(facts, Scoring())
    width = facts.integer("ffn_width")
    return (MoE(experts, top_k, width, shared, scoring=scoring, names=GRANITE_EXPERTS),) * layers
