"""The blocks around the layers: embedding, head, sampling; the stems of images and sounds."""

from compiler.frontend.altup_ops import altup_sizes, gather, spread
from compiler.frontend.apart import Made
from compiler.frontend.builder import BlockBuilder, Weight
from compiler.frontend.flops import ACTIVATION_FLOPS, SOFTCAP_FLOPS
from compiler.frontend.hyper import STREAMS, collapse_head, expand, hyper_sizes
from compiler.frontend.mtp import Module
from compiler.frontend.per_layer import embed_per_layer, per_layer_sizes
from compiler.frontend.quant import Storage, WeightKind
from compiler.frontend.spec import Encoder, ModelSpec
from compiler.frontend.stacks import Patches, Sound
from compiler.ir.dtype import DType
from compiler.ir.graph import Block, Op, Pattern, Role, Workload

#: Frames that the convolutions of a sound see.
_FRAMES = 3


def embed(spec: ModelSpec, workload: Workload, kept: Storage, behind: Encoder | None = None, source: int = 0) -> Made:
    """Hidden states out of token ids, an image or a sound.

    behind: the encoder whose output, `source` tokens a sequence, is normalised and handed on (`memory`).
    """
    b = _edge(spec, kept, workload.tokens, workload.batch)
    if isinstance(spec.stem, Patches):
        return _patches(b, spec.stem)
    if isinstance(spec.stem, Sound):
        return _sound(b, spec.stem)
    given: tuple[str, ...] = ()
    ids = b.enter("ids", "tokens", Role.INPUT, DType.INT32)
    if behind is not None and behind.norm is not None:
        b.sizes |= {"context_cross": source}
        b.enter("x", "batch context_cross hidden")
        b.names = behind.names
        b.norm("encoder.norm", "x", "memory", "batch context_cross hidden", behind.norm)
        b.names, given = spec.names, ("memory",)
    return _ids(b, spec, "embed" if behind is None else "embed_decoder", ids, given)


def _ids(b: BlockBuilder, spec: ModelSpec, kind: str, ids: str, given: tuple[str, ...]) -> Made:
    tables = {"embed": "vocab", "embed.types": "types", "embed.positions": "positions"}
    rows = tuple(f"{role}.rows" for role, table in tables.items() if table in b.sizes)
    after = spec.embed_norm or spec.hyper or spec.altup
    last = "y"
    for role, table in tables.items():
        if table not in b.sizes:
            continue
        name = f"{role}.gather" if role == "embed" else role
        weight = b.weight(f"w.{name}", f"{table} hidden", f"{spec.names.module(role)}.weight")
        last = "y" if len(rows) == 1 and after is None else f"{role}.rows"
        op = Op(name, Pattern.GATHER, b.dims("tokens hidden"), (ids, weight), (last,), flops_per_point=0)
        b.emit(op, "tokens hidden")
    if len(rows) > 1:
        last = "embed.sum" if spec.embed_norm else "y"
        b.pointwise("embed.add", rows, last, "tokens hidden", len(rows) - 1)
    if spec.embed_norm:
        b.norm("embed.norm", last, "y", "tokens hidden", spec.embed_norm)
    if spec.hyper:
        expand(b, last, "y")
    if spec.altup:
        spread(b, spec.altup, last, "y")
    if spec.per_layer:
        given = (embed_per_layer(b, ids, last if spec.altup else "y"), *given)
    return Made(b.block(kind, ("y", *given)), tuple(b.matrices))


def _patches(b: BlockBuilder, stem: Patches) -> Made:
    """A convolution in steps of its own size; class token and positions are added to what it gives."""
    b.sizes |= {"channels": stem.channels, "height": stem.height, "width": stem.width}
    b.sizes |= {"kernel_height": stem.patch, "kernel_width": stem.patch, "positions": stem.tokens}
    b.sizes |= {"patch_rows": stem.rows, "patch_columns": stem.columns}
    b.enter("x", "batch channels height width", Role.INPUT)
    key = b.names.module("embed.patches")
    weight = b.weight("w.embed.conv", "hidden channels kernel_height kernel_width", f"{key}.weight")
    bias = b.weight("b.embed.conv", "hidden", f"{key}.bias")
    made = "batch hidden patch_rows patch_columns"
    reduced = ("channels", "kernel_height", "kernel_width")
    points = b.dims(f"{made} {' '.join(reduced)}")
    conv = Op("embed.conv", Pattern.CONTRACT, points, ("x", weight, bias), ("embed.patches",), reduced, 2)
    b.emit(conv, made)
    front = [b.weight(f"w.{role}", "hidden", b.names.module(role)) for role in stem.front]
    rows = b.weight("w.embed.positions", "positions hidden", b.names.module("embed.positions"))
    b.pointwise("embed.add", ("embed.patches", *front, rows), "y", "tokens hidden")
    return Made(b.block("embed", ("y",)), tuple(b.matrices))


