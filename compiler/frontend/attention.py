"""The ops of a mixer: from the block input `x` to `attn.y`, with the residual connection.

Decode reads the cache as a block input and gives the appended rows; prefill gives the whole cache. Scores are full:
every token meets every cached token, as the published kernels' FLOP counters count it.
"""

from compiler.frontend.builder import BlockBuilder, Weight
from compiler.frontend.quant import WeightKind
from compiler.frontend.spec import Attention, LatentAttention, Mixer
from compiler.ir.graph import Op, Pattern, Phase, Role

#: Softmax: maximum, subtract, exponential (counted as 3), add, divide: 7 operations a score.
SOFTMAX_FLOPS = 7
#: Rotary embedding: two products and an addition an element.
ROPE_FLOPS = 3


def mixer_sizes(mixer: Mixer, context: int) -> dict[str, int]:
    """Sizes of the dimensions of a mixer. `context` is what the cache of this layer holds."""
    sizes = {"context": mixer.cached_tokens(context)}
    if isinstance(mixer, Attention):
        return sizes | {"kv_heads": mixer.kv_heads, "q_group": mixer.q_group, "head_dim": mixer.head_dim}
    sizes |= {"heads": mixer.heads, "kv_lora": mixer.kv_lora, "nope": mixer.nope, "rope": mixer.rope}
    sizes |= {"v_dim": mixer.v_dim, "qk_dim": mixer.qk_dim, "kv_b": mixer.nope + mixer.v_dim}
    sizes |= {"kv_a": mixer.kv_lora + mixer.rope, "latent_dim": mixer.kv_lora + mixer.rope}
    return sizes if mixer.q_lora is None else sizes | {"q_lora": mixer.q_lora}


def add_mixer(b: BlockBuilder, mixer: Mixer, phase: Phase) -> tuple[str, ...]:
    """Append the ops of `mixer`; returns the cache tensors among the block's outputs."""
    if isinstance(mixer, Attention):
        return _add_gqa(b, mixer, phase)
    return _add_mla(b, mixer, phase)


def _add_gqa(b: BlockBuilder, mixer: Attention, phase: Phase) -> tuple[str, ...]:
    query, key_row = "tokens kv_heads q_group head_dim", "tokens kv_heads head_dim"
    cache = "batch context kv_heads head_dim"
    decode = phase is Phase.DECODE
    if decode:
        b.enter("attn.k_cache", cache, Role.KV_CACHE)
        b.enter("attn.v_cache", cache, Role.KV_CACHE)
    b.norm("attn.norm", "x", "attn.normed", "tokens hidden", "input_layernorm.weight")
    for name, words, bias in (
        ("q", query, mixer.q_bias),
        ("k", key_row, mixer.k_bias),
        ("v", key_row, mixer.v_bias),
    ):
        weight = Weight(f"self_attn.{name}_proj.weight", bias)
        b.project(f"attn.{name}_proj", ("attn.normed",), f"attn.{name}", f"{words} <- hidden", weight)
    q, k = "attn.q", "attn.k"
    if mixer.qk_norm:
        b.norm("attn.q_norm", q, "attn.q_normed", query, "self_attn.q_norm.weight")
        b.norm("attn.k_norm", k, "attn.k_normed", key_row, "self_attn.k_norm.weight")
        q, k = "attn.q_normed", "attn.k_normed"
    b.pointwise("attn.q_rope", (q,), "attn.q_rot", query, ROPE_FLOPS)
    b.pointwise("attn.k_rope", (k,), "attn.k_rot", key_row, ROPE_FLOPS)
    out = ("attn.k_new", "attn.v_new") if decode else ("attn.k_cache", "attn.v_cache")
    append = Op("attn.kv_append", Pattern.SCATTER, b.dims(key_row), ("attn.k_rot", "attn.v"), out, flops_per_point=0)
    words = key_row if decode else cache
    b.emit(append, words, words, role=Role.KV_CACHE)
    keys = ("attn.k_cache", "attn.k_new") if decode else ("attn.k_cache",)
    values = ("attn.v_cache", "attn.v_new") if decode else ("attn.v_cache",)
    sinks: tuple[str, ...] = ()
    if mixer.sinks:
        sinks = (b.weight("w.attn.softmax", "kv_heads q_group", "self_attn.sinks"),)
    _core(b, ("kv_heads q_group", "head_dim", "head_dim"), ("attn.q_rot", *keys), values, sinks)
    out_proj = Weight("self_attn.o_proj.weight", mixer.o_bias)
    b.project("attn.o_proj", ("attn.mixed",), "attn.out", "tokens hidden <- kv_heads q_group head_dim", out_proj)
    b.pointwise("attn.residual", ("x", "attn.out"), "attn.y", "tokens hidden")
    return out


