"""onboard: the store is used, said to be used, and left alone by failures; the same command gives the same bytes."""

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent.experience.transfer import like, transfer
from agent.onboard import OnboardFailed, onboard
from agent.presets import preset
from agent.settings import Settings
from agent.trial import Onboarding, Progress
from compiler.errors import InputError
from compiler.ir.actions import Prefetch, Rewrite, Rule, Shard
from compiler.ir.graph import Graph
from compiler.ir.schedule import Schedule
from compiler.ir.text import parse_schedule
from compiler.pipeline import compile_schedule
from compiler.program import Program
from compiler.target import Target

Config = Callable[..., str]


@pytest.fixture
def run(config: Config, tmp_path: Path) -> Callable[..., Onboarding]:
    def make(name: str = "llama", store: str = "store.db", on: Any = lambda p: None, **settings: Any) -> Onboarding:
        changed = settings.pop("config", {})
        values = {"sockets": 4, "context": 1024, "evals": 40, **settings}
        return onboard(Settings(model=config(name, **changed), store=f"sqlite:///{tmp_path / store}", **values), on)

    return make


def rows(path: Path) -> dict[str, int]:
    with sqlite3.connect(path) as db:
        names = [r[0] for r in db.execute("select name from sqlite_master where type='table'")]
        return {n: db.execute(f"select count(*) from {n}").fetchone()[0] for n in names}


def test_the_same_command_twice_is_read_back(run: Callable[..., Onboarding]) -> None:
    first, second = run(), run()
    assert first.start.kind == "none" and second.start.kind == "exact"
    assert second.run_id == first.run_id and "store" in second.start.note
    assert second.best.schedule == first.best.schedule and second.report == first.report
    assert [(t.index, t.schedule, t.evaluation, t.origin, t.parent) for t in first.trials] == [
        (t.index, t.schedule, t.evaluation, t.origin, t.parent) for t in second.trials
    ]
    assert second.counts.cached == second.counts.total == first.counts.total


def test_a_fresh_store_gives_the_same(run: Callable[..., Onboarding]) -> None:
    first, other = run(), run(store="other.db")
    assert first.best.schedule == other.best.schedule and first.report == other.report


def test_another_seed_starts_from_the_incumbent(run: Callable[..., Onboarding]) -> None:
    first = run()
    second = run(seed=1)
    assert second.start.kind == "known"
    assert second.best.latency_s is not None and first.best.latency_s is not None
    assert second.best.latency_s <= first.best.latency_s
    assert second.counts.cached >= 4  # presets and incumbent come from the store


def test_a_similar_model_starts_from_the_nearest(run: Callable[..., Onboarding]) -> None:
    run("mixtral", evals=60)
    wider = run("mixtral2", config={"intermediate_size": 2048}, evals=60)
    assert wider.start.kind == "near" and "mixtral" in wider.start.note
    assert any(t.origin.startswith("near") for t in wider.trials)
    other = run("llama", evals=60)
    assert other.start.kind in ("near", "far")


def test_another_target_or_version_is_not_current(
    run: Callable[..., Onboarding], monkeypatch: pytest.MonkeyPatch
) -> None:
    run()
    monkeypatch.setattr("agent.onboard.VERSION", "compiler2+simulator9")
    monkeypatch.setattr("agent.evaluate.VERSION", "compiler2+simulator9")
    again = run()
    assert again.start.kind == "none" and again.counts.cached == 0


def test_progress_tells_the_best_so_far(run: Callable[..., Onboarding]) -> None:
    seen: list[Progress] = []
    result = run(on=seen.append)
    assert [p.done for p in seen] == list(range(1, result.counts.total + 1))
    bests = [p.best_s for p in seen if p.best_s is not None]
    assert bests == sorted(bests, reverse=True) and bests[-1] == result.best.latency_s
    assert all(p.bound_s <= p.best_s for p in seen if p.best_s is not None)


