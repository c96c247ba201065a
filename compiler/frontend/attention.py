"""The ops of a mixer: from the block input `x` to `attn.y`, with the residual connection.

Decode reads the cache as a block input and gives the appended rows; prefill gives the whole cache. Scores are full:
every token meets every cached token, as the published kernels' FLOP counters count it.
"""

from compiler.frontend.altup_ops import add_laurel, laurel_residual, predict
from compiler.frontend.builder import BlockBuilder, Weight
from compiler.frontend.compressed import CompressedAttention
from compiler.frontend.compressed_ops import add_compressed, compressed_sizes
from compiler.frontend.core import Sources, add_core
from compiler.frontend.flops import ALIBI_FLOPS, ROPE_FLOPS, SIGMOID_FLOPS, SOFTCAP_FLOPS, SOFTMAX_FLOPS
from compiler.frontend.hyper import enter_part, leave_part
from compiler.frontend.indexer import add_indexer, indexer_sizes, select_latents
from compiler.frontend.linear import Recurrent
from compiler.frontend.quant import WeightKind
from compiler.frontend.recurrent import add_linear, linear_sizes
from compiler.frontend.spec import Attention, Beside, LatentAttention, Layer, Mixer, QkNorm, Wiring
from compiler.ir.dtype import DType
from compiler.ir.graph import Op, Pattern, Phase, Role


def mixer_sizes(mixer: Mixer, context: int, batch: int) -> dict[str, int]:
    """Sizes of the dimensions of a mixer behind (decode) or over (prefill) `context` tokens of `batch` sequences."""
    if isinstance(mixer, CompressedAttention):
        return compressed_sizes(mixer, context, batch)
    if isinstance(mixer, Recurrent):
        return linear_sizes(mixer)
    if isinstance(mixer, Beside):
        return mixer_sizes(mixer.attention, context, batch) | linear_sizes(mixer.linear)
    sizes = {"context": mixer.cached_tokens(context)}
    if isinstance(mixer, Attention):
        return sizes | {"kv_heads": mixer.kv_heads, "q_group": mixer.q_group, "head_dim": mixer.head_dim}
    sizes |= {"heads": mixer.heads, "kv_lora": mixer.kv_lora, "nope": mixer.nope, "rope": mixer.rope}
    sizes |= {"v_dim": mixer.v_dim, "qk_dim": mixer.qk_dim, "kv_b": mixer.nope + mixer.v_dim}
    sizes |= {"kv_a": mixer.kv_lora + mixer.rope, "latent_dim": mixer.kv_lora + mixer.rope}
    sizes |= indexer_sizes(mixer.indexer, context) if mixer.indexer else {}
    return sizes if mixer.q_lora is None else sizes | {"q_lora": mixer.q_lora}


def add_mixer(b: BlockBuilder, layer: Layer, phase: Phase) -> tuple[str, ...]:
    """Append the ops of the mixer of `layer`; returns the cache tensors among the block's outputs.

    It reads `x` (behind `attn.norm`) and ends in `attn.y`, in a parallel layer in `attn.out`.
    """
    part = "mixer" if isinstance(layer.mixer, Recurrent) else "attn"
    x = predict(b, "x") if layer.altup else "x"
    source = enter_part(b, layer.hyper, part, x) if layer.hyper else x
    if layer.pre_norm:
        b.norm(f"{part}.norm", source, "attn.normed", "tokens hidden", layer.norm)
        source = "attn.normed"
    last = "attn.out"
    if isinstance(layer.mixer, Recurrent):
        out = add_linear(b, layer.mixer, phase, source)
    elif isinstance(layer.mixer, Beside):
        out = (
            *_add_gqa(b, layer.mixer.attention, phase, source),
            *add_linear(b, layer.mixer.linear, phase, source, "mixer.out"),
        )
        both = Op(
            "mixer.add", Pattern.MAP, b.dims("tokens hidden"), ("attn.out", "mixer.out"), ("attn.sum",), linear=True
        )
        b.emit(both, "tokens hidden")
        last = "attn.sum"
    elif isinstance(layer.mixer, Attention):
        out = _add_gqa(b, layer.mixer, phase, source)
    elif isinstance(layer.mixer, LatentAttention):
        out = _add_mla(b, layer.mixer, phase, source)
    elif isinstance(layer.mixer, CompressedAttention):
        out = add_compressed(b, layer.mixer, phase, source)
    else:
        raise TypeError(f"no mixer: {layer.mixer}")
    if layer.post_norm:
        b.norm(f"{part}.post_norm", last, "attn.out_normed", "tokens hidden", layer.norm)
        last = "attn.out_normed"
    if layer.hyper:
        leave_part(b, part, x, last, "attn.y")
    elif layer.sum_norm:
        b.pointwise(f"{part}.residual", (x, last), "attn.sum", "tokens hidden")
        b.norm(f"{part}.sum_norm", "attn.sum", "attn.y", "tokens hidden", layer.norm)
    elif layer.laurel:
        laurel_residual(b, (x, last, source, add_laurel(b, source)), "attn.y")
    elif layer.wiring is Wiring.SERIAL:
        b.pointwise(f"{part}.residual", (x, last), "attn.y", "tokens hidden")
    return out


