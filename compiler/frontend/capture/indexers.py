"""The ops of a sparse indexer: score every cached token by a small key, choose rows, read those only.

The caches have the dimension `cached`, the attention behind the choice `context`, the rows it reads.
"""

from compiler.frontend.capture.chosen import CHOSEN
from compiler.frontend.capture.emit import Emitter
from compiler.frontend.capture.steps import Kind, Step
from compiler.frontend.flops import INDEX_SCORE_FLOPS, TOPK_FLOPS
from compiler.ir.dtype import DType
from compiler.ir.graph import Op, Pattern, Role

_CACHE = "batch cached index_dim"


def index_of(e: Emitter, attention: Step) -> Step | None:
    """The indexer that chooses the keys of an attention."""
    return next((step for step in e.layer.sources(attention) if step.kind is Kind.INDEX), None)


def top_k(step: Step) -> int:
    """How many keys of a sequence an indexer chooses."""
    return step.call.number(1 if step.call.name == CHOSEN else 3)


def enter(e: Emitter, step: Step) -> None:
    """Among the inputs of the block: in decode the cached keys of the indexer, or the choice of another layer."""
    if step.call.name == CHOSEN:
        e.builder.enter("attn.selection", "tokens context", Role.BORROWED, DType.INT32)
    elif e.decode:
        e.builder.enter("attn.index_cache", _CACHE, Role.KV_CACHE)


def indexer(e: Emitter, step: Step) -> None:
    """Append the key of a token, score all of them, and choose."""
    chosen = ("attn.selection",)
    e.tensor.update(dict.fromkeys(step.outputs, chosen))
    if step.call.name == CHOSEN:
        return
    b, key = e.builder, "tokens index_dim"
    new = "attn.index_new" if e.decode else "attn.index_cache"
    query, row, weights = (e.read(step.call.must(place)) for place in range(3))
    append = Op("attn.index_append", Pattern.SCATTER, b.dims(key), row, (new,), flops_per_point=0)
    b.emit(append, key if e.decode else _CACHE, role=Role.KV_CACHE)
    e.outputs.append(new)
    keys = ("attn.index_cache", new) if e.decode else (new,)
    points, out = b.dims("tokens index_heads cached"), ("attn.index_out",)
    flops = 2 * e.names.sizes["index_dim"] + INDEX_SCORE_FLOPS
    scores = Op("attn.index_scores", Pattern.CONTRACT, points, (*query, *weights, *keys), out, ("index_heads",), flops)
    b.emit(scores, "tokens cached")
    rows = b.dims("tokens cached")
    b.emit(Op("attn.index_topk", Pattern.SORT, rows, out, chosen, (), TOPK_FLOPS, ("cached",)), "tokens context")


def selected(e: Emitter) -> tuple[str, ...]:
    """In decode: the chosen rows of the latent cache, one set a sequence."""
    words = "batch context latent_dim"
    sources = ("attn.latent_cache", "attn.latent_new", "attn.selection")
    out = ("attn.latent_selected",)
    e.builder.emit(Op("attn.select", Pattern.GATHER, e.builder.dims(words), sources, out, flops_per_point=0), words)
    return out
