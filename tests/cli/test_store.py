"""A command that fails leaves the experience store as it was."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from onboardings import write_config

Run = Callable[..., Any]
QUICK = ("--evals", 10, "--sockets", 2, "--context", 512)


def content(store: Path) -> list[str]:
    with closing(sqlite3.connect(store)) as db:
        return list(db.iterdump())


def test_failures_leave_the_store_as_it_was(rdutune: Run, tiny: Path, tmp_path: Path) -> None:
    store = tmp_path / "kept.db"
    kept = ("--store", f"sqlite:///{store}")
    assert rdutune("onboard", tiny, *QUICK, *kept, "--out", "run").code == 0
    before = content(store)
    assert any("INSERT INTO" in row and "trials" in row for row in before)

    broken = tmp_path / "broken.json"
    broken.write_text('{"model_type": "llama",')
    unknown = write_config(tmp_path, "unknown", model_type="lama")
    gap = write_config(tmp_path, "gap", num_attention_heads=None)
    huge = write_config(tmp_path, "huge", hidden_size=65536, intermediate_size=2**20, num_hidden_layers=400)
    for arguments, code in (
        (("nowhere/config.json",), 2),
        ((broken,), 2),
        ((unknown,), 2),
        ((gap,), 2),
        ((tiny, "--sockets", 3), 2),
        ((tiny, "--out", broken), 2),
        ((huge, "--sockets", 1), 1),
    ):
        ended = rdutune("onboard", *arguments, *kept)
        assert ended.code == code and ended.out == "" and "Traceback" not in ended.err, ended.err
        assert len(ended.err.splitlines()) <= 24
        assert content(store) == before, arguments
    assert not Path("runs").exists()


def test_a_store_that_is_none_is_refused_and_left_alone(rdutune: Run, tiny: Path, tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("not a database, but mine\n" * 100)
    ended = rdutune("onboard", tiny, *QUICK, "--store", f"sqlite:///{notes}")
    assert ended.code == 2 and ended.out == "" and "notes.txt" in ended.err, ended.err
    assert notes.read_text() == "not a database, but mine\n" * 100


def test_a_schedule_that_does_not_fit_gives_demand_bound_and_levers(rdutune: Run, tiny: Path) -> None:
    text = rdutune("simulate", tiny, *QUICK[2:], "--json").json["schedule"]
    Path("large.schedule").write_text(text + "prefetch gqa_dense nbytes=600MiB\n")
    for command in ("compile", "simulate"):
        ended = rdutune(command, tiny, *QUICK[2:], "--schedule", "large.schedule")
        assert ended.code == 1 and ended.out == ""
        said = " ".join(ended.err.split())
        for words in ("SECTION_OVER_SRAM", "needs 6", "has 520.0 MiB", "over by", "try:"):
            assert words in said, said
    (diagnostic,) = rdutune("compile", tiny, *QUICK[2:], "--schedule", "large.schedule", "--json").json["rejected"]
    assert diagnostic["gap"] == diagnostic["demand"] - diagnostic["bound"] > 0 and diagnostic["unit"] == "bytes"
