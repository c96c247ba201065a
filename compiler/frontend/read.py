"""Open MODEL and get its configuration: a file, a directory, or the class defaults of a `model_type`.

Promises: never the network, never code named by the config (`auto_map`), and an `InputError` for whatever is not a
configuration. transformers is imported only for class defaults, inside the function.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from compiler.errors import InputError, nearest
from compiler.frontend.alias import NESTED

#: A configuration nested deeper than this is not one (published ones: up to 5).
DEPTH = 50

GIVE = "give a directory with config.json, a config.json, or a model_type"
HERE = "compiler/frontend/README.md says how to describe an architecture in Python (compose a ModelSpec)"


@dataclass(frozen=True)
class Source:
    """A configuration: the language model's object, the object around it, and how to name its keys.

    prefix: what a key of `values` is called by (`text_config.`). defaults: the class whose defaults these are, or "".
    """

    where: str
    name: str
    values: Mapping[str, object]
    outer: Mapping[str, object]
    prefix: str = ""
    defaults: str = ""

    def label(self, key: str, outer: bool = False) -> str:
        """The name of `key` as a fact remembers it."""
        if self.defaults:
            return f"{self.defaults} default"
        return key if outer else self.prefix + key


def open_model(model: str, classes: Mapping[str, str]) -> Source:
    """The configuration MODEL names. `classes`: supported model types and their configuration class ("" for none)."""
    path = Path(model)
    try:
        kind = "directory" if path.is_dir() else "file" if path.is_file() else "other" if path.exists() else ""
    except OSError as error:
        raise InputError(_short(model), f"cannot be looked up ({error.strerror})", GIVE) from error
    if not model.strip():
        raise InputError("MODEL", "is empty", GIVE)
    if kind == "directory":
        return _from_file(_config_of(path))
    if kind == "file":
        return _from_file(path)
    if kind:
        raise InputError(model, "is neither a regular file nor a directory", GIVE)
    if model in classes:
        return _class_defaults(model, classes)
    raise _unknown_model(model, classes)


def _config_of(folder: Path) -> Path:
    config = folder / "config.json"
    try:
        if config.is_file():
            return config
        if config.exists():
            raise InputError(str(config), "is not a regular file", GIVE)
        found = sorted(p.name for p in folder.iterdir())
    except OSError as error:
        raise InputError(str(folder), f"cannot be read ({error.strerror})", GIVE) from error
    other = next((name for name in found if name == "params.json"), "")
    seen = "params.json, in the original layout of its publisher, was found; " if other else ""
    listing = f"files found: {', '.join(found[:5])}" if found else "the directory is empty"
    right = "config.json in Hugging Face layout is needed" + ("" if other else f" ({listing})")
    raise InputError(str(folder), f"{seen}there is no config.json", right)


def _from_file(path: Path) -> Source:
    values = read_object(path)
    name = path.resolve().parent.name if path.name == "config.json" else path.stem
    for key in NESTED:
        inner = values.get(key)
        if inner is None:
            continue
        if not isinstance(inner, dict):
            raise InputError(f"{path}: {key}", f"is {describe(inner)}, not an object", "the language model")
        return Source(str(path), name, inner, values, prefix=f"{key}.")
    return Source(str(path), name, values, values)


def read_object(path: Path, what: str = "a config") -> dict[str, object]:
    """The JSON object in `path`. Bare Infinity and NaN are accepted.

    Raises InputError naming file, line and column for anything else, including a Git-LFS pointer or a merge marker.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(str(path), f"cannot be read ({error.strerror})", "check it and its permissions") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start}", "is not UTF-8 text", "a JSON object in UTF-8") from error
    _refuse_impostors(path, text, what)
    try:
        value = json.loads(text, object_pairs_hook=lambda pairs: _unique(path, pairs))
    except json.JSONDecodeError as error:
        where = f"{path}: line {error.lineno}, column {error.colno}"
        raise InputError(where, f"is not JSON: {error.msg}", "repair the file or fetch it again") from error
    except (RecursionError, ValueError) as error:
        raise InputError(str(path), "is nested too deeply or has too long a number", GIVE) from error
    if _deeper(value, DEPTH):
        raise InputError(str(path), f"is nested too deeply (more than {DEPTH} levels)", GIVE)
    if not isinstance(value, dict):
        raise InputError(str(path), f"is {describe(value)}, not an object", GIVE)
    return value


