"""MTP modules: layers beyond the model's that draft further tokens (DeepSeek-V3 report, section 2.2, equations 21-23).

A module puts the hidden states of the module before it (of the model's last layer) beside the embedding of the token
drafted last, each normalised, projects both to one row, and runs it through a layer, a norm and the model's own head.
One step of decode drafts one token a module. Which drafts are accepted is not known here, and no draft is counted as
a token.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from compiler.errors import InputError
from compiler.frontend.builder import BlockBuilder, Weight
from compiler.frontend.quant import Storage, WeightKind
from compiler.frontend.spec import Layer, ModelSpec
from compiler.ir.dtype import DType
from compiler.ir.graph import Block, Op, Pattern, Role, Workload


def mtp_layer(spec: ModelSpec) -> Layer:
    """The layer of a module: as the model's last one, which the published modules continue."""
    return spec.layers[-1]


def mtp_params(spec: ModelSpec) -> int | None:
    """Parameters of the modules beside those of the model, whose embedding and head they share; None where a module is
    not described here (behind several streams).
    """
    if (spec.hyper or spec.altup) and spec.mtp_modules:
        return None
    layer, hidden = mtp_layer(spec), spec.hidden
    parts = [part.params(hidden) for part in (layer.mixer, layer.ffn) if part is not None]
    last = spec.norm.params(hidden) if spec.norm else 0
    norms = layer.norm.params(hidden) * (layer.norms + 2) + last
    return spec.mtp_modules * (sum(parts) + norms + 2 * hidden * hidden)


def extended(spec: ModelSpec) -> ModelSpec:
    """`spec` with the layers of its modules behind its own; InputError where it has none."""
    if not spec.mtp_modules:
        raise InputError(spec.name, "has no MTP modules", "a model whose config states some, or no --mtp")
    if spec.hyper or spec.altup:
        raise InputError(spec.name, "MTP modules behind several streams are not described", "no --mtp")
    return replace(spec, layers=(*spec.layers, *(mtp_layer(spec),) * spec.mtp_modules))


@dataclass(frozen=True, slots=True)
class Module:
    """What surrounds the layer of a module: its number in the checkpoint, and the suffix of its block kinds."""

    layer: int
    suffix: str

    @property
    def kinds(self) -> tuple[str, str]:
        return f"mtp_embed{self.suffix}", f"mtp_head{self.suffix}"


def modules(spec: ModelSpec, own: int) -> Iterator[Module]:
    """The modules of an extended `spec` with `own` layers of the model."""
    for number in range(spec.mtp_modules):
        yield Module(own + number, f"_{number + 1}" if number else "")


def mtp_embed(spec: ModelSpec, module: Module, workload: Workload, kept: Storage) -> Block:
    """Hidden states and the embedding of the drafted token as one row. The projection is stored as what is not
    quantised (assumed: the index of DeepSeek-V3 has no scales for it)."""
    sizes = {"tokens": workload.tokens, "hidden": spec.hidden, "vocab": spec.vocab, "mtp_in": 2 * spec.hidden}
    b = BlockBuilder(sizes, kept, spec.names.of_mtp(module.layer))
    b.enter("x", "tokens hidden")
    ids = b.enter("ids", "tokens", Role.INPUT, DType.INT32)
    table = b.weight("w.embed.gather", "vocab hidden", f"{spec.names.module('embed')}.weight")
    gather = Op("embed.gather", Pattern.GATHER, b.dims("tokens hidden"), (ids, table), ("mtp.rows",), flops_per_point=0)
    b.emit(gather, "tokens hidden")
    norm = mtp_layer(spec).norm
    b.norm("mtp.embed_norm", "mtp.rows", "mtp.rows_normed", "tokens hidden", norm)
    b.norm("mtp.hidden_norm", "x", "mtp.x_normed", "tokens hidden", norm)
    both = ("mtp.rows_normed", "mtp.x_normed")
    b.pointwise("mtp.concat", both, "mtp.both", "tokens mtp_in", flops=0)
    proj = Weight(b.names.module("mtp.proj"), kind=WeightKind.PLAIN)
    b.project("mtp.proj", ("mtp.both",), "y", "tokens hidden <- mtp_in", proj)
    return b.block(module.kinds[0], ("y",))
