"""Program files on the command line: written, simulated without their model, compared."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

Run = Callable[..., Any]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def emitted(rdutune: Run, tiny: Path) -> Path:
    assert rdutune("compile", tiny, "--sockets", 2, "--emit", "p.json").code == 0
    return Path("p.json")


@pytest.mark.parametrize("flags", [(), ("--schedule", "o1"), ("--phase", "prefill", "--context", 300, "--batch", 3)])
def test_a_program_simulates_as_its_model_does(rdutune: Run, tiny: Path, flags: tuple[Any, ...]) -> None:
    assert rdutune("compile", tiny, "--sockets", 2, *flags, "--emit", "p.json").code == 0
    model = rdutune("simulate", tiny, "--sockets", 2, *flags, "--json").json
    (tiny / "config.json").unlink()
    said = rdutune("simulate", "p.json", "--json").json
    assert said["report"] == model["report"] and said["workload"] == model["workload"]
    assert said["program"]["id"] == said["report"]["program_id"]
    text = rdutune("simulate", "p.json").out
    assert "2 x sn40l" in text and "p.json" in text and "bound" in text


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--schedule", "o1"), ("--sockets", 2), ("--phase", "decode"), ("--batch", 1), ("--context", 4096),
        ("--weights", "auto"), ("--frontend", "auto"),
    ],
)  # fmt: skip
def test_flags_that_a_program_has_itself_are_refused(rdutune: Run, emitted: Path, flag: str, value: Any) -> None:
    ended = rdutune("simulate", emitted, flag, value)
    assert ended.code == 2 and ended.out == "" and f"{flag} {value}" in ended.err and "has its own" in ended.err
    assert "--mtp" in rdutune("simulate", emitted, "--mtp").err


def test_another_target_may_be_named(rdutune: Run, emitted: Path) -> None:
    text = (ROOT / "compiler/targets/sn40l.yaml").read_text(encoding="utf-8")
    slower = yaml.safe_load(text)
    slower["name"] = "slower"
    slower["hbm_bytes_per_s"]["value"] = float(slower["hbm_bytes_per_s"]["value"]) / 2
    Path("slower.yaml").write_text(yaml.safe_dump(slower))
    fast = rdutune("simulate", emitted, "--json").json["report"]["latency_s"]
    assert rdutune("simulate", emitted, "--target", "slower.yaml", "--json").json["report"]["latency_s"] > fast
    document = json.loads(emitted.read_text())
    emitted.write_text(json.dumps({**document, "target_id": "target1-0", "target": "mine"}))
    ended = rdutune("simulate", emitted)
    assert ended.code == 2 and "was compiled for mine (target1-0)" in ended.err and "--target" in ended.err
    shape = {"tile_columns": 4, "tile_rows": 2, "tiles_across": 1, "tiles_down": 1}
    for key, value in {**shape, "pcus": 8, "pmus": 8, "pmu_bytes": 2**30}.items():
        slower[key]["value"] = value
    Path("small.yaml").write_text(yaml.safe_dump(slower))
    ended = rdutune("simulate", emitted, "--target", "small.yaml")
    assert ended.code == 2 and "more PCUs are used than there are" in ended.err


#: what is done to the text of a program file -> words of the error
DAMAGE: list[tuple[Callable[[str], str], tuple[str, ...]]] = [
    (lambda text: text[: len(text) // 2], ("p.json, line", "not JSON")),
    (lambda text: text.replace('"version": 2', '"version": 3'), ("version 3", "compile the model again")),
    (lambda text: '{"version": 1, "graph_id": "x"}', ("version 1", "compile the model again")),
    (lambda text: text.replace('"times": 1', '"times": NaN', 1), ("p.json.runs[0].times", "nan")),
    (lambda text: text.replace('"looped"', '"loped"', 1), ("key 'loped'", "did you mean looped")),
    (lambda text: text.replace('"read_bytes":', '"read_bytes": 1, "read_bytes":', 1), ("stands there twice",)),
    (lambda text: json.dumps(json.loads(text), sort_keys=True)[:-9], ("p.json",)),
]


@pytest.mark.parametrize(("damage", "words"), DAMAGE)
def test_damaged_programs_are_refused(
    rdutune: Run, emitted: Path, damage: Callable[[str], str], words: tuple[str, ...]
) -> None:
    emitted.write_text(damage(emitted.read_text()))
    for command in (("simulate", emitted), ("diff", emitted, emitted)):
        ended = rdutune(*command)
        assert ended.code == 2 and ended.out == "" and "Traceback" not in ended.err, ended
        assert all(word in ended.err for word in words), ended.err


def test_a_program_whose_keys_are_sorted_is_one_too(rdutune: Run, emitted: Path) -> None:
    before = rdutune("simulate", emitted, "--json").json
    emitted.write_text(json.dumps(json.loads(emitted.read_text()), sort_keys=True, separators=(",", ":")))
    assert rdutune("simulate", emitted, "--json").json == before


def test_rules_are_written(rdutune: Run, tiny: Path) -> None:
    ended = rdutune("compile", tiny, "--sockets", 2, "--schedule", "o1", "--emit-rules", "rules.yaml")
    assert ended.code == 0 and "rules.yaml" in ended.out
    rules = yaml.safe_load(Path("rules.yaml").read_text())
    assert rules["gqa_dense_1"]["pattern"]["attn_norm"]["op_type"] == "rms_norm"
    ended = rdutune("compile", tiny, "--emit-rules", "no/such/folder/rules.yaml")
    assert ended.code == 2 and "--emit-rules" in ended.err


def test_diff_of_programs(rdutune: Run, tiny: Path, emitted: Path) -> None:
    assert rdutune("compile", tiny, "--sockets", 2, "--context", 8192, "--emit", "long.json").code == 0
    same = rdutune("diff", emitted, emitted)
    assert same.code == 0 and same.out == "the programs are equal\n"
    ended = rdutune("diff", emitted, "long.json")
    assert ended.code == 1 and ended.err == "" and "memory" in ended.out and "hbm_kv" in ended.out
    assert max(map(len, ended.out.splitlines())) <= 80
    said = rdutune("diff", emitted, "long.json", "--json")
    assert said.code == 1 and said.json["kind"] == "programs" and not said.json["equal"]
    assert said.json["differences"]["memory"][0]["field"] == "hbm_kv"


def test_diff_of_schedules(rdutune: Run, tiny: Path) -> None:
    from compiler.ir.text import parse_schedule, to_json

    text = rdutune("simulate", tiny, "--sockets", 2, "--schedule", "o1", "--json").json["schedule"]
    Path("a.schedule").write_text(text)
    Path("b.json").write_text(json.dumps(to_json(parse_schedule(text))))
    assert rdutune("diff", "a.schedule", "b.json").code == 0
    Path("c.schedule").write_text(text + "prefetch * nbytes=1MiB\n")
    ended = rdutune("diff", "a.schedule", "c.schedule")
    assert ended.code == 1 and ended.out == "added\n  + prefetch * nbytes=1MiB\n"
    assert rdutune("diff", "a.schedule", "c.schedule", "--json").json == {
        "kind": "schedules", "equal": False,
        "differences": {"added": [{"subject": "prefetch * nbytes=1MiB", "before": None, "after": "prefetch * nbytes=1MiB"}]},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        ("o1", "o3", ("o1", "presets are no files")),
        ("p.json", "s.schedule", ("a program and a schedule", "two schedules, or two programs")),
        ("s.schedule", "bad.schedule", ("bad.schedule, line 1", "unknown action")),
        ("s.schedule", "bad.json", ("bad.json", "not a schedule")),
        (".", "s.schedule", ("cannot be read",)),
    ],
)
def test_diff_of_what_cannot_be_compared(rdutune: Run, emitted: Path, a: str, b: str, words: tuple[str, ...]) -> None:
    Path("s.schedule").write_text("launch hardware\n")
    Path("bad.schedule").write_text("lunch hardware\n")
    Path("bad.json").write_text("{}")
    ended = rdutune("diff", a, b)
    assert ended.code == 2 and ended.out == "" and all(word in ended.err for word in words), ended.err


def test_two_processes_with_other_hash_seeds_write_the_same_bytes(rdutune: Run, tiny: Path) -> None:
    for seed in ("0", "4711"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        files = ("--emit", f"{seed}.json", "--emit-rules", f"{seed}.yaml")
        command = [
            sys.executable,
            "-m",
            "agent.cli",
            "compile",
            str(tiny),
            "--sockets",
            "4",
            "--schedule",
            "o1",
            *files,
        ]
        subprocess.run(command, env=env, check=True, capture_output=True, timeout=120)
    for suffix in ("json", "yaml"):
        assert Path(f"0.{suffix}").read_bytes() == Path(f"4711.{suffix}").read_bytes()
