"""`rdutune describe`, and models that are functions of a Python file."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Run = Callable[..., Any]


def test_describe_writes_a_file_that_is_a_model(rdutune: Run, tiny: Path, tmp_path: Path) -> None:
    printed = rdutune("describe", tiny)
    assert (printed.code, printed.err) == (0, "")
    out = tmp_path / "mine.py"
    done = rdutune("describe", tiny, "--out", out)
    assert (done.code, done.out) == (0, "") and f"{out}:model" in done.err
    assert out.read_text() == printed.out
    one, other = (rdutune("inspect", model, "--json").json for model in (tiny, f"{out}:model"))
    assert one["model"] == other["model"] and one["work"] == other["work"]
    assert any(fact["name"] == "description" for fact in other["facts"])


def test_every_command_takes_a_function(rdutune: Run, tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "mine.py"
    assert rdutune("describe", tiny, "--out", out).code == 0
    one, other = (rdutune("compile", model, "--sockets", 1, "--json").json for model in (tiny, f"{out}:model"))
    assert one["program_id"] == other["program_id"]
    assert rdutune("simulate", f"{out}:model", "--sockets", 1).code == 0
    assert rdutune("onboard", f"{out}:model", "--sockets", 1, "--evals", 5).code == 0
    assert rdutune("describe", f"{out}:model").code == 0


def test_errors_of_the_users_file_are_shown_without_a_traceback(rdutune: Run, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def model():\n    return {}['gone']\n")
    ended = rdutune("inspect", f"{path}:model")
    assert ended.code == 2 and "mine.py: line 2: KeyError: 'gone'" in ended.err and "Traceback" not in ended.err
    ended = rdutune("describe", "no/such/thing.json")
    assert ended.code == 2 and "no/such/thing.json" in ended.err


def test_the_page_of_an_unknown_type_fits_a_screen(rdutune: Run, tiny: Path) -> None:
    path = tiny / "config.json" if tiny.is_dir() else tiny
    config = json.loads(path.read_text()) | {"model_type": "llamb", "strange_gate": 3}
    path.write_text(json.dumps(config))
    ended = rdutune("inspect", tiny)
    assert ended.code == 2 and len(ended.err.splitlines()) < 12
    for word in ("llamb", "strange_gate = 3", "nearest supported type: llama", "rdutune describe"):
        assert word in ended.err
    assert "raise ValueError" in rdutune("describe", tiny).out
