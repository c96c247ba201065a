"""Captures on disk: what is damaged is made again, and a folder that cannot be written stops nothing."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from compiler.frontend.capture import cache
from compiler.frontend.capture.ir import Capture, Captured, Node, Value

PART = Capture(
    "layer0", (Value("x", (1, 13, 4), "float32"),), (), (Node("aten.neg.default", (), (), (), "", "", ""),), ("x",)
)
MADE = Captured("m", "t", PART, (PART,), (0,), PART, False, 0)


def _less(path: Path) -> None:
    entry = json.loads(path.read_bytes())
    entry["captured"]["params"] = 5
    path.write_text(json.dumps(entry))


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    "damage",
    [_less, _folder, lambda path: path.write_text("[" * 100_000), lambda path: path.write_text("[1]")],
    ids=["another", "folder", "deep", "list"],
)
def test_a_damaged_entry_is_absent(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    path = cache.save(tmp_path, "cap-1", MADE)
    assert path is not None and cache.load(tmp_path, "cap-1") == MADE
    damage(path)
    assert cache.load(tmp_path, "cap-1") is None
    cache.save(tmp_path, "cap-1", MADE)
    assert not list(tmp_path.glob("*.new"))


@pytest.mark.parametrize("name", ["file", "file/below", "gone"])
def test_a_folder_that_cannot_be_written_stores_nothing(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere" / "below")
    assert cache.save(tmp_path / name, "cap-1", MADE) is None
    assert cache.load(tmp_path / name, "cap-1") is None
