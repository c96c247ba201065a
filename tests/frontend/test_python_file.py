"""Models given as a Python file: run once, without memory, and traced again when anything it read has changed."""

import json
import time
from pathlib import Path

import pytest

from compiler.errors import InputError
from compiler.frontend import Frontend, open_door
from compiler.frontend.capture import cache
from compiler.frontend.python_file import run_function

BLOCK = """
import json
from pathlib import Path

import torch
from torch import nn

HERE = Path(__file__).parent

def count():
    with (HERE / "runs.txt").open("a") as runs:
        runs.write("x")

class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.up = nn.Linear(size, 4 * size)
        self.down = nn.Linear(4 * size, size)
    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))

class Model(nn.Module):
    def __init__(self, size, layers):
        super().__init__()
        self.embed = nn.Embedding(100, size)
        self.layers = nn.ModuleList(Block(size) for _ in range(layers))
    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return x

def given(model):
    return model, (torch.zeros(1, 13, dtype=torch.long),)
"""


def write(folder: Path, text: str) -> str:
    (folder / "mine.py").write_text(BLOCK + text)
    return f"{folder / 'mine.py'}:make"


def params(size: int, layers: int) -> int:
    return 100 * size + layers * (2 * size + 8 * size * size + 5 * size)


def opened(model: str, captures: Path) -> int:
    return open_door(model, captures=captures).params


def test_a_large_module_is_made_without_memory_and_run_once(tmp_path: Path) -> None:
    model = write(tmp_path, "def make():\n    count()\n    return given(Model(65536, 20))\n")
    assert opened(model, tmp_path / "kept") == params(65536, 20)  # 1.4 TB in bf16
    assert opened(model, tmp_path / "kept") == params(65536, 20)
    assert (tmp_path / "runs.txt").read_text() == "x"


@pytest.mark.parametrize("how", ["config", "module"])
def test_a_capture_is_stale_when_a_file_it_read_changes(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    other = tmp_path / {"config": "size.json", "module": f"size_{tmp_path.name}.py"}[how]
    read = "json.loads((HERE / 'size.json').read_text())" if how == "config" else other.stem
    say = json.dumps if how == "config" else "SIZE = {}".format
    get = f"from {other.stem} import SIZE as size" if how == "module" else f"size = {read}"
    model = write(tmp_path, f"def make():\n    {get}\n    return given(Model(size, 2))\n")
    other.write_text(say(32))
    assert opened(model, tmp_path / "kept") == params(32, 2)
    assert cache.stored(tmp_path / "kept", model) is not None
    other.write_text(say(48))
    assert cache.stored(tmp_path / "kept", model) is None


def test_the_second_time_is_quick(tmp_path: Path) -> None:
    model = write(tmp_path, "def make():\n    return given(Model(32, 2))\n")
    opened(model, tmp_path / "kept")
    start = time.perf_counter()
    opened(model, tmp_path / "kept")
    assert time.perf_counter() - start < 0.5


def test_a_constructor_that_asks_for_numbers_is_made_with_memory(tmp_path: Path) -> None:
    size = "int(torch.tensor([16.0, 32.0]).cumsum(0)[-1].item())"
    model = write(tmp_path, f"def make():\n    return given(Model({size}, 2))\n")
    assert opened(model, tmp_path / "kept") == params(48, 2)


def test_what_was_read_is_named_once_and_without_libraries(tmp_path: Path) -> None:
    model = write(tmp_path, "def make():\n    return json.loads((HERE / 'a.json').read_text())\n")
    (tmp_path / "a.json").write_text("{}")
    path, _, function = model.rpartition(":")
    read = run_function(Path(path), function).read
    assert read[0] == Path(path)
    assert [p.name for p in read].count("a.json") == 1
    import compiler

    own = Path(compiler.__file__).parent
    assert not [p for p in read if "site-packages" in p.parts or p.is_relative_to(own)]


@pytest.mark.parametrize(
    ("frontend", "text", "what"),
    [
        (Frontend.SPEC, "return given(Model(32, 2))", "not a ModelSpec"),
        (Frontend.CAPTURE, "return 3", "not a torch.nn.Module"),
        (Frontend.AUTO, "return torch.zeros(3)", "not a torch.nn.Module"),
    ],
)
def test_what_is_returned_must_fit_the_door(tmp_path: Path, frontend: Frontend, text: str, what: str) -> None:
    with pytest.raises(InputError, match=what):
        open_door(write(tmp_path, f"def make():\n    {text}\n"), frontend, tmp_path / "kept")