def _sound(b: BlockBuilder, stem: Sound) -> Made:
    """Two convolutions along the frames, each behind an activation; the second halves their number."""
    b.sizes |= {"mel": stem.mel, "frames": 2 * stem.tokens, "kernel": _FRAMES, "channels": b.sizes["hidden"]}
    b.sizes |= {"positions": stem.tokens}
    b.enter("x", "batch mel frames", Role.INPUT)
    for number, (words, reduced) in enumerate((("batch channels frames", "mel"), ("tokens hidden", "channels")), 1):
        key, name = b.names.module(f"embed.conv_{number}"), f"embed.conv_{number}"
        rows = "channels" if number == 1 else "hidden"
        inputs = (
            "x" if number == 1 else "embed.frames",
            b.weight(f"w.{name}", f"{rows} {reduced} kernel", f"{key}.weight"),
            b.weight(f"b.{name}", rows, f"{key}.bias"),
        )
        points, out = b.dims(f"{words} {reduced} kernel"), f"{name}_out"
        b.emit(Op(name, Pattern.CONTRACT, points, inputs, (out,), (reduced, "kernel"), 2), words)
        b.pointwise(f"embed.act_{number}", (out,), ("embed.frames", "embed.rows")[number - 1], words, ACTIVATION_FLOPS)
    table = b.weight("w.embed.positions", "positions hidden", f"{b.names.module('embed.positions')}.weight")
    b.pointwise("embed.add", ("embed.rows", table), "y", "tokens hidden")
    return Made(b.block("embed", ("y",)), tuple(b.matrices))


def head(spec: ModelSpec, workload: Workload, kept: Storage, module: Module | None = None) -> Made:
    """Logits of the last token of each sequence; those of an MTP module behind a norm of its own. Of an encoder, scores
    of all tokens, or of the classes of each sequence.
    """
    tokens = workload.tokens if spec.head else workload.batch
    b = _edge(spec, kept, tokens, workload.batch)
    b.names = spec.names if module is None else spec.names.of_mtp(module.layer)
    source = b.enter("x", STREAMS if spec.hyper or spec.altup else "tokens hidden")
    if spec.hyper:
        source = collapse_head(b, source)
    if spec.altup:
        source = gather(b, spec.altup, source)
    if spec.head and spec.head.transform:
        dense = Weight(b.names.module("head.transform"), bias=True)
        b.sizes["transformed"] = b.sizes["hidden"]
        b.project("head.transform", (source,), "head.mid", "tokens transformed <- hidden", dense)
        b.pointwise("head.act", ("head.mid",), "head.acted", "tokens hidden", ACTIVATION_FLOPS)
        source = "head.acted"
    norm = spec.head.transform if spec.head and spec.head.transform else spec.norm
    if norm:
        b.norm("head.norm", source, "head.normed", "tokens hidden", norm)
        source = "head.normed"
    _scores(b, spec, source)
    return Made(b.block("head" if module is None else module.kinds[1], ("logits",)), tuple(b.matrices))


def _scores(b: BlockBuilder, spec: ModelSpec, source: str) -> None:
    role, lead, rows = (
        ("head.classifier", "batch", "classes") if _classifies(spec) else ("head.lm_head", "tokens", "vocab")
    )
    own, table = (spec.names.module(name) for name in (role, "embed" if spec.tied else role))
    kind = WeightKind.PLAIN if spec.tied or _classifies(spec) else WeightKind.HEAD
    weight = Weight(table, spec.head_bias, kind, bias_module=own)
    out = "head.logits" if spec.softcap else "logits"
    b.project(role, (source,), out, f"{lead} {rows} <- hidden", weight)
    if spec.softcap:
        b.pointwise("head.softcap", (out,), "logits", f"{lead} {rows}", SOFTCAP_FLOPS)


def _classifies(spec: ModelSpec) -> bool:
    return spec.head is not None and spec.head.classifier


def sample(spec: ModelSpec, workload: Workload, kept: Storage) -> Block | None:
    """The most likely token; None where the head gives no scores of a vocabulary."""
    if _classifies(spec):
        return None
    b = _edge(spec, kept, workload.tokens if spec.head else workload.batch, workload.batch)
    logits = b.enter("logits", "tokens vocab")
    argmax = Op("sample.argmax", Pattern.REDUCE, b.dims("tokens vocab"), (logits,), ("next_ids",), reduced=("vocab",))
    b.emit(argmax, "tokens", role=Role.OUTPUT, dtype=DType.INT32)
    return b.block("sample", ("next_ids",))


def _edge(spec: ModelSpec, kept: Storage, tokens: int, batch: int) -> BlockBuilder:
    sizes = {"tokens": tokens, "batch": batch, "hidden": spec.hidden}
    sizes |= {"classes" if _classifies(spec) else "vocab": spec.vocab}
    sizes |= hyper_sizes(spec.hyper) if spec.hyper else {}
    sizes |= per_layer_sizes(spec.per_layer, len(spec.layers)) if spec.per_layer else {}
    sizes |= altup_sizes(spec.altup) | {"hidden_out": spec.hidden} if spec.altup else {}
    tables = {"positions": spec.positions, "types": spec.types}
    return BlockBuilder(sizes | {name: rows for name, rows in tables.items() if rows}, kept, spec.names)
