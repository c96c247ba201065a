"""From a capture to the graph, by captures written by hand: the nodes a tracer would give, in a few lines each."""

from dataclasses import replace
from typing import Any

import pytest

from compiler.errors import InputError
from compiler.frontend.capture.axes import Atoms
from compiler.frontend.capture.ir import TRACED_TOKENS, Argument, Capture, Captured, Node, Ref, Value
from compiler.frontend.capture.lower import lower
from compiler.frontend.compare import differences, signature
from compiler.ir.dtype import DType
from compiler.ir.graph import Block, Pattern, Phase, Workload

T = TRACED_TOKENS
HIDDEN = 48
DECODE = Workload(Phase.DECODE, 2, 32, 1)
PREFILL = Workload(Phase.PREFILL, 2, 32, 1)


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


def latent_attention(bias: bool = False, scaled: bool = False) -> Captured:
    """Keys and values of 4 heads out of a latent of 12 and a rotated row of 6.

    bias: of the expansion, which forbids caching the latent; scaled: the latent behind its norm, and a norm of the row.
    """
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
    if scaled:
        latent = w.call("aten.mul.Tensor", "scaled", (1, T, 12), latent, 2.0)
        row = w.norm("row_norm", row, 6)
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


def _layer(captured: Captured, workload: Workload = DECODE) -> Block:
    return lower(captured, workload).blocks[0]


def _dims(block: Block, op: str) -> list[tuple[str, int]]:
    return [(dim.name, dim.size) for dim in block.op[op].dims]


# the algebra of axes


def test_a_view_splits_an_atom_and_the_reverse_view_gives_it_back() -> None:
    atoms = Atoms(T)
    rows = atoms.axis(48)
    split = atoms.regroup(((), (atoms.tokens,), rows), (1, T, 6, 8))
    assert split is not None and [atoms.extent(axis) for axis in split] == [1, T, 6, 8]
    back = atoms.regroup(split, (T, 48))
    assert back is not None and atoms.leaves(back[1]) == atoms.leaves(rows)


def test_identified_axes_split_alike() -> None:
    atoms = Atoms(T)
    a, b = atoms.axis(48), atoms.axis(48)
    assert atoms.unify(a, b)
    atoms.split(atoms.leaves(a)[0], (6, 8))
    assert atoms.leaves(a) == atoms.leaves(b) and len(atoms.leaves(b)) == 2


def test_boundaries_that_cross_an_atom_are_not_followed() -> None:
    atoms = Atoms(T)
    assert atoms.regroup((atoms.axis(6), atoms.axis(4)), (4, 6)) is None
    assert not atoms.unify(atoms.axis(6), atoms.axis(4))


def test_the_cuts_of_an_axis_joined_in_any_order_are_the_axis() -> None:
    atoms = Atoms(T)
    whole = atoms.axis(8)
    low, high = atoms.cut(whole, 0, 4), atoms.cut(whole, 4, 4)
    assert atoms.join((high, low), 8) == whole
    assert atoms.join((low, atoms.axis(4)), 8) != whole


# hand-written captures


def test_projections_of_an_attention_get_its_heads() -> None:
    block = _layer(grouped_attention())
    assert _dims(block, "attn.q_proj") == [
        ("tokens", 2),
        ("kv_heads", 2),
        ("q_group", 3),
        ("head_dim", 8),
        ("hidden", HIDDEN),
    ]
    assert _dims(block, "attn.k_proj") == [("tokens", 2), ("kv_heads", 2), ("head_dim", 8), ("hidden", HIDDEN)]
    assert block.op["attn.o_proj"].reduced == ("kv_heads", "q_group", "head_dim")
    assert block.inputs == ("x", "attn.k_cache", "attn.v_cache")
    assert block.outputs == ("y", "attn.k_new", "attn.v_new")


@pytest.mark.parametrize("workload", (DECODE, PREFILL))
def test_flops_by_hand(workload: Workload) -> None:
    block = _layer(grouped_attention(), workload)
    flops = sum(op.flops for op in block.ops if op.pattern is Pattern.CONTRACT)
    assert flops == workload.tokens * (2 * HIDDEN * (48 + 16 + 16 + 48) + 2 * 2 * 6 * 8 * 32)


