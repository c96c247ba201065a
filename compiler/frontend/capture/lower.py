"""Captured data + workload -> Graph: the same ops and dimensions that `compiler.frontend.build` makes from a ModelSpec.

Needs no torch. One block a distinct layer, between the embedding and the head; the number of tokens, of sequences and
the context come from the workload, everything else from the shapes of the trace.
"""

from dataclasses import replace

from compiler.errors import InputError
from compiler.frontend.builder import BlockBuilder
from compiler.frontend.capture import cores, scans
from compiler.frontend.capture.dims import Names, name_dims
from compiler.frontend.capture.emit import Emitter
from compiler.frontend.capture.folds import completed, folded
from compiler.frontend.capture.groups import grouped
from compiler.frontend.capture.ir import Capture, Captured
from compiler.frontend.capture.latent import Layer
from compiler.frontend.capture.roles import named
from compiler.frontend.capture.seen import Call
from compiler.frontend.capture.steps import Flow, Kind, Step
from compiler.frontend.capture.walk import walk_capture
from compiler.frontend.quant import CHOICES, Storage
from compiler.frontend.spec import name_kinds
from compiler.ir.dtype import DType
from compiler.ir.graph import Block, Graph, Op, Pattern, Role, Workload

_STORED = {"bfloat16": DType.BF16, "float16": DType.FP16, "float32": DType.FP32}


def lower(captured: Captured, workload: Workload, storage: Storage | None = None) -> Graph:
    """The graph of a captured model under `workload`.

    storage: how weights are stored, where the checkpoint says more than the trace; under `auto` as traced.
    Raises InputError for every operator that cannot be lowered, all of them in one message.
    """
    kept = storage or traced_storage(captured, workload.weights)
    layers_folded = tuple(folded(capture) for capture in captured.layers)
    after_whole = completed(captured.after, captured.before) if captured.after.inputs else captured.after
    captured = replace(captured, before=folded(captured.before), layers=layers_folded, after=folded(after_whole))
    walked = [_walk(captured, index) for index in range(len(captured.layers))]
    before = _flow(captured.before, (0,)) if captured.before.nodes else None
    after = _flow(captured.after, (0,)) if captured.after.nodes else None
    _refuse(captured.model, [flow for flow in (before, *walked, after) if flow is not None])
    layers = [_layer(capture, flow) for capture, flow in zip(captured.layers, walked, strict=True)]
    kinds = name_kinds([(label(layer), index) for index, layer in enumerate(layers)])
    blocks: list[Block] = []
    if before is not None:
        blocks.append(_block(captured.before, _layer(captured.before, before, "embed"), workload, kept, "embed"))
    for capture, layer, kind in zip(captured.layers, layers, kinds, strict=True):
        blocks.append(_block(capture, layer, workload, kept, kind))
    sequence = [kinds[index] for index in captured.sequence]
    if before is not None:
        sequence.insert(0, "embed")
    if after is not None:
        tail = _edge_workload(workload)
        layer = _layer(captured.after, after, "head")
        blocks.append(_block(captured.after, layer, tail, kept, "head", _tied_key(captured)))
        sequence.append("head")
        if "vocab" in {dim.name for dim in blocks[-1].tensor["logits"].dims}:
            blocks.append(_sample(blocks[-1], kept))
            sequence.append("sample")
    return Graph(captured.model, captured.model_type, tuple(blocks), tuple(sequence), workload)


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


def _walk(captured: Captured, index: int) -> Flow:
    """The steps of a layer; its inputs that earlier layers made carry activations, the others are tables."""
    feeds = captured.feeds[index] if index < len(captured.feeds) else ("",)
    return _flow(captured.layers[index], tuple(place for place, feed in enumerate(feeds) if place == 0 or not feed))


def _flow(capture: Capture, data: tuple[int, ...]) -> Flow:
    names = frozenset(capture.inputs[place].name for place in data if place < len(capture.inputs))
    return walk_capture(capture, names)


def _refuse(model: str, flows: list[Flow]) -> None:
    found = list(dict.fromkeys(str(item) for flow in flows for item in flow.unsupported))
    if found:
        count = f"{len(found)} operator{'s' if len(found) > 1 else ''} cannot be lowered"
        raise InputError(model, f"{count}: " + "; ".join(found), "describe the architecture as a ModelSpec")


def _layer(capture: Capture, flow: Flow, edge: str = "") -> Layer:
    results = capture.outputs[:1]
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


def _block(capture: Capture, layer: Layer, workload: Workload, kept: Storage, kind: str, tied: str = "") -> Block:
    """The block of one capture."""
    edge = kind if kind in ("embed", "head") else ""
    flow = layer.flow
    sizes = {"tokens": workload.tokens, "batch": workload.batch}
    names = Names(layer, sizes)
    first = capture.inputs[0].name
    hidden = flow.seen[capture.outputs[0]].axes[-1] if edge == "embed" else flow.seen[first].axes[-1]
    used = {name for step in layer.steps for name in step.weights}
    keys = {value.name: value.key for value in capture.weights if value.name in used}
    name_dims(layer, names, hidden, keys)
    e = Emitter(capture, layer, names, BlockBuilder(sizes, kept, layer=""), workload, edge, tied)
    read = {name for step in layer.steps for name in step.sources}
    for value in capture.inputs:
        if value.name == first or (value.name in read and e.is_input(value.name) and not _borrowed(layer, value.name)):
            e.enter(value)
    for step in layer.steps:
        if step.kind is Kind.ATTENTION:
            cores.enter_caches(e, step)
    for step in layer.steps:
        _emit(e, step)
    return e.finish(kind)


def _borrowed(layer: Layer, name: str) -> bool:
    """Whether only attention reads an input, as keys or values another layer cached."""
    users = [step for step in layer.steps if name in step.sources]
    return bool(users) and all(step.kind is Kind.ATTENTION for step in users)


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
            cores.latent_cache(e, latent_of)
        return cores.attention(e, step)
    if step.kind is Kind.EXPERTS:
        return cores.experts(e, step)
    if step.kind is Kind.RECURRENCE:
        return scans.recurrence(e, step)
    if step.kind is Kind.CONV:
        return scans.convolution(e, step)
    if step.name == "ffn.topk":
        return cores.routes(e, step)
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
    b = BlockBuilder(sizes, kept, layer="")
    words = " ".join(sizes)
    b.enter("logits", words)
    argmax = Op("sample.argmax", Pattern.REDUCE, b.dims(words), ("logits",), ("next_ids",), reduced=("vocab",))
    b.emit(argmax, " ".join(word for word in sizes if word != "vocab"), role=Role.OUTPUT, dtype=DType.INT32)
    return b.block("sample", ("next_ids",))
