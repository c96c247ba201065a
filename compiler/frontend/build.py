"""ModelSpec + workload -> Graph: one block a kind of layer, between the embedding and the head.

Layers equal in structure and storage are one block kind; the sequence keeps their order. MTP modules are not built.
"""

from dataclasses import dataclass

from compiler.frontend.attention import add_mixer, mixer_sizes
from compiler.frontend.builder import BlockBuilder, Weight
from compiler.frontend.ffn import add_ffn, ffn_sizes
from compiler.frontend.quant import Storage, WeightKind, excluded_keys, storage
from compiler.frontend.spec import Layer, ModelSpec, name_kinds
from compiler.ir.dtype import DType
from compiler.ir.graph import Block, Graph, Op, Pattern, Role, Workload

EMBEDDING_KEY = "model.embed_tokens.weight"


@dataclass(frozen=True, slots=True)
class _Layer:
    """A layer and the checkpoint keys of its weights that are kept unquantised: together they decide the block."""

    layer: Layer
    excluded: frozenset[str]


def build(spec: ModelSpec, workload: Workload) -> Graph:
    """The graph of `spec` under `workload`.

    Raises InputError where `workload.weights` is not a storage choice, or asks for a quantisation not supported.
    """
    kept = storage(spec, workload.weights)
    keys = {layer: _quantised(spec, layer, workload, kept) for layer in dict.fromkeys(spec.layers)}
    layers = [
        _Layer(layer, excluded_keys(spec, workload.weights, keys[layer], index))
        for index, layer in enumerate(spec.layers)
    ]
    kinds = name_kinds([(item.layer.label, item) for item in layers])
    middle = [
        _layer(spec, item.layer, workload, kept.without(item.excluded)).block(kind)
        for kind, item in dict(zip(kinds, layers, strict=True)).items()
    ]
    blocks = (_embed(spec, workload, kept), *middle, _head(spec, workload, kept), _sample(spec, workload, kept))
    return Graph(spec.name, spec.model_type, blocks, ("embed", *kinds, "head", "sample"), workload)


@dataclass(frozen=True, slots=True)
class _Built:
    """The builder of a layer and the names of the cache tensors it gives."""

    builder: BlockBuilder
    cache: tuple[str, ...]

    def block(self, kind: str) -> Block:
        return self.builder.block(kind, ("y", *self.cache))


def _layer(spec: ModelSpec, layer: Layer, workload: Workload, kept: Storage) -> _Built:
    sizes = {"tokens": workload.tokens, "batch": workload.batch, "hidden": spec.hidden}
    b = BlockBuilder(sizes | mixer_sizes(layer.mixer, workload.context) | ffn_sizes(layer.ffn), kept)
    b.enter("x", "tokens hidden")
    cache = add_mixer(b, layer.mixer, workload.phase)
    add_ffn(b, layer.ffn)
    return _Built(b, cache)


def _quantised(spec: ModelSpec, layer: Layer, workload: Workload, kept: Storage) -> tuple[str, ...]:
    """Checkpoint keys of the weights of `layer` that may be quantised."""
    if not spec.quantisation.excluded:
        return ()
    return tuple(_layer(spec, layer, workload, kept).builder.quantised)


def _embed(spec: ModelSpec, workload: Workload, kept: Storage) -> Block:
    b = _edge(spec, kept, workload.tokens)
    ids = b.enter("ids", "tokens", Role.INPUT, DType.INT32)
    weight = b.weight("w.embed.gather", "vocab hidden", EMBEDDING_KEY)
    gather = Op("embed.gather", Pattern.GATHER, b.dims("tokens hidden"), (ids, weight), ("y",), flops_per_point=0)
    b.emit(gather, "tokens hidden")
    return b.block("embed", ("y",))


def _head(spec: ModelSpec, workload: Workload, kept: Storage) -> Block:
    """Logits of the last token of each sequence."""
    b = _edge(spec, kept, workload.batch)
    b.enter("x", "tokens hidden")
    b.norm("head.norm", "x", "head.normed", "tokens hidden", "model.norm.weight")
    weight = Weight(EMBEDDING_KEY if spec.tied else "lm_head.weight", kind=WeightKind.PLAIN)
    b.project("head.lm_head", ("head.normed",), "logits", "tokens vocab <- hidden", weight)
    return b.block("head", ("logits",))


def _sample(spec: ModelSpec, workload: Workload, kept: Storage) -> Block:
    b = _edge(spec, kept, workload.batch)
    logits = b.enter("logits", "tokens vocab")
    argmax = Op("sample.argmax", Pattern.REDUCE, b.dims("tokens vocab"), (logits,), ("next_ids",), reduced=("vocab",))
    b.emit(argmax, "tokens", role=Role.OUTPUT, dtype=DType.INT32)
    return b.block("sample", ("next_ids",))


def _edge(spec: ModelSpec, kept: Storage, tokens: int) -> BlockBuilder:
    return BlockBuilder({"tokens": tokens, "hidden": spec.hidden, "vocab": spec.vocab}, kept, layer="")
