"""Units, SRAM, holds and expert loads of stages, by hand on small models."""

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, product
from math import ceil

import pytest

from compiler.frontend.spec import Attention, Layer, MoE
from compiler.ir.graph import Graph, Phase
from compiler.ir.text import parse_schedule
from compiler.moves import View, hole_values
from compiler.pipeline import compile_schedule
from compiler.program import Program, Section, Stage
from compiler.target import Target

Make = Callable[..., Graph]
PMU = 512 * 1024


def program_of(graph: Graph, text: str, target: Target) -> Program:
    program = compile_schedule(graph, parse_schedule(text), target)
    assert isinstance(program, Program), [str(d) for d in program]
    return program


def stage(graph: Graph, text: str, target: Target, op: str) -> Stage:
    return next(s for section in program_of(graph, text, target).sections for s in section.stages if s.op == op)


def section(graph: Graph, text: str, target: Target, kind: str) -> Section:
    (found,) = (s for s in program_of(graph, text, target).sections if s.block == kind)
    return found


# -- experts: expected loads and rows against every routing of a few tokens over four experts


@pytest.mark.parametrize("tokens", [2, 3])
@pytest.mark.parametrize("sockets", [1, 2])
@pytest.mark.parametrize(("regions", "tile"), [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_expert_loads_by_enumeration(
    graph: Make, target: Target, tokens: int, sockets: int, regions: int, tile: int
) -> None:
    """Top-1 of 4, all routings counted. The busiest socket has the expected share of the chosen experts."""
    layer = Layer(Attention(kv_heads=4, q_group=2, head_dim=64), MoE(experts=4, top_k=1, width=192))
    text = f"shard gqa_moe ffn experts ways={sockets}\nexperts gqa_moe static regions={regions} tile={tile}"
    found = stage(graph(sockets=sockets, batch=tokens, layers=(layer,)), text, target, "ffn.experts_gate")
    counts = [[chosen.count(e) for e in range(4)] for chosen in product(range(4), repeat=tokens)]
    loads = sum(ceil(n / tile) for c in counts for n in c) / len(counts)  # of 2 tokens: 2, or 1.75 at tile=2
    active = sum(n > 0 for c in counts for n in c) / len(counts)  # of 2 tokens 1.75, of 3 tokens 2.31

    def busiest(experts: int, drawn: float, groups: int) -> float:
        """Mean of the fullest group over all draws; between whole numbers of experts drawn, linear."""
        if drawn % 1:
            low = busiest(experts, drawn // 1, groups)
            return low + drawn % 1 * (busiest(experts, drawn // 1 + 1, groups) - low)
        draws = list(combinations(range(experts), int(drawn)))
        size = experts // groups
        return sum(max(sum(e // size == g for e in d) for g in range(groups)) for d in draws) / len(draws)

    share = busiest(4, active, sockets) / active
    local = active * share
    imbalance = busiest(4 // sockets, local, regions) * regions / local
    assert found.weight_bytes == pytest.approx(loads * share * 512 * 192 * 2, abs=2)
    assert found.flops == pytest.approx(tokens * share * 512 * 192 * 2, abs=2)
    assert found.macs == pytest.approx(loads * tile * share * imbalance * 512 * 192, abs=512)  # whole rows of 512
    assert found.restarts == ceil(loads * share * imbalance / regions - 1e-9) - 1
    assert found.pcus_used % regions == 0


# -- units: parallelism of an op caps what it can use


@pytest.mark.parametrize(
    ("op", "cap"),
    [
        ("attn.norm", 3),  # a token a unit: the normalised dimension is walked in order
        ("ffn.up_proj", 3 * 768 // 32 * (512 // 64)),
        ("attn.k_proj", 3 * 4 * 64 // 32 * (512 // 64)),
        ("attn.scores", 3 * 8),  # 64 products of a key are one unit's; the context is walked in order
        ("attn.residual", 3 * 512 // 32),
    ],
)
def test_units_stop_at_the_parallelism_of_an_op(graph: Make, target: Target, op: str, cap: int) -> None:
    found = stage(graph(sockets=1, batch=3), f"units gqa_dense {op} pcus=1000", target, op)
    assert (found.pcus, found.pcus_used) == (1000, cap)
    assert stage(graph(sockets=1, batch=3), f"units gqa_dense {op} pcus=2", target, op).pcus_used == 2
    assert stage(graph(sockets=1, batch=3), "", target, op).pcus <= cap


@pytest.mark.parametrize(("splits", "cap"), [("", 3 * 8 * 2), ("rewrite * split_kv ways=4\n", 3 * 8 * 4 * 2)])
def test_streaming_attention_has_units_for_scores_and_for_values(
    graph: Make, target: Target, splits: str, cap: int
) -> None:
    text = f"rewrite * streaming_softmax\n{splits}units * attn.core pcus=1000\ntile * context size=16"
    found = stage(graph(sockets=1, batch=3), text, target, "attn.core")
    assert found.pcus_used == cap
    rows = 256 if not splits else 64
    assert found.restarts == rows // 16 - 1


def test_units_share_ninety_percent_of_the_chip(graph: Make, target: Target) -> None:
    text = "fuse * all\nunits gqa_dense ffn.up_proj pcus=100"
    found = section(graph(sockets=1, batch=256), text, target, "gqa_dense")
    assert found.pcus == sum(s.pcus for s in found.stages)
    assert 0.8 * 1040 < found.pcus <= 0.9 * 1040 + len(found.stages)
    assert next(s for s in found.stages if s.op == "ffn.up_proj").pcus == 100
    work = {s.op: s.pcus for s in found.stages}
    assert work["ffn.gate_proj"] / work["attn.k_proj"] == pytest.approx(768 / 256, rel=0.2)


# -- SRAM: every buffer in whole PMUs


@pytest.mark.parametrize(
    ("depth", "vocab", "pmus"),
    [
        # 512 in (2 x 1 KiB): 1; weights in flight (all of 2 x 512 x vocab bytes); output depth x 2 x vocab bytes
        (2, 512, 1 + 1 + 1),
        (2, 1000, 1 + 2 + 1),
        (262, 1000, 1 + 2 + 1),  # 524,000 bytes of output
        (263, 1000, 1 + 2 + 2),  # 526,000
    ],
)
def test_buffers_are_whole_pmus(graph: Make, target: Target, depth: int, vocab: int, pmus: int) -> None:
    g, text = graph(sockets=1, vocab=vocab), f"buffer head head.lm_head depth={depth}"
    assert stage(g, text, target, "head.lm_head").pmus == pmus
    (alone,) = (s for s in program_of(g, text, target).sections if s.name == "head[head.lm_head]")
    assert (alone.pmus, alone.sram_bytes) == (pmus, pmus * PMU)


def test_weights_in_flight_are_two_chunks_a_unit(graph: Make, target: Target) -> None:
    """1000 x 4096 x 2 bytes are 16 PMUs whole; 32 units with 2 x 16 KiB in flight each are 2."""
    g = graph(sockets=1, hidden=4096)
    assert stage(g, "", target, "head.lm_head").pmus == 1 + 16 + 1
    assert stage(g, "units head head.lm_head pcus=32", target, "head.lm_head").pmus == 1 + 2 + 1


def test_what_is_held_on_chip(graph: Make, target: Target) -> None:
    """Of several tiles: all weights stay if they fit, else all but experts, else none; one PMU less decides."""
    layer = Layer(Attention(kv_heads=4, q_group=2, head_dim=64), MoE(16, 2, width=1536, shared_width=1536))
    g = graph(sockets=1, phase=Phase.PREFILL, context=256, layers=(layer,))
    text = "rewrite * streaming_softmax\nfuse * all\ntile * tokens size=16\n" + "".join(
        f"units gqa_moe {op.name} pcus=16\n" for op in g.block["gqa_moe"].ops if op.name.startswith("ffn.")
    )

    def held(pmus: int, placed: str = "") -> tuple[int, bool, bool]:
        found = section(g, text + placed, replace(target, pmus=pmus), "gqa_moe")
        by_op = {s.op: s for s in found.stages}
        assert found.tiles == 16 and found.sram_bytes == found.pmus * PMU <= pmus * PMU
        return found.pmus, by_op["attn.q_proj"].loads_once, by_op["ffn.experts_up"].loads_once

    everything, *both = held(1040)
    assert held(everything) == (everything, True, True)
    dense, *some = held(everything - 1)
    least, *none = held(dense - 1)
    assert (both, some, none) == ([True, True], [True, False], [False, False])
    # 16 x 512 x 1536 x 2 bytes are 48 PMUs a matrix, in flight 16 units x 32 KiB are 1
    assert everything - dense == 3 * (48 - 1)
    # the shared expert's 512 x 1536 x 2 bytes are 3 PMUs a matrix; the 512 KiB and less of attention are 1 either way
    assert dense - least == 3 * (3 - 1)
    refused = compile_schedule(g, parse_schedule(text), replace(target, pmus=least - 1))
    assert isinstance(refused, tuple) and [(d.code, d.gap) for d in refused] == [("SECTION_OVER_SRAM", PMU)]
    # what is placed is obeyed, whether it fits better or not
    assert held(1040, "place gqa_moe experts hbm") == (dense, True, False)
    assert held(1040, "place gqa_moe weights hbm") == (everything - 6, False, True)
    assert held(1040, "place gqa_moe weights hbm\nplace gqa_moe experts hbm") == (least, False, False)


def test_held_experts_are_all_loaded_once(graph: Make, target: Target) -> None:
    """Over all tiles any of the 16 experts may be called; of one tile of one token only 2 are."""
    g = graph("moe", sockets=1, phase=Phase.PREFILL, context=256)
    for tier, experts in (("sram", 16), ("hbm", 2)):
        text = f"fuse * all\ntile * tokens size=1\nplace * experts {tier}"
        assert stage(g, text, target, "ffn.experts_up").weight_bytes == experts * 512 * 192 * 2


def test_one_tile_holds_nothing(graph: Make, target: Target) -> None:
    found = section(graph("moe", sockets=1), "fuse * all", target, "gqa_moe")
    assert not any(s.loads_once for s in found.stages)


# -- spill: a share of every stream comes from DDR


def test_spilled_weights_stream_from_ddr(graph: Make, target: Target) -> None:
    """16 experts x 3 x 512 x 192 x 2 bytes x 3 layers = 27 MiB; HBM is 9 MiB and the table of the embedding short. A
    step reads one row of the table: it goes first; then a third of each expert stream is DDR's."""
    g = graph("moe", sockets=1)
    whole = program_of(g, "", target).memory
    experts = 3 * 16 * 3 * 512 * 192 * 2
    assert experts == 27 * 2**20 and whole.spilled == 0
    table, row = 1000 * 512 * 2, 512 * 2
    small = replace(target, hbm_bytes=whole.hbm_bytes - table - experts // 3)
    memory = program_of(g, "", small).memory
    gone = table + experts // 3
    assert (memory.spilled, memory.ddr_weights, memory.ddr_kv) == (gone, gone, 0)
    assert [(e.block, e.holds, e.address, e.nbytes) for e in memory.extents if e.tier == "ddr"] == [
        ("embed", "weights", 0, table), ("gqa_moe", "experts", table, experts // 3)
    ]  # fmt: skip
    gather = stage(g, "", small, "embed.gather")
    assert (gather.weight_bytes, gather.ddr_bytes) == (0, row)
    assert memory.hbm_bytes == small.hbm_bytes and memory.hbm_kv == whole.hbm_kv
    before, after = (stage(g, "", t, "ffn.experts_up") for t in (target, small))
    assert after.ddr_bytes == ceil(before.weight_bytes / 3)
    assert after.weight_bytes + after.ddr_bytes == before.weight_bytes
    assert stage(g, "", small, "attn.q_proj").ddr_bytes == 0


def test_placed_in_ddr_is_not_a_spill(graph: Make, target: Target) -> None:
    g = graph("moe", sockets=1)
    memory = program_of(g, "place gqa_moe experts ddr\nplace gqa_moe kv ddr", target).memory
    assert (memory.spilled, memory.ddr_weights, memory.ddr_kv) == (0, 27 * 2**20, g.kv_nbytes)
    core = stage(g, "place gqa_moe kv ddr", target, "attn.scores")
    assert (core.kv_bytes, core.kv_ddr_bytes) == (0, 256 * 4 * 64 * 2)


# -- loops keep the boundary on chip


def test_a_loop_carries_the_boundary(graph: Make, target: Target) -> None:
    for text, carried, read in (("fuse * all", 0, 1024), ("fuse * all\nloop gqa_dense", 1024, 0)):
        norm = stage(graph(sockets=1), text, target, "attn.norm")
        assert (norm.carried_bytes, norm.read_bytes) == (carried, read)
        residual = stage(graph(sockets=1), text, target, "ffn.residual")
        assert residual.carried_bytes == carried and residual.write_bytes == read


# -- holes


@pytest.mark.parametrize(
    "line",
    [
        "rewrite gqa_moe split_kv ways=?",
        "shard gqa_moe attn kv_heads ways=?",
        "shard gqa_moe ffn ffn ways=4 pad=?",
        "experts gqa_moe static regions=?",
        "experts gqa_moe static tile=?",
        "tile gqa_moe tokens size=?",
        "tile gqa_moe context size=?",
        "units gqa_moe ffn.router pcus=?",
        "buffer gqa_moe * depth=?",
        "prefetch gqa_moe nbytes=?",
        "prefetch * nbytes=?",
        "prefetch gqa_moe nbytes=1MiB..3MiB",
    ],
)
def test_every_family_with_a_number_can_be_filled(graph: Make, target: Target, line: str) -> None:
    """A hole has values, ascending, and with each of them no pass refuses the action."""
    g = graph("moe", batch=2)
    schedule = parse_schedule(f"rewrite * streaming_softmax\n{line}")
    ((at, name, hole),) = schedule.holes
    values = hole_values(View(g, schedule, target), schedule.actions[at], name, hole)
    assert values and list(values) == sorted(set(values))
    for value in values:
        result = compile_schedule(g, schedule.filled([value]), target)
        assert isinstance(result, Program) or all("OVER" in d.code for d in result), result


def test_regions_divide_the_experts_of_a_socket(graph: Make, target: Target) -> None:
    """12 experts on 2 sockets are 6 each: 4 regions are no legal value, 6 are."""
    layer = Layer(Attention(kv_heads=4, q_group=2, head_dim=64), MoE(12, 2, width=192))
    g = graph(sockets=2, layers=(layer,))
    schedule = parse_schedule("shard gqa_moe ffn experts ways=2\nexperts gqa_moe static regions=?")
    ((at, name, hole),) = schedule.holes
    assert hole_values(View(g, schedule, target), schedule.actions[at], name, hole) == (1, 2, 6)


# -- refusals of one group of passes hide those of the next: they would be about another program


def test_what_a_refused_shard_would_need_is_not_reported(graph: Make, target: Target) -> None:
    small = replace(target, hbm_bytes=2**20, ddr_bytes=2**20)
    refused = compile_schedule(graph(), parse_schedule("shard gqa_dense attn kv_heads ways=3"), small)
    assert isinstance(refused, tuple) and [d.code for d in refused] == ["SHARD_OVER_SOCKETS"]
    without = compile_schedule(graph(), parse_schedule(""), small)
    assert isinstance(without, tuple) and [d.code for d in without] == ["DDR_OVER"]
