"""The ops of a sparse indexer: score every cached token by a small key, select rows, read those only.

The caches have the dimension `cached`; attention behind the selection has `context`, the rows that it reads: in decode
they are gathered, in prefill the expanded keys are addressed by every token on its own.
"""

from compiler.frontend.builder import BlockBuilder, Weight
from compiler.frontend.flops import INDEX_SCORE_FLOPS, ROPE_FLOPS, TOPK_FLOPS
from compiler.frontend.parts import LAYER_NORM
from compiler.frontend.quant import WeightKind
from compiler.frontend.sparse import SparseIndexer
from compiler.ir.graph import Op, Pattern, Phase, Role

_CACHE = "batch cached index_dim"


def indexer_sizes(indexer: SparseIndexer, context: int) -> dict[str, int]:
    """Sizes of the dimensions of an indexer over `context` cached tokens."""
    return {
        "cached": context,
        "context": min(indexer.top_k, context),
        "index_heads": indexer.heads,
        "index_dim": indexer.dim,
    }


def add_indexer(b: BlockBuilder, indexer: SparseIndexer, phase: Phase, source: str) -> tuple[str, ...]:
    """Append the ops that give `attn.selection`, the rows a token reads; returns the cache tensors given.

    It reads `source`, the query latent `attn.q_a_normed` and, in decode, the keys of the cached tokens.
    """
    keys, out = _keys(b, phase, source, "tokens index_dim")
    index_queries(b, source)
    choose(b, keys, "context")
    return out


def index_queries(b: BlockBuilder, source: str) -> None:
    """Queries out of `attn.q_a_normed`, rotated, and the weight of each head out of `source`."""
    query = "tokens index_heads index_dim"
    up = Weight(b.names.module("attn.index_q_proj"))
    b.project("attn.index_q_proj", ("attn.q_a_normed",), "attn.index_q", f"{query} <- q_lora", up)
    b.pointwise("attn.index_q_rope", ("attn.index_q",), "attn.index_q_rot", query, ROPE_FLOPS)
    head = Weight(b.names.module("attn.index_weights_proj"), kind=WeightKind.PLAIN)
    b.project("attn.index_weights_proj", (source,), "attn.index_weights", "tokens index_heads <- hidden", head)


def choose(b: BlockBuilder, keys: tuple[str, ...], chosen: str) -> tuple[str, ...]:
    """Score all `keys` and give `attn.selection`, the best `chosen` of them for each token."""
    scores = Op(
        "attn.index_scores",
        Pattern.CONTRACT,
        b.dims("tokens index_heads cached"),
        ("attn.index_q_rot", "attn.index_weights", *keys),
        ("attn.index_out",),
        reduced=("index_heads",),
        flops_per_point=2 * b.sizes["index_dim"] + INDEX_SCORE_FLOPS,
    )
    b.emit(scores, "tokens cached")
    topk = Op(
        "attn.index_topk",
        Pattern.SORT,
        b.dims("tokens cached"),
        ("attn.index_out",),
        ("attn.selection",),
        sequential=("cached",),
        flops_per_point=TOPK_FLOPS,
    )
    b.emit(topk, f"tokens {chosen}")
    return ("attn.selection",)


def _keys(b: BlockBuilder, phase: Phase, source: str, words: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The key of a token, normalised and rotated, and appended: (what scores read, the cache tensors given)."""
    decode = phase is Phase.DECODE
    if decode:
        b.enter("attn.index_cache", _CACHE, Role.KV_CACHE)
    down = Weight(b.names.module("attn.index_k_proj"))
    b.project("attn.index_k_proj", (source,), "attn.index_k", f"{words} <- hidden", down)
    b.norm("attn.index_k_norm", "attn.index_k", "attn.index_k_normed", words, LAYER_NORM)
    b.pointwise("attn.index_k_rope", ("attn.index_k_normed",), "attn.index_k_rot", words, ROPE_FLOPS)
    made = "attn.index_new" if decode else "attn.index_cache"
    append = Op("attn.index_append", Pattern.SCATTER, b.dims(words), ("attn.index_k_rot",), (made,), flops_per_point=0)
    b.emit(append, words if decode else _CACHE, role=Role.KV_CACHE)
    return (("attn.index_cache", made) if decode else (made,)), (made,)


def select_latents(b: BlockBuilder) -> tuple[str, ...]:
    """In decode: gather the selected rows of the latent cache, one set a sequence."""
    sources = ("attn.latent_cache", "attn.latent_new", "attn.selection")
    gather = Op(
        "attn.select",
        Pattern.GATHER,
        b.dims("batch context latent_dim"),
        sources,
        ("attn.latent_selected",),
        flops_per_point=0,
    )
    b.emit(gather, "batch context latent_dim")
    return ("attn.latent_selected",)