def _core(
    b: BlockBuilder,
    words: tuple[str, str, str],
    keys: tuple[str, ...],
    values: tuple[str, ...],
    sinks: tuple[str, ...] = (),
) -> None:
    """Scores, softmax and weighted values. `words`: head dimensions, dimension of a key, dimension of a value."""
    heads, key_dim, value_dim = words
    table = f"tokens {heads} context"
    scores = Op(
        "attn.scores",
        Pattern.CONTRACT,
        b.dims(f"tokens {heads} {key_dim} context"),
        keys,
        ("attn.scores_out",),
        reduced=(key_dim,),
        sequential=("context",),
        flops_per_point=2,
    )
    b.emit(scores, table)
    softmax = Op(
        "attn.softmax",
        Pattern.REDUCE,
        b.dims(table),
        ("attn.scores_out", *sinks),
        ("attn.probs",),
        sequential=("context",),
        flops_per_point=SOFTMAX_FLOPS,
    )
    b.emit(softmax, table)
    mixed = Op(
        "attn.values",
        Pattern.CONTRACT,
        b.dims(f"tokens {heads} {value_dim} context"),
        ("attn.probs", *values),
        ("attn.mixed",),
        reduced=("context",),
        sequential=("context",),
        flops_per_point=2,
    )
    b.emit(mixed, f"tokens {heads} {value_dim}")


def _add_mla(b: BlockBuilder, mixer: LatentAttention, phase: Phase) -> tuple[str, ...]:
    if phase is Phase.DECODE:
        b.enter("attn.latent_cache", "batch context latent_dim", Role.KV_CACHE)
    b.norm("attn.norm", "x", "attn.normed", "tokens hidden", "input_layernorm.weight")
    _mla_query(b, mixer)
    down = Weight("self_attn.kv_a_proj_with_mqa.weight", mixer.bias)
    b.project("attn.kv_a_proj", ("attn.normed",), "attn.kv_a", "tokens kv_a <- hidden", down)
    b.norm("attn.kv_a_norm", "attn.kv_a", "attn.latent", "tokens kv_lora", "self_attn.kv_a_layernorm.weight")
    b.pointwise("attn.k_rope", ("attn.kv_a",), "attn.k_pe", "tokens rope", ROPE_FLOPS)
    out = _mla_cache(b, phase)
    _core(b, ("heads", "qk_dim", "v_dim"), ("attn.q_nope", "attn.q_pe", "attn.k"), ("attn.v",))
    out_proj = Weight("self_attn.o_proj.weight", mixer.bias)
    b.project("attn.o_proj", ("attn.mixed",), "attn.out", "tokens hidden <- heads v_dim", out_proj)
    b.pointwise("attn.residual", ("x", "attn.out"), "attn.y", "tokens hidden")
    return out


def _mla_query(b: BlockBuilder, mixer: LatentAttention) -> None:
    query = "tokens heads qk_dim"
    if mixer.q_lora is None:
        b.project("attn.q_proj", ("attn.normed",), "attn.q", f"{query} <- hidden", Weight("self_attn.q_proj.weight"))
    else:
        down = Weight("self_attn.q_a_proj.weight", mixer.bias)
        b.project("attn.q_a_proj", ("attn.normed",), "attn.q_a", "tokens q_lora <- hidden", down)
        b.norm("attn.q_a_norm", "attn.q_a", "attn.q_a_normed", "tokens q_lora", "self_attn.q_a_layernorm.weight")
        up = Weight("self_attn.q_b_proj.weight")
        b.project("attn.q_b_proj", ("attn.q_a_normed",), "attn.q", f"{query} <- q_lora", up)
    rope = Op(
        "attn.q_rope",
        Pattern.MAP,
        b.dims(query),
        ("attn.q",),
        ("attn.q_nope", "attn.q_pe"),
        flops_per_point=ROPE_FLOPS,
    )
    b.emit(rope, "tokens heads nope", "tokens heads rope")


def _mla_cache(b: BlockBuilder, phase: Phase) -> tuple[str, ...]:
    """Append the latent rows, and expand the cached latents to keys and values of all heads."""
    decode = phase is Phase.DECODE
    out, words = (
        ("attn.latent_new", "tokens latent_dim")
        if decode
        else (
            "attn.latent_cache",
            "batch context latent_dim",
        )
    )
    rows = ("attn.latent", "attn.k_pe")
    append = Op("attn.kv_append", Pattern.SCATTER, b.dims("tokens latent_dim"), rows, (out,), flops_per_point=0)
    b.emit(append, words, role=Role.KV_CACHE)
    weight = b.weight("w.attn.kv_b_proj", "heads kv_b kv_lora", "self_attn.kv_b_proj.weight", WeightKind.LINEAR)
    expand = Op(
        "attn.kv_b_proj",
        Pattern.CONTRACT,
        b.dims("batch context heads kv_b kv_lora" if decode else "tokens heads kv_b kv_lora"),
        (*(("attn.latent_cache", "attn.latent_new") if decode else rows), weight),
        ("attn.k", "attn.v"),
        reduced=("kv_lora",),
        flops_per_point=2,
    )
    b.emit(expand, "batch context heads qk_dim", "batch context heads v_dim")
    return (out,)
