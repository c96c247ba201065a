"""rewrite and shard: hand-computed FLOPs, sizes and collectives; refusals with figures."""

from collections.abc import Callable
from math import prod

import pytest

from compiler.diagnostic import Diagnostic
from compiler.ir.actions import Rewrite, Shard
from compiler.ir.dtype import DType
from compiler.ir.graph import Block, Graph, Op, Pattern, Phase, Role
from compiler.ir.text import parse_schedule
from compiler.lower import lower_block
from compiler.passes.rewrite import rewrite_block
from compiler.passes.shard import shard_block
from compiler.pipeline import compile_schedule
from compiler.target import Target

Make = Callable[..., Graph]


def rewritten(block: Block, text: str) -> Block:
    actions = tuple(a for a in parse_schedule(text).actions if isinstance(a, Rewrite))
    result, refusals = rewrite_block(block, actions)
    assert not refusals, refusals
    return result


def sharded(block: Block, text: str, sockets: int) -> Block:
    actions = tuple(a for a in parse_schedule(text).actions if isinstance(a, Shard))
    result, refusals = shard_block(block, actions, sockets)
    assert not refusals, [str(d) for _, d in refusals]
    return result


def refusals(block: Block, text: str, sockets: int) -> list[Diagnostic]:
    return [
        d
        for _, d in shard_block(block, tuple(a for a in parse_schedule(text).actions if isinstance(a, Shard)), sockets)[
            1
        ]
    ]


def weights(block: Block) -> int:
    return sum(t.elements for t in block.weights)


def flops(block: Block, *names: str) -> int:
    return sum(block.op[n].flops for n in names)


@pytest.mark.parametrize(
    ("kind", "rule", "gone", "new"),
    [
        ("dense", "merge_qkv", "attn.q_proj attn.k_proj attn.v_proj", "attn.qkv_proj"),
        ("dense", "merge_gate_up", "ffn.gate_proj ffn.up_proj", "ffn.gate_up_proj"),
        (
            "moe",
            "merge_gate_up",
            "ffn.experts_gate ffn.experts_up ffn.shared_gate_proj ffn.shared_up_proj",
            "ffn.experts_gate_up ffn.shared_gate_up_proj",
        ),
    ],
)
def test_merging_keeps_weights_and_flops(graph: Make, kind: str, rule: str, gone: str, new: str) -> None:
    source = graph(kind).block[f"gqa_{kind}"]
    result = rewritten(source, f"rewrite gqa_{kind} {rule}")
    assert not set(gone.split()) & set(result.op) and set(new.split()) <= set(result.op)
    assert weights(result) == weights(source)
    assert flops(result, *new.split()) == flops(source, *gone.split())


def test_streaming_softmax_and_split_kv(graph: Make) -> None:
    """8 query heads over 256 rows: 2 x 64 for scores, 7 for softmax, 2 x 64 for values at each."""
    source = graph(batch=3).block["gqa_dense"]
    core = rewritten(source, "rewrite gqa_dense streaming_softmax")
    assert core.op["attn.core"].flops == 3 * 8 * 256 * (128 + 7 + 128)
    split = rewritten(source, "rewrite gqa_dense streaming_softmax\nrewrite gqa_dense split_kv ways=4")
    op = split.op["attn.core"]
    assert (op.size("splits"), op.size("context")) == (4, 64) and op.flops == core.op["attn.core"].flops
    partial = split.tensor["attn.partial"]
    assert partial.elements == 4 * 3 * 8 * (64 + 2) and partial.dtype is DType.FP32
    assert split.op["attn.kv_reduce"].outputs == ("attn.mixed",)


def test_mla_absorb_by_hand(graph: Make) -> None:
    """kv_b (8 heads x (32 + 48) x 128) splits into its key and value halves; the cache is read as stored."""
    source = graph("mla").block["mla_dense"]
    result = rewritten(source, "rewrite mla_dense mla_absorb")
    assert weights(result) == weights(source)
    assert result.tensor["w.attn.k_absorb"].elements == 8 * 32 * 128
    assert result.tensor["w.attn.v_absorb"].elements == 8 * 48 * 128
    assert result.op["attn.scores"].flops == 8 * 256 * (128 + 16) * 2
    assert result.op["attn.values"].flops == 8 * 256 * 128 * 2
    assert "attn.kv_b_proj" not in result.op and "attn.latent_cache" in result.op["attn.values"].inputs