QUERY, ROW, CACHE = "tokens kv_heads q_group head_dim", "tokens kv_heads head_dim", "batch context kv_heads head_dim"


def _add_gqa(b: BlockBuilder, mixer: Attention, phase: Phase, source: str) -> tuple[str, ...]:
    if (phase is Phase.DECODE and mixer.causal) or mixer.borrows:
        role = Role.BORROWED if mixer.borrows else Role.KV_CACHE
        b.enter("attn.k_cache", CACHE, role)
        b.enter("attn.v_cache", CACHE, role)
    made = {"q": QUERY}
    if not mixer.borrows:
        made |= {"k": ROW} if mixer.k_is_v else {"k": ROW, "v": ROW}
    biases = {"q": mixer.q_bias, "gate": mixer.q_bias, "k": mixer.k_bias, "v": mixer.v_bias}
    for name, words in (made | {"gate": QUERY} if mixer.gate else made).items():
        weight = Weight(b.names.module(f"attn.{name}_proj"), biases[name])
        placed = CACHE if words == ROW and _made_in_place(mixer) else ""
        b.project(f"attn.{name}_proj", (source,), f"attn.{name}", f"{words} <- hidden", weight, placed)
    row = {name: f"attn.{name}" for name in made} | ({"v": "attn.k"} if mixer.k_is_v else {})
    if mixer.v_norm and not mixer.borrows:
        b.norm("attn.v_norm", row["v"], "attn.v_normed", ROW, mixer.v_norm)
        row["v"] = "attn.v_normed"
    for name in ("q", "k") if mixer.qk_norm is not QkNorm.NONE else ():
        if name in made:
            over = 1 if mixer.qk_norm is QkNorm.HEAD else len(made[name].split()) - 1
            b.norm(f"attn.{name}_norm", row[name], f"attn.{name}_normed", made[name], mixer.qk_norm_kind, over)
            row[name] = f"attn.{name}_normed"
    for name in ("q", "k") if mixer.rotary != 0 else ():
        if name in made:
            b.pointwise(f"attn.{name}_rope", (row[name],), f"attn.{name}_rot", made[name], _rope_flops(mixer))
            row[name] = f"attn.{name}_rot"
    keys, values, out = _rows(b, mixer, row, phase)
    sinks: tuple[str, ...] = ()
    if mixer.buckets:
        b.sizes["buckets"] = mixer.buckets
        sinks = (b.weight("w.attn.softmax", "buckets kv_heads", b.names.module("attn.buckets")),)
    if mixer.sinks:
        sinks = (b.weight("w.attn.softmax", "kv_heads q_group", b.names.module("attn.sinks")),)
    softmax = SOFTMAX_FLOPS + SOFTCAP_FLOPS * mixer.softcap + ALIBI_FLOPS * mixer.alibi
    add_core(b, ("kv_heads q_group", "head_dim", "head_dim"), ((row["q"], *keys), values, sinks), softmax)
    mixed = "attn.mixed"
    if mixer.gate:
        b.pointwise("attn.gate_act", ("attn.gate", mixed), "attn.gated", QUERY, SIGMOID_FLOPS + 1)
        mixed = "attn.gated"
    out_proj = Weight(b.names.module("attn.o_proj"), mixer.o_bias)
    b.project("attn.o_proj", (mixed,), "attn.out", "tokens hidden <- kv_heads q_group head_dim", out_proj)
    return out


