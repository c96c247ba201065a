"""ModelSpec + workload -> Graph: one block a kind of layer, between the embedding and the head.

Layers equal in structure and storage are one block kind; the sequence keeps their order. MTP modules are built behind
the head where the workload says so; an encoder is a stack before the decoder's.
"""

from dataclasses import dataclass, replace

from compiler.errors import InputError
from compiler.frontend.altup_ops import altup_sizes
from compiler.frontend.apart import Made, stored_otherwise
from compiler.frontend.attention import add_mixer, mixer_sizes
from compiler.frontend.builder import BlockBuilder
from compiler.frontend.cross import add_cross
from compiler.frontend.edges import embed, head, sample
from compiler.frontend.ffn import add_ffn, ffn_sizes
from compiler.frontend.hyper import STREAMS, hyper_sizes
from compiler.frontend.mtp import extended, modules, mtp_embed
from compiler.frontend.parts import START_TOKENS
from compiler.frontend.quant import Storage, storage
from compiler.frontend.spec import Attention, Encoder, Layer, ModelSpec, name_kinds
from compiler.ir.graph import Block, Graph, Phase, Workload


@dataclass(frozen=True, slots=True)
class _Layer:
    """A layer. late: nothing behind it needs any but the last token of a sequence."""

    layer: Layer
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
    stack = _stack(spec, workload, storage(spec.checkpoint, workload.weights))
    kinds, kept, count = stack.kinds, stack.kept, len(model.layers)
    ends = embed(spec, workload, kept).block, head(spec, workload, kept).block
    last = sample(spec, workload, kept)
    drawn = () if last is None else (last,)
    sequence = ["embed", *kinds[:count], "head", *(block.kind for block in drawn)]
    more: list[Block] = []
    for module, kind in zip(modules(spec, count) if workload.mtp else (), kinds[count:], strict=True):
        more += [mtp_embed(spec, module, workload, kept), head(spec, workload, kept, module).block]
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

    def make(item: _Layer | str, kept: Storage) -> Made:
        if isinstance(item, str):
            return (embed if item == "embed" else head)(spec, workload, kept)
        made = _layer(spec, item.layer, workload, kept, item.late, source)
        return Made(made.block("layer"), tuple(made.builder.matrices))

    layers = [_Layer(layer, _late(spec, index, workload)) for index, layer in enumerate(spec.layers)]
    items: list[tuple[_Layer | str, int]] = [*((layer, index) for index, layer in enumerate(layers))]
    edges: list[tuple[_Layer | str, int]] = [("embed", 0), ("head", 0)]
    apart = stored_otherwise(spec.checkpoint, workload.weights, kept, [*items, *edges], make)
    kept = kept.with_apart(frozenset().union(*apart[len(items) :]))
    pairs = list(zip(layers, apart, strict=False))
    kinds = name_kinds([(item.layer.label, (item, own)) for item, own in pairs])
    blocks = tuple(
        _layer(spec, item.layer, workload, kept.with_apart(kept.apart | own), item.late, source).block(kind)
        for kind, (item, own) in dict(zip(kinds, pairs, strict=True)).items()
    )
    return _Stack(kinds, blocks, kept)


def _both(spec: ModelSpec, encoder: Encoder, workload: Workload) -> Graph:
    """An encoder and a decoder: prefill runs the encoder over `context` tokens (or as many as its stem gives) and the
    decoder over the tokens that it begins with; decode runs the decoder alone.
    """
    kept, source = storage(spec.checkpoint, workload.weights), encoder.stem.tokens if encoder.stem else workload.context
    decode = workload.phase is Phase.DECODE
    own = workload if decode else replace(workload, context=START_TOKENS)
    blocks: list[Block] = []
    sequence: list[str] = []
    if not decode:
        side, under = spec.encoding(encoder), replace(workload, context=source)
        stack = _stack(side, under, kept)
        blocks += [embed(side, under, stack.kept).block, *stack.blocks]
        sequence += ["embed", *stack.kinds]
    stack = _stack(spec, own, kept, source)
    kept = stack.kept
    first = embed(spec, own, kept, None if decode else encoder, source).block
    last = [block for block in (head(spec, own, kept).block, sample(spec, own, kept)) if block is not None]
    blocks += [first, *stack.blocks, *last]
    sequence += [first.kind, *stack.kinds, *(block.kind for block in last)]
    shown = replace(workload, context=source) if encoder.stem and not decode else workload
    return Graph(spec.name, spec.model_type, tuple(blocks), tuple(sequence), shown)


def _late(spec: ModelSpec, index: int, workload: Workload) -> bool:
    """Whether layers from `index` on only read caches: prefill then needs the last token of a sequence alone."""
    mixers = [layer.mixer for layer in spec.layers[index:]]
    return workload.phase is Phase.PREFILL and all(isinstance(m, Attention) and m.borrows for m in mixers)


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
