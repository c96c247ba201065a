"""Captured data + workload -> Graph: the same ops and dimensions that `compiler.frontend.build` makes from a ModelSpec.

Needs no torch. One block a distinct layer, between the embedding and the head; the number of tokens, of sequences and
the context come from the workload, everything else from the shapes of the trace.
"""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, replace
from math import prod

from compiler.errors import InputError
from compiler.frontend.apart import Made, stored_otherwise
from compiler.frontend.builder import BlockBuilder
from compiler.frontend.capture import cores, indexers, scans
from compiler.frontend.capture.dims import Names, crosses, name_dims
from compiler.frontend.capture.emit import Emitter
from compiler.frontend.capture.folds import completed, folded
from compiler.frontend.capture.groups import grouped
from compiler.frontend.capture.ir import TRACED_TOKENS, Capture, Captured
from compiler.frontend.capture.latent import Layer
from compiler.frontend.capture.roles import named
from compiler.frontend.capture.seen import Call
from compiler.frontend.capture.stages import Walked, bidirectional, inputs, staged, walked
from compiler.frontend.capture.steps import Flow, Kind, Step
from compiler.frontend.capture.walk import walk_capture
from compiler.frontend.quant import Checkpoint, Storage, storage
from compiler.frontend.spec import name_kinds
from compiler.ir.dtype import DType
from compiler.ir.graph import Block, Graph, Op, Pattern, Phase, Role, Workload

_STORED = {"bfloat16": DType.BF16, "float16": DType.FP16, "float32": DType.FP32}


#: What may read what an earlier layer made beside its hidden states: keys and values, the choice of an indexer.
_KEPT = (Kind.ATTENTION, Kind.INDEX)


def lower(captured: Captured, workload: Workload) -> Graph:
    """The graph of a captured model under `workload`, its weights stored as the checkpoint says, else as traced.

    Raises InputError for every operator that cannot be lowered, all of them in one message.
    """
    checkpoint = captured.checkpoint or Checkpoint(captured.model, _traced(captured))
    kept = storage(checkpoint, workload.weights)
    captured = _regular(captured)
    stages = [walked(stage) for stage in staged(captured, workload)]
    image = bool(captured.fixed) and captured.middle is None
    after = walk_capture(captured.after, inputs(captured.after, (0,)), image) if captured.after.nodes else None
    flows = [flow for one in stages for flow in (one.before, *one.layers) if flow is not None]
    _refuse(captured.model, [*flows, *([] if after is None else [after])])
    sides = [_side(captured.model, one) for one in stages]
    encoder = any(bidirectional(part.layer) for part in sides[-1].layers)
    if encoder and workload.phase is Phase.DECODE:
        what = "every token attends to later ones (an encoder), so there is no decoding"
        raise InputError(captured.model, what, "phase prefill")
    last = stages[-1].stage.workload
    head = None if after is None else _head(captured, after, last if encoder else _edge_workload(workload))
    try:
        blocks, sequence = _blocks(captured, sides, head, (checkpoint, workload.weights, kept))
    except ValueError as error:
        if "a dimension twice" not in str(error):
            raise
        what = f"its dimensions cannot be told apart: {error}"
        right = f"sizes other than {TRACED_TOKENS}, the tokens of a trace, or a description in Python"
        raise InputError(captured.model, what, right) from error
    shown = last if image else workload
    if captured.fixed and captured.middle is not None and workload.phase is Phase.PREFILL:
        shown = replace(workload, context=captured.fixed)
    return Graph(captured.model, captured.model_type, blocks, sequence, shown)


def _form(block: Block) -> Hashable:
    """What makes two layers one kind: the same work on the same tensors, whatever else the class gives or is given
    (T5's first layer hands its biases on; a path that is dropped in training only).
    """
    return block.ops, block.tensors, block.inputs, block.outputs


@dataclass(frozen=True)
class _Side:
    """A stack as parts to be made blocks. `sequence`: which of `layers` each layer is."""

    name: str
    before: "_Part | None"
    layers: "tuple[_Part, ...]"
    sequence: tuple[int, ...]


def _side(model: str, one: Walked) -> _Side:
    """The parts of one stack: what comes before it, and each distinct layer. InputError for work between two layers."""
    stage = one.stage
    layers = [_layer(*pair) for pair in zip(stage.layers, one.layers, strict=True)]
    for capture, layer, feed in zip(stage.layers, layers, stage.feeds, strict=False):
        _refuse_between(model, capture, layer, feed)
    before = None
    if one.before is not None:
        layer = _layer(stage.before, one.before, "embed", one.handed)
        before = _Part(stage.before, layer, stage.workload, edge="embed", more=one.handed, source=stage.source)
    pairs = zip(stage.layers, layers, strict=True)
    parts = tuple(_Part(capture, layer, stage.workload, source=stage.source) for capture, layer in pairs)
    return _Side(stage.name, before, parts, stage.sequence)