@pytest.mark.parametrize("order", [1, -1])
def test_rewrites_do_not_depend_on_their_order(graph: Make, order: int) -> None:
    lines = ["rewrite mla_moe mla_absorb", "rewrite mla_moe streaming_softmax", "rewrite mla_moe split_kv ways=2"]
    block = rewritten(graph("mla").block["mla_moe"], "\n".join(lines[::order]))
    assert {"attn.k_absorb", "attn.core", "attn.kv_reduce"} <= set(block.op)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rewrite gqa_dense mla_absorb", "latent attention"),
        ("rewrite gqa_dense split_kv ways=2", "needs streaming softmax"),
        ("rewrite gqa_dense streaming_softmax\nrewrite gqa_dense split_kv ways=999", "outside 2..256"),
    ],
)
def test_rules_that_do_not_apply_say_what_they_need(graph: Make, text: str, says: str) -> None:
    actions = tuple(a for a in parse_schedule(text).actions if isinstance(a, Rewrite))
    ((_, diagnostic),) = rewrite_block(graph().block["gqa_dense"], actions)[1]
    assert diagnostic.code == "REWRITE_NOT_APPLICABLE" and says in str(diagnostic)


def collectives(block: Block) -> list[tuple[str, int]]:
    return [(op.name, op.collective.ways) for op in block.ops if op.collective]


TP = "shard {0} attn kv_heads ways=4\nshard {0} ffn ffn ways=4\nshard {0} ffn shared_ffn ways=4"


@pytest.mark.parametrize(
    ("kind", "block", "text", "expected"),
    [
        ("dense", "gqa_dense", "shard gqa_dense attn kv_heads ways=4\nshard gqa_dense ffn ffn ways=4",
         [("attn.out.all_reduce", 4), ("ffn.out.all_reduce", 4)]),
        # routed and shared outputs are partial alike: one sum for both
        ("moe", "gqa_moe", TP.format("gqa_moe"), [("attn.out.all_reduce", 4), ("ffn.sum.all_reduce", 4)]),
        # the shared expert is whole: only the routed part is partial, and it is summed before they meet
        ("moe", "gqa_moe", "shard gqa_moe ffn ffn ways=4", [("ffn.out.all_reduce", 4)]),
        ("moe", "gqa_moe", "shard gqa_moe ffn experts ways=4\nshard gqa_moe ffn shared_ffn ways=4",
         [("ffn.sum.all_reduce", 4)]),
        # whole experts over 2 and their width over 2: partial over 4
        ("moe", "gqa_moe", "shard gqa_moe ffn experts ways=2\nshard gqa_moe ffn ffn ways=2\n"
         "shard gqa_moe ffn shared_ffn ways=4",
         [("ffn.sum.all_reduce", 4)]),
        ("dense", "gqa_dense", "shard gqa_dense attn.q_proj kv_heads ways=4", [("attn.q.all_gather", 4)]),
        ("dense", "gqa_dense", "shard gqa_dense ffn.down_proj hidden ways=4", [("ffn.out.all_gather", 4)]),
        ("dense", "gqa_dense", "shard gqa_dense ffn.gate_proj hidden ways=4", [("ffn.gate.all_reduce", 4)]),
        ("mla", "mla_dense", "shard mla_dense attn heads ways=4", [("attn.out.all_reduce", 4)]),
        ("dense", "embed", "shard embed embed hidden ways=4", [("y.all_gather", 4)]),
        ("dense", "head", "shard head head.lm_head vocab ways=4", [("logits.all_gather", 4)]),
    ],
)  # fmt: skip
def test_collectives_stand_where_values_must_meet(
    graph: Make, kind: str, block: str, text: str, expected: list[tuple[str, int]]
) -> None:
    source = graph(kind).block[block]
    result = sharded(source, text, 4)
    assert collectives(result) == expected
    assert weights(result) * 4 >= weights(source)


def test_more_sockets_than_kv_heads_share_a_head_by_context(graph: Make) -> None:
    """4 KV heads on 8 sockets: each pair splits the context, and gathers 2 x (64 + 2) partial sums a query head."""
    source = rewritten(
        graph().block["gqa_dense"], "rewrite gqa_dense streaming_softmax\nrewrite gqa_dense split_kv ways=2"
    )
    block = sharded(source, "shard gqa_dense attn kv_heads ways=4\nshard gqa_dense attn.core splits ways=2", 8)
    assert block.tensor["attn.k_cache"].elements * 8 == source.tensor["attn.k_cache"].elements
    gather = block.op["attn.partial.all_gather"]
    assert gather.collective is not None and gather.collective.ways == 2
    assert prod(d.size for d in gather.dims) == 2 * 1 * 2 * 66
    assert block.op["attn.kv_reduce"].size("splits") == 2 and block.op["attn.core"].size("splits") == 1


