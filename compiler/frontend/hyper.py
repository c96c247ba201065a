"""The ops of hyper-connections: streams collapsed into the input of a part, and its output spread over them again."""

from compiler.frontend.builder import BlockBuilder, Weight
from compiler.frontend.compressed import UNIT, HyperConnections
from compiler.frontend.flops import HYPER_GATE_FLOPS, HYPER_MIX_FLOPS, NORMALISE_FLOPS
from compiler.frontend.quant import WeightKind
from compiler.ir.graph import Op, Pattern

STREAMS = "tokens streams hidden"


def hyper_sizes(hyper: HyperConnections) -> dict[str, int]:
    """Sizes of the dimensions of hyper-connections."""
    return {
        "streams": hyper.streams,
        "streams_out": hyper.streams,
        "hc_mix": hyper.mixes,
        "hc_pre": hyper.streams,
        "hc_scales": 3,
    }


def expand(b: BlockBuilder, source: str, out: str) -> None:
    """Every stream begins as the embedding."""
    b.pointwise("embed.expand", (source,), out, STREAMS, flops=0)


def enter_part(b: BlockBuilder, hyper: HyperConnections, part: str, source: str) -> str:
    """The input of `part` out of the streams `source`; what `leave_part` needs is kept under the part's names."""
    _weights(b, part, source, "hc_mix")
    gates = Op(
        f"{part}.hc_gates",
        Pattern.MAP,
        b.dims("tokens streams"),
        (f"{part}.hc", *_small(b, part, ("base", "hc_mix"), ("scale", "hc_scales"))),
        (f"{part}.hc_in", f"{part}.hc_out"),
        flops_per_point=2 * HYPER_GATE_FLOPS,
    )
    b.emit(gates, "tokens streams", "tokens streams")
    mix = Op(
        f"{part}.hc_sinkhorn",
        Pattern.REDUCE,
        b.dims("tokens streams streams_out"),
        (f"{part}.hc", f"w.{part}.hc_base", f"w.{part}.hc_scale"),
        (f"{part}.hc_mixing",),
        sequential=("streams", "streams_out"),
        flops_per_point=HYPER_MIX_FLOPS + NORMALISE_FLOPS * (2 * hyper.iterations - 1),
    )
    b.emit(mix, "tokens streams streams_out")
    _collapse(b, part, source)
    return f"{part}.x"


def leave_part(b: BlockBuilder, part: str, source: str, made: str, out: str) -> None:
    """The streams mixed, and the output `made` of the part added to each."""
    mixed = Op(
        f"{part}.hc_streams",
        Pattern.CONTRACT,
        b.dims("tokens streams streams_out hidden"),
        (source, f"{part}.hc_mixing"),
        (f"{part}.mixed_streams",),
        reduced=("streams",),
        flops_per_point=2,
    )
    b.emit(mixed, "tokens streams_out hidden")
    b.pointwise(f"{part}.residual", (f"{part}.mixed_streams", made, f"{part}.hc_out"), out, STREAMS, flops=2)


def collapse_head(b: BlockBuilder, source: str) -> str:
    """The streams as one row, before the norm of the head."""
    _weights(b, "head", source, "hc_pre")
    gates = Op(
        "head.hc_gates",
        Pattern.MAP,
        b.dims("tokens streams"),
        ("head.hc", *_small(b, "head", ("base", "hc_pre"), ("scale", ""))),
        ("head.hc_in",),
        flops_per_point=HYPER_GATE_FLOPS,
    )
    b.emit(gates, "tokens streams")
    _collapse(b, "head", source)
    return "head.x"


def _weights(b: BlockBuilder, part: str, source: str, words: str) -> None:
    """The weights of a token as they come out of the projection of all its streams."""
    b.norm(f"{part}.hc_norm", source, f"{part}.hc_normed", STREAMS, UNIT, over=2)
    weight = Weight(b.names.module(f"{part}.hc_fn"), kind=WeightKind.PLAIN, suffixes=("", ""))
    b.project(f"{part}.hc_proj", (f"{part}.hc_normed",), f"{part}.hc", f"tokens {words} <- streams hidden", weight)


def _small(b: BlockBuilder, part: str, *wanted: tuple[str, str]) -> tuple[str, ...]:
    """Bias and scale of the weights; each is a tensor of its own in the checkpoint."""
    return tuple(b.weight(f"w.{part}.hc_{name}", words, b.names.module(f"{part}.hc_{name}")) for name, words in wanted)


def _collapse(b: BlockBuilder, part: str, source: str) -> None:
    collapse = Op(
        f"{part}.hc_collapse",
        Pattern.CONTRACT,
        b.dims(STREAMS),
        (source, f"{part}.hc_in"),
        (f"{part}.x",),
        reduced=("streams",),
        flops_per_point=2,
    )
    b.emit(collapse, "tokens hidden")
