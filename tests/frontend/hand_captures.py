"""Captures written by hand: the nodes a tracer would give for small layers, in a few lines each."""

from typing import Any

from compiler.frontend.capture.ir import TRACED_TOKENS, Argument, Capture, Captured, Node, Ref, Value

T = TRACED_TOKENS
HIDDEN = 48


class Writer:
    """Collects the nodes of one capture. Values are named by the caller; shapes are given."""

    def __init__(self, hidden: int = HIDDEN) -> None:
        self.inputs = [Value("x", (1, T, hidden), "bfloat16")]
        self.weights: list[Value] = []
        self.nodes: list[Node] = []

    def weight(self, name: str, *shape: int) -> Ref:
        self.weights.append(Value(name, shape, "bfloat16", f"layers.{{layer}}.{name}.weight"))
        return Ref(name)

    def call(
        self, target: str, out: str, shape: tuple[int, ...], *args: Argument, module: str = "", **more: Any
    ) -> Ref:
        """One node with one output."""
        outputs = (Value(out, shape, "bfloat16"),)
        self.nodes.append(Node(target, args, tuple(more.items()), outputs, module, "", "model.py:7"))
        return Ref(out)

    def linear(self, out: str, x: Ref, rows: int, columns: int, bias: bool = False) -> Ref:
        args: list[Argument] = [x, self.weight(f"w_{out}", rows, columns)]
        if bias:
            args.append(self.weight(f"b_{out}", rows))
        return self.call("aten.linear.default", out, (1, T, rows), *args, module=out)

    def norm(self, out: str, x: Ref, width: int = HIDDEN) -> Ref:
        return self.call("rdutune.rms_norm.default", out, (1, T, width), x, self.weight(f"w_{out}", width), 1e-6, 0.0)

    def heads(self, out: str, x: Ref, heads: int, dim: int) -> Ref:
        view = self.call("aten.view.default", f"{out}_view", (1, T, heads, dim), x, (1, T, heads, dim))
        return self.call("aten.transpose.int", out, (1, heads, T, dim), view, 1, 2)

    def attention(self, out: str, q: Ref, k: Ref, v: Ref, heads: tuple[int, int], window: int = 0) -> Ref:
        args = (q, k, v, 1.0, True, window, 0, 0.0, None, None)
        core = self.call("rdutune.attention.default", f"{out}_core", (1, T, *heads), *args, module="self_attn")
        return self.call("aten.view.default", out, (1, T, heads[0] * heads[1]), core, (1, T, -1))

    def add(self, out: str, a: Ref, b: Ref, width: int = HIDDEN) -> Ref:
        return self.call("aten.add.Tensor", out, (1, T, width), a, b)

    def model(self, result: Ref) -> Captured:
        """A model of two such layers and nothing around them."""
        layer = Capture("layer0", tuple(self.inputs), tuple(self.weights), tuple(self.nodes), (result.name,))
        empty = Capture("before", (), (), (), ())
        return Captured("hand", "hand", empty, (layer,), (0, 0), empty, False, 0, (), (("",),))


def grouped_attention(window: int = 0) -> Captured:
    """Norm, projections of 6 query and 2 key heads of 8, attention, output projection, residual."""
    w = Writer()
    x = w.norm("normed", Ref("x"))
    q = w.heads("q", w.linear("q_proj", x, 48, HIDDEN), 6, 8)
    k = w.heads("k", w.linear("k_proj", x, 16, HIDDEN), 2, 8)
    v = w.heads("v", w.linear("v_proj", x, 16, HIDDEN), 2, 8)
    mixed = w.attention("mixed", q, k, v, (6, 8), window)
    return w.model(w.add("y", Ref("x"), w.linear("o_proj", mixed, HIDDEN, 48)))


def latent_attention(bias: bool = False) -> Captured:
    """Keys and values of 4 heads out of a latent of 12 and a rotated row of 6; `bias` of the expansion forbids caching it."""
    w = Writer()
    x = w.norm("normed", Ref("x"))
    w.inputs.append(Value("cos", (1, 1, T, 6), "bfloat16"))
    q = w.heads("q", w.linear("q_proj", x, 4 * 14, HIDDEN), 4, 14)
    q_nope = w.call("aten.slice.Tensor", "q_nope", (1, 4, T, 8), q, 3, 0, 8)
    q_pe = w.call("aten.slice.Tensor", "q_pe", (1, 4, T, 6), q, 3, 8, 14)
    q_rot = w.call("aten.mul.Tensor", "q_rot", (1, 4, T, 6), q_pe, Ref("cos"))
    query = w.call("aten.cat.default", "query", (1, 4, T, 14), (q_nope, q_rot), -1)
    down = w.linear("kv_a", x, 18, HIDDEN)
    latent = w.norm("latent", w.call("aten.slice.Tensor", "low", (1, T, 12), down, 2, 0, 12), 12)
    row = w.call("aten.slice.Tensor", "row", (1, T, 6), down, 2, 12, 18)
    row = w.call("aten.unsqueeze.default", "row1", (1, 1, T, 6), row, 1)
    k_rot = w.call("aten.mul.Tensor", "k_rot", (1, 1, T, 6), row, Ref("cos"))
    k_all = w.call("aten.expand.default", "k_all", (1, 4, T, 6), k_rot, (-1, 4, -1, -1))
    both = w.heads("both", w.linear("kv_b", latent, 4 * 18, 12, bias), 4, 18)
    k_nope = w.call("aten.slice.Tensor", "k_nope", (1, 4, T, 8), both, 3, 0, 8)
    value = w.call("aten.slice.Tensor", "value", (1, 4, T, 10), both, 3, 8, 18)
    key = w.call("aten.cat.default", "key", (1, 4, T, 14), (k_nope, k_all), -1)
    mixed = w.attention("mixed", query, key, value, (4, 10))
    made = w.model(w.add("y", Ref("x"), w.linear("o_proj", mixed, HIDDEN, 40)))
    return Captured(**{f: getattr(made, f) for f in made.__slots__} | {"feeds": (("", "cos"),)})
