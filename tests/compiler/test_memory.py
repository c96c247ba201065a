"""The memory map: what leaves HBM first, addresses that add up, and SRAM that is shared only when its users are done."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compiler.ir.actions import Class, Tier
from compiler.ir.graph import Graph
from compiler.ir.text import parse_schedule
from compiler.passes.allocate import Demand, Layout, allocate
from compiler.passes.banks import pmus_of
from compiler.passes.lifetimes import live, share, surely_done
from compiler.pipeline import compile_schedule
from compiler.place import place
from compiler.placement import Buffer, BufferKind
from compiler.program import Extent, MemoryMap, Program, Section, Stage
from compiler.target import Target
from compiler.verify import CompilerFault, verify_memory
from tests.simulator.conftest import section, stage

Make = Callable[..., Graph]
KIB = 2**10
SIZES = st.integers(1, 200)
DEMANDS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(Class), SIZES, st.integers(0, 400), st.sampled_from([None, Tier.HBM, Tier.DDR])),
    max_size=8, unique_by=lambda d: (d[0], d[1]),
).map(lambda rows: [Demand(*row) for row in rows])  # fmt: skip


@given(wanted=DEMANDS, hbm=st.integers(1, 800), activations=st.integers(0, 50))
def test_spilling_moves_least_and_every_byte_has_an_address(
    target: Target, wanted: list[Demand], hbm: int, activations: int
) -> None:
    layout, diagnostics = allocate(wanted, activations, replace(target, hbm_bytes=hbm))
    memory = layout.memory
    for tier, used in (("hbm", memory.hbm_bytes), ("ddr", memory.ddr_bytes)):
        extents = [e for e in memory.extents if e.tier == tier]
        ends = [e.address + e.nbytes for e in extents]
        assert [e.address for e in extents] == [0, *ends[:-1]][: len(extents)]  # no gaps, no overlaps
        assert sum(e.nbytes for e in extents) == used
    assert memory.hbm_bytes + memory.ddr_bytes == activations + sum(d.nbytes for d in wanted)
    assert (memory.hbm_bytes > hbm) == bool(diagnostics)
    if memory.spilled:
        assert memory.hbm_bytes >= hbm  # not a byte more than must
    # Whatever else could have gone instead costs at least as much a byte.
    gone, kept = spilled(wanted, layout), [d for d in wanted if d.tier is None and left(d, layout)]
    assert all(a.moved_bytes / a.nbytes <= b.moved_bytes / b.nbytes for a in gone for b in kept if a is not b)


def spilled(wanted: list[Demand], layout: Layout) -> list[Demand]:
    return [d for d in wanted if d.tier is None and (d.block, d.tensors) in layout.in_ddr]


def left(d: Demand, layout: Layout) -> int:
    return d.nbytes - layout.in_ddr.get((d.block, d.tensors), (0, 0))[0]


def test_a_table_goes_before_experts_before_weights_before_cache(graph: Make, target: Target) -> None:
    """What a step moves a byte stored: one row of 1000; 2 of 16 experts; all weights; all of the cache, appended to."""
    g = graph("moe", sockets=1, context=4096)
    text = "fuse * all"
    whole = compile_schedule(g, parse_schedule(text), target)
    assert isinstance(whole, Program)
    gone: list[tuple[str, str]] = []
    size = {(e.block, e.holds): e.nbytes for e in whole.memory.extents}
    free = whole.memory.hbm_bytes
    for _ in range(4):
        program = compile_schedule(g, parse_schedule(text), replace(target, hbm_bytes=free - 1))
        assert isinstance(program, Program)
        there = [(e.block, e.holds) for e in program.memory.extents if e.tier == "ddr"]
        gone.extend(key for key in there if key not in gone)
        free = whole.memory.hbm_bytes - sum(size[key] for key in gone)
    assert gone == [("embed", "weights"), ("gqa_moe", "experts"), ("gqa_moe", "weights"), ("head", "weights")]


# -- SRAM


def buffer(
    at: int, *readers: int, kib: int = 512, lasting: bool = False, kind: BufferKind = BufferKind.OUTPUT
) -> Buffer:
    return Buffer(f"b{at}", at, kind, kib * KIB, kib * KIB, kib * KIB, 1, readers, lasting)


def test_who_has_surely_finished() -> None:
    """0 -> 1 -> 2 (follows 1) -> 3, and 4 beside them: 2 starts with 1's first output, so only 0 is done."""
    s = section(stage("a"), stage("b", 0), stage("c", 1, streams=True), stage("d", 2), stage("e", 0))
    assert surely_done(s) == (0b00000, 0b00001, 0b00001, 0b00111, 0b00001)


