"""evaluator, fill and search: budgets, duplicates, determinism, and that the numbers found are the good ones."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from agent.evaluate import Measured, Rejected, evaluate, evaluation_key
from agent.evaluator import BudgetSpent, Evaluator
from agent.fill import fill
from agent.presets import PRESETS, preset
from agent.search import search
from compiler.frontend import build
from compiler.frontend.spec import Dense, LatentAttention, Layer, ModelSpec
from compiler.ir.actions import Experts, Hole, Prefetch, Rewrite, Rule, Units
from compiler.ir.graph import Graph, Phase, Workload
from compiler.ir.schedule import Schedule
from compiler.ir.text import parse_schedule
from compiler.moves import View, hole_values
from compiler.pipeline import compile_schedule
from compiler.program import Program
from compiler.target import Target

Make = Callable[..., Graph]


def starts(graph: Graph, target: Target) -> list[tuple[str, Schedule]]:
    return [(name, preset(name, graph, target)) for name in PRESETS]


def test_evaluate_gives_data_for_bad_schedules(graph: Make, target: Target) -> None:
    g = graph()
    bad = preset("o3", g, target).with_actions(Units("gqa_dense", "ffn.down_proj", 5000))
    result = evaluate(g, bad, target)
    assert isinstance(result, Rejected)
    (diagnostic,) = result.diagnostics
    assert (diagnostic.code, diagnostic.bound, diagnostic.unit) == ("SECTION_OVER_PCUS", 1040, "PCUs")
    assert diagnostic.demand > 5000 and diagnostic.levers


def test_key_depends_on_everything(graph: Make, target: Target) -> None:
    g, s = graph(), preset("o3", graph(), target)
    keys = {
        evaluation_key(g, s, target),
        evaluation_key(graph(hidden_size=1024), s, target),
        evaluation_key(g, preset("o0", g, target), target),
        evaluation_key(g, s, replace(target, clock_hz=1.5e9)),
    }
    assert len(keys) == 4
    assert evaluation_key(graph(), s, target) in keys


def test_budget_is_never_exceeded_and_duplicates_are_free(graph: Make, target: Target) -> None:
    g = graph()
    evaluator = Evaluator(g, target, 2)
    o0, o3 = preset("o0", g, target), preset("o3", g, target)
    first = evaluator.run(o0, "o0")
    assert evaluator.run(o0, "again") is first
    evaluator.run(o3, "o3", first)
    assert (evaluator.left, evaluator.counts.total, evaluator.trials[1].parent) == (0, 2, 0)
    assert evaluator.run(o3, "again") is evaluator.trials[1]
    with pytest.raises(BudgetSpent):
        evaluator.run(preset("o1", g, target), "o1")


def test_stored_evaluations_count_but_are_not_computed(graph: Make, target: Target) -> None:
    g = graph()
    s = preset("o3", g, target)
    result = evaluate(g, s, target)
    assert isinstance(result, Measured)
    marked = Measured(replace(result.report, hidden_s=42.0))
    evaluator = Evaluator(g, target, 5, {evaluation_key(g, s, target): marked}.get)
    assert evaluator.run(s, "o3").report.hidden_s == 42.0
    assert evaluator.counts == type(evaluator.counts)(1, 0, 1)


def test_fill_finds_the_best_of_its_values(graph: Make, target: Target) -> None:
    """One hole: as good as trying every legal value."""
    g = graph()
    o3 = preset("o3", g, target)
    action = Rewrite("gqa_dense", Rule.SPLIT_KV, Hole())
    hole = o3.with_actions(action)
    values = hole_values(View(g, hole, target), action, "ways", Hole())
    times = [evaluate(g, hole.filled([v]), target).report.latency_s for v in values]  # type: ignore[union-attr]
    found = fill(hole, Evaluator(g, target, 50), "fill")
    assert not found.schedule.holes
    assert found.latency_s == min(times)


def test_fill_respects_ranges_and_fills_all_holes(graph: Make, target: Target) -> None:
    g = graph("mixtral", batch=16)
    o3 = preset("o3", g, target)
    schedule = o3.with_actions(Experts("gqa_moe", "static", Hole(), Hole(2, 4)), Prefetch("gqa_moe", Hole()))  # type: ignore[arg-type]
    found = fill(schedule, Evaluator(g, target, 60), "fill")
    experts = next(a for a in found.schedule.actions if isinstance(a, Experts))
    assert experts.tile in (2, 4)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("units gqa_dense no.such pcus=?", "UNKNOWN_OP"),
        ("shard gqa_dense attn tokens ways=?", "SHARD_ILLEGAL"),
        ("experts head static regions=? tile=?", "NOTHING_HERE"),
        ("rewrite sample split_kv ways=2..8", "REWRITE_NOT_APPLICABLE"),
        ("tile gqa_dense tokens size=?", ""),
        ("tile sample context size=?", "NOTHING_HERE"),
        ("prefetch sample nbytes=?", "NOTHING_HERE"),
        ("prefetch gqa_dense nbytes=0..0", ""),
    ],
)
def test_a_hole_always_gets_a_number_and_the_compiler_judges_it(
    graph: Make, target: Target, text: str, code: str
) -> None:
    """Of a block without weights, of one token, of an op that is not there."""
    g = graph()
    trial = fill(preset("o3", g, target).with_actions(*parse_schedule(text).actions), Evaluator(g, target, 9), "fill")
    codes = [str(d.code) for d in trial.evaluation.diagnostics] if isinstance(trial.evaluation, Rejected) else [""]
    assert not trial.schedule.holes and codes == [code]


@pytest.mark.parametrize("name", ["llama", "mixtral"])
@pytest.mark.parametrize("phase", list(Phase))
def test_search_beats_o3_within_budget_and_repeats_itself(graph: Make, target: Target, name: str, phase: Phase) -> None:
    g = graph(name, phase=phase, batch=2)
    runs = []
    for _ in range(2):
        evaluator = Evaluator(g, target, 160)
        search(evaluator, starts(g, target), seed=3)
        runs.append([(t.schedule.id, t.latency_s, t.origin, t.parent) for t in evaluator.trials])
    assert runs[0] == runs[1]
    best, o3 = evaluator.best, evaluator.trials[2]
    assert best is not None and best.latency_s is not None and o3.latency_s is not None
    assert best.latency_s < o3.latency_s
    assert len(evaluator.trials) <= 160
    other = Evaluator(g, target, 160)
    search(other, starts(g, target), seed=4)
    assert [t.schedule.id for t in other.trials] != [i for i, *_ in runs[0]]


def test_search_with_a_budget_for_the_presets_only(graph: Make, target: Target) -> None:
    evaluator = Evaluator(graph(), target, 3)
    search(evaluator, starts(graph(), target), 0)
    assert [t.origin for t in evaluator.trials] == ["o0", "o1", "o3"]


def test_needless_edits_are_pruned(graph: Make, target: Target) -> None:
    """Of the best schedule, no edit can go without making it slower, or the budget was spent trying."""
    g = graph()
    evaluator = Evaluator(g, target, 300)
    base = starts(g, target)
    search(evaluator, base, 0)
    best = evaluator.best
    assert best is not None and best.latency_s is not None and evaluator.left > 0
    for action in best.schedule.actions:
        if action not in {a for _, s in base for a in s.actions}:
            without = evaluate(g, best.schedule.without(action), target)
            assert isinstance(without, Rejected) or without.report.latency_s > best.latency_s


def test_holes_are_refused_by_the_compiler(graph: Make, target: Target) -> None:
    result = evaluate(graph(), parse_schedule("prefetch gqa_dense nbytes=?"), target)
    assert isinstance(result, Rejected) and result.diagnostics[0].code == "HOLE"


@pytest.mark.parametrize(("context", "batch", "splits"), [(16384, 32, 4), (64, 1, 1)])
def test_latent_attention_splits_its_context_where_the_cache_weighs(
    target: Target, context: int, batch: int, splits: int
) -> None:
    """One row serves all heads: splitting heads keeps the whole cache on each of 4 sockets."""
    mla = LatentAttention(heads=8, q_lora=None, kv_lora=128, nope=32, rope=16, v_dim=32)
    spec = ModelSpec("latent", "latent", 256, 1000, False, (Layer(mla, Dense(512)),) * 2)
    g = build(spec, Workload(Phase.DECODE, batch, context, 4))
    for name in PRESETS:
        program = compile_schedule(g, preset(name, g, target), target)
        assert isinstance(program, Program)
        assert program.memory.hbm_kv == 2 * batch * context * (128 + 16) * 2 // splits, name
