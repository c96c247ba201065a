"""The documents, the page and the run folder of an onboarding."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from onboardings import make_onboarding, write_config

from agent.charts import Level, best_so_far, curve, outside_scale, segments, spread, ticks
from agent.pages import report_html
from agent.report import dumps, explanation_of, onboard_json, report_json, warning_lines
from agent.runfolder import FILES, check_folder, run_json, write_run
from agent.trial import Counts, Onboarding, Start
from agent.words import seconds
from compiler.errors import InputError


def later(onboarding: Onboarding) -> Onboarding:
    """The same result as another run would give it."""
    settings = onboarding.settings.model_copy(update={"out": Path("/elsewhere"), "store": "sqlite:////x/y.db"})
    counts = Counts(onboarding.counts.total, onboarding.counts.rejected, 17)
    trials = tuple(replace(t, cached=True) for t in onboarding.trials)
    return replace(
        onboarding, settings=settings, run_id="run-other", wall_s=99.0, counts=counts, trials=trials,
        start=Start("exact", "this command is in the store"),
    )  # fmt: skip


def test_the_report_depends_on_the_result_only(onboarding: Onboarding) -> None:
    other = later(onboarding)
    one, two = (dumps(report_json(o, explanation_of(o))) for o in (onboarding, other))
    assert one == two
    assert "run-0123" not in one and "wall" not in one and "cached" not in one and str(Path.cwd()) not in one


def test_documents_hold_json_numbers_only(onboarding: Onboarding) -> None:
    explanation = explanation_of(onboarding)
    said = json.loads(dumps(onboard_json(onboarding, explanation)))
    assert said["presets"]["o3"]["sections"] == len(onboarding.graph.blocks)
    assert said["best"]["report"]["gap"] == said["gap"] >= 1
    assert sum(said["best"]["report"]["breakdown_s"].values()) == pytest.approx(onboarding.report.latency_s)
    with pytest.raises(ValueError, match="JSON compliant"):
        dumps({"latency_s": float("nan")})


def test_a_refused_preset_gives_its_reasons(onboarding: Onboarding, tmp_path: Path) -> None:
    from agent.evaluate import Rejected
    from compiler.diagnostic import Code, Diagnostic

    refused = Rejected((Diagnostic(Code.HBM_OVER, "hbm", "full <&>", 10, 4, "bytes", ("more sockets",)),))
    presets = tuple((n, replace(t, evaluation=refused) if n == "o3" else t) for n, t in onboarding.presets)
    without = replace(onboarding, presets=presets)
    explanation = explanation_of(without)
    assert explanation.base == "o1"
    said = onboard_json(without, explanation)["presets"]["o3"]["rejected"][0]
    assert said["code"] == "HBM_OVER" and said["gap"] == 6 and said["levers"] == ["more sockets"]
    assert "full &lt;&amp;&gt;" in report_html(without, explanation)


def test_what_does_not_fit_hbm_is_said_with_figures_and_levers(tmp_path: Path) -> None:
    model = write_config(tmp_path, "large", hidden_size=8192, intermediate_size=32768, num_hidden_layers=96)
    o = make_onboarding(model, sockets=1, evals=3)
    lost, cost, levers = warning_lines(o.model, o.graph, o.target, o.report)
    assert o.report.memory_spilled_bytes > 0
    assert f"{o.graph.weight_nbytes / 1e9:.2f} GB of weights" in lost and "68.72 GB of HBM on 1 socket" in lost
    assert cost.startswith("DDR takes") and f"{100 * o.report.spill_s / o.report.latency_s:.1f}%" in cost
    assert "--sockets 4" in levers and "--weights fp8" in levers and "shard" not in levers
    assert "does not fit HBM" in report_html(o, explanation_of(o))


@pytest.mark.parametrize(("positions", "said"), [(4096, False), (4095, True), (None, False)])
def test_a_context_beyond_the_models_positions_is_said(tmp_path: Path, positions: int | None, said: bool) -> None:
    o = make_onboarding(write_config(tmp_path, "short", max_position_embeddings=positions), evals=3)
    lines = warning_lines(o.model, o.graph, o.target, o.report)
    assert [("4,096 tokens" in x and "4,095 positions" in x) for x in lines] == [True] * said
    assert said == ("Beyond the model" in report_html(o, explanation_of(o)))


class Page(HTMLParser):
    """What a page refers to and shows, and whether its elements are closed in order."""

    VOID = frozenset({"meta", "line", "circle", "rect", "path", "wbr"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def page_of(onboarding: Onboarding) -> tuple[str, Page]:
    html, page = report_html(onboarding, explanation_of(onboarding)), Page()
    page.feed(html)
    return html, page


def test_the_page_is_whole_and_needs_nothing_else(onboarding: Onboarding) -> None:
    html, page = page_of(onboarding)
    assert page.open == []
    names = {name for name, _ in page.attributes}
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    assert not {"src", "href", "srcset"} & names and not any(n.startswith("on") for n in names)
    assert "url(" not in html.replace("url(#plot)", "") and "http://" not in html and "https://" not in html
    assert "prefers-color-scheme: dark" in html
    assert "nan" not in re.findall(r'(?:d|x1|y1|cx|cy|style)="[^"]*(nan|inf)', html)


def test_the_page_escapes_the_model(onboarding: Onboarding) -> None:
    html, page = page_of(onboarding)
    assert onboarding.model.name.startswith("tiny <script>")
    assert "<script" not in html and "tiny &lt;script&gt;" in html
    assert any("tiny <script>" in words for words in page.words)


def test_the_page_shows_the_result(onboarding: Onboarding) -> None:
    html, page = page_of(onboarding)
    text = "".join(page.words)
    for action in onboarding.best.schedule.text.splitlines():
        assert action in text
    for section in onboarding.report.sections:
        assert section.name in text
    for key, origin in onboarding.target.provenance:
        assert key in text and origin.text in text
    assert html.count('class="dot"') + outside_of(onboarding) == sum(t.latency_s is not None for t in onboarding.trials)
    assert all(f"c-{cause}" in html for cause, _ in onboarding.report.breakdown_s)
    bars = {value for name, value in page.attributes if name == "aria-label" and value}
    for section in onboarding.report.sections:  # a bar by cause for each section
        assert ", ".join(f"{cause} {seconds(s)}" for cause, s in section.breakdown_s if s > 0) in bars
    assert text.count("of 520.0 MiB") == 1 and text.count("of 64.0 GiB") == 1 and text.count("of 1.5 TiB") == 1


def outside_of(onboarding: Onboarding) -> int:
    levels = [
        Level("o3", dict(onboarding.presets)["o3"].latency_s or 0.0, ""),
        Level("bound", onboarding.bound.latency_s, ""),
    ]
    return outside_scale([t.latency_s for t in onboarding.trials], levels)


def test_the_run_folder_is_whole(onboarding: Onboarding, tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "run"
    check_folder(folder)
    write_run(folder, onboarding, explanation_of(onboarding))
    assert sorted(p.name for p in folder.iterdir()) == sorted(FILES)
    lines = [json.loads(text) for text in (folder / "trials.jsonl").read_text().splitlines()]
    assert [line["index"] for line in lines] == list(range(onboarding.counts.total))
    for line, trial in zip(lines, onboarding.trials, strict=True):
        assert line["latency_s"] == trial.latency_s and line["schedule_id"] == trial.schedule.id
    run = json.loads((folder / "run.json").read_text())
    assert run["ids"]["best_schedule"] == lines[run["best_trial"]]["schedule_id"]
    assert run["ids"]["graph"] == onboarding.graph.id and run["settings"]["seed"] == 0
    check_folder(folder)  # an earlier run may be overwritten


def test_files_appear_whole_or_not_at_all(
    onboarding: Onboarding, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    write_run(tmp_path, onboarding, explanation_of(onboarding))
    before = (tmp_path / "report.html").read_bytes()
    real = os.replace

    def fail(source: Any, target: Any) -> None:
        if str(target).endswith("report.html"):
            raise OSError(28, "No space left on device")
        real(source, target)

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(InputError, match="No space left"):
        write_run(tmp_path, later(onboarding), explanation_of(onboarding))
    assert (tmp_path / "report.html").read_bytes() == before
    assert not (tmp_path / "run.json").exists() and not list(tmp_path.glob(".rdutune-*"))
    monkeypatch.undo()
    check_folder(tmp_path)  # what a broken run left is ours, so the next run may write there
    write_run(tmp_path, onboarding, explanation_of(onboarding))
    assert (tmp_path / "run.json").exists()


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["text", "empty", "folder"])
def test_files_of_somebody_else_are_never_overwritten(tmp_path: Path, name: str, kind: str) -> None:
    """A file with one of our names is ours only if it holds what we write there."""
    if kind == "folder":
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).write_text('{"my": "experiment"}' if kind == "text" else "")
    with pytest.raises(InputError, match=f"holds something else \\({name}"):
        check_folder(tmp_path)


def test_passwords_stay_out_of_the_run_folder(onboarding: Onboarding) -> None:
    settings = onboarding.settings.model_copy(update={"store": "postgresql://me:s3cr3t@host:5432/db"})
    said = dumps(run_json(replace(onboarding, settings=settings)))
    assert "s3cr3t" not in said and "postgresql://me:***@host:5432/db" in said


def test_best_so_far() -> None:
    assert best_so_far([None, 3.0, 4.0, None, 2.0]) == [None, 3.0, 3.0, 3.0, 2.0]


def test_bars_are_shares_of_the_longest() -> None:
    parts = segments((("a", 1.0), ("b", 0.0), ("c", 3.0)), 8.0)
    assert [(p.name, p.share) for p in parts] == [("a", 0.125), ("c", 0.375)]


def test_ticks_are_round_and_inside() -> None:
    assert ticks(0, 10) == [0, 2, 4, 6, 8, 10]
    assert ticks(2.03, 2.71) == pytest.approx([2.2, 2.4, 2.6])


def test_labels_do_not_overlap() -> None:
    placed = spread([10.0, 11.0, 12.0, 279.0, 280.0])
    assert all(b - a >= 15.99 for a, b in pairwise(placed)) and placed[-1] <= 280


@pytest.mark.parametrize("latencies", [[1.0], [None, 1.0], [1.0, 1.0, 1.0], [5.0, 1e-9]])
def test_curves_of_few_or_equal_points(latencies: list[float | None]) -> None:
    svg = curve(latencies, [Level("bound", 1.0 if 1.0 in latencies else 1e-9, "l-bound")])
    assert "nan" not in svg and "inf" not in svg and svg.count("<svg") == svg.count("</svg>") == 1
