"""What MODEL names, found without torch: a config.json, a Python function, or a `model_type`.

The name of a type is checked against transformers only when the module is built.
"""

from dataclasses import dataclass
from pathlib import Path

from compiler.errors import InputError
from compiler.frontend.python_file import python_place

GIVE = "give a directory with config.json, a config.json, a model_type, or path.py:function"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a model is described. kind: "config" (path), "python" (path, function) or "type" (model_type)."""

    kind: str
    path: Path = Path()
    function: str = ""
    model_type: str = ""

    @property
    def name(self) -> str:
        """The short name of the model: its directory, its function or its type."""
        if self.kind == "type":
            return self.model_type
        if self.kind == "python":
            return f"{self.path.stem}:{self.function}"
        return self.path.resolve().parent.name if self.path.name == "config.json" else self.path.stem


def find_place(model: str) -> Place:
    """The place MODEL names. InputError when it names none."""
    if not model.strip():
        raise InputError("MODEL", "is empty", GIVE)
    function = python_place(model)
    if function is not None:
        return Place("python", *function)
    path = Path(model)
    if path.is_dir():
        return _directory(path)
    if path.is_file():
        return Place("config", path)
    if "/" in model or "\\" in model or model.endswith(".json"):
        raise InputError(model, "there is no such file or directory", f"{GIVE}; nothing is fetched")
    return Place("type", model_type=model)


def _directory(path: Path) -> Place:
    if not (path / "config.json").is_file():
        found = ", ".join(sorted(p.name for p in path.iterdir())[:5]) or "nothing"
        raise InputError(str(path), "there is no config.json", f"files found: {found}")
    return Place("config", path / "config.json")