def test_a_window_bounds_the_cache() -> None:
    assert _layer(grouped_attention(window=8)).tensor["attn.k_cache"].elements == 2 * 8 * 2 * 8
    assert _layer(grouped_attention(window=64)).tensor["attn.k_cache"].elements == 2 * 32 * 2 * 8


def test_keys_and_values_of_a_latent_are_cached_as_the_latent() -> None:
    block = _layer(latent_attention())
    assert [d.size for d in block.tensor["attn.latent_cache"].dims] == [2, 32, 18]
    assert _dims(block, "attn.kv_b_proj")[2:] == [("heads", 4), ("kv_b", 18), ("kv_lora", 12)]
    assert lower(latent_attention(), DECODE).sequence == ("mla", "mla")


def test_a_scaled_latent_and_a_normalised_row_are_cached_all_the_same() -> None:
    block = _layer(latent_attention(scaled=True))
    assert [d.size for d in block.tensor["attn.latent_cache"].dims] == [2, 32, 18]
    assert block.op["attn.kv_append"].inputs == ("attn.kv_a_scale_out", "attn.k_pe")
    assert block.op["attn.k_rope"].inputs == ("attn.k_normed",)
    assert (_dims(block, "attn.k_norm"), _dims(block, "attn.kv_a_scale")) == (
        [("tokens", 2), ("rope", 6)],
        [("tokens", 2), ("kv_lora", 12)],
    )


def test_a_latent_whose_expansion_has_a_bias_is_not_cached() -> None:
    block = _layer(latent_attention(bias=True))
    assert [d.size for d in block.tensor["attn.k_cache"].dims] == [2, 32, 4, 14]
    assert [d.size for d in block.tensor["attn.v_cache"].dims] == [2, 32, 4, 10]


def test_fused_projections_are_taken_apart() -> None:
    w = Writer()
    x = w.norm("normed", Ref("x"))
    qkv = w.linear("qkv", x, 80, HIDDEN, bias=True)
    cut = [
        w.call("aten.slice.Tensor", n, (1, T, b - a), qkv, 2, a, b)
        for n, a, b in (("a", 0, 48), ("b", 48, 64), ("c", 64, 80))
    ]
    q, k, v = (w.heads(n, part, heads, 8) for n, part, heads in zip("qkv", cut, (6, 2, 2), strict=True))
    mixed = w.attention("mixed", q, k, v, (6, 8))
    fused = lower(w.model(w.add("y", Ref("x"), w.linear("o_proj", mixed, HIDDEN, 48))), DECODE)
    plain = lower(grouped_attention(), DECODE)
    assert fused.weight_elements == plain.weight_elements + 2 * 80
    assert fused.blocks[0].op.keys() == plain.blocks[0].op.keys()
    assert fused.flops == plain.flops


def test_a_square_matrix_has_two_dimensions() -> None:
    w = Writer()
    block = _layer(w.model(w.add("y", Ref("x"), w.linear("mix", Ref("x"), HIDDEN, HIDDEN))))
    op = next(op for op in block.ops if op.pattern is Pattern.CONTRACT)
    assert op.points == 2 * HIDDEN * HIDDEN
    assert op.name == "layer.mix.linear"


def test_unknown_operators_are_refused_together() -> None:
    w = Writer()
    a = w.call("aten.fft_rfft.default", "a", (1, T, HIDDEN), Ref("x"), module="mixer.fft")
    b = w.call("mine.odd.default", "b", (1, T, HIDDEN), a, module="mixer.odd")
    with pytest.raises(InputError) as error:
        lower(w.model(w.add("y", Ref("x"), b)), DECODE)
    for part in ("2 operators", "aten.fft_rfft.default in mixer.fft (model.py:7)", "mine.odd.default in mixer.odd"):
        assert part in str(error.value)