def _deeper(value: object, levels: int) -> bool:
    """Whether JSON is nested deeper than `levels`."""
    nodes = [value]
    for _ in range(levels):
        nodes = [child for node in nodes for child in _children(node)]
    return bool(nodes)


def _children(node: object) -> list[object]:
    if isinstance(node, dict):
        return list(node.values())
    return node if isinstance(node, list) else []


def _refuse_impostors(path: Path, text: str, wanted: str) -> None:
    if text.startswith("version https://git-lfs"):
        raise InputError(str(path), f"is a Git-LFS pointer, not {wanted}", "fetch the file itself (git lfs pull)")
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith(("<<<<<<< ", ">>>>>>> ")) or line == "=======":
            raise InputError(f"{path}: line {number}", f"is a leftover merge marker: {line[:40]}", "resolve the merge")


def _unique(path: Path, pairs: list[tuple[str, object]]) -> dict[str, object]:
    out: dict[str, object] = {}
    for key, value in pairs:
        if key in out and out[key] != value:
            raise InputError(f"{path}: {key}", "is there twice with different values", "keep one of them")
        out[key] = value
    return out


def _class_defaults(model_type: str, classes: Mapping[str, str]) -> Source:
    name = classes[model_type]
    if not name:
        raise InputError(model_type, "has no class of its own in transformers", "give a directory with config.json")
    try:
        values = getattr(import_module("transformers"), name)().to_dict()
    except (ImportError, AttributeError) as error:
        right = "install transformers, or give a directory with config.json"
        raise InputError(model_type, f"has no class defaults in this installation ({error})", right) from error
    values["model_type"] = model_type
    where = f"{model_type} ({name} defaults)"
    for key in NESTED:
        if isinstance(values.get(key), dict):
            return Source(where, model_type, values[key], values, prefix=f"{key}.", defaults=name)
    return Source(where, model_type, values, values, defaults=name)


def _unknown_model(model: str, classes: Mapping[str, str]) -> InputError:
    if "/" in model or "\\" in model or model.endswith(".json"):
        return InputError(_short(model), "there is no such file or directory", f"{GIVE}; nothing is fetched")
    what = "is neither a file, a directory nor a supported model_type"
    return unknown_type(_short(model), _short(model), classes, what)


def unknown_type(where: str, model_type: str, classes: Mapping[str, str], what: str) -> InputError:
    """The refusal of a `model_type` without a description: the nearest supported ones, and how to go on."""
    known = "transformers knows it, but it is not described here yet; " if in_transformers(model_type) else ""
    hint = nearest(model_type, tuple(classes))
    right = f"{known}{hint + ' ' if hint else ''}supported: {', '.join(sorted(classes))}. {HERE}"
    return InputError(where, what, right)


def in_transformers(name: str) -> bool:
    """Whether the installed transformers registers a model type, or an architecture, of that name."""
    found = find_spec("transformers") if name.replace("-", "_").isidentifier() else None
    if found is None or found.origin is None:
        return False
    registries = (Path(found.origin).parent / "models" / "auto").glob("*.py")
    return any(f'"{name}"' in path.read_text(encoding="utf-8") for path in registries)


def describe(value: object) -> str:
    """A JSON value in an error message: what it is, and the value where that is short."""
    kinds = {dict: "an object", list: "a list", type(None): "null"}
    return kinds.get(type(value)) or _short(json.dumps(value))


def _short(text: str) -> str:
    text = text.encode("unicode_escape").decode() if not text.isprintable() else text
    return text if len(text) <= 60 else text[:57] + "..."
