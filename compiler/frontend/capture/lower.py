"""Captured data + workload -> Graph: the same ops and dimensions that `compiler.frontend.build` makes from a ModelSpec.

Needs no torch. One block a distinct layer, between the embedding and the head; the number of tokens, of sequences and
the context come from the workload, everything else from the shapes of the trace.
"""

from dataclasses import dataclass, replace

from compiler.errors import InputError
from compiler.frontend.builder import BlockBuilder
from compiler.frontend.capture import cores, indexers, scans
from compiler.frontend.capture.dims import Names, name_dims
from compiler.frontend.capture.emit import Emitter
from compiler.frontend.capture.folds import completed, folded
from compiler.frontend.capture.groups import grouped
from compiler.frontend.capture.ir import Capture, Captured
from compiler.frontend.capture.latent import Layer
from compiler.frontend.capture.roles import named
from compiler.frontend.capture.seen import Call, Origin
from compiler.frontend.capture.steps import Flow, Kind, Step
from compiler.frontend.capture.walk import walk_capture
from compiler.frontend.quant import CHOICES, Storage
from compiler.frontend.spec import name_kinds
from compiler.ir.dtype import DType
from compiler.ir.graph import Block, Graph, Op, Pattern, Role, Workload

_STORED = {"bfloat16": DType.BF16, "float16": DType.FP16, "float32": DType.FP32}


#: What may read what an earlier layer made beside its hidden states: keys and values, the choice of an indexer.
_KEPT = (Kind.ATTENTION, Kind.INDEX)


def lower(captured: Captured, workload: Workload, storage: Storage | None = None) -> Graph:
    """The graph of a captured model under `workload`.

    storage: how weights are stored, where the checkpoint says more than the trace; under `auto` as traced.
    Raises InputError for every operator that cannot be lowered, all of them in one message.
    """
    kept = storage or traced_storage(captured, workload.weights)
    captured = _regular(captured)
    before = walk_capture(captured.before, _inputs(captured.before, (0,))) if captured.before.nodes else None
    after = walk_capture(captured.after, _inputs(captured.after, (0,))) if captured.after.nodes else None
    fed = tuple(_fed(captured, before, index) for index in range(len(captured.layers)))
    walked = [walk_capture(layer, _inputs(layer, fed[i])) for i, layer in enumerate(captured.layers)]
    _refuse(captured.model, [flow for flow in (before, *walked, after) if flow is not None])
    layers = [_layer(capture, flow) for capture, flow in zip(captured.layers, walked, strict=True)]
    for capture, layer, feed in zip(captured.layers, layers, captured.feeds, strict=False):
        _refuse_between(captured.model, capture, layer, feed)
    kinds = name_kinds([(label(layer), index) for index, layer in enumerate(layers)])
    blocks = [
        _block(_Part(capture, layer, kind), workload, kept)
        for capture, layer, kind in zip(captured.layers, layers, kinds, strict=True)
    ]
    sequence = [kinds[index] for index in captured.sequence]
    if before is not None:
        given = tuple(dict.fromkeys(name for i, places in enumerate(fed) for name in _feeds(captured, i, places[1:])))
        layer = _layer(captured.before, before, "embed", given)
        blocks.insert(0, _block(_Part(captured.before, layer, "embed", more=given), workload, kept))
        sequence.insert(0, "embed")
    if after is not None:
        ends = _ends(captured, after, workload, kept)
        blocks.extend(ends)
        sequence.extend(block.kind for block in ends)
    return Graph(captured.model, captured.model_type, tuple(blocks), tuple(sequence), workload)


def _regular(captured: Captured) -> Captured:
    """`captured` with every part folded, and of each layer the hidden states only: what is cached is no output."""
    after = completed(captured.after, captured.before) if captured.after.inputs else captured.after
    top_k = dict(dict(captured.facts).get("config", ())).get("index_topk", 0)
    layers = tuple(folded(replace(capture, outputs=capture.outputs[:1]), top_k) for capture in captured.layers)
    return replace(captured, before=folded(captured.before), layers=layers, after=folded(after))


def _feeds(captured: Captured, index: int, places: tuple[int, ...]) -> tuple[str, ...]:
    """What `before` gives to the inputs at `places` of a layer."""
    return tuple(captured.feeds[index][place] for place in places if captured.feeds[index][place])


