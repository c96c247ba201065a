"""ModelSpec + workload -> Graph: one block a kind of layer, between the embedding and the head.

Layers equal in structure and storage are one block kind; the sequence keeps their order. MTP modules are built behind
the head where the workload says so; an encoder is a stack before the decoder's.
"""

from dataclasses import dataclass, replace

from compiler.errors import InputError
from compiler.frontend.altup_ops import altup_sizes
from compiler.frontend.attention import add_mixer, mixer_sizes
from compiler.frontend.builder import BlockBuilder
from compiler.frontend.cross import add_cross
from compiler.frontend.edges import embed, head, sample
from compiler.frontend.ffn import add_ffn, ffn_sizes
from compiler.frontend.hyper import STREAMS, hyper_sizes
from compiler.frontend.mtp import extended, modules, mtp_embed
from compiler.frontend.parts import START_TOKENS
from compiler.frontend.quant import Kept, Storage, WeightKind, storage, stored_apart
from compiler.frontend.spec import Attention, Encoder, Layer, ModelSpec, name_kinds
from compiler.frontend.stored import Lookup, stored_types
from compiler.ir.graph import Block, Graph, Phase, Workload


@dataclass(frozen=True, slots=True)
class _Layer:
    """A layer and the checkpoint keys of its weights that are stored otherwise: together they decide the block.

    late: nothing behind it needs any but the last token of a sequence.
    """

    layer: Layer
    apart: frozenset[tuple[str, Kept]]
    late: bool = False


def build(spec: ModelSpec, workload: Workload) -> Graph:
    """The graph of `spec` under `workload`.

    Raises InputError where `workload.weights` is not a storage choice, or asks for a quantisation not supported, and
    for the decoding of an encoder.
    """
    if spec.encoder is not None:
        return _both(spec, spec.encoder, workload)
    if spec.encodes and workload.phase is Phase.DECODE:
        what = "every token attends to later ones (an encoder), so there is no decoding"
        raise InputError(spec.name, what, "phase prefill")
    if spec.stem:
        workload = replace(workload, context=spec.stem.tokens)
    model = spec
    spec = extended(model) if workload.mtp else model
    stack = _stack(spec, workload, storage(spec, workload.weights))
    kinds, kept, count = stack.kinds, stack.kept, len(model.layers)
    ends = embed(spec, workload, kept), head(spec, workload, kept)
    last = sample(spec, workload, kept)
    drawn = () if last is None else (last,)
    sequence = ["embed", *kinds[:count], "head", *(block.kind for block in drawn)]
    more: list[Block] = []
    for module, kind in zip(modules(spec, count) if workload.mtp else (), kinds[count:], strict=True):
        more += [mtp_embed(spec, module, workload, kept), head(spec, workload, kept, module)]
        sequence += [module.kinds[0], kind, module.kinds[1], "sample"]
    blocks = (ends[0], *stack.blocks, ends[1], *drawn, *more)
    return Graph(spec.name, spec.model_type, blocks, tuple(sequence), workload)


@dataclass(frozen=True, slots=True)
class _Stack:
    """The kind of each layer of a stack, the block of each kind, and how what surrounds them is stored."""

    kinds: tuple[str, ...]
    blocks: tuple[Block, ...]
    kept: Storage


def _stack(spec: ModelSpec, workload: Workload, kept: Storage, source: int = 0) -> _Stack:
    """The layers of `spec`. source: tokens a sequence of the encoder's output that they read."""
    keys = {layer: _keys(spec, layer, workload, kept) for layer in dict.fromkeys(spec.layers)}
    layers = [
        _Layer(layer, stored_apart(spec, workload.weights, kept, keys[layer], index), _late(spec, index, workload))
        for index, layer in enumerate(spec.layers)
    ]
    if spec.stored and workload.weights == "auto":
        lookup = Lookup((), spec.stored.table)
        layers = _by_files(spec, lookup, workload, kept, layers)
        kept = kept.with_apart(_edges_by_files(spec, lookup, workload, kept))
    kinds = name_kinds([(item.layer.label, item) for item in layers])
    blocks = tuple(
        _layer(spec, item.layer, workload, kept.with_apart(kept.apart | item.apart), item.late, source).block(kind)
        for kind, item in dict(zip(kinds, layers, strict=True)).items()
    )
    return _Stack(kinds, blocks, kept)


