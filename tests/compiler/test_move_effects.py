"""A legal move does something: sections change with a fuse or a cut, numbers with a number, and what is asked of one op
outweighs what is asked of all."""

from collections.abc import Callable

import pytest

from agent.presets import PRESETS, preset
from compiler.ir.actions import Cut, Fuse, Shard
from compiler.ir.graph import Graph
from compiler.ir.text import parse_schedule
from compiler.moves import INSTANCES, View, powers
from compiler.pipeline import compile_schedule
from compiler.program import Program
from compiler.target import Target

Make = Callable[..., Graph]


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("kind", ["dense", "mla"])
def test_a_fuse_or_cut_changes_the_sections(graph: Make, target: Target, kind: str, name: str) -> None:
    g = graph(kind)
    schedule = preset(name, g, target)
    before = View(g, schedule, target)
    for family in (Fuse, Cut):
        for move in INSTANCES[family](before):
            after = View(g, schedule.with_actions(move), target)
            fewer = len(after.spans[move.block]) - len(before.spans[move.block])  # type: ignore[attr-defined]
            assert fewer < 0 if family is Fuse else fewer == 1, move


def test_sampling_is_not_sharded(graph: Make, target: Target) -> None:
    """next_ids is a word a token: splitting the vocabulary saves nothing that the gathered logits have not cost."""
    g = graph()
    assert "sample" not in {m.block for m in INSTANCES[Shard](View(g, parse_schedule(""), target))}  # type: ignore[attr-defined]


def test_one_op_outweighs_all(graph: Make, target: Target) -> None:
    lines = ("units gqa_dense * pcus=3", "units gqa_dense ffn.act pcus=5", "buffer gqa_dense * depth=4")
    schedule = parse_schedule("\n".join((*lines, "buffer gqa_dense ffn.act depth=1")))
    program = compile_schedule(graph(), schedule, target)
    assert isinstance(program, Program)
    found = {s.op: (s.pcus, s.depth) for x in program.sections for s in x.stages if x.block == "gqa_dense"}
    assert found.pop("ffn.act") == (5, 1)
    assert set(found.values()) == {(3, 4)}


@pytest.mark.parametrize(
    ("low", "high", "values"), [(1, 8, (1, 2, 4, 8)), (3, 10, (3, 6, 10)), (5, 5, (5,)), (6, 5, ()), (1, 1, (1,))]
)
def test_powers_end_at_the_highest(low: int, high: int, values: tuple[int, ...]) -> None:
    assert powers(low, high) == values
