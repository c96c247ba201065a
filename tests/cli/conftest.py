"""A command line run in this process, in a folder of its own."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent.cli import run

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))
from onboardings import write_config


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        def refuse(word: str) -> Any:
            raise AssertionError(f"{word} in JSON")

        return json.loads(self.out, parse_constant=refuse)


@pytest.fixture
def rdutune(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Ended]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def call(*arguments: object) -> Ended:
        capsys.readouterr()
        code = run([str(a) for a in arguments])
        seen = capsys.readouterr()
        return Ended(code, seen.out, seen.err)

    return call


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_config(tmp_path)
