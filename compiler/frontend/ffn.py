"""The ops of a feed-forward part: from `attn.y` to the block output `y`, with the residual connection."""

from compiler.frontend.builder import BlockBuilder, Weight
from compiler.frontend.quant import WeightKind
from compiler.frontend.spec import Dense, Ffn, MoE
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


def add_ffn(b: BlockBuilder, ffn: Ffn) -> None:
    """Append the ops of `ffn`; they end in `y`."""
    b.norm("ffn.norm", "attn.y", "ffn.normed", "tokens hidden", "post_attention_layernorm.weight")
    if isinstance(ffn, Dense):
        _swiglu(b, "ffn.", "ffn", "mlp", ffn)
        out = "ffn.out"
    else:
        out = _add_moe(b, ffn)
    b.pointwise("ffn.residual", ("attn.y", out), "y", "tokens hidden")


def _swiglu(b: BlockBuilder, name: str, width: str, module: str, ffn: Dense) -> None:
    """Gate and up projections, activation, down projection; `name` is the prefix of ops and tensors."""
    gates = ("gate", "up") if ffn.gated else ("gate",)
    for gate in gates:
        weight = Weight(f"{module}.{gate}_proj.weight", ffn.bias)
        b.project(f"{name}{gate}_proj", ("ffn.normed",), f"{name}{gate}", f"tokens {width} <- hidden", weight)
    flops = ACTIVATION_FLOPS + (GATE_FLOPS if ffn.gated else 0)
    b.pointwise(f"{name}act", tuple(name + gate for gate in gates), f"{name}mid", f"tokens {width}", flops)
    down = Weight(f"{module}.down_proj.weight", ffn.bias)
    b.project(f"{name}down_proj", (f"{name}mid",), f"{name}out", f"tokens hidden <- {width}", down)


def _add_moe(b: BlockBuilder, moe: MoE) -> str:
    """The shared expert first (it does not wait for the routes), then the routed ones; returns the output tensor."""
    if moe.shared_width:
        _swiglu(b, "ffn.shared_", "shared_ffn", moe.names.shared, Dense(moe.shared_width))
    router = Weight(f"{moe.names.router}.weight", moe.router_bias, WeightKind.PLAIN)
    b.project("ffn.router", ("ffn.normed",), "ffn.router_out", "tokens experts <- hidden", router)
    topk = Op(
        "ffn.topk",
        Pattern.SORT,
        b.dims("tokens experts"),
        ("ffn.router_out",),
        ("ffn.routes",),
        sequential=("experts",),
        flops_per_point=TOPK_FLOPS,
    )
    b.emit(topk, "tokens slots")
    _routed(b, moe)
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


def _routed(b: BlockBuilder, moe: MoE) -> None:
    names, routing = moe.names, Routing(moe.experts, moe.top_k)
    for gate, module in (("gate", names.gate), ("up", names.up)):
        weight = _expert(module, moe, routing)
        words = "tokens slots ffn <- hidden"
        b.project(f"ffn.experts_{gate}", ("ffn.normed", "ffn.routes"), f"ffn.experts_{gate}_out", words, weight)
    gates = ("ffn.experts_gate_out", "ffn.experts_up_out")
    b.pointwise("ffn.experts_act", gates, "ffn.experts_mid", "tokens slots ffn", ACTIVATION_FLOPS + GATE_FLOPS)
    down = _expert(names.down, moe, routing)
    words = "tokens slots hidden <- ffn"
    b.project("ffn.experts_down", ("ffn.experts_mid", "ffn.routes"), "ffn.experts_out", words, down)


def _expert(module: str, moe: MoE, routing: Routing) -> Weight:
    return Weight(module + moe.names.weight, moe.bias, WeightKind.EXPERT, routing)
