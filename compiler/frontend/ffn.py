"""The ops of a feed-forward part: from `attn.y` to the block output `y`, with the residual connection."""

from dataclasses import replace

from compiler.frontend.altup_ops import correct, scale_active
from compiler.frontend.builder import BlockBuilder, Weight
from compiler.frontend.flops import ACTIVATION_FLOPS, CUTOFF_FLOPS, GATE_FLOPS, SIGMOID_FLOPS, TOPK_FLOPS
from compiler.frontend.hyper import STREAMS, enter_part, leave_part
from compiler.frontend.parts import Norm
from compiler.frontend.per_layer import add_per_layer
from compiler.frontend.quant import WeightKind
from compiler.frontend.spec import Dense, Ffn, Layer, MoE, Wiring
from compiler.ir.dtype import DType
from compiler.ir.graph import Op, Pattern, Role, Routing


def ffn_sizes(ffn: Ffn) -> dict[str, int]:
    """Sizes of the dimensions of a feed-forward part."""
    sizes = {"ffn": ffn.width}
    if isinstance(ffn, MoE):
        sizes |= {"experts": ffn.experts, "slots": ffn.top_k}
        sizes |= {"shared_ffn": ffn.shared_width} if ffn.shared_width else {}
        sizes |= {"moe_latent": ffn.latent} if ffn.latent else {}
    return sizes


def add_ffn(b: BlockBuilder, layer: Layer) -> None:
    """Append the ops of the feed-forward part of `layer`; they end in `y`.

    It reads `attn.y`; without a mixer, and in a parallel layer, `x`.
    """
    serial = layer.wiring is Wiring.SERIAL
    x = "cross.y" if layer.cross else "attn.y" if serial and layer.mixer else "x"
    source = enter_part(b, layer.hyper, "ffn", x) if layer.hyper else x
    if layer.pre_norm and layer.wiring is Wiring.PARALLEL:
        source = "attn.normed"
    elif layer.pre_norm:
        b.norm("ffn.norm", source, "ffn.normed", "tokens hidden", layer.norm)
        source = "ffn.normed"
    if isinstance(layer.ffn, Dense):
        _swiglu(b, "ffn.", "ffn", source, layer.ffn)
        out = "ffn.out"
    elif isinstance(layer.ffn, MoE):
        out = _add_moe(b, layer.ffn, (source, x), layer.norm)
    else:
        raise TypeError(f"no feed-forward part: {layer.ffn}")
    if layer.post_norm:
        b.norm("ffn.post_norm", out, "ffn.out_normed", "tokens hidden", layer.norm)
        out = "ffn.out_normed"
    if layer.hyper:
        leave_part(b, "ffn", x, out, "y")
        return
    mixed = ("attn.out_normed" if layer.post_norm else "attn.out",) if layer.mixer and not serial else ()
    last = "ffn.y" if layer.per_layer or layer.altup else "ffn.sum" if layer.sum_norm else "y"
    b.pointwise("ffn.residual", (x, *mixed, out), last, "tokens hidden", 1 + len(mixed))
    if layer.sum_norm:
        b.norm("ffn.sum_norm", last, "y", "tokens hidden", layer.norm)
    if layer.altup:
        corrected = "altup.corrected" if layer.per_layer else "y"
        correct(b, last, corrected)
        last = corrected
    if layer.per_layer:
        active = scale_active(b, last) if layer.altup and layer.altup.scaled else last
        add_per_layer(b, active, last, "y", STREAMS if layer.altup else "tokens hidden")


