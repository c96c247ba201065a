"""Drop a file in `cases/` and it is a test: a bad schedule (text, or JSON in one line), `---`, and its message."""

import json
from pathlib import Path

import pytest

from compiler.errors import InputError
from compiler.ir.text import from_json, parse_schedule

CASES = sorted((Path(__file__).parent / "cases").glob("*.txt"))


def test_there_are_cases() -> None:
    assert len(CASES) >= 30


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_message(path: Path) -> None:
    given, mark, expected = path.read_text(encoding="utf-8").partition("---\n")
    assert mark and expected, f"{path.name} has no --- or no message"
    with pytest.raises(InputError) as error:
        from_json(json.loads(given)) if given.startswith(("{", "[")) else parse_schedule(given)
    assert str(error.value) + "\n" == expected
