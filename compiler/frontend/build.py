"""ModelSpec + workload -> Graph: one block a kind of layer, between the embedding and the head.

Layers equal in structure and storage are one block kind; the sequence keeps their order. MTP modules are built behind
the head where the workload says so.
"""

from dataclasses import dataclass, replace

from compiler.frontend.attention import add_mixer, mixer_sizes
from compiler.frontend.builder import BlockBuilder, Weight
from compiler.frontend.ffn import add_ffn, ffn_sizes
from compiler.frontend.flops import SOFTCAP_FLOPS
from compiler.frontend.hyper import STREAMS, collapse_head, expand, hyper_sizes
from compiler.frontend.mtp import Module, extended, modules, mtp_embed
from compiler.frontend.per_layer import embed_per_layer, per_layer_sizes
from compiler.frontend.quant import Kept, Storage, WeightKind, storage, stored_apart
from compiler.frontend.spec import Attention, Layer, ModelSpec, name_kinds
from compiler.frontend.stored import Lookup, stored_types
from compiler.ir.dtype import DType
from compiler.ir.graph import Block, Graph, Op, Pattern, Phase, Role, Workload


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

    Raises InputError where `workload.weights` is not a storage choice, or asks for a quantisation not supported.
    """
    model = spec
    spec = extended(model) if workload.mtp else model
    kept = storage(spec, workload.weights)
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
    middle = [
        _layer(spec, item.layer, workload, kept.with_apart(kept.apart | item.apart), item.late).block(kind)
        for kind, item in dict(zip(kinds, layers, strict=True)).items()
    ]
    ends = _embed(spec, workload, kept), _head(spec, workload, kept), _sample(spec, workload, kept)
    count = len(model.layers)
    sequence = ["embed", *kinds[:count], "head", "sample"]
    more: list[Block] = []
    for module, kind in zip(modules(spec, count) if workload.mtp else (), kinds[count:], strict=True):
        more += [mtp_embed(spec, module, workload, kept), _head(spec, workload, kept, module)]
        sequence += [module.kinds[0], kind, module.kinds[1], "sample"]
    return Graph(spec.name, spec.model_type, (ends[0], *middle, *ends[1:], *more), tuple(sequence), workload)


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
    blocks = _embed(spec, workload, kept), _head(spec, workload, kept)
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


def _layer(spec: ModelSpec, layer: Layer, workload: Workload, kept: Storage, late: bool = False) -> _Built:
    sizes = {"tokens": workload.batch if late else workload.tokens, "batch": workload.batch, "hidden": spec.hidden}
    sizes |= mixer_sizes(layer.mixer, workload.context, workload.batch) if layer.mixer else {}
    sizes |= ffn_sizes(layer.ffn) if layer.ffn else {}
    sizes |= hyper_sizes(layer.hyper) if layer.hyper else {}
    sizes |= {"per_layer": layer.per_layer.width} if layer.per_layer else {}
    b = BlockBuilder(sizes, kept, spec.names)
    b.enter("x", STREAMS if layer.hyper else "tokens hidden")
    if layer.per_layer:
        b.enter("per_layer", "tokens per_layer")
    cache = add_mixer(b, layer, workload.phase) if layer.mixer else ()
    if layer.ffn:
        add_ffn(b, layer)
    return _Built(b, "y" if layer.ffn else "attn.y", cache)


def _keys(spec: ModelSpec, layer: Layer, workload: Workload, kept: Storage) -> tuple[tuple[str, WeightKind], ...]:
    """Checkpoint keys of the weights of `layer` that may be quantised, and their kinds."""
    if not spec.quantisation.patterns:
        return ()
    return tuple(_layer(spec, layer, workload, kept).builder.quantised)


def _embed(spec: ModelSpec, workload: Workload, kept: Storage) -> Block:
    b = _edge(spec, kept, workload.tokens)
    ids = b.enter("ids", "tokens", Role.INPUT, DType.INT32)
    gathers = [("embed", "vocab")] + ([("embed.positions", "positions")] if spec.positions else [])
    rows = tuple(f"{role}.rows" for role, _ in gathers)
    for (role, table), out in zip(gathers, rows, strict=True):
        name = f"{role}.gather" if role == "embed" else role
        weight = b.weight(f"w.{name}", f"{table} hidden", f"{spec.names.module(role)}.weight")
        last = "y" if len(rows) == 1 and spec.embed_norm is None and spec.hyper is None else out
        op = Op(name, Pattern.GATHER, b.dims("tokens hidden"), (ids, weight), (last,), flops_per_point=0)
        b.emit(op, "tokens hidden")
    if spec.positions:
        last = "embed.sum" if spec.embed_norm else "y"
        b.pointwise("embed.add", rows, last, "tokens hidden")
    if spec.embed_norm:
        b.norm("embed.norm", last, "y", "tokens hidden", spec.embed_norm)
    if spec.hyper:
        expand(b, last, "y")
    if spec.per_layer:
        return b.block("embed", ("y", embed_per_layer(b, ids, "y")))
    return b.block("embed", ("y",))


def _head(spec: ModelSpec, workload: Workload, kept: Storage, module: Module | None = None) -> Block:
    """Logits of the last token of each sequence; those of an MTP module behind a norm of its own."""
    keys = ((f"{spec.names.module('head.lm_head')}.weight", WeightKind.HEAD),)
    apart = stored_apart(spec, workload.weights, kept, keys, 0)
    b = _edge(spec, kept.with_apart(apart | kept.apart), workload.batch)
    b.names = spec.names if module is None else spec.names.of_mtp(module.layer)
    b.enter("x", STREAMS if spec.hyper else "tokens hidden")
    b.norm("head.norm", collapse_head(b, "x") if spec.hyper else "x", "head.normed", "tokens hidden", spec.norm)
    head, table = (spec.names.module(role) for role in ("head.lm_head", "embed" if spec.tied else "head.lm_head"))
    kind = WeightKind.PLAIN if spec.tied else WeightKind.HEAD
    weight = Weight(table, spec.head_bias, kind, bias_module=head)
    out = "head.logits" if spec.softcap else "logits"
    b.project("head.lm_head", ("head.normed",), out, "tokens vocab <- hidden", weight)
    if spec.softcap:
        b.pointwise("head.softcap", (out,), "logits", "tokens vocab", SOFTCAP_FLOPS)
    return b.block("head" if module is None else module.kinds[1], ("logits",))


def _sample(spec: ModelSpec, workload: Workload, kept: Storage) -> Block:
    b = _edge(spec, kept, workload.batch)
    logits = b.enter("logits", "tokens vocab")
    argmax = Op("sample.argmax", Pattern.REDUCE, b.dims("tokens vocab"), (logits,), ("next_ids",), reduced=("vocab",))
    b.emit(argmax, "tokens", role=Role.OUTPUT, dtype=DType.INT32)
    return b.block("sample", ("next_ids",))


def _edge(spec: ModelSpec, kept: Storage, tokens: int) -> BlockBuilder:
    sizes = {"tokens": tokens, "hidden": spec.hidden, "vocab": spec.vocab}
    sizes |= hyper_sizes(spec.hyper) if spec.hyper else {}
    sizes |= per_layer_sizes(spec.per_layer, len(spec.layers)) if spec.per_layer else {}
    return BlockBuilder(sizes | ({"positions": spec.positions} if spec.positions else {}), kept, spec.names)
