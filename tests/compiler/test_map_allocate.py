"""routing, work, map, allocate, partition, pipeline and target: hand-computed figures and refusals."""

import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import networkx as nx
import pytest

from agent.presets import PRESETS, preset
from compiler.diagnostic import Code, Diagnostic
from compiler.frontend.spec import Attention, Dense, Layer
from compiler.ir.actions import Class, Cut, Experts, Fuse, Tier
from compiler.ir.graph import Block, Graph, Phase
from compiler.ir.text import parse_schedule
from compiler.lower import lower_block
from compiler.moves import INSTANCES, View, hole_values, legal_moves, powers
from compiler.passes.allocate import Demand, allocate
from compiler.passes.partition import partition_block
from compiler.pipeline import compile_schedule
from compiler.program import Program, Stage
from compiler.routing import expected_active, expected_busiest, expected_loads
from compiler.target import Target

Make = Callable[..., Graph]
GIB = 2**30


# -- routing: against every possible routing, counted


def routings(experts: int, top_k: int, tokens: int) -> list[list[int]]:
    """Tokens of each expert, for every way that `tokens` tokens choose k of E experts."""
    choices = list(itertools.combinations(range(experts), top_k))
    return [
        [sum(e in c for c in chosen) for e in range(experts)] for chosen in itertools.product(choices, repeat=tokens)
    ]


