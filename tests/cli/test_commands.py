"""What the commands print and write."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from onboardings import write_config

from agent.runfolder import FILES
from compiler.ir.actions import FAMILIES
from compiler.ir.text import parse_schedule

Run = Callable[..., Any]
QUICK = ("--evals", 40, "--sockets", 2, "--context", 512)


def test_onboard_prints_one_json_object(rdutune: Run, tiny: Path) -> None:
    ended = rdutune("onboard", tiny, *QUICK, "--out", "run", "--json")
    assert ended.code == 0 and ended.err == ""
    said = ended.json
    assert said["model"]["name"] == "tiny"
    assert said["model"]["layers"] == [{"kind": "gqa_dense", "repeat": 4}]
    asked = {"phase": "decode", "batch": 1, "context": 512, "sockets": 2, "weights": "auto", "mtp": False}
    assert said["workload"] == asked
    assert set(said["presets"]) == {"o0", "o1", "o3"}
    for figures in said["presets"].values():
        for key in ("latency_s", "tokens_per_s_per_user", "tokens_per_s", "hbm_pct", "sections", "sram_peak_bytes"):
            assert type(figures[key]) in (int, float), key
        assert figures["launches"] >= figures["sections"]
    best = said["best"]["report"]["latency_s"]
    assert best <= said["presets"]["o3"]["latency_s"]
    assert said["gap"] == pytest.approx(best / said["bound"]["latency_s"]) and said["gap"] >= 1
    assert parse_schedule(said["best"]["schedule"]).text == said["best"]["schedule"]
    counts = said["evaluations"]
    assert 3 <= counts["total"] <= 40 and set(counts) == {"total", "rejected", "cached"}
    assert said["start"]["kind"] == "none" and said["explanation"] and said["wall_s"] > 0
    assert {p.name for p in Path("run").iterdir()} == set(FILES)
    assert json.loads(Path("run/run.json").read_text())["run_id"] == said["run_id"]


def test_the_same_command_gives_the_same_bytes(rdutune: Run, tiny: Path) -> None:
    arguments = ("onboard", tiny, *QUICK, "--json")
    first = rdutune(*arguments, "--out", "one").json
    again = rdutune(*arguments, "--out", "two").json  # read back from the store
    fresh = rdutune(*arguments, "--out", "three", "--store", "sqlite:///other.db").json
    assert again["start"]["kind"] == "exact" and fresh["evaluations"]["cached"] == 0
    for name in ("best.schedule", "report.json"):
        one = Path("one", name).read_bytes()
        assert one == Path("two", name).read_bytes() == Path("three", name).read_bytes()
    assert first["best"] == again["best"] == fresh["best"]


def test_the_summary_fits_80_columns_and_names_presets_and_mechanism(rdutune: Run, tiny: Path) -> None:
    ended = rdutune("onboard", tiny, *QUICK)
    assert ended.code == 0
    lines = ended.out.splitlines()
    assert max(map(len, lines)) <= 80
    for name in ("o0", "o1", "o3", "best", "bound"):
        assert any(text.startswith(f"{name} ") for text in lines), name
    assert "as fast as o3" in ended.out and "without it" in ended.out
    assert "\n+ " in ended.out and "from o3 to best" in ended.out
    folder = next(text for text in lines if text.startswith("files")).split()[1]
    assert Path(folder, "report.html").is_file()


def test_an_earlier_run_may_be_overwritten(rdutune: Run, tiny: Path) -> None:
    assert rdutune("onboard", tiny, *QUICK, "--out", "run").code == 0
    assert rdutune("onboard", tiny, *QUICK, "--seed", 1, "--out", "run").code == 0
    assert json.loads(Path("run/run.json").read_text())["settings"]["seed"] == 1


def test_the_best_schedule_simulates_to_the_reported_time(rdutune: Run, tiny: Path) -> None:
    said = rdutune("onboard", tiny, *QUICK, "--out", "run", "--json").json
    again = rdutune("simulate", tiny, *QUICK[2:], "--schedule", "run/best.schedule", "--json").json
    assert again["unplaced"] == said["best"]["report"]
    assert again["report"] == said["best"]["placed"] and again["report"]["fidelity"] == "placed"


def test_inspect_gives_model_work_and_facts_with_their_keys(rdutune: Run, tiny: Path) -> None:
    said = rdutune("inspect", tiny, "--context", 512, "--json").json
    hidden, ffn, vocab = 512, 1024, 2048
    layer = 4 * hidden * hidden + 3 * hidden * ffn + 2 * hidden
    params = 4 * layer + 2 * vocab * hidden + hidden
    assert said["model"]["params"] == said["model"]["active_params"] == params
    assert said["model"]["kv_bytes_per_token"] == 4 * 2 * hidden * 2
    cache = 512 * said["model"]["kv_bytes_per_token"]
    row = hidden * 2  # of the embedding one row is read, not the table
    assert said["work"]["bytes_per_token"] == 2 * params - 2 * vocab * hidden + row + cache
    assert said["work"]["flops_per_token"] > 2 * (params - vocab * hidden)
    facts = {fact["name"]: fact for fact in said["facts"]}
    assert facts["layers"] == {"name": "layers", "value": 4, "key": "num_hidden_layers", "status": "read", "note": ""}
    text = rdutune("inspect", tiny).out
    assert "4 x gqa_dense" in text and "num_hidden_layers" in text


def test_compile_shows_and_writes_the_program(rdutune: Run, tiny: Path) -> None:
    ended = rdutune("compile", tiny, "--sockets", 2, "--emit", "program.json")
    assert ended.code == 0 and "HBM" in ended.out and "4 loop" in ended.out
    said = rdutune("compile", tiny, "--sockets", 2, "--json").json
    assert said["program"] == json.loads(Path("program.json").read_text())
    assert said["launches"] == 4


@pytest.mark.parametrize("form", ["text", "json"])
def test_schedules_come_from_files_too(rdutune: Run, tiny: Path, form: str) -> None:
    from compiler.ir.text import to_json

    text = rdutune("simulate", tiny, "--sockets", 2, "--schedule", "o1", "--json").json["schedule"]
    name = "mine.schedule" if form == "text" else "mine.json"
    Path(name).write_text(text if form == "text" else json.dumps(to_json(parse_schedule(text))))
    ended = rdutune("simulate", tiny, "--sockets", 2, "--schedule", name, "--json")
    assert ended.json["schedule"] == text and len(ended.json["report"]["sections"]) > 4


def test_prefill_and_batches_are_shown(rdutune: Run, tiny: Path) -> None:
    ended = rdutune("simulate", tiny, "--phase", "prefill", "--context", 256, "--batch", 4, "--sockets", 1)
    assert ended.code == 0 and "prompt of 256 tokens" in ended.out and "4 sequences" in ended.out


def test_actions_lists_every_family(rdutune: Run) -> None:
    rows = rdutune("actions", "--json").json["actions"]
    assert [row["family"] for row in rows] == [cls.family for cls in FAMILIES]
    text = rdutune("actions").out
    assert all(f"\n{row['family']} " in text and row["usage"] for row in rows)


def test_targets_show_where_numbers_come_from(rdutune: Run) -> None:
    rows = rdutune("targets", "--json").json["targets"]
    assert [row["name"] for row in rows] == ["sn40l"]
    said = rdutune("targets", "sn40l", "--json").json
    assert said["numbers"]["pcus"]["value"] == 1040 and "source" in said["numbers"]["pcus"]
    assert all(len(n) == 2 and set(n) - {"value"} <= {"source", "assumed", "fitted"} for n in said["numbers"].values())
    text = rdutune("targets", "sn40l").out
    assert "assumed" in text and "fitted" in text and "hbm_efficiency" in text


def test_foreign_text_is_data(rdutune: Run, tmp_path: Path) -> None:
    name = "[red]x[bold]\x1b[31m<b>&\u202e"
    model = write_config(tmp_path, name)
    for command in (("inspect", model), ("simulate", model, "--sockets", 1)):
        ended = rdutune(*command)
        assert ended.code == 0 and "[red]x[bold]" in ended.out
        assert "\x1b" not in ended.out and "\u202e" not in ended.out
    ended = rdutune("onboard", model, *QUICK, "--out", "run")
    assert ended.code == 0 and "\x1b" not in ended.out
    page = Path("run/report.html").read_text(encoding="utf-8")
    assert "<b>" not in page and "\x1b" not in page and "\u202e" not in page and "&lt;b&gt;&amp;" in page
    assert rdutune("inspect", model, "--json").json["model"]["name"] == name
