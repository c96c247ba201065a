"""Captures on disk, by content: the second time costs milliseconds and no torch.

A key covers what the capture depends on: the configuration's values or the Python file's bytes, the versions of torch
and transformers, and `CAPTURE_VERSION`. An entry that cannot be read is removed and counts as absent.
"""

import hashlib
import json
import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from compiler.canonical import canonical_json, identity
from compiler.errors import InputError
from compiler.frontend.capture.codec import from_json, to_json
from compiler.frontend.capture.ir import Captured
from compiler.frontend.capture.place import Place, find_place
from compiler.frontend.read import read_object

#: Raised whenever the same model would be captured as different data.
CAPTURE_VERSION = 2


def capture_key(model: str) -> str:
    """The identity of what `trace` would make of MODEL. InputError if there is no such model."""
    return identity(f"cap{CAPTURE_VERSION}", [*_content(find_place(model)), versions()])


def versions() -> list[str]:
    """The versions of torch and transformers, without importing them."""
    return [f"{name} {_version(name)}" for name in ("torch", "transformers")]


def load(directory: Path, key: str) -> Captured | None:
    """The capture stored under `key`, or None."""
    path = _path(directory, key)
    try:
        return from_json(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        path.unlink(missing_ok=True)
        return None


def save(directory: Path, key: str, captured: Captured) -> Path:
    """Store a capture as canonical JSON; readers see the old entry or the new one, never half of it."""
    directory.mkdir(parents=True, exist_ok=True)
    path = _path(directory, key)
    fresh = path.with_suffix(f".{os.getpid()}.new")
    fresh.write_text(canonical_json(to_json(captured)) + "\n", encoding="ascii")
    fresh.replace(path)
    return path


def _path(directory: Path, key: str) -> Path:
    return directory / f"{key}.json"


def _content(place: Place) -> list[object]:
    if place.kind == "type":
        return ["type", place.model_type]
    if place.kind == "python":
        digest = hashlib.blake2b(place.path.read_bytes(), digest_size=16).hexdigest()
        return ["python", place.path.name, place.function, digest]
    # bare Infinity is legal in a published config but not in canonical JSON
    return ["config", json.dumps(read_object(place.path), sort_keys=True)]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError as error:
        raise InputError(name, "is not installed", f"pip install {name}") from error