def _swiglu(
    b: BlockBuilder, name: str, width: str, source: str, ffn: Dense, modules: dict[str, str] | None = None
) -> None:
    """Gate and up projections, activation, down projection; `name` is the prefix of ops and tensors.

    modules: of a part that has no role of its own in the names of the family, by the last word of the role.
    """
    gates = ("gate", "up") if ffn.gated else ("up",) if modules else ("gate",)

    def weight(part: str) -> Weight:
        return Weight(modules[part] if modules else b.names.module(name + part), ffn.bias)

    for gate in gates:
        words = f"tokens {width} <- hidden"
        b.project(f"{name}{gate}_proj", (source,), f"{name}{gate}", words, weight(f"{gate}_proj"))
    flops = ACTIVATION_FLOPS + (GATE_FLOPS if ffn.gated else 0)
    made = [name + gate for gate in gates]
    if ffn.sparsity:
        made[0] = _cut(b, name, width)
    b.pointwise(f"{name}act", tuple(made), f"{name}mid", f"tokens {width}", flops)
    b.project(f"{name}down_proj", (f"{name}mid",), f"{name}out", f"tokens hidden <- {width}", weight("down_proj"))


def _cut(b: BlockBuilder, name: str, width: str) -> str:
    """What the gate gives above a cutoff, which mean and deviation of its row set; the rest is zero."""
    cut = Op(
        f"{name}cutoff",
        Pattern.REDUCE,
        b.dims(f"tokens {width}"),
        (f"{name}gate",),
        (f"{name}gate_cut",),
        sequential=(width,),
        flops_per_point=CUTOFF_FLOPS,
    )
    b.emit(cut, f"tokens {width}")
    return f"{name}gate_cut"


def _add_moe(b: BlockBuilder, moe: MoE, sources: tuple[str, str], norm: Norm) -> str:
    """The shared expert first (it does not wait for the routes), then the routed ones; returns the output tensor.

    sources: the normalised input, and the residual, which the routed part reads (behind `norm`) where it is apart.
    """
    source, x = sources
    if moe.shared_width:
        parts = zip(("gate_proj", "up_proj", "down_proj"), moe.names.shared_parts, strict=True)
        modules = {part: f"{b.names.layer}{moe.names.shared}.{name}" for part, name in parts}
        _swiglu(b, "ffn.shared_", "shared_ffn", source, Dense(moe.shared_width, moe.gated, moe.shared_bias), modules)
    scored = source
    if moe.apart:
        b.norm("ffn.shared_norm", "ffn.shared_out", "ffn.shared_normed", "tokens hidden", norm)
        scored, source = _apart(b, x, norm)
    router = Weight(b.names.layer + moe.names.router, moe.router_bias, WeightKind.PLAIN)
    b.project("ffn.router", (scored,), "ffn.router_out", "tokens experts <- hidden", router)
    _choose(b, moe)
    rows = "moe_latent" if moe.latent else "hidden"
    if moe.latent:
        down = Weight(b.names.layer + moe.names.latent_down, moe.latent_bias)
        b.project("ffn.latent_down", (source,), "ffn.latent", "tokens moe_latent <- hidden", down)
    _routed(b, moe, "ffn.latent" if moe.latent else source, rows)
    combine = Op(
        "ffn.combine",
        Pattern.CONTRACT,
        b.dims(f"tokens slots {rows}"),
        ("ffn.experts_out", "ffn.routes"),
        ("ffn.combined" if moe.latent else "ffn.out",),
        reduced=("slots",),
        flops_per_point=2,
        linear=True,
    )
    b.emit(combine, f"tokens {rows}")
    if moe.latent:
        up = Weight(b.names.layer + moe.names.latent_up, moe.latent_bias)
        b.project("ffn.latent_up", ("ffn.combined",), "ffn.out", "tokens hidden <- moe_latent", up)
    if not moe.shared_width:
        return "ffn.out"
    if moe.apart:
        b.norm("ffn.experts_post_norm", "ffn.out", "ffn.routed_normed", "tokens hidden", norm)
        b.pointwise("ffn.add_shared", ("ffn.routed_normed", "ffn.shared_normed"), "ffn.sum", "tokens hidden")
        return "ffn.sum"
    both = ("ffn.out", _scaled(b, moe, source) if moe.shared_gate else "ffn.shared_out")
    add = Op("ffn.add_shared", Pattern.MAP, b.dims("tokens hidden"), both, ("ffn.sum",), linear=True)
    b.emit(add, "tokens hidden")
    return "ffn.sum"


