"""The ops of a feed-forward part: from `attn.y` to the block output `y`, with the residual connection."""

from compiler.frontend.builder import BlockBuilder, Weight
from compiler.frontend.quant import WeightKind
from compiler.frontend.spec import Dense, Ffn, Layer, MoE, Wiring
from compiler.ir.graph import Op, Pattern, Routing

#: An activation is counted as 8 operations (silu: negate, exponential, add, divide, multiply); its gate as 1 more.
ACTIVATION_FLOPS = 8
GATE_FLOPS = 1
#: Top-k: comparisons and moves a score.
TOPK_FLOPS = 4


def ffn_sizes(ffn: Ffn) -> dict[str, int]:
    """Sizes of the dimensions of a feed-forward part."""
    sizes = {"ffn": ffn.width}
    if isinstance(ffn, MoE):
        sizes |= {"experts": ffn.experts, "slots": ffn.top_k}
        if ffn.shared_width:
            sizes["shared_ffn"] = ffn.shared_width
    return sizes


def add_ffn(b: BlockBuilder, layer: Layer) -> None:
    """Append the ops of the feed-forward part of `layer`; they end in `y`.

    It reads `attn.y`; without a mixer, and in a parallel layer, `x`.
    """
    serial = layer.wiring is Wiring.SERIAL
    x = "attn.y" if serial and layer.mixer else "x"
    source = x
    if layer.pre_norm and layer.wiring is Wiring.PARALLEL:
        source = "attn.normed"
    elif layer.pre_norm:
        b.norm("ffn.norm", x, "ffn.normed", "tokens hidden", layer.norm)
        source = "ffn.normed"
    if isinstance(layer.ffn, Dense):
        _swiglu(b, "ffn.", "ffn", source, layer.ffn)
        out = "ffn.out"
    elif isinstance(layer.ffn, MoE):
        out = _add_moe(b, layer.ffn, source)
    else:
        raise TypeError(f"no feed-forward part: {layer.ffn}")
    if layer.post_norm:
        b.norm("ffn.post_norm", out, "ffn.out_normed", "tokens hidden", layer.norm)
        out = "ffn.out_normed"
    mixed = ("attn.out_normed" if layer.post_norm else "attn.out",) if layer.mixer and not serial else ()
    b.pointwise("ffn.residual", (x, *mixed, out), "y", "tokens hidden", 1 + len(mixed))


def _swiglu(b: BlockBuilder, name: str, width: str, source: str, ffn: Dense, module: str = "") -> None:
    """Gate and up projections, activation, down projection; `name` is the prefix of ops and tensors."""
    gates = ("gate", "up") if ffn.gated else ("gate",)

    def weight(part: str) -> Weight:
        return Weight(f"{module}.{part}" if module else b.names.module(name + part), ffn.bias)

    for gate in gates:
        words = f"tokens {width} <- hidden"
        b.project(f"{name}{gate}_proj", (source,), f"{name}{gate}", words, weight(f"{gate}_proj"))
    flops = ACTIVATION_FLOPS + (GATE_FLOPS if ffn.gated else 0)
    b.pointwise(f"{name}act", tuple(name + gate for gate in gates), f"{name}mid", f"tokens {width}", flops)
    b.project(f"{name}down_proj", (f"{name}mid",), f"{name}out", f"tokens hidden <- {width}", weight("down_proj"))


def _add_moe(b: BlockBuilder, moe: MoE, source: str) -> str:
    """The shared expert first (it does not wait for the routes), then the routed ones; returns the output tensor."""
    if moe.shared_width:
        shared = b.names.layer + moe.names.shared
        _swiglu(b, "ffn.shared_", "shared_ffn", source, Dense(moe.shared_width, bias=moe.shared_bias), shared)
    router = Weight(b.names.layer + moe.names.router, moe.router_bias, WeightKind.PLAIN)
    b.project("ffn.router", (source,), "ffn.router_out", "tokens experts <- hidden", router)
    added = (b.weight("w.ffn.topk", "experts", b.names.layer + moe.names.correction),) if moe.correction else ()
    topk = Op(
        "ffn.topk",
        Pattern.SORT,
        b.dims("tokens experts"),
        ("ffn.router_out", *added),
        ("ffn.routes",),
        sequential=("experts",),
        flops_per_point=TOPK_FLOPS,
    )
    b.emit(topk, "tokens slots")
    _routed(b, moe, source)
    combine = Op(
        "ffn.combine",
        Pattern.CONTRACT,
        b.dims("tokens slots hidden"),
        ("ffn.experts_out", "ffn.routes"),
        ("ffn.out",),
        reduced=("slots",),
        flops_per_point=2,
        linear=True,
    )
    b.emit(combine, "tokens hidden")
    if not moe.shared_width:
        return "ffn.out"
    both = ("ffn.out", "ffn.shared_out")
    add = Op("ffn.add_shared", Pattern.MAP, b.dims("tokens hidden"), both, ("ffn.sum",), linear=True)
    b.emit(add, "tokens hidden")
    return "ffn.sum"


def _routed(b: BlockBuilder, moe: MoE, source: str) -> None:
    names, routing = moe.names, Routing(moe.experts, moe.top_k)
    for gate, module in (("gate", names.gate), ("up", names.up)):
        weight = _expert(b.names.layer + module, moe, routing)
        words = "tokens slots ffn <- hidden"
        b.project(f"ffn.experts_{gate}", (source, "ffn.routes"), f"ffn.experts_{gate}_out", words, weight)
    gates = ("ffn.experts_gate_out", "ffn.experts_up_out")
    b.pointwise("ffn.experts_act", gates, "ffn.experts_mid", "tokens slots ffn", ACTIVATION_FLOPS + GATE_FLOPS)
    down = _expert(b.names.layer + names.down, moe, routing)
    words = "tokens slots hidden <- ffn"
    b.project("ffn.experts_down", ("ffn.experts_mid", "ffn.routes"), "ffn.experts_out", words, down)


def _expert(module: str, moe: MoE, routing: Routing) -> Weight:
    return Weight(module, moe.bias, WeightKind.EXPERT, routing, (moe.names.weight, moe.names.bias))
