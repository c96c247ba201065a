"""The ops of alternating updates and of augmented residuals: before, inside and behind a layer, and at both ends.

An op over `tokens hidden` that reads streams reads the one that the layer works on.
"""

from compiler.frontend.altup import AltUp
from compiler.frontend.builder import BlockBuilder, Weight
from compiler.frontend.flops import ACTIVATION_FLOPS
from compiler.frontend.hyper import STREAMS
from compiler.frontend.parts import RMS, Norm
from compiler.frontend.quant import WeightKind
from compiler.ir.graph import Op, Pattern

_UNIT = Norm(scale=False)
#: Of the router: the root of the hidden size divides its input, a hyperbolic tangent bounds its output.
_ROUTE_FLOPS = 1 + ACTIVATION_FLOPS
#: Correction: what the layer changed, times a coefficient plus one, added to the prediction.
_CORRECT_FLOPS = 4
#: Residual with an augmented one: two sums, and that by the root of two.
_LAUREL_FLOPS = 4
#: Square and sum, for the mean square of a row.
_MAGNITUDE_FLOPS = 2


def altup_sizes(altup: AltUp) -> dict[str, int]:
    """Sizes of the dimensions of alternating updates."""
    return {"streams": altup.streams, "streams_out": altup.streams, "altup_modes": altup.streams}


def predict(b: BlockBuilder, source: str) -> str:
    """Every stream as a layer may find it: a mixture of the streams that the active one decides."""
    b.norm("altup.norm", source, "altup.normed", "tokens hidden")
    router = Weight(b.names.module("altup.router"), kind=WeightKind.PLAIN)
    b.project("altup.router", ("altup.normed",), "altup.routed", "tokens altup_modes <- hidden", router)
    b.pointwise("altup.act", ("altup.routed",), "altup.modes", "tokens altup_modes", _ROUTE_FLOPS)
    coefficients = Weight(b.names.module("altup.predict_coefs"), kind=WeightKind.PLAIN)
    words = "tokens streams streams_out <- altup_modes"
    b.project("altup.predict_coefs", ("altup.modes",), "altup.mixing", words, coefficients)
    mix = Op(
        "altup.predict",
        Pattern.CONTRACT,
        b.dims("tokens streams streams_out hidden"),
        (source, "altup.mixing"),
        ("altup.mixed",),
        reduced=("streams",),
        flops_per_point=2,
    )
    b.emit(mix, "tokens streams_out hidden")
    b.pointwise("altup.residual", ("altup.mixed", source), "altup.streams", STREAMS)
    return "altup.streams"


def correct(b: BlockBuilder, made: str, out: str) -> None:
    """All predictions corrected by what the layer made of the active one; the router is the one that predicts."""
    norm = Op(
        "altup.correct_norm",
        Pattern.REDUCE,
        b.dims("tokens hidden"),
        (made, "w.altup.norm"),
        ("altup.correct_normed",),
        sequential=("hidden",),
        flops_per_point=RMS.flops_per_point,
    )
    b.emit(norm, "tokens hidden")
    router = Op(
        "altup.correct_router",
        Pattern.CONTRACT,
        b.dims("tokens altup_modes hidden"),
        ("altup.correct_normed", "w.altup.router"),
        ("altup.correct_routed",),
        reduced=("hidden",),
        flops_per_point=2,
    )
    b.emit(router, "tokens altup_modes")
    b.pointwise(
        "altup.correct_act", ("altup.correct_routed",), "altup.correct_modes", "tokens altup_modes", _ROUTE_FLOPS
    )
    weight = Weight(b.names.module("altup.correct_coefs"), kind=WeightKind.PLAIN)
    words = "tokens streams <- altup_modes"
    b.project("altup.correct_coefs", ("altup.correct_modes",), "altup.correction", words, weight)
    b.pointwise("altup.correct", ("altup.streams", made, "altup.correction"), out, STREAMS, _CORRECT_FLOPS)


def scale_active(b: BlockBuilder, source: str) -> str:
    """The active stream times a scale an element."""
    scale = b.weight("w.altup.scale", "hidden", b.names.module("altup.scale"))
    b.pointwise("altup.scale", (source, scale), "altup.scaled", "tokens hidden")
    return "altup.scaled"


def spread(b: BlockBuilder, altup: AltUp, source: str, out: str) -> None:
    """The embedding as the first stream, and a projection of it, as large as it, for each other one."""
    others = _projected(b, altup, "embed", source)
    b.pointwise("embed.altup", (source, *others), out, STREAMS, flops=0)


def gather(b: BlockBuilder, altup: AltUp, source: str) -> str:
    """The mean of the streams, each projected and as large as the first, before the norm of the head."""
    others = _projected(b, altup, "head", source)
    b.pointwise("head.altup", (source, *others), "head.x", "tokens hidden", flops=altup.streams)
    return "head.x"


def _projected(b: BlockBuilder, altup: AltUp, edge: str, source: str) -> tuple[str, ...]:
    """A projection of `source` a stream but the first, with the magnitude of the first."""
    magnitude = Op(
        f"{edge}.altup_magnitude",
        Pattern.REDUCE,
        b.dims("tokens hidden"),
        (source,),
        (f"{edge}.altup_size",),
        reduced=("hidden",),
        flops_per_point=_MAGNITUDE_FLOPS,
    )
    b.emit(magnitude, "tokens")
    out = []
    for index in range(altup.streams - 1):
        name = f"{edge}.altup_{index + 1}"
        module = b.names.module(f"{edge}.altup_proj").replace("{stream}", str(index))
        b.project(f"{name}_proj", (source,), name, "tokens hidden_out <- hidden", Weight(module))
        scale = Op(
            f"{name}_norm",
            Pattern.REDUCE,
            b.dims("tokens hidden_out"),
            (name, f"{edge}.altup_size"),
            (f"{name}_normed",),
            sequential=("hidden_out",),
            flops_per_point=_UNIT.flops_per_point + 1,
        )
        b.emit(scale, "tokens hidden_out")
        out.append(f"{name}_normed")
    return tuple(out)


def add_laurel(b: BlockBuilder, source: str) -> str:
    """The narrow branch out of the normalised input `source`, without the input itself."""
    left, right = (Weight(b.names.module(f"laurel.{side}")) for side in ("left", "right"))
    b.project("laurel.left", (source,), "laurel.narrow", "tokens laurel_rank <- hidden", left)
    b.project("laurel.right", ("laurel.narrow",), "laurel.out", "tokens hidden <- laurel_rank", right)
    b.norm("laurel.norm", "laurel.out", "laurel.normed", "tokens hidden")
    return "laurel.normed"


def laurel_residual(b: BlockBuilder, inputs: tuple[str, ...], out: str) -> None:
    """The residual with mixer and branch, and the branch's input: (residual, mixed, input, branch)."""
    b.pointwise("attn.residual", inputs, out, "tokens hidden", _LAUREL_FLOPS)
