"""An explanation says what the reports show, and nothing else."""

from dataclasses import replace

from agent.evaluate import Evaluation, Measured, Rejected, evaluate
from agent.explain import changes_between, explain, limits
from agent.trial import Onboarding
from compiler.diagnostic import Code, Diagnostic
from compiler.ir.actions import Fuse, Prefetch, Rewrite, Rule
from compiler.ir.schedule import Schedule
from compiler.ir.text import parse_schedule
from simulator.report import Report

BASE = parse_schedule("rewrite a split_kv ways=8\nfuse a x..y\nloop a\n")
BEST = parse_schedule("rewrite a split_kv ways=32\nfuse a all\nloop a\nprefetch a nbytes=8MiB\n")


def report_of(evaluation: Evaluation) -> Report:
    assert isinstance(evaluation, Measured)
    return evaluation.report


def test_changes_pair_what_was_replaced() -> None:
    sections, split, prefetch = changes_between(BASE, BEST)
    assert (sections.gone, sections.new) == ((Fuse("a", "x..y"),), (Fuse("a", "all"),))
    assert split.gone == (Rewrite("a", Rule.SPLIT_KV, 8),) and split.new == (Rewrite("a", Rule.SPLIT_KV, 32),)
    assert prefetch.gone == () and prefetch.new == (Prefetch("a", 8 * 2**20),)


def test_undoing_every_change_one_after_another_gives_the_base() -> None:
    schedule = BEST
    for change in changes_between(BASE, BEST):
        assert change.undone(BEST, BASE) != BEST
        schedule = change.undone(schedule, BASE)
    assert set(schedule.actions) == set(BASE.actions)


def test_prefetch_is_credited_with_what_it_hides(onboarding: Onboarding) -> None:
    o3 = dict(onboarding.presets)["o3"]
    slow = report_of(o3.evaluation)
    kind = next(b.kind for b in onboarding.graph.blocks if b.kind.startswith("gqa"))
    best = o3.schedule.with_actions(Prefetch(kind, 2**20))
    fast = report_of(evaluate(onboarding.graph, best, onboarding.target))
    assert fast.hidden_s > 0 == slow.hidden_s and fast.latency_s < slow.latency_s
    told = explain(("o3", o3.schedule, slow), (best, fast), lambda s: evaluate(onboarding.graph, s, onboarding.target))
    (effect,) = told.effects
    assert effect.cost_s(fast) == slow.latency_s - fast.latency_s
    assert "hides" in effect.words and "behind other work" in effect.words
    assert any("Prefetch hides" in text for text in told.lines)


def test_nothing_is_claimed_that_the_reports_do_not_show(onboarding: Onboarding) -> None:
    o3 = dict(onboarding.presets)["o3"]
    report = report_of(o3.evaluation)
    best = o3.schedule.with_actions(Prefetch("head", 2**20))
    told = explain(("o3", o3.schedule, report), (best, report), lambda s: Measured(report))
    assert told.lines == (f"{told.lines[0]}", "1 change makes less than 0.1% of difference alone.")
    assert told.lines[0].startswith("As fast as o3")


def test_a_change_without_which_nothing_compiles_says_so(onboarding: Onboarding) -> None:
    o3 = dict(onboarding.presets)["o3"]
    report = report_of(o3.evaluation)
    fast = replace(report, latency_s=report.latency_s / 2)
    refused = Rejected((Diagnostic(Code.SECTION_OVER_SRAM, "s", "too large", levers=("less",)),))
    told = explain(
        ("o3", o3.schedule, report), (o3.schedule.with_actions(Prefetch("head", 1)), fast), lambda s: refused
    )
    assert told.lines[0].startswith("2.000x as fast as o3")
    assert "without it the schedule does not compile (SECTION_OVER_SRAM)" in told.lines[-1]


def test_numbers_of_an_op_that_a_change_made_are_undone_with_it(onboarding: Onboarding) -> None:
    o3 = dict(onboarding.presets)["o3"]
    merged = "rewrite gqa_dense merge_gate_up\nunits gqa_dense ffn.gate_up_proj pcus=8\n"
    best = o3.schedule.with_actions(*parse_schedule(merged).actions)
    fast = report_of(evaluate(onboarding.graph, best, onboarding.target))
    slow = report_of(o3.evaluation)
    told = explain(("o3", o3.schedule, slow), (best, fast), lambda s: evaluate(onboarding.graph, s, onboarding.target))
    effect = next(e for e in told.effects if isinstance(e.change.new[0], Rewrite))
    assert effect.without == slow


def test_the_preset_itself_needs_no_explanation(onboarding: Onboarding) -> None:
    report = onboarding.report

    def never(schedule: Schedule) -> Evaluation:
        raise AssertionError

    told = explain(("o3", BASE, report), (BASE, report), never)
    assert told.changes == () and told.lines == ("No schedule was found that is faster than the o3 preset.",)


def test_limits_are_the_causes_of_the_time(onboarding: Onboarding) -> None:
    shares = limits(onboarding.report)
    assert [s for _, s in shares] == sorted((s for _, s in shares), reverse=True)
    assert 0.95 * onboarding.report.latency_s < sum(s for _, s in shares) <= 1.0001 * onboarding.report.latency_s
