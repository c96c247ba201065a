"""ModelSpec + workload -> Graph: one block a kind of layer, between the embedding and the head.

Layers equal in structure and storage are one block kind; the sequence keeps their order. MTP modules are built behind
the head where the workload says so.
"""

from dataclasses import dataclass

from compiler.frontend.apart import Made, stored_otherwise
from compiler.frontend.attention import SOFTCAP_FLOPS, add_mixer, mixer_sizes
from compiler.frontend.builder import BlockBuilder, Weight
from compiler.frontend.ffn import add_ffn, ffn_sizes
from compiler.frontend.mtp import Module, extended, modules, mtp_embed
from compiler.frontend.quant import Storage, WeightKind, storage
from compiler.frontend.spec import Layer, ModelSpec, name_kinds
from compiler.ir.dtype import DType
from compiler.ir.graph import Block, Graph, Op, Pattern, Role, Workload


def build(spec: ModelSpec, workload: Workload) -> Graph:
    """The graph of `spec` under `workload`.

    Raises InputError where `workload.weights` is not a storage choice, or asks for a quantisation not supported.
    """
    model = spec
    spec = extended(model) if workload.mtp else model
    kept = storage(spec.checkpoint, workload.weights)

    def make(item: Layer | str, kept: Storage) -> Made:
        if isinstance(item, str):
            return (_embed if item == "embed" else _head)(spec, workload, kept)
        made = _layer(spec, item, workload, kept)
        return Made(made.block("layer"), tuple(made.builder.matrices))

    items: list[tuple[Layer | str, int]] = [*((layer, index) for index, layer in enumerate(spec.layers))]
    edges: list[tuple[Layer | str, int]] = [("embed", 0), ("head", 0)]
    apart = stored_otherwise(spec.checkpoint, workload.weights, kept, [*items, *edges], make)
    kept = kept.with_apart(frozenset().union(*apart[len(items) :]))
    layers = list(zip(spec.layers, apart, strict=False))
    kinds = name_kinds([(layer.label, (layer, own)) for layer, own in layers])
    middle = [
        _layer(spec, layer, workload, kept.with_apart(kept.apart | own)).block(kind)
        for kind, (layer, own) in dict(zip(kinds, layers, strict=True)).items()
    ]
    ends = _embed(spec, workload, kept).block, _head(spec, workload, kept).block, _sample(spec, workload, kept)
    count = len(model.layers)
    sequence = ["embed", *kinds[:count], "head", "sample"]
    more: list[Block] = []
    for module, kind in zip(modules(spec, count) if workload.mtp else (), kinds[count:], strict=True):
        more += [mtp_embed(spec, module, workload, kept), _head(spec, workload, kept, module).block]
        sequence += [module.kinds[0], kind, module.kinds[1], "sample"]
    return Graph(spec.name, spec.model_type, (ends[0], *middle, *ends[1:], *more), tuple(sequence), workload)


@dataclass(frozen=True, slots=True)
class _Built:
    """The builder of a layer, the name of its hidden states, and of the cache tensors it gives."""

    builder: BlockBuilder
    last: str
    cache: tuple[str, ...]

    def block(self, kind: str) -> Block:
        return self.builder.block(kind, (self.last, *self.cache))


def _layer(spec: ModelSpec, layer: Layer, workload: Workload, kept: Storage) -> _Built:
    sizes = {"tokens": workload.tokens, "batch": workload.batch, "hidden": spec.hidden}
    sizes |= mixer_sizes(layer.mixer, workload.context) if layer.mixer else {}
    sizes |= ffn_sizes(layer.ffn) if layer.ffn else {}
    b = BlockBuilder(sizes, kept, spec.names)
    b.enter("x", "tokens hidden")
    cache = add_mixer(b, layer, workload.phase) if layer.mixer else ()
    if layer.ffn:
        add_ffn(b, layer)
    return _Built(b, "y" if layer.ffn else "attn.y", cache)


def _embed(spec: ModelSpec, workload: Workload, kept: Storage) -> Made:
    b = _edge(spec, kept, workload.tokens)
    ids = b.enter("ids", "tokens", Role.INPUT, DType.INT32)
    gathers = [("embed", "vocab")] + ([("embed.positions", "positions")] if spec.positions else [])
    rows = tuple(f"{role}.rows" for role, _ in gathers)
    for (role, table), out in zip(gathers, rows, strict=True):
        name = f"{role}.gather" if role == "embed" else role
        weight = b.weight(f"w.{name}", f"{table} hidden", f"{spec.names.module(role)}.weight")
        last = "y" if len(rows) == 1 and spec.embed_norm is None else out
        op = Op(name, Pattern.GATHER, b.dims("tokens hidden"), (ids, weight), (last,), flops_per_point=0)
        b.emit(op, "tokens hidden")
    if spec.positions:
        last = "embed.sum" if spec.embed_norm else "y"
        b.pointwise("embed.add", rows, last, "tokens hidden")
    if spec.embed_norm:
        b.norm("embed.norm", last, "y", "tokens hidden", spec.embed_norm)
    return Made(b.block("embed", ("y",)), tuple(b.matrices))


def _head(spec: ModelSpec, workload: Workload, kept: Storage, module: Module | None = None) -> Made:
    """Logits of the last token of each sequence; those of an MTP module behind a norm of its own."""
    b = _edge(spec, kept, workload.batch)
    b.names = spec.names if module is None else spec.names.of_mtp(module.layer)
    b.enter("x", "tokens hidden")
    b.norm("head.norm", "x", "head.normed", "tokens hidden", spec.norm)
    head, table = (spec.names.module(role) for role in ("head.lm_head", "embed" if spec.tied else "head.lm_head"))
    kind = WeightKind.PLAIN if spec.tied else WeightKind.HEAD
    weight = Weight(table, spec.head_bias, kind, bias_module=head)
    out = "head.logits" if spec.softcap else "logits"
    b.project("head.lm_head", ("head.normed",), out, "tokens vocab <- hidden", weight)
    if spec.softcap:
        b.pointwise("head.softcap", (out,), "logits", "tokens vocab", SOFTCAP_FLOPS)
    return Made(b.block("head" if module is None else module.kinds[1], ("logits",)), tuple(b.matrices))


def _sample(spec: ModelSpec, workload: Workload, kept: Storage) -> Block:
    b = _edge(spec, kept, workload.batch)
    logits = b.enter("logits", "tokens vocab")
    argmax = Op("sample.argmax", Pattern.REDUCE, b.dims("tokens vocab"), (logits,), ("next_ids",), reduced=("vocab",))
    b.emit(argmax, "tokens", role=Role.OUTPUT, dtype=DType.INT32)
    return b.block("sample", ("next_ids",))


def _edge(spec: ModelSpec, kept: Storage, tokens: int) -> BlockBuilder:
    sizes = {"tokens": tokens, "hidden": spec.hidden, "vocab": spec.vocab}
    return BlockBuilder(sizes | ({"positions": spec.positions} if spec.positions else {}), kept, spec.names)
