"""Captures on disk, by content: the second time costs milliseconds and no torch.

A key covers what the capture depends on: the configuration's values or the Python file's bytes, the versions of torch
and transformers, and the code of this import. An entry also names every other file that the Python file read, and is
stale where one of them has changed. An entry that cannot be read is removed and counts as absent.
"""

import hashlib
import json
import os
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from threading import get_ident

from compiler.canonical import canonical_json, identity
from compiler.errors import InputError
from compiler.frontend.capture.codec import from_json, to_json
from compiler.frontend.capture.ir import Captured
from compiler.frontend.capture.place import Place, find_place
from compiler.frontend.read import read_object
from compiler.frontend.watched import digest


def capture_key(model: str) -> str:
    """The identity of what `trace` would make of MODEL. InputError if there is no such model."""
    return identity("cap", [*_content(find_place(model)), versions(), _own_code()])


def versions() -> list[str]:
    """The versions of torch and transformers, without importing them."""
    return [f"{name} {_version(name)}" for name in ("torch", "transformers")]


@cache
def _own_code() -> str:
    """A hash of the code that makes captures: another one may make another capture of the same model."""
    out = hashlib.blake2b(digest_size=16)
    for path in sorted(Path(__file__).parent.parent.rglob("*.py")):
        out.update(path.read_bytes())
    return out.hexdigest()


def stored(directory: Path, model: str) -> Captured | None:
    """The capture of MODEL that is stored in `directory` and still good, or None."""
    return load(directory, capture_key(model))


def load(directory: Path, key: str) -> Captured | None:
    """The capture stored under `key`, or None; also where a file it depends on has changed."""
    path = _path(directory, key)
    try:
        data = json.loads(path.read_bytes())
        fresh = all(digest(Path(name)) == value for name, value in data["read"])
        if data["check"] != _check(data["captured"]):
            raise ValueError(f"{path} is not what was stored")
        return from_json(data["captured"]) if fresh else None
    except OSError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        with suppress(OSError):
            path.unlink(missing_ok=True)
        return None


def save(directory: Path, key: str, captured: Captured, read: tuple[Path, ...] = ()) -> Path | None:
    """Store a capture as canonical JSON; readers see the old entry or the new one, never half of it.

    read: other files it depends on. None where nothing can be written there: the capture is good without being stored.
    """
    path = _path(directory, key)
    fresh = path.with_suffix(f".{os.getpid()}.{get_ident()}.new")
    made = to_json(captured)
    entry = {"captured": made, "check": _check(made), "read": [[str(other), digest(other)] for other in read]}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        fresh.write_text(canonical_json(entry) + "\n", encoding="ascii")
        fresh.replace(path)
    except OSError:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
        return None
    return path


def _check(made: object) -> str:
    """What tells a stored capture from one that was changed on disk."""
    return identity("check", made)


def _path(directory: Path, key: str) -> Path:
    return directory / f"{key}.json"


def _content(place: Place) -> list[object]:
    if place.kind == "type":
        return ["type", place.model_type]
    if place.kind == "python":
        return ["python", str(place.path.resolve()), place.function, digest(place.path)]
    # bare Infinity is legal in a published config but not in canonical JSON
    return ["config", json.dumps(read_object(place.path), sort_keys=True)]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError as error:
        raise InputError(name, "is not installed", f"pip install {name}") from error