def test_an_append_follows_its_reader_and_rope_stays_whole(graph: Make) -> None:
    for phase in Phase:
        block = sharded(graph(phase=phase).block["gqa_dense"], "shard gqa_dense attn kv_heads ways=4", 4)
        assert block.op["attn.kv_append"].size("kv_heads") == 1
        split = sharded(graph(phase=phase).block["gqa_dense"], "shard gqa_dense attn.k_proj head_dim ways=2", 4)
        assert split.op["attn.k_rope"].size("head_dim") == 64
        assert [n for n, _ in collectives(split)] == ["attn.k.all_gather"]
        assert split.op["attn.kv_append"].size("head_dim") == 64


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("shard gqa_dense attn kv_heads ways=3", "SHARD_OVER_SOCKETS", "do not divide 16"),
        ("shard gqa_dense attn kv_heads ways=32", "SHARD_OVER_SOCKETS", "needs 32 sockets, has 16"),
        ("shard gqa_dense attn kv_heads ways=8", "SHARD_UNEVEN", "4 kv_heads on 8 sockets is 0.5; try: ways=4"),
        ("shard gqa_dense attn kv_heads ways=8 pad=8", "SHARD_UNEVEN", "makes a shard of 8"),
        ("shard gqa_dense atn kv_heads ways=4", "UNKNOWN_OP", "did you mean attn"),
        ("shard gqa_dense attn kv_head ways=4", "UNKNOWN_DIM", "did you mean kv_heads"),
        ("shard gqa_dense attn context ways=4", "SHARD_ILLEGAL", "split_kv ways=N, then shard attn.core splits"),
        ("shard gqa_dense ffn tokens ways=4", "SHARD_ILLEGAL", "stays whole"),
        ("shard gqa_dense attn.q_proj kv_heads ways=4\nshard gqa_dense attn.q_proj head_dim ways=8",
         "SHARD_OVER_SOCKETS", "needs 32"),
    ],
)  # fmt: skip
def test_refusals_say_why_and_what_would_do(graph: Make, text: str, code: str, says: str) -> None:
    (diagnostic,) = refusals(graph(sockets=16).block["gqa_dense"], text, 16)
    assert diagnostic.code == code and says in str(diagnostic), diagnostic


def with_blocks(block: Block, dtype: DType) -> Block:
    from dataclasses import replace

    linear = {i for op in block.ops if op.pattern is Pattern.CONTRACT for i in op.inputs}
    tensors = [replace(t, dtype=dtype) if t.role is Role.WEIGHT and t.name in linear else t for t in block.tensors]
    return replace(block, tensors=tuple(tensors))


@pytest.mark.parametrize(
    ("width", "sockets", "local", "dtype"),
    [(3072, 16, 192, DType.FP8_BLOCK), (18432, 32, 576, DType.FP8_BLOCK), (2880, 8, 360, DType.MXFP4)],
)
def test_a_shard_that_cuts_scale_blocks_is_refused(
    graph: Make, width: int, sockets: int, local: int, dtype: DType
) -> None:
    """weight_block_size 128 and a shard of 3072/16 = 192 or 18432/32 = 576 columns; 32 elements a scale in MXFP4."""
    from compiler.frontend.spec import Attention, Dense, Layer

    layer = Layer(Attention(kv_heads=4, q_group=2, head_dim=64), Dense(width))
    block = with_blocks(graph(layers=(layer,)).block["gqa_dense"], dtype)
    found = refusals(block, f"shard gqa_dense ffn ffn ways={sockets}", sockets)
    assert {d.code for d in found} == {"SHARD_BLOCK_SCALE"}
    assert any(f"{width}/{sockets} = {local} columns" in d.rule for d in found)
    assert all("fewer sockets" in d.levers and f"pad={dtype.group}" in d.levers for d in found)
    padded = sharded(block, f"shard gqa_dense ffn ffn ways={sockets} pad={dtype.group}", sockets)
    assert padded.op["ffn.down_proj"].size("ffn") % dtype.group == 0
    assert padded.op["ffn.down_proj"].size("ffn") >= local


@pytest.mark.parametrize("kind", ["dense", "moe", "mla"])
@pytest.mark.parametrize("phase", list(Phase))
def test_compiled_presets_cover_the_work(graph: Make, target: Target, kind: str, phase: Phase) -> None:
    """All sockets together execute at least the FLOPs and hold at least the weights of every op."""
    from agent.presets import preset

    g = graph(kind, 8, phase, weights="bf16")
    schedule = preset("o3", g, target)
    assert not isinstance(compile_schedule(g, schedule, target), tuple)
    for block in g.blocks:
        local = lower_block(block, schedule, 8)
        same: list[tuple[Op, Op]] = [(op, local.op[op.name]) for op in block.ops if op.name in local.op]
        assert len(same) > len(block.ops) / 2
        for whole, part in same:
            assert part.flops * 8 >= whole.flops
        assert weights(local) * 8 >= weights(block)