def test_what_does_not_fit_fails_with_figures_and_leaves_the_store(
    run: Callable[..., Onboarding], tmp_path: Path
) -> None:
    run()
    before = rows(tmp_path / "store.db")
    huge = {"num_hidden_layers": 4000, "hidden_size": 65536, "intermediate_size": 262144, "head_dim": 8192}
    with pytest.raises(OnboardFailed) as failed:
        run("llama_huge", config=huge, sockets=1)
    assert {d.code for d in failed.value.diagnostics} >= {"DDR_OVER"}
    assert all(d.gap > 0 and d.levers for d in failed.value.diagnostics if d.code == "DDR_OVER")
    assert rows(tmp_path / "store.db") == before


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        ({"sockets": 3}, "--sockets 3"),
        ({"target": "sn4ol"}, "target"),
        ({"weights": "fp8", "config": {"hidden_size": None}}, "hidden_size"),
    ],
)
def test_bad_input_names_the_place_and_leaves_the_store(
    run: Callable[..., Onboarding], tmp_path: Path, settings: dict[str, Any], where: str
) -> None:
    run()
    before = rows(tmp_path / "store.db")
    with pytest.raises(InputError, match=where):
        run("llama_bad", **settings)
    assert rows(tmp_path / "store.db") == before


def test_a_corrupt_run_is_made_again(run: Callable[..., Onboarding], tmp_path: Path) -> None:
    first = run()
    with sqlite3.connect(tmp_path / "store.db") as db:
        db.execute("update schedules set text = text || 'x' where id = ?", (first.best.schedule.id,))
    again = run()
    assert again.start.kind == "known"  # the second best, since the best is corrupt
    assert again.run_id != first.run_id and again.counts.total > again.counts.cached > 0


def test_reports_of_another_form_are_measured_again(run: Callable[..., Onboarding], tmp_path: Path) -> None:
    first = run()
    with sqlite3.connect(tmp_path / "store.db") as db:
        db.execute(
            "update evaluations set report = replace(report, 'hidden_s', 'hidden_s_old') where report is not null"
        )
    again = run()
    assert again.start.kind == "known" and again.counts.cached < again.counts.total
    assert again.best.latency_s is not None and first.best.latency_s is not None
    assert again.best.latency_s <= first.best.latency_s


def test_transfer_keeps_what_applies(graph: Callable[..., Graph], target: Target) -> None:
    source = parse_schedule(
        "rewrite gqa_moe streaming_softmax\nrewrite gqa_moe split_kv ways=4\nshard gqa_moe ffn experts ways=4\n"
        "fuse gqa_moe all\nloop gqa_moe\nexperts gqa_moe static regions=2\nprefetch gqa_moe nbytes=1MiB\n"
    )
    dense = graph()
    moved = transfer(source, dense, target, preset("o3", dense, target))
    assert isinstance(compile_schedule(dense, moved.schedule, target), Program)
    edits = set(moved.schedule.actions) - set(preset("o3", dense, target).actions)
    assert edits == {Rewrite("gqa_dense", Rule.SPLIT_KV, 4), Prefetch("gqa_dense", 2**20)}
    assert (moved.kept, moved.dropped) == (2, 2)  # experts and their shard have nothing to act on
    assert not any(isinstance(a, Shard) and a.dim == "experts" for a in moved.schedule.actions)


@pytest.mark.parametrize(
    ("kind", "known", "expected"),
    [
        ("gqa_moe", ("gqa_dense", "gqa_moe"), "gqa_moe"),
        ("mla_moe", ("gqa_dense", "gqa_moe"), "gqa_moe"),
        ("gqa_dense_2", ("gqa_moe", "gqa_dense"), "gqa_dense"),
        ("mla_dense", ("swa_moe", "embed"), None),
        ("head", ("gqa_moe",), None),
        ("head", ("gqa_moe", "head"), "head"),
    ],
)
def test_kinds_are_matched_by_role(kind: str, known: tuple[str, ...], expected: str | None) -> None:
    assert like(kind, known) == expected


def test_trials_are_json_safe(run: Callable[..., Onboarding]) -> None:
    result = run()
    json.dumps(result.report.to_json(), allow_nan=False)
    assert isinstance(result.best.schedule, Schedule)
