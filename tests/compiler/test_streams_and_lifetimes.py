"""What a section keeps on chip and for how long, what crosses HBM, and other figures by hand."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from compiler.diagnostic import Code, Diagnostic, quantity
from compiler.frontend.spec import Attention, Dense, Layer
from compiler.ir.actions import Rewrite, Rule, Shard
from compiler.ir.dtype import DType
from compiler.ir.graph import Block, Graph, Phase, Routing
from compiler.ir.text import parse_schedule, print_action
from compiler.passes.map import crossing_bytes, wiring
from compiler.passes.rewrite import rewrite_block
from compiler.passes.shard import shard_block
from compiler.passes.work import Tiling, Work, block_work, default_tile
from compiler.pipeline import compile_schedule
from compiler.program import Program, Section, Stage
from compiler.routing import expected_loads
from compiler.target import Target
from compiler.verify import CompilerFault, verify_sections, verify_sharded

Make = Callable[..., Graph]
MIB = 2**20


def compiled(graph: Graph, text: str, target: Target) -> Program:
    program = compile_schedule(graph, parse_schedule(text), target)
    assert isinstance(program, Program), program
    return program


def stage(graph: Graph, text: str, target: Target, op: str) -> Stage:
    return next(s for section in compiled(graph, text, target).sections for s in section.stages if s.op == op)


def work(block: Block, op: str, target: Target, tokens: int = 1) -> Work:
    return next(w for w in block_work(block, Tiling(tokens, 256, None), target) if w.op == op)


# -- lifetimes: a tile stays until its last reader has had it


def test_a_tile_waits_for_its_last_reader(graph: Make, target: Target) -> None:
    """x meets norm at level 1, the residual at 9 (proj, rope, append, scores, softmax, values, o_proj between); attn.y
    meets ffn.norm one level on and ffn.residual five (norm, gate, act, down between)."""
    g = graph(sockets=1, phase=Phase.PREFILL, context=1024)
    block = g.block["gqa_dense"]
    names = [op.name for op in block.ops]
    wires = wiring(block, (0, len(names)))
    assert wires.entry["x"] == 9
    lags = dict(zip(names, wires.lag, strict=True))
    assert (lags["attn.residual"], lags["attn.norm"], lags["attn.v_proj"]) == (5, 1, 2)
    text = "fuse * all\ntile gqa_dense tokens size=256\nplace gqa_dense weights hbm"
    # a tile of 256 x 512 bf16 is 256 KiB, two to a PMU: 2 + 5 - 1 outputs; 1 + 9 of x, 2 outputs, and the weights
    assert stage(g, text, target, "attn.residual").pmus == 3
    assert stage(g, text, target, "attn.norm").pmus == 5 + 1 + 1


@pytest.mark.parametrize(("size", "pmus"), [(16, 2), (64, 8), (256, 16)])
def test_two_context_tiles_of_a_cache_are_on_chip(graph: Make, target: Target, size: int, pmus: int) -> None:
    """64 sequences x 256 rows x 4 heads x 64: 8 MiB of keys, never more. Scores: 2 x 256 KiB, one PMU."""
    text = f"fuse * all\ntile gqa_dense context size={size}"
    assert stage(graph(sockets=1, batch=64), text, target, "attn.scores").pmus == pmus + 1


# -- streams


@pytest.mark.parametrize(
    ("text", "hbm", "ddr", "carried"),
    [("", 3072, 0, 0), ("place gqa_dense kv ddr", 0, 3072, 0), ("loop gqa_dense", 3072, 0, 0)],
)
def test_appended_rows_go_where_the_cache_is(
    graph: Make, target: Target, text: str, hbm: int, ddr: int, carried: int
) -> None:
    """3 tokens x (key + value) x 4 heads x 64 x 2 bytes; a loop keeps the carry on chip, never the cache."""
    s = stage(graph(sockets=1, batch=3), f"fuse * all\n{text}", target, "attn.kv_append")
    assert (s.write_bytes, s.kv_ddr_bytes, s.carried_bytes) == (hbm, ddr, carried)


def test_prefill_writes_its_share_of_the_cache_with_every_tile(graph: Make, target: Target) -> None:
    g = graph(sockets=1, phase=Phase.PREFILL, context=1024)
    s = stage(g, "fuse * all\ntile gqa_dense tokens size=256", target, "attn.kv_append")
    assert s.write_bytes == 1024 * 2 * 4 * 64 * 2 // 4


@pytest.mark.parametrize(("pcus", "ports"), [(2, 2), (8, 4)])
def test_a_cache_arrives_at_the_units_there_are(graph: Make, target: Target, pcus: int, ports: int) -> None:
    text = f"fuse * all\nunits gqa_dense attn.scores pcus={pcus}"
    assert stage(graph(sockets=1), text, target, "attn.scores").kv_ports == ports


@pytest.mark.parametrize(
    ("phase", "tile", "sequences"),
    [
        (Phase.DECODE, 8, 8), (Phase.DECODE, 2, 2), (Phase.DECODE, 1, 1),  # a token is a sequence
        (Phase.PREFILL, 128, 1), (Phase.PREFILL, 256, 1), (Phase.PREFILL, 512, 2),  # 256 tokens are
        (Phase.PREFILL, 100, 2), (Phase.PREFILL, 300, 3),  # a tile begins anywhere
    ],
)  # fmt: skip
def test_a_tile_reads_the_cache_of_its_own_sequences(
    graph: Make, target: Target, phase: Phase, tile: int, sequences: int
) -> None:
    """Keys of a sequence: 256 rows x 4 heads x 64 x 2 bytes. Scores alone in a section read them, and the queries, and
    in decode the keys of the new tokens."""
    g = graph(sockets=1, batch=8, phase=phase)
    scores = stage(g, f"tile gqa_dense tokens size={tile}", target, "attn.scores")
    fresh = tile * (8 + 4 * (phase is Phase.DECODE)) * 64 * 2
    assert scores.kv_bytes + scores.read_bytes == sequences * 256 * 4 * 64 * 2 + fresh


@pytest.mark.parametrize(("batch", "sequences"), [(1, 1), (2, 2), (4, 2)])
def test_prefill_holds_two_sequences_where_one_follows_another(
    graph: Make, target: Target, batch: int, sequences: int
) -> None:
    """Keys of a sequence are 4096 rows x 4 heads x 64 x 2 bytes = 2 MiB or 4 PMUs, values too; rows that come in, 2."""
    g = graph(sockets=1, phase=Phase.PREFILL, batch=batch, context=4096)
    text = "fuse gqa_dense attn.kv_append..attn.core\nrewrite * streaming_softmax\ntile gqa_dense tokens size=128"
    assert stage(g, text, target, "attn.kv_append").pmus == 2 * 4 * sequences + 2


def test_what_is_written_for_another_section_is_not_held(graph: Make, target: Target) -> None:
    """The append of 4096 rows alone: two tiles of 128 rows leave one after the other, keys and values a PMU each, and
    the rows that come in another two. Fused with its readers it holds 2 MiB of each."""
    g = graph(sockets=1, phase=Phase.PREFILL, context=4096)
    text = "{}\ntile gqa_dense tokens size=128"
    assert stage(g, text.format(""), target, "attn.kv_append").pmus == 2 + 2
    assert stage(g, text.format("fuse * all"), target, "attn.kv_append").pmus == 2 * 4


@pytest.mark.parametrize(("text", "reads"), [("", 2), ("rewrite * streaming_softmax", 1)])
def test_a_second_walk_along_the_context_reads_the_cache_again(
    graph: Make, target: Target, text: str, reads: int
) -> None:
    """Scores and values of absorbed latent attention both read the latents; a softmax stands between them."""
    g = graph("mla", 1)
    program = compiled(g, f"fuse mla_dense all\nrewrite mla_dense mla_absorb\n{text}", target)
    stages = [s for section in program.sections if section.block == "mla_dense" for s in section.stages]
    assert sum(s.kv_bytes for s in stages) == reads * 256 * (128 + 16) * 2


def test_a_gather_reads_the_rows_it_is_asked_for(graph: Make, target: Target) -> None:
    s = stage(graph(sockets=1, batch=3), "", target, "embed.gather")
    assert (s.weight_bytes, s.prefetchable) == (3 * 512 * 2, False)


def test_what_sections_leave_each_other_is_in_hbm(graph: Make, target: Target) -> None:
    """3 tokens, bytes: 8 tensors of 512 (3072), k, v and rotated k (1536), scores and probs of 8 x 256 (12,288), gate,
    up and mid of 768 (4608); the largest boundary is the logits, 3 x 1000, twice. Appended rows are cache."""
    g = graph(sockets=1, batch=3)
    block = g.block["gqa_dense"]
    apart = tuple((i, i + 1) for i in range(len(block.ops)))
    crossing = 8 * 3072 + 3 * 1536 + 2 * 12288 + 3 * 4608
    assert crossing_bytes(block, apart) == crossing
    assert crossing_bytes(block, ((0, len(block.ops)),)) == 0
    assert compiled(g, "fuse * all", target).memory.hbm_activations == 2 * 6000
    assert compiled(g, "", target).memory.hbm_activations == 2 * 6000 + crossing


def test_prefill_takes_128_tokens_a_tile_where_the_schedule_says_nothing(graph: Make, target: Target) -> None:
    program = compiled(graph(sockets=1, phase=Phase.PREFILL, context=1000), "fuse * all", target)
    assert [s.tiles for s in program.sections] == [8, 8, 1, 1]  # the head takes one row a sequence
    assert [s.tiles for s in compiled(graph(sockets=1, batch=1000), "", target).sections][:3] == [1, 1, 1]


def test_held_on_chip_means_stored_in_hbm(graph: Make, target: Target) -> None:
    """`place weights sram` says where they are while their section runs; the placed class may still not spill."""
    small = replace(target, hbm_bytes=MIB)
    text = "fuse * all\nplace * weights {}"
    for tier in ("sram", "hbm"):
        result = compile_schedule(graph(sockets=1), parse_schedule(text.format(tier)), small)
        assert isinstance(result, tuple) and [d.code for d in result] == [Code.HBM_OVER]
    assert compiled(graph(sockets=1), text.format("ddr"), small).memory.spilled == 0


# -- work


@pytest.mark.parametrize(
    ("tokens", "load_s", "row_s", "rows"),
    [
        (1, 1e-6, 1e-9, 1),  # one row: a larger tile is padding
        (64, 0.0, 1e-9, 1),  # loads for nothing
        (64, 1e-6, 0.0, 32),  # rows for nothing: the mean load is 8, and 32 hold it all but always
        (64, 1e-6, 1e-6 / 8, 8),  # a load costs as much as 8 rows
        (4096, 1e-6, 1e-6 / 64, 64),
    ],
)
def test_the_default_expert_tile_costs_least(tokens: int, load_s: float, row_s: float, rows: int) -> None:
    routing = Routing(16, 2)
    assert default_tile(routing, tokens, load_s, row_s) == rows

    def cost(tile: int) -> float:
        loads = expected_loads(16, 2, tokens, tile)
        return max(loads * load_s, loads * tile * row_s)

    assert all(cost(rows) <= cost(1 << n) * (1 + 1e-6) for n in range(13))


def test_top_k_passes_once_for_each_winner(graph: Make, target: Target) -> None:
    """3 tokens x 16 scores: laid along the scores, 3 vectors; 2 winners."""
    assert work(graph("moe", 1, batch=3).block["gqa_moe"], "ffn.topk", target, 3).vector_ops == 3 * 2


@pytest.mark.parametrize(
    ("dtype", "passes"), [(DType.BF16, 0), (DType.FP8, 1), (DType.INT8, 1), (DType.FP8_BLOCK, 1), (DType.MXFP4, 2)]
)
def test_conversion_passes_of_a_stored_type(graph: Make, target: Target, dtype: DType, passes: int) -> None:
    block = graph(sockets=1).block["gqa_dense"]
    tensors = tuple(replace(t, dtype=dtype) if t.name == "w.ffn.up_proj" else t for t in block.tensors)
    assert work(replace(block, tensors=tensors), "ffn.up_proj", target).vector_ops == passes * 512 * 768 // 32


def test_every_region_has_the_same_units(graph: Make, target: Target) -> None:
    text = "fuse * all\nexperts gqa_moe static regions=4 tile=4\nunits gqa_moe ffn.experts_gate pcus={}"
    used = [stage(graph("moe", 1, batch=64), text.format(n), target, "ffn.experts_gate").pcus_used for n in (4, 7, 8)]
    assert used == [4, 4, 8]


# -- rewrites and shards that are, or are not, refused


def test_projections_with_and_without_a_bias_do_not_merge(graph: Make) -> None:
    layer = Layer(Attention(4, 2, 64, q_bias=True), Dense(768))
    block = graph(layers=(layer,)).block["gqa_dense"]
    result, ((_, diagnostic),) = rewrite_block(block, (Rewrite("gqa_dense", Rule.MERGE_QKV),))
    assert result is block and "differ in biases" in str(diagnostic)


def test_one_way_is_no_split(graph: Make) -> None:
    rules = (Rewrite("gqa_dense", Rule.STREAMING_SOFTMAX), Rewrite("gqa_dense", Rule.SPLIT_KV, 1))
    _, ((_, diagnostic),) = rewrite_block(graph().block["gqa_dense"], rules)
    assert diagnostic.code is Code.REWRITE_NOT_APPLICABLE and "ways=1 is outside 2..256" in str(diagnostic)


@pytest.mark.parametrize(("part", "codes"), [("ffn.gate_proj", []), ("ffn.down_proj", ["SHARD_BLOCK_SCALE"])])
def test_mxfp4_shares_scales_along_a_row_only(graph: Make, part: str, codes: list[str]) -> None:
    """2880 / 8 = 360 is no multiple of 32: as rows that cuts nothing, as columns it does (OCP MX: groups of a row)."""
    block = graph(layers=(Layer(Attention(4, 2, 64), Dense(2880)),)).block["gqa_dense"]
    names = {f"w.ffn.{n}_proj" for n in ("gate", "up", "down")}
    tensors = tuple(replace(t, dtype=DType.MXFP4) if t.name in names else t for t in block.tensors)
    _, refusals = shard_block(replace(block, tensors=tensors), (Shard("gqa_dense", part, "ffn", 8),), 8)
    assert [d.code for _, d in refusals] == codes


@pytest.mark.parametrize(("pcus", "refused"), [(300, False), (600, True)])
def test_the_kinds_of_a_loop_fit_the_chip_together(graph: Make, target: Target, pcus: int, refused: bool) -> None:
    units = "\n".join(f"units {kind} ffn.router pcus={pcus}" for kind in ("swa_moe", "gqa_moe"))
    result = compile_schedule(graph("alternating", 1), parse_schedule(f"fuse * all\nloop *\n{units}"), target)
    found = [] if isinstance(result, Program) else [(d.code, d.subject, d.bound, d.gap > 0) for d in result]
    assert found == ([(Code.SECTION_OVER_PCUS, "loop *", 1040, True)] if refused else [])


# -- identity and text


def test_what_an_op_costs_and_how_it_routes_is_part_of_the_identity(graph: Make) -> None:
    g = graph("moe")
    (block,) = [b for b in g.blocks if b.kind == "gqa_moe"]
    gate = block.op["ffn.experts_gate"]
    assert gate.routing is not None
    ids = {g.id}
    for other in (replace(gate, flops_per_point=3), replace(gate, routing=replace(gate.routing, top_k=3))):
        changed = replace(block, ops=tuple(other if op is gate else op for op in block.ops))
        ids.add(replace(g, blocks=tuple(changed if b is block else b for b in g.blocks)).id)
    assert len(ids) == 3


def test_defaults_are_not_printed() -> None:
    assert print_action(Shard("a", "b", "c", 2)) == "shard a b c ways=2"
    assert print_action(Rewrite("a", Rule.MERGE_QKV)) == "rewrite a merge_qkv"


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1234567, "PCUs", "1,234,567 PCUs"),
        (1023, "bytes", "1,023 B"),
        (1536, "bytes", "1.5 KiB"),
        (3 * 2**40, "bytes", "3.0 TiB"),
    ],
)
def test_quantities(value: int, unit: str, text: str) -> None:
    assert quantity(value, unit) == text


def test_a_diagnostic_says_how_much_is_missing_and_never_less_than_nothing() -> None:
    over = Diagnostic(Code.HBM_OVER, "s", "r", 3 * MIB, MIB, "bytes", ("a", "b"))
    assert str(over) == "HBM_OVER s: r: needs 3.0 MiB, has 1.0 MiB (over by 2.0 MiB); try: a | b"
    fits = replace(over, demand=MIB // 2, levers=("a",))
    assert fits.gap == 0 and str(fits) == "HBM_OVER s: r: needs 512.0 KiB, has 1.0 MiB; try: a"
    with pytest.raises(ValueError, match="what to try"):
        replace(over, levers=())


# -- the compiler's own faults raise


def test_sections_that_lose_or_reorder_an_op_are_a_fault(graph: Make, target: Target) -> None:
    g = graph(sockets=1)
    sections = tuple(s for s in compiled(g, "fuse * all", target).sections if s.block == "gqa_dense")
    block = g.block["gqa_dense"]
    verify_sections(block, sections)
    (one,) = sections

    def with_stages(*stages: Stage) -> tuple[Section, ...]:
        return (replace(one, stages=stages),)

    last = one.stages[-1]
    for wrong in (
        with_stages(*one.stages[:-1]),
        with_stages(*one.stages[1:], one.stages[0]),
        with_stages(*one.stages[:-1], replace(last, preds=(len(one.stages) - 1,))),
        with_stages(*one.stages[:-1], replace(last, pcus_used=last.pcus + 1)),
    ):
        with pytest.raises(CompilerFault):
            verify_sections(block, wrong)


def test_a_socket_that_holds_too_little_is_a_fault(graph: Make) -> None:
    whole, larger = (graph(vocab=vocab).block["head"] for vocab in (1000, 1008))
    part, _ = shard_block(whole, (Shard("head", "head.lm_head", "vocab", 4),), 4)
    verify_sharded(whole, part)
    with pytest.raises(CompilerFault, match="4 sockets hold"):
        verify_sharded(larger, part)
