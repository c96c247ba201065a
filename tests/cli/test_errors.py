"""Each way a command can fail: its exit code, one screen of words, and nothing left behind."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from onboardings import write_config

Run = Callable[..., Any]
ROOT = Path(__file__).parents[2]


def says(ended: Any, code: int, *words: str) -> None:
    assert ended.code == code, ended.err
    assert ended.out == ""
    assert "Traceback" not in ended.err and len(ended.err.splitlines()) <= 24
    for word in words:
        assert word in ended.err, ended.err


@pytest.mark.parametrize("command", ["onboard", "inspect", "compile", "simulate"])
def test_bad_models_exit_with_2(rdutune: Run, tmp_path: Path, command: str) -> None:
    says(rdutune(command, "nowhere/config.json"), 2, "nowhere/config.json")
    says(rdutune(command, "lama"), 2, "lama", "llama")
    broken = tmp_path / "broken.json"
    broken.write_text('{"model_type": "llama",')
    says(rdutune(command, broken), 2, "broken.json", "line 1")
    says(rdutune(command, write_config(tmp_path, "gap", num_attention_heads=None)), 2, "num_attention_heads")
    assert not Path("runs/experience.db").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--sockets", 3), ("--sockets 3", "1, 2, 4, 8, 16", "2 or 4")),
        (("--sockets", 0), ("--sockets 0",)),
        (("--batch", 0), ("--batch 0", "1")),
        (("--context", -5), ("--context -5",)),
        (("--context", 10**12), ("--context",)),
        (("--target", "sn40"), ("sn40", "sn40l")),
        (("--target", "no.yaml"), ("no.yaml", "no such file")),
    ],
)
def test_bad_numbers_name_their_flag(rdutune: Run, tiny: Path, flags: tuple[Any, ...], words: tuple[str, ...]) -> None:
    for command in ("onboard", "compile", "simulate"):
        says(rdutune(command, tiny, *flags), 2, *words)


def test_bounds_of_onboard(rdutune: Run, tiny: Path) -> None:
    says(rdutune("onboard", tiny, "--evals", 2), 2, "--evals 2", "3")
    says(rdutune("onboard", tiny, "--seed", -1), 2, "--seed -1")
    says(rdutune("onboard", tiny, "--store", "nonsense://"), 2, "nonsense")


@pytest.mark.parametrize(
    "arguments", [("frobnicate",), ("onboard",), ("simulate", "x", "--phase", "dream"), ("--what",)]
)
def test_bad_usage_exits_with_2(rdutune: Run, arguments: tuple[str, ...]) -> None:
    ended = rdutune(*arguments)
    assert ended.code == 2 and ended.out == "" and "Traceback" not in ended.err


def test_a_schedule_with_a_typo_points_at_it(rdutune: Run, tiny: Path) -> None:
    Path("typo.schedule").write_text("fuse gqa_dense all\nshard gqa_dense ffn ffn wys=2\n")
    for command in ("compile", "simulate"):
        ended = rdutune(command, tiny, "--schedule", "typo.schedule")
        says(ended, 2, "line 2, column 25", "did you mean ways?")
        lines = ended.err.splitlines()
        caret = next(i for i, text in enumerate(lines) if text.strip() == "^")
        assert lines[caret - 1][lines[caret].index("^") :].startswith("wys=2")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xff\xfe", ("UTF-8",)),
        (b"{", ("line 1",)),
        (b"[" * 100_000, ("not a schedule",)),
        (b'{"version": 1, "actions": [{"family": "fuze"}]}', ("fuse", "actions[0]")),
    ],
)
def test_broken_json_schedules(rdutune: Run, tiny: Path, content: bytes, words: tuple[str, ...]) -> None:
    Path("bad.json").write_bytes(content)
    says(rdutune("simulate", tiny, "--schedule", "bad.json"), 2, "bad.json", *words)


def test_schedules_that_are_not_there(rdutune: Run, tiny: Path) -> None:
    says(rdutune("compile", tiny, "--schedule", "missing.schedule"), 2, "missing.schedule", "no such file", "o3")
    says(rdutune("compile", tiny, "--schedule", "o33"), 2, "o3")
    says(rdutune("compile", tiny, "--schedule", "."), 2, "cannot be read")
    says(rdutune("compile", tiny, "--schedule", "/dev/zero"), 2, "larger than")


def test_a_schedule_that_does_not_compile_exits_with_1_and_every_reason(rdutune: Run, tiny: Path) -> None:
    Path("bad.schedule").write_text("units gqa_dense no.such pcus=4\nfuse nothing all\nshard nowhere ffn ffn ways=2\n")
    for command in ("compile", "simulate"):
        says(rdutune(command, tiny, "--schedule", "bad.schedule"), 1, "UNKNOWN_BLOCK", "nowhere", "nothing", "try:")
        ended = rdutune(command, tiny, "--schedule", "bad.schedule", "--json")
        assert ended.code == 1 and ended.err == ""
        assert [d["code"] for d in ended.json["rejected"]] == ["UNKNOWN_BLOCK"] * 2


def test_holes_are_for_onboard_only(rdutune: Run, tiny: Path) -> None:
    Path("hole.schedule").write_text("prefetch gqa_dense nbytes=?\n")
    says(rdutune("simulate", tiny, "--schedule", "hole.schedule"), 1, "HOLE", "prefetch nbytes", "only in onboard")


def test_what_does_not_fit_anywhere_exits_with_1_and_leaves_the_store(rdutune: Run, tmp_path: Path) -> None:
    huge = write_config(tmp_path, "huge", hidden_size=65536, intermediate_size=2**20, num_hidden_layers=400)
    ended = rdutune("onboard", huge, "--sockets", 1, "--evals", 5)
    says(ended, 1, "DDR_OVER", "TiB", "over by")
    ended = rdutune("onboard", huge, "--sockets", 1, "--evals", 5, "--json")
    assert ended.code == 1 and ended.json["rejected"][0]["gap"] > 0
    assert not list(Path().glob("runs/2*"))


@pytest.mark.parametrize("out", ["file", "file/below", "full", "/proc/nowhere"])
def test_folders_that_cannot_be_written_are_told_before_the_work(rdutune: Run, tiny: Path, out: str) -> None:
    Path("file").write_text("mine")
    Path("full").mkdir()
    Path("full/thesis.tex").write_text("mine")
    says(rdutune("onboard", tiny, "--evals", 1_000_000, "--out", out), 2, f"--out {out}")
    assert Path("file").read_text() == "mine" and os.listdir("full") == ["thesis.tex"]


def test_a_disk_that_fills_up_still_shows_the_result(rdutune: Run, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import agent.runfolder

    def full(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(agent.runfolder, "write_whole", full)
    ended = rdutune("onboard", tiny, "--evals", 10, "--out", "run", "--json")
    assert ended.code == 2 and ended.json["best"] and "No space left on device" in ended.err
    says(rdutune("compile", tiny, "--emit", "p.json"), 2, "--emit p.json", "No space left on device")


def test_devices_are_written_to_and_never_replaced(rdutune: Run, tiny: Path) -> None:
    Path("link.json").symlink_to("real.json")
    for place in ("/dev/null", "link.json"):
        assert rdutune("compile", tiny, "--emit", place).code == 0
    assert Path("/dev/null").is_char_device() and Path("link.json").is_symlink()
    assert Path("real.json").read_text().startswith("{")


def test_emit_into_a_folder_is_refused(rdutune: Run, tiny: Path) -> None:
    says(rdutune("compile", tiny, "--emit", "."), 2, "--emit .", "folder")
    says(rdutune("compile", tiny, "--emit", "no/such/p.json"), 2, "--emit no/such/p.json")


@pytest.mark.parametrize("debug", [False, True])
def test_a_fault_of_ours_is_named_and_exits_with_1(
    rdutune: Run, tiny: Path, monkeypatch: pytest.MonkeyPatch, debug: bool
) -> None:
    import agent.evaluate

    def fault(*arguments: object) -> None:
        raise RuntimeError("the sum is off")

    monkeypatch.setattr(agent.evaluate, "evaluate", fault)
    ended = rdutune(*(["--debug"] if debug else []), "simulate", tiny)
    assert ended.code == 1 and "fault: RuntimeError: the sum is off" in ended.err and "bug" in ended.err
    assert ("Traceback" in ended.err) is debug and ("--debug" in ended.err) is not debug


def test_interrupting_exits_with_130(rdutune: Run, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import agent.onboard

    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(agent.onboard, "onboard", interrupted)
    says(rdutune("onboard", tiny), 130)


def outside(script: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A shell script with $RDUTUNE as the command, in a process of its own."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "RDUTUNE": f"{sys.executable} -m agent.cli"}
    return subprocess.run(["bash", "-c", script], cwd=cwd, env=environment, capture_output=True, text=True, timeout=60)


def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path) -> None:
    ended = outside("$RDUTUNE targets sn40l --json | true; echo ${PIPESTATUS[0]}", tmp_path)
    assert ended.stdout.strip() in ("0", "141") and ended.stderr == ""


def test_a_full_output_is_said(tmp_path: Path) -> None:
    ended = outside("$RDUTUNE actions > /dev/full", tmp_path)
    assert ended.returncode == 1 and "No space left" in ended.stderr and "Traceback" not in ended.stderr


def test_a_closed_output_is_no_fault(tmp_path: Path) -> None:
    ended = outside("$RDUTUNE actions >&-", tmp_path)
    assert ended.returncode == 0 and ended.stderr == ""


def test_names_beyond_the_encoding_are_replaced(tmp_path: Path) -> None:
    write_config(tmp_path, "模型")
    ended = outside("PYTHONIOENCODING=ascii $RDUTUNE inspect 模型", tmp_path)
    assert ended.returncode == 0 and "?? (llama)" in ended.stdout


HEAVY = ("torch", "transformers", "sqlalchemy", "networkx", "jinja2", "alembic", "langgraph", "openai", "yaml")
OURS = ("compiler.frontend", "compiler.ir", "agent.onboard", "agent.settings", "simulator")


@pytest.mark.parametrize(
    ("arguments", "heavy"),
    [
        (["--help"], (*HEAVY, "pydantic")),
        (["onboard", "--help"], HEAVY),  # typer takes pydantic to turn defaults into text
    ],
)
def test_help_imports_nothing_heavy(tmp_path: Path, arguments: list[str], heavy: tuple[str, ...]) -> None:
    code = f"""