def _rope_flops(mixer: Attention) -> int:
    """Operations an element of a head of which a part may be rotated, rounded up."""
    rotary = mixer.head_dim if mixer.rotary is None else mixer.rotary
    return -(-ROPE_FLOPS * rotary // mixer.head_dim)


def _rows(b: BlockBuilder, mixer: Attention, row: dict[str, str], phase: Phase) -> Sources:
    """(what scores read as keys, what values are, the cache tensors given)."""
    if mixer.borrows:
        return ("attn.k_cache",), ("attn.v_cache",), ()
    if _made_in_place(mixer):
        return (row["k"],), (row["v"],), ()
    return _append(b, row, phase) if mixer.causal else _place(b, row)


def _made_in_place(mixer: Attention) -> bool:
    """Whether the projections make keys and values by sequence: all tokens read them as made, and none is kept."""
    turned = mixer.rotary != 0 or mixer.qk_norm is not QkNorm.NONE or mixer.v_norm is not None
    return not (mixer.causal or mixer.borrows or turned)


def _place(b: BlockBuilder, row: dict[str, str]) -> Sources:
    """Keys and values of all tokens of a sequence, which every one of them reads; nothing is kept."""
    out = ("attn.k_all", "attn.v_all")
    place = Op("attn.kv_place", Pattern.SCATTER, b.dims(ROW), (row["k"], row["v"]), out, flops_per_point=0)
    b.emit(place, CACHE, CACHE)
    return out[:1], out[1:], ()


def _append(b: BlockBuilder, row: dict[str, str], phase: Phase) -> Sources:
    """Append the new rows: (what scores read as keys, what values are, the cache tensors given)."""
    decode = phase is Phase.DECODE
    out = ("attn.k_new", "attn.v_new") if decode else ("attn.k_cache", "attn.v_cache")
    append = Op("attn.kv_append", Pattern.SCATTER, b.dims(ROW), (row["k"], row["v"]), out, flops_per_point=0)
    words = ROW if decode else CACHE
    b.emit(append, words, words, role=Role.KV_CACHE)
    if decode:
        return ("attn.k_cache", "attn.k_new"), ("attn.v_cache", "attn.v_new"), out
    return ("attn.k_cache",), ("attn.v_cache",), out


def _add_mla(b: BlockBuilder, mixer: LatentAttention, phase: Phase, source: str) -> tuple[str, ...]:
    rows = "cached" if mixer.indexer else "context"
    if phase is Phase.DECODE:
        b.enter("attn.latent_cache", f"batch {rows} latent_dim", Role.KV_CACHE)
    if mixer.borrows_choice:
        b.enter("attn.selection", "tokens context", Role.BORROWED, DType.INT32)
    _mla_query(b, mixer, source)
    down = Weight(b.names.module("attn.kv_a_proj"), mixer.bias)
    b.project("attn.kv_a_proj", (source,), "attn.kv_a", "tokens kv_a <- hidden", down)
    b.norm("attn.kv_a_norm", "attn.kv_a", "attn.latent", "tokens kv_lora")
    b.pointwise("attn.k_rope", ("attn.kv_a",), "attn.k_pe", "tokens rope", ROPE_FLOPS * mixer.rotary)
    out = _mla_append(b, phase, rows)
    sources: tuple[str, ...] = ("attn.latent", "attn.k_pe")
    if phase is Phase.DECODE:
        sources = ("attn.latent_cache", "attn.latent_new")
    if mixer.indexer:
        out += () if mixer.borrows_choice else add_indexer(b, mixer.indexer, phase, source)
        sources = select_latents(b) if phase is Phase.DECODE else sources
    _mla_expand(b, phase, sources, "context" if phase is Phase.DECODE else rows)
    chosen = ("attn.selection",) if mixer.indexer and phase is Phase.PREFILL else ()
    add_core(b, ("heads", "qk_dim", "v_dim"), (("attn.q_nope", "attn.q_pe", "attn.k", *chosen), ("attn.v",), ()))
    out_proj = Weight(b.names.module("attn.o_proj"), mixer.bias)
    b.project("attn.o_proj", ("attn.mixed",), "attn.out", "tokens hidden <- heads v_dim", out_proj)
    return out


def _mla_query(b: BlockBuilder, mixer: LatentAttention, source: str) -> None:
    query = "tokens heads qk_dim"
    if mixer.q_lora is None:
        b.project("attn.q_proj", (source,), "attn.q", f"{query} <- hidden", Weight(b.names.module("attn.q_proj")))
    else:
        down = Weight(b.names.module("attn.q_a_proj"), mixer.bias)
        b.project("attn.q_a_proj", (source,), "attn.q_a", "tokens q_lora <- hidden", down)
        b.norm("attn.q_a_norm", "attn.q_a", "attn.q_a_normed", "tokens q_lora")
        up = Weight(b.names.module("attn.q_b_proj"))
        b.project("attn.q_b_proj", ("attn.q_a_normed",), "attn.q", f"{query} <- q_lora", up)
    rope = Op(
        "attn.q_rope",
        Pattern.MAP,
        b.dims(query),
        ("attn.q",),
        ("attn.q_nope", "attn.q_pe"),
        flops_per_point=ROPE_FLOPS * mixer.rotary,
    )
    b.emit(rope, "tokens heads nope", "tokens heads rope")


def _mla_append(b: BlockBuilder, phase: Phase, rows: str) -> tuple[str, ...]:
    """Append the latent rows to a cache along `rows`."""
    decode = phase is Phase.DECODE
    out = "attn.latent_new" if decode else "attn.latent_cache"
    sources = ("attn.latent", "attn.k_pe")
    append = Op("attn.kv_append", Pattern.SCATTER, b.dims("tokens latent_dim"), sources, (out,), flops_per_point=0)
    b.emit(append, "tokens latent_dim" if decode else f"batch {rows} latent_dim", role=Role.KV_CACHE)
    return (out,)


def _mla_expand(b: BlockBuilder, phase: Phase, sources: tuple[str, ...], rows: str) -> None:
    """Expand latents to keys and values of all heads, along `rows`."""
    module = b.names.module("attn.kv_b_proj")
    weight = b.weight("w.attn.kv_b_proj", "heads kv_b kv_lora", f"{module}.weight", WeightKind.LINEAR)
    lead = f"batch {rows}" if phase is Phase.DECODE else "tokens"
    expand = Op(
        "attn.kv_b_proj",
        Pattern.CONTRACT,
        b.dims(f"{lead} heads kv_b kv_lora"),
        (*sources, weight),
        ("attn.k", "attn.v"),
        reduced=("kv_lora",),
        flops_per_point=2,
    )
    b.emit(expand, f"batch {rows} heads qk_dim", f"batch {rows} heads v_dim")