def _fed(captured: Captured, before: Flow | None, index: int) -> tuple[int, ...]:
    """The inputs of a layer that carry activations: the first, and what earlier layers or the embedding made."""
    feeds = captured.feeds[index] if index < len(captured.feeds) else ("",)
    made = {} if before is None else before.seen
    moving = [
        place for place, feed in enumerate(feeds) if not feed or (feed in made and made[feed].origin is Origin.DATA)
    ]
    return tuple(dict.fromkeys((0, *moving)))


def _inputs(capture: Capture, places: tuple[int, ...]) -> frozenset[str]:
    return frozenset(capture.inputs[place].name for place in places if place < len(capture.inputs))


def _refuse_between(model: str, capture: Capture, layer: Layer, feed: tuple[str, ...]) -> None:
    """Refuse a layer that reads activations of an earlier one, other than its keys and values."""
    for place, value in enumerate(capture.inputs):
        users = [step for step in layer.steps if value.name in step.sources]
        beside = place > 0 and place < len(feed) and not feed[place]
        wrong = next((step for step in users if step.kind not in _KEPT), None)
        if beside and wrong is not None:
            node = wrong.nodes[0]
            where = f"{model}: {node.module or capture.label} ({node.line})"
            raise InputError(where, f"reads {value.name}, which an earlier layer made beside its hidden states")


def _ends(captured: Captured, after: Flow, workload: Workload, kept: Storage) -> list[Block]:
    """The head, and the sampling where the head gives scores of a vocabulary."""
    layer = _layer(captured.after, after, "head")
    head = _block(_Part(captured.after, layer, "head", _tied_key(captured)), _edge_workload(workload), kept)
    scores = "vocab" in {dim.name for dim in head.tensor["logits"].dims}
    return [head, _sample(head, kept)] if scores else [head]


def traced_storage(captured: Captured, weights: str) -> Storage:
    """The storage types of the weights as traced (`auto`), or as the user chose."""
    if weights not in CHOICES:
        raise InputError("weights", f"{weights!r} is not a storage choice", f"one of {', '.join(CHOICES)}")
    values = [value for capture in (captured.before, *captured.layers, captured.after) for value in capture.weights]
    counts: dict[DType, int] = {}
    for value in values:
        found = _STORED.get(value.dtype)
        if found is not None:
            size = 1
            for side in value.shape:
                size *= side
            counts[found] = counts.get(found, 0) + size
    traced = max(counts, key=lambda dtype: (counts[dtype], dtype.label), default=DType.BF16)
    if weights == "auto":
        return Storage(traced, traced, traced)
    linear = DType.BF16 if weights == "bf16" else DType.FP8
    return Storage(DType.BF16, linear, linear)


def _refuse(model: str, flows: list[Flow]) -> None:
    found = list(dict.fromkeys(str(item) for flow in flows for item in flow.unsupported))
    if found:
        count = f"{len(found)} operator{'s' if len(found) > 1 else ''} cannot be lowered"
        raise InputError(model, f"{count}: " + "; ".join(found), "describe the architecture as a ModelSpec")


def _layer(capture: Capture, flow: Flow, edge: str = "", more: tuple[str, ...] = ()) -> Layer:
    results = (*capture.outputs[:1], *more)
    return named(flow, grouped(flow, results), results, edge)


def label(layer: Layer) -> str:
    """The kind of a layer by its parts, as ModelSpec labels it: gqa_dense, mla_moe, ..."""
    attentions = [step for step in layer.steps if step.kind is Kind.ATTENTION]
    scans_ = [step for step in layer.steps if step.kind is Kind.RECURRENCE]
    names = {step.name for step in layer.steps}
    mixer = "none"
    if attentions:
        latent = id(attentions[0]) in layer.latents
        mixer = "mla" if latent else "swa" if cores.spans(attentions[0])[0] else "gqa"
    elif scans_:
        mixer = scans_[0].call.name.split(".")[1]
    elif any(step.kind is Kind.CONV for step in layer.steps):
        mixer = "conv"
    ffn = "moe" if "ffn.experts" in names else "dense" if "ffn.down_proj" in names else ""
    return f"{mixer}_{ffn}" if ffn else mixer if mixer != "none" else "layer"