def _blocks(
    captured: Captured, sides: list[_Side], head: "_Part | None", stored: tuple[Checkpoint, str, Storage]
) -> tuple[tuple[Block, ...], tuple[str, ...]]:
    """(blocks, sequence): layers equal in structure and storage are one kind."""
    checkpoint, weights, kept = stored
    parts = {(n, place): part for n, side in enumerate(sides) for place, part in enumerate(side.layers)}
    edges = {(n, -1): side.before for n, side in enumerate(sides) if side.before is not None}
    edges |= {} if head is None else {(len(sides), -1): head}
    layers = [
        ((n, place), number) for n, side in enumerate(sides) for place, number in _numbered(captured, sides, side)
    ]
    items = [*layers, *((place, 0) for place in edges)]

    def make(place: tuple[int, int], kept: Storage) -> Made:
        return _block((parts | edges)[place], "block", kept)

    apart = stored_otherwise(checkpoint, weights, kept, items, make)
    kept = kept.with_apart(frozenset().union(*apart[len(layers) :]))
    own = [(place, more) for (place, _), more in zip(layers, apart, strict=False)]
    made = {
        item: _block(parts[item[0]], "layer", kept.with_apart(kept.apart | item[1])).block
        for item in dict.fromkeys(own)
    }
    kinds = name_kinds([(label(parts[item[0]].layer), (item[0][0], _form(made[item]))) for item in own])
    blocks: list[Block] = []
    sequence: list[str] = []
    for n, side in enumerate(sides):
        if side.before is not None:
            blocks.append(_block(side.before, side.name, kept).block)
            sequence.append(side.name)
        mine = [(kind, item) for kind, item in zip(kinds, own, strict=True) if item[0][0] == n]
        blocks.extend(replace(made[item], kind=kind) for kind, item in dict(mine).items())
        sequence.extend(kind for kind, _ in mine)
    ends = [] if head is None else _ends(_block(head, "head", kept).block, kept)
    return (*blocks, *ends), (*sequence, *(block.kind for block in ends))


def _numbered(captured: Captured, sides: list[_Side], side: _Side) -> list[tuple[int, int]]:
    """Of each layer of a stack, which of its parts it is, and its number in the checkpoint."""
    recorded = dict(captured.facts).get("layer_index")
    numbers = recorded if recorded is not None and len(sides) == 1 else range(len(side.sequence))
    return list(zip(side.sequence, numbers, strict=True))


def _regular(captured: Captured) -> Captured:
    """`captured` with every part folded, and of each layer the hidden states only: what is cached is no output."""
    before = captured.middle or captured.before
    after = completed(captured.after, before) if captured.after.inputs else captured.after
    middle = None if captured.middle is None else folded(captured.middle)
    top_k = dict(dict(captured.facts).get("config", ())).get("index_topk", 0)
    layers = tuple(folded(replace(capture, outputs=capture.outputs[:1]), top_k) for capture in captured.layers)
    return replace(captured, before=folded(captured.before), middle=middle, layers=layers, after=folded(after))


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


def _head(captured: Captured, after: Flow, workload: Workload) -> "_Part":
    """The head over the tokens of `workload`."""
    layer = _layer(captured.after, after, "head")
    known = dict(captured.facts)
    image = captured.fixed and captured.middle is None  # a vocabulary of its config is of what it was trained on
    if image or (known.get("config") and "vocab" not in known):
        for step in layer.steps:
            step.name = step.name.replace("lm_head", "classifier")
    return _Part(captured.after, layer, workload, _tied_key(captured), edge="head", last=workload.context == 1)


def _ends(head: Block, kept: Storage) -> list[Block]:
    """The head, and the sampling where it gives scores of a vocabulary."""
    scores = "vocab" in {dim.name for dim in head.tensor["logits"].dims}
    return [head, _sample(head, kept)] if scores else [head]


def _traced(captured: Captured) -> DType:
    """The type most weights were traced in."""
    values = [value for capture in (captured.before, *captured.layers, captured.after) for value in capture.weights]
    counts: Counter[DType] = Counter()
    for value in values:
        if value.dtype in _STORED:
            counts[_STORED[value.dtype]] += prod(value.shape)
    return max(counts, key=lambda dtype: (counts[dtype], dtype.label), default=DType.BF16)


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
        window, chunk = cores.spans(attentions[0])
        mixer = "mla" if latent else "swa" if window else "cka" if chunk else "gqa"
        if any(crosses(layer, step) for step in attentions):
            mixer = "cross"
        elif not cores.causal(attentions[0]):
            mixer = "encoder"
    elif scans_:
        mixer = scans_[0].call.name.split(".")[1]
    elif any(step.kind is Kind.CONV for step in layer.steps):
        mixer = "conv"
    ffn = "moe" if "ffn.experts" in names else "dense" if "ffn.down_proj" in names else ""
    return f"{mixer}_{ffn}" if ffn else mixer if mixer != "none" else "layer"