@pytest.mark.parametrize(
    ("tiles", "streams", "shared"),
    [
        (1, False, [[0], [1], [0], [1]]),  # b2 takes b0's PMU: 0 and 1 have finished when 2 starts
        (1, True, [[0], [1], [2], [0]]),  # 2 follows 1, which still reads b0
        (2, False, [[0], [1], [2], [3]]),  # several tiles in flight: everything is live
    ],
)
def test_buffers_share_only_what_their_users_have_left(tiles: int, streams: bool, shared: list[list[int]]) -> None:
    stages = (stage("a"), stage("b", 0), stage("c", 1, streams=streams), stage("d", 2))
    s = section(*stages, tiles=tiles)
    s.buffers = (buffer(0, 1), buffer(1, 2), buffer(2, 3), buffer(3, lasting=True))
    assert share(s, [1, 1, 1, 1]) == shared
    assert [live(b, s) for b in s.buffers] == ([(0, 1), (1, 2), (2, 3), (3, 3)] if tiles == 1 else [(0, 3)] * 4)


def test_what_an_iteration_leaves_to_the_next_is_never_shared() -> None:
    """The last stage's output waits on chip while the next iteration begins: nothing of that may lie in its PMU."""
    for carried, shared in ((0, [[0], [1], [0]]), (64, [[0], [1], [2]])):
        s = section(stage("a"), stage("b", 0), stage("c", 1, carried_bytes=carried))
        s.buffers = (buffer(0, 1), buffer(1, 2), buffer(2, lasting=True))
        assert share(s, [1, 1, 1]) == shared


def test_what_is_held_is_never_shared() -> None:
    s = section(stage("a"), stage("b", 0), stage("c", 1))
    s.buffers = (buffer(0, lasting=True, kind=BufferKind.WEIGHTS), buffer(1, 2), buffer(2, lasting=True))
    assert share(s, [1, 1, 1]) == [[0], [1], [2]]


@pytest.mark.parametrize(
    ("kib", "copies", "pmus"),
    [
        (512, 1, 1), (512, 2, 1), (513, 1, 2),
        (512, 3, 2),  # 2/3 and 1/3 of 16 banks are 10.7 and 5.3: 17 banks
        (32, 2, 1), (1024, 2, 2), (1024, 4, 2),
    ],
)  # fmt: skip
def test_even_and_odd_tiles_lie_in_different_banks(target: Target, kib: int, copies: int, pmus: int) -> None:
    assert pmus_of(kib * KIB, copies, target) == pmus


def random_section(data: st.DataObject) -> Section:
    n = data.draw(st.integers(2, 7))
    stages: list[Stage] = []
    for i in range(n):
        preds = sorted(data.draw(st.sets(st.integers(0, i - 1), max_size=2))) if i else []
        stages.append(stage(f"s{i}", *preds, streams=data.draw(st.booleans())))
    s = section(*stages, tiles=data.draw(st.integers(1, 2)))
    readers = [tuple(j for j in range(n) if i in stages[j].preds) for i in range(n)]
    s.buffers = tuple(buffer(i, *readers[i], lasting=not readers[i]) for i in range(n))
    return s


