"""The ops of attention over a compressed cache: from a normalised input to `attn.out`.

Scores are full, as in `attention`: a token meets every row that is read for any token. One token in `ratio` fills a
block, whose compressed row is then made: in a step of decode as many sequences as that makes of the batch, rounded up.
"""

from compiler.frontend.builder import BlockBuilder, Weight
from compiler.frontend.compressed import UNIT, CompressedAttention, Compressor
from compiler.frontend.core import add_core
from compiler.frontend.flops import COMPRESS_FLOPS, ROPE_FLOPS
from compiler.frontend.indexer import choose, index_queries
from compiler.frontend.quant import WeightKind
from compiler.ir.graph import Op, Pattern, Phase, Role

_HEADS = "groups heads"
_QUERY = f"tokens {_HEADS} head_dim"


def compressed_sizes(mixer: CompressedAttention, context: int, batch: int) -> dict[str, int]:
    """Sizes of the dimensions of a mixer behind (decode) or over (prefill) `context` tokens of `batch` sequences."""
    sizes = {"groups": mixer.o_groups, "heads": mixer.heads // mixer.o_groups, "head_dim": mixer.head_dim}
    sizes |= {"q_lora": mixer.q_lora, "o_rank": mixer.o_rank, "context": mixer.read(context)}
    sizes |= {"context_window": mixer.cached_tokens(context)}
    if mixer.compressor is None:
        return sizes
    rows, indexer = mixer.rows(context), mixer.indexer
    made = {"attn.comp": mixer.head_dim} | ({"attn.index": indexer.dim} if indexer else {})
    for part, dim in made.items():
        words = _Words(part)
        sizes |= {words.both: mixer.compressor.series * dim, words.waiting: mixer.compressor.pending(dim)}
    sizes |= {"block": mixer.compressor.block, "ratio": mixer.compressor.ratio}
    sizes |= {"filled": -(-batch // mixer.compressor.ratio)}
    sizes |= {"cached": rows} if rows else {}
    if indexer:
        sizes |= {"index_heads": indexer.heads, "index_dim": indexer.dim}
        sizes |= {"chosen": min(rows, indexer.top_k)} if rows else {}
    return sizes


def add_compressed(b: BlockBuilder, mixer: CompressedAttention, phase: Phase, source: str) -> tuple[str, ...]:
    """Append the ops of `mixer` on `source`; returns the caches and states among the block's outputs."""
    decode = phase is Phase.DECODE
    if decode:
        b.enter("attn.kv_cache", "batch context_window head_dim", Role.KV_CACHE)
    _query(b, source)
    b.project("attn.kv_proj", (source,), "attn.kv", "tokens head_dim <- hidden", Weight(b.names.module("attn.kv_proj")))
    b.norm("attn.kv_norm", "attn.kv", "attn.kv_normed", "tokens head_dim")
    b.pointwise("attn.kv_rope", ("attn.kv_normed",), "attn.kv_rot", "tokens head_dim", ROPE_FLOPS)
    made = "attn.kv_new" if decode else "attn.kv_cache"
    _append(b, "attn.kv_append", "attn.kv_rot", made, "head_dim", "" if decode else "context_window")
    out = [made]
    rows: tuple[str, ...] = ("attn.kv_cache", made) if decode else (made,)
    chosen: tuple[str, ...] = ()
    if mixer.compressor:
        far, given = _compressed(b, mixer.compressor, phase, source, "attn.comp")
        out += given
        if mixer.indexer:
            keys, given = _compressed(b, mixer.compressor, phase, source, "attn.index")
            out += given
            index_queries(b, source)
            chosen = choose(b, keys, "chosen") if keys else ()
            far = _select(b, far, chosen) if chosen and decode else far
        if far:
            rows = _beside(b, (*rows, *far))
    sinks = b.weight("w.attn.softmax", _HEADS, b.names.module("attn.sinks"))
    keys = ("attn.q_rot", *rows, *(() if decode else chosen))
    add_core(b, (_HEADS, "head_dim", "head_dim"), (keys, rows, (sinks,)))
    b.pointwise("attn.out_rope", ("attn.mixed",), "attn.unturned", _QUERY, ROPE_FLOPS)
    low = Weight(b.names.module("attn.o_a_proj"))
    b.project("attn.o_a_proj", ("attn.unturned",), "attn.out_low", "tokens groups o_rank <- heads head_dim", low)
    last = Weight(b.names.module("attn.o_proj"))
    b.project("attn.o_proj", ("attn.out_low",), "attn.out", "tokens hidden <- groups o_rank", last)
    return tuple(out)


def _query(b: BlockBuilder, source: str) -> None:
    """Through a latent; every head then has unit length, and is rotated in part."""
    down, up = (Weight(b.names.module(f"attn.q_{side}_proj")) for side in "ab")
    b.project("attn.q_a_proj", (source,), "attn.q_a", "tokens q_lora <- hidden", down)
    b.norm("attn.q_a_norm", "attn.q_a", "attn.q_a_normed", "tokens q_lora")
    b.project("attn.q_b_proj", ("attn.q_a_normed",), "attn.q", f"{_QUERY} <- q_lora", up)
    b.norm("attn.q_norm", "attn.q", "attn.q_normed", _QUERY, UNIT)
    b.pointwise("attn.q_rope", ("attn.q_normed",), "attn.q_rot", _QUERY, ROPE_FLOPS)


def _append(b: BlockBuilder, name: str, source: str, out: str, words: str, along: str) -> None:
    """Append rows to a cache `along` a dimension; "": the appended rows alone are given."""
    op = Op(name, Pattern.SCATTER, b.dims(f"tokens {words}"), (source,), (out,), flops_per_point=0)
    b.emit(op, f"batch {along} {words}" if along else f"tokens {words}", role=Role.KV_CACHE)


class _Words:
    """Names of the dimensions of what is compressed: for attention (`attn.comp`) or for its indexer (`attn.index`)."""

    def __init__(self, part: str) -> None:
        short = part.split(".")[1]
        self.row = "head_dim" if short == "comp" else "index_dim"
        self.both, self.waiting = f"{short}_series", f"{short}_waiting"


def _compressed(
    b: BlockBuilder, compressor: Compressor, phase: Phase, source: str, part: str
) -> tuple[tuple[str, ...], list[str]]:
    """Append the compressor of `part`: (what holds all compressed rows, the caches and states given).

    Nothing holds rows where the context does not fill a block.
    """
    words, there = _Words(part), "cached" in b.sizes
    for name in ("kv", "gate"):
        weight = Weight(b.names.module(f"{part}_{name}_proj"), kind=WeightKind.PLAIN)
        b.project(f"{part}_{name}_proj", (source,), f"{part}_{name}", f"tokens {words.both} <- hidden", weight)
    if phase is Phase.DECODE:
        return _filled(b, words, part, there)
    state = Op(
        f"{part}_keep",
        Pattern.SCATTER,
        b.dims(f"batch {words.waiting}"),
        (f"{part}_kv", f"{part}_gate"),
        (f"{part}_state",),
        flops_per_point=0,
    )
    b.emit(state, f"batch {words.waiting}", role=Role.STATE)
    given = [f"{part}_state"]
    if not there:
        _idle(b, words, part)
        return (), given
    made = f"{part}_cache"
    _row(b, words, part, "batch cached", (f"{part}_kv", f"{part}_gate"), made)
    return (made,), [made, *given]


def _filled(b: BlockBuilder, words: "_Words", part: str, there: bool) -> tuple[tuple[str, ...], list[str]]:
    """Decode: what a token gives is kept; the blocks that it fills become rows."""
    state = b.enter(f"{part}_state", f"batch {words.waiting}", Role.STATE)
    cache = (b.enter(f"{part}_cache", f"batch cached {words.row}", Role.KV_CACHE),) if there else ()
    kept = [f"{part}_kept_kv", f"{part}_kept_gate"]
    points, made = b.dims(f"tokens {words.both}"), (f"{part}_kv", f"{part}_gate")
    keep = Op(f"{part}_keep", Pattern.SCATTER, points, made, tuple(kept), flops_per_point=0)
    b.emit(keep, *[f"tokens {words.both}"] * 2, role=Role.KV_CACHE)
    points = b.dims(f"filled {words.waiting}")
    opened = Op(f"{part}_open", Pattern.GATHER, points, (state, *kept), (f"{part}_block",), flops_per_point=0)
    b.emit(opened, f"filled {words.waiting}")
    new = f"{part}_new"
    _row(b, words, part, "filled", (f"{part}_block",), new)
    return ((*cache, new) if there else ()), [new, *kept]


def _row(b: BlockBuilder, words: "_Words", part: str, lead: str, inputs: tuple[str, ...], out: str) -> None:
    """Rows along `lead` out of blocks: a softmax over the block for each element, a norm, a rotation; appended."""
    bias = b.weight(f"w.{part}_bias", f"ratio {words.both}", b.names.module(f"{part}_bias"))
    row = f"{lead} {words.row}"
    op = Op(
        f"{part}_compress",
        Pattern.REDUCE,
        b.dims(f"{lead} block {words.row}"),
        (*inputs, bias),
        (f"{part}_sum",),
        reduced=("block",),
        flops_per_point=COMPRESS_FLOPS,
    )
    b.emit(op, row)
    b.norm(f"{part}_norm", f"{part}_sum", f"{part}_normed", row)
    b.pointwise(f"{part}_rope", (f"{part}_normed",), f"{part}_rot", row, ROPE_FLOPS)
    append = Op(f"{part}_append", Pattern.SCATTER, b.dims(row), (f"{part}_rot",), (out,), flops_per_point=0)
    b.emit(append, row, role=Role.KV_CACHE)


def _idle(b: BlockBuilder, words: "_Words", part: str) -> None:
    """Before a block is full: its weights are there, and nothing is made of them."""
    bias = b.weight(f"w.{part}_bias", f"ratio {words.both}", b.names.module(f"{part}_bias"))
    norm = b.weight(f"w.{part}_norm", words.row, f"{b.names.module(f'{part}_norm')}.weight")
    points = b.dims(f"batch {words.row}")
    op = Op(f"{part}_wait", Pattern.MAP, points, (f"{part}_kv", bias, norm), (f"{part}_none",), flops_per_point=0)
    b.emit(op, f"batch {words.row}")


def _select(b: BlockBuilder, rows: tuple[str, ...], chosen: tuple[str, ...]) -> tuple[str, ...]:
    """In decode: gather the chosen rows, one set a sequence."""
    sources = (*rows, *chosen)
    points = b.dims("batch chosen head_dim")
    gather = Op("attn.select", Pattern.GATHER, points, sources, ("attn.selected",), flops_per_point=0)
    b.emit(gather, "batch chosen head_dim")
    return ("attn.selected",)


def _beside(b: BlockBuilder, parts: tuple[str, ...]) -> tuple[str, ...]:
    """The rows of the window and the compressed ones as one sequence."""
    points = b.dims("batch context head_dim")
    b.emit(
        Op("attn.rows", Pattern.GATHER, points, parts, ("attn.all_rows",), flops_per_point=0), "batch context head_dim"
    )
    return ("attn.all_rows",)
