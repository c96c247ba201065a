"""Placement and routing: the grid, regions, routes by hand, invariants over random schedules, refusals."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.presets import preset
from compiler.diagnostic import Code, Diagnostic
from compiler.errors import InputError
from compiler.grid import grid_of
from compiler.ir.actions import Buffer as Depth
from compiler.ir.actions import Prefetch, Units
from compiler.ir.graph import Graph, Phase
from compiler.ir.schedule import Schedule
from compiler.passes import regions as regions_pass
from compiler.passes.regions import Region, improved
from compiler.passes.route import Load, gather, memory, send
from compiler.pipeline import compile_schedule
from compiler.place import place, place_together, ranges
from compiler.program import Program
from compiler.target import Target
from compiler.verify import CompilerFault
from compiler.verify_place import cells_of, verify_places

Make = Callable[..., Graph]


def compiled(graph: Graph, schedule: Schedule, target: Target) -> Program:
    program = compile_schedule(graph, schedule, target)
    assert isinstance(program, Program), program
    return program


def placed(graph: Graph, target: Target, *actions: Units | Depth | Prefetch) -> Program:
    result = place(compiled(graph, preset("o3", graph, target).with_actions(*actions), target), target)
    assert isinstance(result, Program), result
    return result


def test_the_sweep_visits_each_cell_and_goes_to_a_neighbour(target: Target) -> None:
    grid = grid_of(target)
    assert (grid.width, grid.height, len(set(grid.at))) == (40, 26, 1040)
    assert all(abs(a - x) + abs(b - y) == 1 for (a, b), (x, y) in zip(grid.at, grid.at[1:], strict=False))
    assert len(grid.leaving) == 2 * (26 + 40)  # two boundaries, both ways
    assert {grid.link_name(link) for link in grid.leaving} >= {"(19,0)->(20,0)", "(0,13)->(0,12)"}


def by_name(load: Load, target: Target) -> dict[str, int]:
    return {grid_of(target).link_name(link): nbytes for link, nbytes in load.items()}


def cells(target: Target, *at: tuple[int, int]) -> list[int]:
    return [grid_of(target).at.index(point) for point in at]


def test_a_multicast_goes_along_its_row_then_down_the_columns(target: Target) -> None:
    """200 B from (1,1) to four cells in two columns: each column takes a slice, its two cells share it."""
    load: Load = {}
    readers = cells(target, (2, 2), (2, 3), (3, 2), (3, 3))
    assert send(cells(target, (1, 1)), readers, 200, grid_of(target), load) == (2, 4)
    assert by_name(load, target) == {
        "(1,1)->(2,1)": 200, "(2,1)->(3,1)": 100, "(2,1)->(2,2)": 100, "(2,2)->(2,3)": 100,
        "(3,1)->(3,2)": 100, "(3,2)->(3,3)": 100,
    }  # fmt: skip


def test_sums_gather_along_rows(target: Target) -> None:
    """Two rows of three cells, 60 B of result in one PMU at the end of the lower one."""
    load: Load = {}
    region = Region(cells(target, (1, 1), (2, 1), (3, 1), (1, 2), (2, 2), (3, 2)), {})
    assert gather(region, cells(target, (3, 2)), 60, grid_of(target), load) == 3
    assert by_name(load, target) == {
        "(1,1)->(2,1)": 30, "(2,1)->(3,1)": 30, "(3,1)->(3,2)": 30, "(1,2)->(2,2)": 30, "(2,2)->(3,2)": 30,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("at", "links"),
    [
        ([(5, 2)], {"(5,0)->(5,1)": 100, "(5,1)->(5,2)": 100}),  # the upper edge is nearer
        ([(5, 1), (5, 11)], {"(5,0)->(5,1)": 50, "(5,12)->(5,11)": 50}),  # a column shares both ports
        ([(5, 0)], {}),  # at the port
    ],
)
def test_memory_streams_enter_at_the_edges_of_a_chip_tile(
    target: Target, at: list[tuple[int, int]], links: dict[str, int]
) -> None:
    load: Load = {}
    memory(cells(target, *at), 100, True, grid_of(target), load)
    assert by_name(load, target) == links


def test_local_improvement_never_makes_it_worse(target: Target) -> None:
    """A chain in the wrong order: neighbours of the chain come closer."""
    edges = [(i, (i + 1) % 12, 10) for i in range(12)]
    lengths, start = [40] * 12, [0, 6, 1, 7, 2, 8, 3, 9, 4, 10, 5, 11]
    distance = regions_pass._distance  # the figure that is improved
    better = improved(start, edges, lengths, grid_of(target))
    assert sorted(better) == sorted(start)
    assert distance(better, edges, lengths, grid_of(target)) < distance(start, edges, lengths, grid_of(target))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_places_keep_their_invariants(graph: Make, target: Target, data: st.DataObject) -> None:
    """Whatever units, depths and prefetch a schedule asks for: placed (verified on the way) or refused as data."""
    kind = data.draw(st.sampled_from(["dense", "moe", "mla", "alternating"]))
    phase = data.draw(st.sampled_from(list(Phase)))
    g = graph(kind, sockets=data.draw(st.sampled_from([1, 4])), phase=phase, context=512)
    schedule = preset("o3", g, target)
    ops = [op.name for op in g.blocks[1].ops]
    for op in data.draw(st.lists(st.sampled_from(ops), max_size=4, unique=True)):
        schedule = schedule.with_actions(Units(g.blocks[1].kind, op, data.draw(st.integers(1, 700))))
    schedule = schedule.with_actions(Prefetch(g.blocks[1].kind, data.draw(st.integers(1, 400)) << 20))
    program = compile_schedule(g, schedule, target)
    if not isinstance(program, Program):
        assert all(isinstance(d, Diagnostic) for d in program)
        return
    result = place(program, target)
    assert isinstance(result, Program) and result.placed and result.id != program.id
    for section in result.sections:
        assert section.place is not None
        held = set().union(*(cells_of(b.pmus) for b in section.place.buffers))
        assert section.pmus <= len(held) <= target.pmus  # no fewer PMUs than were counted
        assert [s.pcus for s in section.stages] == [sum(n for _, n in at.pcus) for at in section.place.stages]


def test_a_wrong_place_is_our_fault(graph: Make, target: Target) -> None:
    section = placed(graph(), target).sections[1]
    assert section.place is not None
    first, *rest = section.place.buffers
    moved = replace(first, pmus=((rest[0].pmus[0][0], len(cells_of(first.pmus))),))
    stages = (replace(section.place.stages[0], pcus=((5, 999),)), *section.place.stages[1:])
    for wrong, says in (
        (replace(section.place, buffers=(moved, *rest)), "live in PMU"),
        (replace(section.place, buffers=(replace(first, odd=(0, 0)), *rest)), "share a bank"),
        (replace(section.place, stages=stages), "PCUs are placed"),
    ):
        with pytest.raises(CompilerFault, match=says):
            verify_places([replace(section, place=wrong)], target)


def test_a_change_elsewhere_places_nothing_again(graph: Make, target: Target) -> None:
    g = graph("mla", sockets=1)
    before = placed(g, target)
    kind = g.blocks[1].kind
    misses = place_together.cache_info().misses
    after = placed(g, target, Units(kind, g.blocks[1].ops[0].name, 3))
    assert place_together.cache_info().misses == misses + 1
    same = [a.place == b.place for a, b in zip(before.sections, after.sections, strict=True)]
    assert same.count(False) == 1


def test_too_many_streams_on_a_link_are_refused(graph: Make, target: Target) -> None:
    g = graph()
    program = compiled(g, preset("o3", g, target), target)
    refused = place(program, replace(target, grid_link_streams=1))
    assert isinstance(refused, tuple)
    d = refused[0]
    assert d.code is Code.LINK_OVER_STREAMS and d.demand > d.bound == 1 and d.levers
    assert "streams on link (" in str(d) and "a loop tile over 64 B a cycle" in str(d)


def test_a_grid_that_is_not_the_units_is_an_input_error(graph: Make, target: Target) -> None:
    with pytest.raises(InputError, match="a cell is one of each"):
        place(compiled(graph(), preset("o3", graph(), target), target), replace(target, tile_rows=12))


def test_ranges_are_runs() -> None:
    assert ranges([4, 2, 3, 9]) == ((2, 3), (9, 1))


PRINT = """
from tests.compiler.test_place import *
from compiler.frontend import build
from compiler.frontend.spec import ModelSpec
from compiler.ir.graph import Workload
from compiler.target import load_target
from tests.compiler.conftest import LAYERS
spec = ModelSpec("small", "small", hidden=512, vocab=1000, tied=False, layers=LAYERS["moe"])
print(placed(build(spec, Workload(Phase.DECODE, 1, 256, 4, "bf16")), load_target("sn40l")).to_json())
"""


def test_places_do_not_depend_on_the_hash_seed() -> None:
    said = {
        subprocess.run(
            [sys.executable, "-c", PRINT], env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("0", "1")
    }  # fmt: skip
    assert len(said) == 1 and "worst_link" in said.pop()
