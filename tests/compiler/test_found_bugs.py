"""Bugs that review found, each beside what is right."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from agent.presets import preset
from compiler.errors import InputError
from compiler.frontend.spec import Attention, Dense, Layer
from compiler.ir.actions import Rewrite, Rule, Shard
from compiler.ir.dtype import DType
from compiler.ir.graph import Graph
from compiler.ir.text import from_json, parse_schedule
from compiler.lower import lower_block
from compiler.moves import View, legal_moves
from compiler.passes.rewrite import rewrite_block
from compiler.passes.shard import shard_block
from compiler.pipeline import compile_schedule
from compiler.program import Program
from compiler.routing import expected_loads
from compiler.target import Target

Make = Callable[..., Graph]


def test_split_kv_on_all_blocks_and_on_one(graph: Make, target: Target) -> None:
    """`*` and a kind are two subjects of one block: the last one wins."""
    text = "rewrite * streaming_softmax\nrewrite gqa_dense split_kv ways=2\nrewrite * split_kv ways=4"
    assert isinstance(compile_schedule(graph(), parse_schedule(text), target), Program)
    assert lower_block(graph().block["gqa_dense"], parse_schedule(text), 4).op["attn.core"].size("splits") == 4


def test_fuse_on_all_blocks_acts_where_it_can(graph: Make, target: Target) -> None:
    """Both ends of a span are refused in a block without them, so 3 blocks give 6 refusals: more than 4 blocks."""
    assert isinstance(compile_schedule(graph(), parse_schedule("fuse * ffn.gate_proj..ffn.act"), target), Program)


def test_loop_on_all_blocks_beside_another_loop(graph: Make, target: Target) -> None:
    """The first loop takes the run; `*` is then told that the blocks do not repeat."""
    text = "fuse * all\nloop gqa_dense\nloop *"
    assert isinstance(compile_schedule(graph(), parse_schedule(text), target), Program)


def test_json_whose_family_is_no_word() -> None:
    with pytest.raises(InputError):
        from_json({"version": 1, "actions": [{"family": ["fuse"]}]})


@pytest.mark.parametrize(
    ("name", "sockets", "move"),
    [("o3", 16, "rewrite gqa_dense split_kv ways=2"), ("o3", 16, "rewrite gqa_dense merge_qkv"),
     ("o1", 4, "rewrite gqa_dense merge_qkv"), ("o1", 4, "shard gqa_dense ffn ffn ways=1")],
)  # fmt: skip
def test_a_legal_move_leaves_the_other_actions_something_to_act_on(
    graph: Make, target: Target, name: str, sockets: int, move: str
) -> None:
    """A rewrite or a shard is offered that takes away an op, a dimension or a collective another action names."""
    g = graph(sockets=sockets)
    schedule = preset(name, g, target)
    (action,) = parse_schedule(move).actions
    offered = action in tuple(legal_moves(View(g, schedule, target)))
    assert not offered or isinstance(compile_schedule(g, schedule.with_actions(action), target), Program)


def test_loads_of_a_dense_routing_do_not_underflow() -> None:
    """13 of 16 experts, 448 tokens: each is loaded once; (3/16)^448 is 0 in a float."""
    assert expected_loads(16, 13, 448, 512) == pytest.approx(16)


def test_merged_gate_and_up_keep_whole_scale_blocks(graph: Make) -> None:
    """3072 / 16: two shards of 192 rows count as 384 = 3 x 128, though in each of the two matrices a block is cut."""
    layer = Layer(Attention(4, 2, 64), Dense(3072))
    block = graph(layers=(layer,)).block["gqa_dense"]
    scaled = {f"w.ffn.{n}_proj": DType.FP8_BLOCK for n in ("gate", "up")}
    tensors = tuple(replace(t, dtype=scaled.get(t.name, t.dtype)) for t in block.tensors)
    block = replace(block, tensors=tensors)
    merge, split = Rewrite("gqa_dense", Rule.MERGE_GATE_UP), "shard gqa_dense ffn.{} ffn ways=16"
    apart = shard_block(block, shards(split.format("gate_proj")), 16)[1]
    assert [d.code for _, d in apart] == ["SHARD_BLOCK_SCALE"]
    merged, _ = rewrite_block(block, (merge,))
    assert shard_block(merged, shards(split.format("gate_up_proj")), 16)[1]


def shards(text: str) -> tuple[Shard, ...]:
    return tuple(a for a in parse_schedule(text).actions if isinstance(a, Shard))


def test_the_schedule_that_is_right_beside_each_wrong_one(graph: Make, target: Target) -> None:
    """The neighbours of the cases above compile, so none of them is right for the wrong reason."""
    for text in (
        "rewrite * merge_qkv\nrewrite * merge_gate_up\nshard * attn kv_heads ways=4\nshard * ffn ffn ways=4",
        "rewrite * streaming_softmax\nrewrite * split_kv ways=4\nshard gqa_dense attn.core splits ways=4",
        "fuse gqa_dense ffn.gate_proj..ffn.act\nfuse * all\nloop *\nunits gqa_dense ffn.act pcus=7",
    ):
        assert isinstance(compile_schedule(graph(), parse_schedule(text), target), Program), text
