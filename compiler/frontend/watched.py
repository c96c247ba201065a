"""Which files foreign code reads while it runs: what a stored result of it depends on."""

import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import source_from_cache
from pathlib import Path

#: Digest of a file that is not there any more.
GONE = "gone"
_PACKAGES = ("agent", "compiler", "simulator")
_DEVICES = ("/proc/", "/sys/", "/dev/")
_open: list[set[str]] = []


@contextmanager
def watched() -> Iterator[list[Path]]:
    """The list is filled at the end: files read inside, and the modules it may have used that were loaded before.

    Left out: the installed libraries, which `versions` of a capture covers, and this program.
    """
    _listen()
    found: set[str] = set()
    out: list[Path] = []
    _open.append(found)
    try:
        yield out
    finally:
        _open.remove(found)
        loaded = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
        found.update(name for name in loaded if isinstance(name, str))
        files = {os.path.realpath(_source(name)) for name in found}
        out.extend(Path(name) for name in sorted(files) if _foreign(name))


def digest(path: Path) -> str:
    """The content of a file as a short hash; GONE when it cannot be read."""
    try:
        return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    except OSError:
        return GONE


@cache
def _listen() -> None:
    """Follow every file this process opens (once; an audit hook stays until the process ends)."""
    sys.addaudithook(_note)


def _note(event: str, args: tuple[object, ...]) -> None:
    if event != "open" or not _open or not isinstance(args[0], str | bytes | os.PathLike):
        return
    flags = args[2] if isinstance(args[2], int) else 0
    if flags & os.O_ACCMODE == os.O_RDONLY:
        name = os.path.abspath(os.fsdecode(args[0]))
        for found in _open:
            found.add(name)


def _source(name: str) -> str:
    """The source of a module compiled by Python, any other file itself."""
    if not name.endswith(f".{sys.implementation.cache_tag}.pyc"):
        return name
    return source_from_cache(name)


def _foreign(name: str) -> bool:
    return os.path.isfile(name) and not name.startswith((*_DEVICES, *_installed()))


@cache
def _installed() -> tuple[str, ...]:
    """Where the libraries and this program are."""
    places = [sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")]
    root = Path(__file__).parents[2]
    places += [str(root / package) for package in _PACKAGES]
    return tuple(os.path.realpath(place) + os.sep for place in places)