def _apart(b: BlockBuilder, x: str, norm: Norm) -> tuple[str, str]:
    """What the router reads, and what the experts read: both out of the residual."""
    b.norm("ffn.router_norm", x, "ffn.router_normed", "tokens hidden", replace(norm, scale=False, bias=False))
    scale = b.weight("w.ffn.router_scale", "hidden", b.names.module("ffn.router_scale"))
    b.pointwise("ffn.router_scale", ("ffn.router_normed", scale), "ffn.router_in", "tokens hidden", flops=2)
    b.norm("ffn.experts_norm", x, "ffn.experts_in", "tokens hidden", norm)
    return "ffn.router_in", "ffn.experts_in"


def _choose(b: BlockBuilder, moe: MoE) -> None:
    """The experts of each token and their gates: the best by the router's scores, or those of the token's id (the table
    of ids is no parameter; an entry for each choice is read).
    """
    if moe.hashed:
        ids = b.enter("ids", "tokens", Role.INPUT, DType.INT32)
        points, inputs = b.dims("tokens slots"), (ids, "ffn.router_out")
        b.emit(Op("ffn.hash", Pattern.GATHER, points, inputs, ("ffn.routes",), flops_per_point=0), "tokens slots")
        return
    name = b.names.module("ffn.expert_scale") if moe.apart else b.names.layer + moe.names.correction
    added = (b.weight("w.ffn.topk", "experts", name),) if moe.correction or moe.apart else ()
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


def _scaled(b: BlockBuilder, moe: MoE, source: str) -> str:
    """The output of the shared expert times the sigmoid of one number a token: linear, so partial sums pass through."""
    gate = Weight(b.names.layer + moe.names.shared_gate, kind=WeightKind.PLAIN)
    b.project("ffn.shared_scale_proj", (source,), "ffn.shared_score", "tokens <- hidden", gate)
    b.pointwise("ffn.shared_scale_act", ("ffn.shared_score",), "ffn.shared_scale", "tokens", SIGMOID_FLOPS)
    scale = Op(
        "ffn.shared_scale",
        Pattern.CONTRACT,
        b.dims("tokens hidden"),
        ("ffn.shared_out", "ffn.shared_scale"),
        ("ffn.shared_scaled",),
        linear=True,
    )
    b.emit(scale, "tokens hidden")
    return "ffn.shared_scaled"


def _routed(b: BlockBuilder, moe: MoE, source: str, rows: str) -> None:
    names, routing = moe.names, Routing(moe.experts, moe.top_k)
    gates = {"gate": names.gate, "up": names.up} if moe.gated else {"up": names.up}
    for gate, module in gates.items():
        weight = _expert(b.names.layer + module, moe, routing)
        words = f"tokens slots ffn <- {rows}"
        b.project(f"ffn.experts_{gate}", (source, "ffn.routes"), f"ffn.experts_{gate}_out", words, weight)
    flops = ACTIVATION_FLOPS + (GATE_FLOPS if moe.gated else 0)
    sources = tuple(f"ffn.experts_{gate}_out" for gate in gates)
    b.pointwise("ffn.experts_act", sources, "ffn.experts_mid", "tokens slots ffn", flops)
    down = _expert(b.names.layer + names.down, moe, routing)
    words = f"tokens slots {rows} <- ffn"
    b.project("ffn.experts_down", ("ffn.experts_mid", "ffn.routes"), "ffn.experts_out", words, down)


def _expert(module: str, moe: MoE, routing: Routing) -> Weight:
    return Weight(module, moe.bias, WeightKind.EXPERT, routing, (moe.names.weight, moe.names.bias))