@dataclass(frozen=True)
class _Part:
    """A capture to be made a block. tied: the key of a head that is the embedding; more: values given besides.

    edge: embed or head, empty for a layer; source: tokens a sequence of the encoder's output that it reads; last:
    whether the last token of each sequence is all there is.
    """

    capture: Capture
    layer: Layer
    workload: Workload
    tied: str = ""
    more: tuple[str, ...] = ()
    edge: str = ""
    source: int = 0
    last: bool = False


def _block(part: _Part, kind: str, kept: Storage) -> Made:
    """The block of one capture."""
    capture, layer, workload = part.capture, part.layer, part.workload
    edge, flow = part.edge, layer.flow
    sizes = {"tokens": workload.tokens, "batch": workload.batch}
    if part.source:
        sizes |= {"context": workload.context} | {_source(part): part.source}
    names = Names(layer, sizes, _source(part), "tokens" if part.last or not edge else "batch")
    first = capture.inputs[0].name
    hidden = flow.seen[capture.outputs[0]].axes[-1] if edge == "embed" else flow.seen[first].axes[-1]
    used = {name for step in layer.steps for name in step.weights}
    keys = {value.name: value.key for value in capture.weights if value.name in used}
    name_dims(layer, names, hidden, keys)
    e = Emitter(capture, layer, names, BlockBuilder(sizes, kept), workload, edge, part.tied)
    read = {name for step in layer.steps for name in step.sources}
    cached = _memory(layer) if part.source and e.decode else set()
    e.gathered = {
        root: f"batch {cores.context_word(e, step)}"
        for step in layer.steps
        if step.kind is Kind.ATTENTION
        for root in cores.gathered(layer, step)
    }
    for value in capture.inputs:
        if value.name in cached:
            continue
        if value.name == first or (value.name in read and e.is_input(value.name) and not _borrowed(layer, value.name)):
            e.enter(value)
    for step in layer.steps:
        if step.kind is Kind.ATTENTION:
            cores.enter_caches(e, step)
    for step in layer.steps:
        if not cached.issuperset(step.outputs):
            _emit(e, step)
    e.outputs.extend(tensor for tensor in e.read(*part.more) if tensor not in e.outputs)
    return Made(e.finish(kind), tuple(e.builder.matrices))


def _source(part: _Part) -> str:
    """The dimension of the encoder's tokens of a sequence, which a decoder's own have another."""
    return "context_cross" if part.source else "context"


def _memory(layer: Layer) -> set[str]:
    """The encoder's output and what is made of nothing else: in decode its keys and values are cached."""
    flow = layer.flow
    out = {name for name, seen in flow.seen.items() if flow.atoms.memory in flow.atoms.flat(seen.axes)}
    return out - {name for step in layer.steps if step.kind is Kind.ATTENTION for name in step.outputs}


def _borrowed(layer: Layer, name: str) -> bool:
    """Whether only attention reads an input, as keys or values another layer cached."""
    users = [step for step in layer.steps if name in step.sources]
    return bool(users) and all(step.kind in _KEPT for step in users)


def _sums_tokens(e: Emitter, step: Step) -> bool:
    """Whether a step sums over the tokens before. Whole numbers are positions counted from ids: decoding knows them."""
    along = step.kind is Kind.SCAN and e.layer.flow.atoms.tokens in step.sequential
    return along and "int" not in step.call.node.outputs[0].dtype


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
    if step.kind is Kind.SHIFT:
        return scans.shift(e, step)
    if step.kind is Kind.CONV and not e.edge:
        return scans.convolution(e, step)
    if step.name == "ffn.topk":
        return cores.routes(e, step)
    if e.decode and _sums_tokens(e, step):
        raise e.refuse(step, "sums over the tokens before, which decoding does not keep", "phase prefill")
    return e.emit(step)


def _tied_key(captured: Captured) -> str:
    """The key of the embedding where it is the head too, else nothing."""
    head = next((node for node in reversed(captured.after.nodes) if node.target.startswith("aten.linear")), None)
    if not captured.tied or head is None:
        return ""
    shape = next(value.shape for value in captured.after.weights if value.name == Call(head).must(1))
    return next((value.published() for value in captured.before.weights if value.shape == shape), "")


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