@dataclass(frozen=True)
class _Part:
    """A capture to be made a block. tied: the key of a head that is the embedding; more: values given besides."""

    capture: Capture
    layer: Layer
    kind: str
    tied: str = ""
    more: tuple[str, ...] = ()


def _block(part: _Part, workload: Workload, kept: Storage) -> Block:
    """The block of one capture."""
    capture, layer, kind = part.capture, part.layer, part.kind
    edge = kind if kind in ("embed", "head") else ""
    flow = layer.flow
    sizes = {"tokens": workload.tokens, "batch": workload.batch}
    names = Names(layer, sizes)
    first = capture.inputs[0].name
    hidden = flow.seen[capture.outputs[0]].axes[-1] if edge == "embed" else flow.seen[first].axes[-1]
    used = {name for step in layer.steps for name in step.weights}
    keys = {value.name: value.key for value in capture.weights if value.name in used}
    name_dims(layer, names, hidden, keys)
    e = Emitter(capture, layer, names, BlockBuilder(sizes, kept), workload, edge, part.tied)
    read = {name for step in layer.steps for name in step.sources}
    for value in capture.inputs:
        if value.name == first or (value.name in read and e.is_input(value.name) and not _borrowed(layer, value.name)):
            e.enter(value)
    for step in layer.steps:
        if step.kind is Kind.ATTENTION:
            cores.enter_caches(e, step)
    for step in layer.steps:
        _emit(e, step)
    e.outputs.extend(tensor for tensor in e.read(*part.more) if tensor not in e.outputs)
    return e.finish(kind)


def _borrowed(layer: Layer, name: str) -> bool:
    """Whether only attention reads an input, as keys or values another layer cached."""
    users = [step for step in layer.steps if name in step.sources]
    return bool(users) and all(step.kind in _KEPT for step in users)


def _emit(e: Emitter, step: Step) -> None:
    """The ops of one step. Latent attention expands its cache where the attention stands."""
    for latent in e.layer.latents.values():
        if step is latent.expand:
            return None
        if step is latent.q_rope:
            return cores.latent_query(e, step)
        if step is latent.rope:
            return cores.latent_key(e, step)
    if step.kind is Kind.ATTENTION:
        latent_of = e.layer.latents.get(id(step))
        if latent_of is not None:
            cores.latent_cache(e, latent_of, indexers.index_of(e, step))
        return cores.attention(e, step)
    if step.kind is Kind.INDEX:
        return indexers.indexer(e, step)
    if step.kind is Kind.EXPERTS:
        return cores.experts(e, step)
    if step.kind is Kind.RECURRENCE:
        return scans.recurrence(e, step)
    if step.kind is Kind.CONV:
        return scans.convolution(e, step)
    if step.name == "ffn.topk":
        return cores.routes(e, step)
    if step.kind is Kind.SCAN and e.decode and e.layer.flow.atoms.tokens in step.sequential:
        raise e.refuse(step, "sums over the tokens before, which decoding does not keep", "phase prefill")
    return e.emit(step)


def _tied_key(captured: Captured) -> str:
    """The key of the embedding where it is the head too, else nothing."""
    head = next((node for node in reversed(captured.after.nodes) if node.target.startswith("aten.linear")), None)
    if not captured.tied or head is None:
        return ""
    shape = next(value.shape for value in captured.after.weights if value.name == Call(head).must(1))
    return next((value.key for value in captured.before.weights if value.shape == shape), "")


def _edge_workload(workload: Workload) -> Workload:
    """The head sees the last token of each sequence."""
    return replace(workload, context=1)


def _sample(head: Block, kept: Storage) -> Block:
    logits = head.tensor["logits"]
    sizes = {dim.name: dim.size for dim in logits.dims}
    b = BlockBuilder(sizes, kept)
    words = " ".join(sizes)
    b.enter("logits", words)
    argmax = Op("sample.argmax", Pattern.REDUCE, b.dims(words), ("logits",), ("next_ids",), reduced=("vocab",))
    b.emit(argmax, " ".join(word for word in sizes if word != "vocab"), role=Role.OUTPUT, dtype=DType.INT32)
    return b.block("sample", ("next_ids",))