@pytest.mark.parametrize(("experts", "top_k", "tokens"), [(4, 1, 1), (4, 2, 3), (5, 3, 2), (3, 3, 2), (6, 1, 4)])
@pytest.mark.parametrize("tile", [1, 2, 3])
def test_expected_experts_and_loads(experts: int, top_k: int, tokens: int, tile: int) -> None:
    every = routings(experts, top_k, tokens)
    active = sum(sum(n > 0 for n in counts) for counts in every) / len(every)
    loads = sum(sum(-(-n // tile) for n in counts) for counts in every) / len(every)
    assert expected_active(experts, top_k, tokens) == pytest.approx(active)
    assert expected_loads(experts, top_k, tokens, tile) == pytest.approx(loads)


@pytest.mark.parametrize(
    ("experts", "active", "groups"), [(4, 2, 2), (6, 3, 3), (6, 4, 2), (8, 1, 4), (4, 4, 2), (8, 5, 1)]
)
def test_expected_busiest_group(experts: int, active: int, groups: int) -> None:
    size = experts // groups
    draws = list(itertools.combinations(range(experts), active))
    mean = sum(max(sum(e // size == g for e in draw) for g in range(groups)) for draw in draws) / len(draws)
    assert expected_busiest(experts, active, groups) == pytest.approx(mean, abs=1e-9)


def test_one_token_reaches_exactly_its_experts() -> None:
    assert expected_active(256, 8, 1) == pytest.approx(8, abs=1e-9)
    assert expected_loads(256, 8, 10**6, 1) == 8 * 10**6
    assert expected_active(256, 8, 10**6) == pytest.approx(256)


# -- work and map


def stages(graph: Graph, text: str, target: Target, kind: str) -> dict[str, Stage]:
    program = compile_schedule(graph, parse_schedule(text), target)
    assert isinstance(program, Program), program
    return {s.op: s for section in program.sections if section.block == kind for s in section.stages}


def test_work_by_hand(graph: Make, target: Target) -> None:
    """512 x 768 up projection of one token: 393,216 MACs; 24 vectors of outputs x 512/64 partial sums = 192 units."""
    s = stages(graph(sockets=1), "fuse * all", target, "gqa_dense")
    up = s["ffn.up_proj"]
    assert (up.macs, up.flops, up.weight_bytes) == (512 * 768, 2 * 512 * 768, 2 * 512 * 768)
    assert up.pcus_used <= 192
    norm = s["ffn.norm"]  # 512 elements in 16 vectors, 4 operations in a 6-stage pipeline: one pass, one unit
    assert (norm.vector_ops, norm.pcus_used, norm.emits_early) == (16, 1, False)
    assert s["ffn.act"].vector_ops == 24 * 2  # 9 operations: two passes
    scores = s["attn.scores"]
    assert (scores.kv_bytes, scores.kv_ports) == (256 * 4 * 64 * 2, 4)
    assert s["ffn.residual"].streams and not up.streams


@pytest.mark.parametrize(("size", "padded"), [(20, 32), (32, 32), (33, 64), (96, 96)])
def test_lanes_are_padded(graph: Make, target: Target, size: int, padded: int) -> None:
    from compiler.frontend.spec import Attention, Dense, Layer

    layer = Layer(Attention(kv_heads=1, q_group=1, head_dim=2), Dense(size))
    g = graph(sockets=1, layers=(layer,), hidden=1)
    assert stages(g, "fuse * all", target, "gqa_dense")["ffn.up_proj"].macs == padded


@pytest.mark.parametrize(("tile", "loads", "rows"), [(1, 2, 2), (4, 2, 2)])
def test_one_token_loads_its_experts_only(graph: Make, target: Target, tile: int, loads: int, rows: int) -> None:
    """A tile is no larger than what there is: of one token, one row."""
    s = stages(graph("moe", 1), f"fuse * all\nexperts gqa_moe static tile={tile}", target, "gqa_moe")
    gate = s["ffn.experts_gate"]
    assert gate.weight_bytes == loads * 512 * 192 * 2
    assert gate.macs == rows * 512 * 192
    assert gate.flops == 2 * 2 * 512 * 192  # padding is not useful work
    assert not gate.prefetchable and s["ffn.router"].prefetchable and gate.restarts == loads - 1


def test_stored_weights_are_converted_at_a_cost(graph: Make, target: Target) -> None:
    bf16 = stages(graph(sockets=1), "fuse * all", target, "gqa_dense")["ffn.up_proj"]
    fp8 = stages(graph(sockets=1, weights="fp8"), "fuse * all", target, "gqa_dense")["ffn.up_proj"]
    assert fp8.weight_bytes * 2 == bf16.weight_bytes and fp8.macs == bf16.macs
    assert (bf16.vector_ops, fp8.vector_ops) == (0, 512 * 768 // 32)


def section_of(graph: Graph, text: str, target: Target, kind: str = "gqa_dense") -> int:
    program = compile_schedule(graph, parse_schedule(text), target)
    assert isinstance(program, Program), program
    return next(s.sram_bytes for s in program.sections if s.block == kind)


def test_sram_is_charged_for_what_is_on_chip(graph: Make, target: Target) -> None:
    decode = graph(sockets=1, batch=64)
    base = section_of(decode, "fuse * all", target)
    assert section_of(decode, "fuse * all\nprefetch gqa_dense nbytes=64MiB", target) == base + 64 * 2**20
    assert section_of(decode, "fuse * all\nbuffer gqa_dense * depth=64", target) > base
    prefill = graph(sockets=1, phase=Phase.PREFILL, context=1024)
    text = "fuse * all\ntile gqa_dense tokens size={}"
    sizes = [section_of(prefill, text.format(n), target) for n in (16, 128, 1024)]
    assert sizes == sorted(sizes) and sizes[0] < sizes[-1]
    wide = graph(sockets=1, phase=Phase.PREFILL, context=1024, hidden=16384)
    held = section_of(wide, text.format(16) + "\nplace gqa_dense weights sram", target)
    streamed = section_of(wide, text.format(16) + "\nplace gqa_dense weights hbm", target)
    weights = sum(t.nbytes for t in wide.block["gqa_dense"].weights)
    assert held - streamed > 0.5 * weights


def test_refusals_carry_demand_bound_gap_and_levers(graph: Make, target: Target) -> None:
    small = replace(target, pmus=40, pcus=40)
    text = "fuse * all\nunits gqa_dense ffn.up_proj pcus=70\nprefetch gqa_dense nbytes=512MiB"
    result = compile_schedule(graph(), parse_schedule(text), small)
    assert isinstance(result, tuple)
    by_code = {d.code: d for d in result}
    assert {Code.SECTION_OVER_PCUS, Code.SECTION_OVER_SRAM} <= set(by_code)
    sram = by_code[Code.SECTION_OVER_SRAM]
    assert sram.bound == 40 * 512 * 1024 and sram.gap == sram.demand - sram.bound > 0
    assert any(lever.startswith("prefetch gqa_dense nbytes<") for lever in sram.levers) and "MiB" in str(sram)
    assert all(d.levers for d in result)


# -- allocate


def demand(cls: Class, gib: int, tier: Tier | None = None) -> Demand:
    moved = gib * GIB // 32 if cls is Class.EXPERTS else gib * GIB
    return Demand("b", cls, gib * GIB, moved, tier)


@pytest.mark.parametrize(
    ("wanted", "spilled", "in_ddr"),
    [
        ([demand(Class.WEIGHTS, 60)], 0, {}),
        ([demand(Class.WEIGHTS, 50), demand(Class.EXPERTS, 30)], 16, {Class.EXPERTS: 16}),
        ([demand(Class.WEIGHTS, 80), demand(Class.EXPERTS, 10)], 26, {Class.EXPERTS: 10, Class.WEIGHTS: 16}),
        ([demand(Class.WEIGHTS, 10), demand(Class.KV, 70)], 16, {Class.WEIGHTS: 10, Class.KV: 6}),
        ([demand(Class.WEIGHTS, 60), demand(Class.KV, 20, Tier.DDR)], 0, {Class.KV: 20}),
        ([demand(Class.WEIGHTS, 70, Tier.DDR), demand(Class.KV, 20)], 0, {Class.WEIGHTS: 70}),
    ],
)  # fmt: skip
def test_what_does_not_fit_hbm_spills(
    target: Target, wanted: list[Demand], spilled: int, in_ddr: dict[Class, int]
) -> None:
    layout, diagnostics = allocate(wanted, 0, target)
    assert not diagnostics
    assert layout.memory.spilled == spilled * GIB
    assert {cls: part for (_, cls), (part, _) in layout.in_ddr.items()} == {c: n * GIB for c, n in in_ddr.items()}
    assert layout.memory.hbm_bytes + layout.memory.ddr_bytes == sum(d.nbytes for d in wanted)
    assert layout.memory.hbm_bytes <= target.hbm_bytes


def test_what_is_placed_never_moves(target: Target) -> None:
    _, (refusal,) = allocate([demand(Class.WEIGHTS, 70, Tier.HBM)], GIB, target)
    assert (refusal.code, refusal.demand, refusal.bound, refusal.gap) == ("HBM_OVER", 71 * GIB, 64 * GIB, 7 * GIB)
    _, (refusal,) = allocate([demand(Class.WEIGHTS, 2000)], 0, target)
    assert (refusal.code, refusal.gap) == ("DDR_OVER", (2000 - 64 - 1536) * GIB)


# -- partition


def sections(block: Block, text: str) -> list[list[str]]:
    actions = tuple(a for a in parse_schedule(text).actions if isinstance(a, Fuse | Cut))
    spans, refusals = partition_block(block, actions)
    assert not refusals
    return [[op.name.split(".")[1] for op in block.ops[a:b]] for a, b in spans]


def test_fuse_and_cut(graph: Make) -> None:
    head = graph().block["head"]
    assert sections(head, "") == [["norm"], ["lm_head"]]
    assert sections(head, "fuse head all") == [["norm", "lm_head"]]
    assert sections(head, "fuse head all\ncut head head.norm") == [["norm"], ["lm_head"]]
    assert sections(head, "cut head head.norm\nfuse head all") == [["norm", "lm_head"]]
    ffn = sections(
        graph().block["gqa_dense"], "fuse gqa_dense ffn.gate_proj..ffn.act\nfuse gqa_dense ffn.up_proj..ffn.down_proj"
    )
    assert ["gate_proj", "up_proj", "act", "down_proj"] in ffn


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("kind", ["dense", "moe", "mla", "alternating"])
def test_sections_are_convex_and_complete(graph: Make, target: Target, name: str, kind: str) -> None:
    """Between two ops of a section lies no op of another: no path leaves it and comes back."""
    g = graph(kind)
    schedule = preset(name, g, target)
    program = compile_schedule(g, schedule, target)
    assert isinstance(program, Program), program
    for kind in g.block:
        block = lower_block(g.block[kind], schedule, 4)
        made = {o: op.name for op in block.ops for o in op.outputs}
        flow = nx.DiGraph([(made[i], op.name) for op in block.ops for i in op.inputs if i in made])
        flow.add_nodes_from(op.name for op in block.ops)
        parts = [{s.op for s in section.stages} for section in program.sections if section.block == kind]
        assert sorted(itertools.chain(*parts)) == sorted(op.name for op in block.ops)
        for part in parts:
            for outside in set(flow) - part:
                assert not (nx.descendants(flow, outside) & part and nx.ancestors(flow, outside) & part)


# -- pipeline


def codes(graph: Graph, text: str, target: Target) -> list[Diagnostic]:
    result = compile_schedule(graph, parse_schedule(text), target)
    assert isinstance(result, tuple), "compiled"
    return list(result)


def test_all_diagnostics_at_once(graph: Make, target: Target) -> None:
    found = codes(
        graph(),
        "rewrite gqa_dense mla_absorb\nshard gqa_dense attn kv_head ways=4\n"
        "fuse gqa_dense a..b\nunits gqa_dense nope pcus=1",
        target,
    )
    assert [d.code for d in found] == [
        "REWRITE_NOT_APPLICABLE",
        "UNKNOWN_DIM",
        "UNKNOWN_OP",
        "UNKNOWN_OP",
        "UNKNOWN_OP",
    ]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("fuse gqa_dens all", "UNKNOWN_BLOCK"),
        ("loop gqa_dense", "LOOP_BODY_NOT_ONE_SECTION"),
        ("fuse * all\nloop head", "LOOP_NOT_REPEATED"),
        ("experts gqa_dense static tile=2", "NOTHING_HERE"),
        ("experts * static tile=2", "NOTHING_HERE"),
        ("place embed kv ddr", "NOTHING_HERE"),
        ("place sample weights ddr", "NOTHING_HERE"),
        ("place embed weights sram", "NOTHING_HERE"),
        ("place gqa_dense experts ddr", "NOTHING_HERE"),
        ("prefetch embed nbytes=1MiB", "NOTHING_HERE"),
        ("tile head context size=16", "NOTHING_HERE"),
        ("shard * ffn ffn ways=4\nunits gqa_dense ffn.out.all_reduce pcus=8", "NOTHING_HERE"),
        ("rewrite * mla_absorb", "REWRITE_NOT_APPLICABLE"),
        ("place gqa_dense kv sram", "PLACE_ILLEGAL"),
        ("prefetch gqa_dense nbytes=?", "HOLE"),
        ("fuse gqa_dense ffn.act..attn.norm", "FUSE_ORDER"),
    ],
)
def test_what_is_refused(graph: Make, target: Target, text: str, code: str) -> None:
    assert [d.code for d in codes(graph(), text, target)] == [code]


def test_star_acts_where_it_can(graph: Make, target: Target) -> None:
    g = graph("alternating")
    program = compile_schedule(
        g, parse_schedule("rewrite * streaming_softmax\nfuse * all\nexperts * static regions=2\nloop *"), target
    )
    assert isinstance(program, Program), program
    assert [(len(r.sections), r.times, r.looped) for r in program.runs] == [
        (1, 1, False),
        (2, 3, True),
        (1, 1, False),
        (1, 1, False),
    ]
    assert codes(g, "fuse * all\nexperts * static regions=3", target)[0].code == "EXPERTS_RANGE"


def test_programs_are_the_same_in_every_process(target: Target) -> None:
    code = (
        "from compiler.frontend import build; from compiler.frontend.spec import *; from compiler.ir.graph import *;"
        "from compiler.target import load_target; from agent.presets import preset; from compiler.pipeline import *;"
        "import hashlib; from compiler.program_json import print_program;"
        "l=(Layer(Attention(4,2,64), MoE(16,2,192,shared_width=384)),)*3;"
        "g=build(ModelSpec('m','m',hidden=512,vocab=1000,tied=False,layers=l), Workload(Phase.DECODE,3,256,4,'bf16'));"
        "t=load_target('sn40l'); p=compile_schedule(g,preset('o3',g,t),t);"
        "print(hashlib.blake2b(print_program(p).encode()).hexdigest(), g.id, p.id)"
    )
    path = ":".join(sys.path)
    out = set()
    for seed in ("0", "1", "77"):
        env = {"PYTHONHASHSEED": seed, "PYTHONPATH": path}
        out.add(
            subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout
        )
    assert len(out) == 1


def test_program_is_plain_json(graph: Make, target: Target) -> None:
    g = graph("mla")
    program = compile_schedule(g, preset("o1", g, target), target)
    assert isinstance(program, Program)
    text = json.dumps(program.to_json(), allow_nan=False)
    assert json.loads(text)["runs"][0]["sections"][0]["stages"][0]["op"] == "embed.gather"


# -- moves


@pytest.mark.parametrize("kind", ["dense", "moe", "mla", "alternating"])
@pytest.mark.parametrize("phase", list(Phase))
def test_every_legal_move_is_accepted(graph: Make, target: Target, kind: str, phase: Phase) -> None:
    """Legal: no pass refuses it. It may still not fit."""
    g = graph(kind, phase=phase, batch=2)
    capacity = {Code.SECTION_OVER_PCUS, Code.SECTION_OVER_SRAM, Code.HBM_OVER, Code.DDR_OVER}
    families = set()
    o3 = preset("o3", g, target)
    tiled = o3.with_actions(*parse_schedule("tile * tokens size=1").actions)
    for schedule in (preset("o0", g, target), o3, tiled):
        for move in legal_moves(View(g, schedule, target)):
            assert move not in schedule.actions
            families.add(type(move))
            result = compile_schedule(g, schedule.with_actions(move), target)
            assert isinstance(result, Program) or {d.code for d in result} <= capacity, (move, result)
    missing = set(INSTANCES) - families - {Experts}
    assert not {m.family for m in missing} - {"loop", "cut"}


def test_hole_values_are_legal_and_in_range(graph: Make, target: Target) -> None:
    g = graph("moe")
    o3 = preset("o3", g, target)
    text = (
        "rewrite gqa_moe split_kv ways=?\nexperts gqa_moe static regions=2..8 tile=?\ntile gqa_moe context size=?\n"
        "prefetch gqa_moe nbytes=1..9\nunits gqa_moe ffn.router pcus=?"
    )
    schedule = o3.with_actions(*parse_schedule(text).actions)
    view = View(g, schedule, target)
    found = {
        (type(schedule.actions[i]).family, name): hole_values(view, schedule.actions[i], name, hole)
        for i, name, hole in schedule.holes
    }
    assert found["rewrite", "ways"] == powers(2, 256)
    assert found["experts", "regions"] == (2, 4, 8)
    assert found["prefetch", "nbytes"] == (1, 2, 4, 8, 9)  # no MiB lies in the range: its own powers
    assert all(found.values())


def test_open_units_shrink_until_sram_fits(graph: Make, target: Target) -> None:
    """Streams in flight take SRAM by the unit: of a chip with more units than its SRAM can feed, fewer are used."""
    g = graph(sockets=1, context=16, layers=(Layer(Attention(4, 2, 64), Dense(16384)),), hidden=8192)
    few = replace(target, pmus=100)
    sections = {}
    for chip in (few, replace(few, pcus=4 * few.pcus)):
        program = compile_schedule(g, parse_schedule("fuse * all"), chip)
        assert isinstance(program, Program), program
        sections[chip.pcus] = next(s for s in program.sections if s.block == "gqa_dense")
        assert sections[chip.pcus].sram_bytes <= chip.sram_bytes
    asked = "fuse * all\n" + "".join(f"units gqa_dense {s.op} pcus={s.pcus * 4}\n" for s in sections[few.pcus].stages)
    refused = compile_schedule(g, parse_schedule(asked), replace(few, pcus=4 * few.pcus))  # what is asked stays
    assert isinstance(refused, tuple) and Code.SECTION_OVER_SRAM in {d.code for d in refused}