def test_a_written_out_norm_is_one_op() -> None:
    w = Writer()
    square = w.call("aten.pow.Tensor_Scalar", "square", (1, T, HIDDEN), Ref("x"), 2)
    mean = w.call("aten.mean.dim", "mean", (1, T, 1), square, (-1,), True)
    root = w.call("aten.rsqrt.default", "root", (1, T, 1), w.call("aten.add.Tensor", "eps", (1, T, 1), mean, 1e-6))
    scaled = w.call("aten.mul.Tensor", "scaled", (1, T, HIDDEN), Ref("x"), root)
    normed = w.call("aten.mul.Tensor", "normed", (1, T, HIDDEN), scaled, w.weight("scale", HIDDEN))
    block = _layer(w.model(w.add("y", Ref("x"), w.linear("mix", normed, HIDDEN, HIDDEN))))
    assert [op.pattern for op in block.ops] == [Pattern.REDUCE, Pattern.CONTRACT, Pattern.MAP]
    assert block.ops[0].flops_per_point == 4


def test_written_out_attention_is_the_operator() -> None:
    w = Writer()
    x = w.norm("normed", Ref("x"))
    q, k, v = (w.heads(n, w.linear(f"{n}_proj", x, 48, HIDDEN), 6, 8) for n in "qkv")
    turned = w.call("aten.transpose.int", "turned", (1, 6, 8, T), k, -2, -1)
    scores = w.call("aten.matmul.default", "scores", (1, 6, T, T), q, turned)
    w.inputs.append(Value("mask", (1, 1, T, T), "bfloat16"))
    masked = w.call("aten.add.Tensor", "masked", (1, 6, T, T), scores, Ref("mask"))
    probs = w.call("aten.softmax.int", "probs", (1, 6, T, T), masked, -1)
    mixed = w.call("aten.matmul.default", "mixed", (1, 6, T, 8), probs, v)
    back = w.call("aten.transpose.int", "back", (1, T, 6, 8), mixed, 1, 2)
    out = w.linear("o_proj", w.call("aten.view.default", "flat", (1, T, 48), back, (1, T, 48)), HIDDEN, 48)
    captured = replace(w.model(w.add("y", Ref("x"), out)), feeds=(("", "mask"),))
    block = _layer(captured)
    assert _dims(block, "attn.scores")[1:] == [("kv_heads", 6), ("q_group", 1), ("head_dim", 8), ("context", 32)]
    assert signature(lower(captured, DECODE))[("attention", (6, 1, 8, 8, 32))] == 2


def test_a_learned_bias_of_the_scores_is_refused() -> None:
    w = Writer()
    q = w.heads("q", w.linear("q_proj", Ref("x"), 48, HIDDEN), 6, 8)
    args = (q, q, q, 1.0, True, 0, 0, 0.0, None, w.weight("bias", 6, T, T), None)
    core = w.call("rdutune.attention.default", "core", (1, T, 6, 8), *args, module="self_attn")
    y = w.call("aten.view.default", "y", (1, T, 48), core, (1, T, 48))
    with pytest.raises(InputError, match="adds to the scores"):
        lower(w.model(y), DECODE)


def test_a_product_of_tokens_with_tokens_alone_is_refused() -> None:
    w = Writer()
    turned = w.call("aten.transpose.int", "turned", (1, HIDDEN, T), Ref("x"), -2, -1)
    table = w.call("aten.matmul.default", "table", (1, T, T), Ref("x"), turned, module="odd")
    y = w.call("aten.matmul.default", "y", (1, T, HIDDEN), table, Ref("x"), module="odd")
    with pytest.raises(InputError, match="tokens with tokens"):
        lower(w.model(y), DECODE)


def test_storage_is_as_traced_or_as_chosen() -> None:
    for choice, dtype in (("auto", DType.BF16), ("bf16", DType.BF16), ("fp8", DType.FP8)):
        block = _layer(grouped_attention(), replace(DECODE, weights=choice))
        assert block.tensor["w.attn.q_proj"].dtype is dtype
        assert block.tensor["w.attn.norm"].dtype is DType.BF16
    with pytest.raises(InputError, match="int3"):
        lower(grouped_attention(), replace(DECODE, weights="int3"))


def test_two_graphs_that_differ_say_where() -> None:
    a, b = lower(grouped_attention(), DECODE), lower(grouped_attention(window=8), DECODE)
    assert differences(a, a) == ()
    said = "\n".join(differences(a, b))
    assert "attention (kv heads, group, key dim, value dim, context) (2, 3, 8, 8, 8): 0 against 2" in said
    assert "stored" in said and "parameters" not in said