@settings(max_examples=200, suppress_health_check=[HealthCheck.differing_executors])
@given(data=st.data())
def test_no_two_live_buffers_share_a_pmu(data: st.DataObject) -> None:
    """Against every order in which the stages could really run: starts and ends drawn at random within the rules."""
    s = random_section(data)
    pmus = [data.draw(st.integers(1, 3)) for _ in s.buffers]
    numbers = share(s, pmus)
    assert [len(set(mine)) for mine in numbers] == pmus
    assert max(n for mine in numbers for n in mine) < sum(pmus)
    start, end = [0.0] * len(s.stages), [0.0] * len(s.stages)
    for i, at in enumerate(s.stages):
        ready = max((start[p] if at.streams else end[p] for p in at.preds), default=0.0)
        start[i] = ready + data.draw(st.floats(0, 3))
        end[i] = max([start[i] + data.draw(st.floats(0, 3)), *(end[p] for p in at.preds)])
    last = max(end)
    life = [
        (0.0, last)
        if s.tiles > 1
        else (start[b.stage], last if b.lasting else max(end[k] for k in (b.stage, *b.readers)))
        for b in s.buffers
    ]
    for a in range(len(pmus)):
        for b in range(a):
            if set(numbers[a]) & set(numbers[b]):
                assert life[a][1] <= life[b][0] or life[b][1] <= life[a][0]


def test_a_section_that_fits_only_by_sharing_compiles_and_is_placed(graph: Make, target: Target) -> None:
    """Decode has one tile in flight: the buffers of attention are free for the ffn. Prefill tiles leave nothing free."""
    text = "rewrite * streaming_softmax\nfuse * all\nunits * * pcus=2"
    whole = compile_schedule(graph(sockets=1, batch=512), parse_schedule(text), target)
    assert isinstance(whole, Program)
    apart = whole.sections[1].pmus
    assert apart == sum(pmus_of(b.nbytes, b.copies, target) for b in whole.sections[1].buffers)  # room: nobody shares
    cells = {"tile_columns": 1, "tile_rows": apart - 1, "tiles_across": 1, "tiles_down": 1, "pcus": apart - 1}
    small = replace(target, pmus=apart - 1, **cells)
    fits = compile_schedule(graph(sockets=1, batch=512), parse_schedule(text), small)
    assert isinstance(fits, Program), fits
    assert fits.sections[1].pmus < apart
    assert isinstance(place(fits, small), Program)  # verified: no two live buffers in a PMU
    tiled = parse_schedule(text + "\ntile * tokens size=256\nplace * weights hbm")
    two = compile_schedule(graph(sockets=1, batch=512), tiled, target)
    assert isinstance(two, Program)
    refused = compile_schedule(graph(sockets=1, batch=512), tiled, replace(small, pmus=two.sections[1].pmus - 1))
    assert isinstance(refused, tuple) and {d.code for d in refused} == {"SECTION_OVER_SRAM"}


def test_a_wrong_memory_map_is_our_fault() -> None:
    right = (Extent("a", "weights", "hbm", 0, 5), Extent("a", "kv", "hbm", 5, 3))
    verify_memory(MemoryMap(5, 3, 0, 0, 0, 0, right))
    for wrong in (right[:1], (right[0], replace(right[1], address=4)), (right[0], replace(right[1], tier="ddr"))):
        with pytest.raises(CompilerFault):
            verify_memory(MemoryMap(5, 3, 0, 0, 0, 0, wrong))


@pytest.mark.parametrize("kind", ["dense", "moe", "mla", "alternating"])
def test_what_leaves_its_block_stays_to_the_end(graph: Make, target: Target, kind: str) -> None:
    """Whether or not it is read inside too; and the carry of a loop is live before its stage, for the iteration after."""
    program = compile_schedule(graph(kind), parse_schedule("fuse * all\nloop *"), target)
    assert isinstance(program, Program), program
    for s in program.sections:
        block = program.block[s.block]
        for i, at in enumerate(s.stages):
            leaves = set(block.op[at.op].outputs) & set(block.outputs)
            mine = [b for b in s.buffers if b.stage == i and b.kind is BufferKind.OUTPUT]
            assert any(b.lasting for b in mine) or not leaves
            assert all(b.lasting for b in mine if not b.readers)
            if at.carried_bytes and leaves:
                assert {live(b, s) for b in mine if b.lasting} == {(0, len(s.stages) - 1)}