import sys
from agent.cli import run
assert run({arguments!r}) == 0
loaded = [name for name in sys.modules if name.startswith({OURS!r}) or name in {heavy!r}]
assert not loaded, loaded
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "Usage" in ended.stdout


@pytest.mark.parametrize("command", ["onboard", "inspect", "compile", "simulate"])
def test_an_image_and_a_sound_refuse_another_number_of_tokens(rdutune: Run, tmp_path: Path, command: str) -> None:
    """Stated, it is refused with the number there is; not stated, that number is taken."""
    image = {"model_type": "vit", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    image |= {"intermediate_size": 96, "image_size": 48, "patch_size": 8, "num_channels": 3}
    path = tmp_path / "image.json"
    path.write_text(json.dumps(image))
    asked = rdutune(command, path, "--phase", "prefill", "--context", 4096)
    says(asked, 2, "--context 4096", "makes 37 tokens of each input", "--context 37, or no --context")
    few = ("--evals", 5) if command == "onboard" else ()
    for given in ((), ("--context", 37)):
        ended = rdutune(command, path, "--phase", "prefill", *few, *given, "--json")
        assert (ended.code, ended.json["workload"]["context"]) == (0, 37)
    if command == "onboard":
        (run,) = Path("runs").glob("*/run.json")
        assert json.loads(run.read_text())["settings"]["context"] == 37


def test_more_tokens_than_a_decoder_behind_sounds_has_positions_for(rdutune: Run) -> None:
    """whisper: 448 positions behind 1500 of the sound, which says nothing of decoding."""
    told = rdutune("simulate", "whisper", "--context", 449)
    assert told.code == 0 and "longer than the 448 positions of the model" in " ".join(told.out.split())
    assert "warning" not in rdutune("simulate", "whisper", "--context", 448).out
    assert "warning" not in rdutune("simulate", "whisper", "--phase", "prefill").out
    says(rdutune("simulate", "whisper", "--phase", "prefill", "--context", 512), 2, "makes 1,500 tokens of each input")