def _both(spec: ModelSpec, encoder: Encoder, workload: Workload) -> Graph:
    """An encoder and a decoder: prefill runs the encoder over `context` tokens (or as many as its stem gives) and the
    decoder over the tokens that it begins with; decode runs the decoder alone.
    """
    kept, source = storage(spec, workload.weights), encoder.stem.tokens if encoder.stem else workload.context
    decode = workload.phase is Phase.DECODE
    own = workload if decode else replace(workload, context=START_TOKENS)
    blocks: list[Block] = []
    sequence: list[str] = []
    if not decode:
        side, under = spec.encoding(encoder), replace(workload, context=source)
        stack = _stack(side, under, kept)
        blocks += [embed(side, under, kept), *stack.blocks]
        sequence += ["embed", *stack.kinds]
    stack = _stack(spec, own, kept, source)
    first = embed(spec, own, kept, None if decode else encoder, source)
    last = [block for block in (head(spec, own, kept), sample(spec, own, kept)) if block is not None]
    blocks += [first, *stack.blocks, *last]
    sequence += [first.kind, *stack.kinds, *(block.kind for block in last)]
    shown = replace(workload, context=source) if encoder.stem and not decode else workload
    return Graph(spec.name, spec.model_type, tuple(blocks), tuple(sequence), shown)


def _late(spec: ModelSpec, index: int, workload: Workload) -> bool:
    """Whether layers from `index` on only read caches: prefill then needs the last token of a sequence alone."""
    mixers = [layer.mixer for layer in spec.layers[index:]]
    return workload.phase is Phase.PREFILL and all(isinstance(m, Attention) and m.borrows for m in mixers)


def _by_files(spec: ModelSpec, lookup: Lookup, workload: Workload, kept: Storage, layers: list[_Layer]) -> list[_Layer]:
    """Each layer with the types its weights have in the files."""
    blocks = {item: _layer(spec, item.layer, workload, kept.with_apart(item.apart)).block("layer") for item in layers}
    out = []
    for index, item in enumerate(layers):
        apart = dict(item.apart) | stored_types(lookup, blocks[item].weights, index)
        out.append(replace(item, apart=frozenset(apart.items())))
    return out


def _edges_by_files(spec: ModelSpec, lookup: Lookup, workload: Workload, kept: Storage) -> frozenset[tuple[str, Kept]]:
    """The types of embedding and head in the files, where they differ."""
    blocks = embed(spec, workload, kept), head(spec, workload, kept)
    found = [stored_types(lookup, block.weights, 0) for block in blocks]
    return frozenset((found[0] | found[1]).items())


@dataclass(frozen=True, slots=True)
class _Built:
    """The builder of a layer, the name of its hidden states, and of the cache tensors it gives."""

    builder: BlockBuilder
    last: str
    cache: tuple[str, ...]

    def block(self, kind: str) -> Block:
        return self.builder.block(kind, (self.last, *self.cache))


def _layer(
    spec: ModelSpec, layer: Layer, workload: Workload, kept: Storage, late: bool = False, source: int = 0
) -> _Built:
    sizes = {"tokens": workload.batch if late else workload.tokens, "batch": workload.batch, "hidden": spec.hidden}
    sizes |= mixer_sizes(layer.mixer, workload.context, workload.batch) if layer.mixer else {}
    sizes |= ffn_sizes(layer.ffn) if layer.ffn else {}
    sizes |= hyper_sizes(layer.hyper) if layer.hyper else {}
    sizes |= {"per_layer": layer.per_layer.width} if layer.per_layer else {}
    sizes |= altup_sizes(layer.altup) if layer.altup else {}
    sizes |= {"laurel_rank": layer.laurel.rank} if layer.laurel else {}
    b = BlockBuilder(sizes, kept, spec.names)
    b.enter("x", STREAMS if layer.hyper or layer.altup else "tokens hidden")
    if layer.per_layer:
        b.enter("per_layer", "tokens per_layer")
    cache = add_mixer(b, layer, workload.phase) if layer.mixer else ()
    if layer.cross:
        b.sizes |= {"context_cross": source}
        cache += add_cross(b, layer, workload.phase)
    if layer.ffn:
        add_ffn(b, layer)
    return _Built(b, "y" if layer.ffn else "cross.y" if layer.cross else "attn.y", cache)


def _keys(spec: ModelSpec, layer: Layer, workload: Workload, kept: Storage) -> tuple[tuple[str, WeightKind], ...]:
    """Checkpoint keys of the weights of `layer` that may be quantised, and their kinds."""
    if not spec.quantisation.patterns:
        return ()
    return tuple(_layer(spec, layer, workload, kept).builder.quantised)
