"""Weights files beside a config: names, shapes and types of the stored tensors, from the headers only.

A safetensors file is 8 bytes with the length of its header (little-endian), the header (JSON), the data; the data is
never read. `read_stored` collects what is wrong with a file instead of giving up on the others.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import prod
from pathlib import Path

from compiler.errors import InputError
from compiler.frontend.read import describe, read_object

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
#: The longest header the safetensors format allows, in bytes.
HEADER_LIMIT = 100_000_000
#: The longest name of a file that file systems have, in bytes.
NAME_LIMIT = 255
#: Other things that end in .safetensors: adapters, and the same weights under their publisher's names.
_OTHERS = ("adapter", "consolidated")

#: Bits of an element by the name safetensors has for its type.
BITS: Mapping[str, int] = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64,
}  # fmt: skip
#: Types that hold one element each; the integers may hold several.
UNPACKED = ("F16", "BF16", "F32", "F8_E4M3", "F8_E5M2")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a file: its shape, and its type by the name safetensors has for it."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.elements * BITS[self.dtype] // 8


@dataclass(frozen=True)
class Stored:
    """What the weights files of a model hold: checkpoint key -> tensor, in order of keys.

    names: every key an index lists, of files that are not there too. problems: what is wrong with a file, or absent.
    """

    tensors: tuple[tuple[str, StoredTensor], ...] = ()
    names: tuple[str, ...] = ()
    problems: tuple[tuple[str, str], ...] = ()
    source: str = ""
    folder: str = ""

    @cached_property
    def table(self) -> dict[str, StoredTensor]:
        return dict(self.tensors)


def read_stored(folder: Path) -> Stored | None:
    """The weights files in `folder`; None when there are none."""
    found = _read_stored(folder)
    return None if found is None else replace(found, folder=str(folder.resolve()))


def _read_stored(folder: Path) -> Stored | None:
    index = folder / INDEX
    if index.is_file():
        return _from_index(folder, index)
    single = folder / SINGLE
    found = [single] if single.is_file() else sorted(p for p in folder.glob("*.safetensors") if _weights(p))
    if not found:
        return None
    table, problems = _headers(found)
    return Stored(tuple(sorted(table.items())), tuple(sorted(table)), problems, ", ".join(p.name for p in found[:3]))


def _weights(path: Path) -> bool:
    return path.is_file() and not path.name.startswith(_OTHERS)


def _from_index(folder: Path, index: Path) -> Stored:
    try:
        places = _weight_map(index)
    except InputError as error:
        return Stored(problems=((error.where.removeprefix(f"{folder}/"), error.what),), source=INDEX)
    shards = sorted(set(places.values()))
    there = [folder / name for name in shards if (folder / name).is_file()]
    absent = [name for name in shards if not (folder / name).is_file()]
    table, problems = _headers(there)
    read = {path.name for path in there} - {place for place, _ in problems}
    lost = sorted(key for key, shard in places.items() if shard in read and key not in table)
    if lost:
        problems += ((INDEX, f"places {_few(lost)} in {places[lost[0]]}, which has not got it"),)
    if absent:
        problems += ((INDEX, f"names {len(absent)} of {len(shards)} files that are not there: {_few(absent)}"),)
    return Stored(tuple(sorted(table.items())), tuple(sorted(places.keys() | table.keys())), problems, INDEX)


def _weight_map(index: Path) -> dict[str, str]:
    """Key -> file, as an index has it."""
    places = read_object(index, "an index of weights").get("weight_map")
    if not isinstance(places, dict) or not places:
        raise InputError(f"{index}: weight_map", f"is {describe(places)}", "an object: tensor -> file")
    good = {shard for shard in set(map(str, places.values())) if _file_name(shard)}
    for key, shard in places.items():
        if not isinstance(shard, str) or shard not in good:
            raise InputError(f"{index}: weight_map.{key}", f"is {describe(shard)}", "a .safetensors file beside it")
    return places


def _file_name(shard: str) -> bool:
    """Whether `shard` can be a weights file beside its index."""
    named = shard.endswith(".safetensors") and "/" not in shard
    return named and len(shard.encode("utf-8", "replace")) <= NAME_LIMIT


def _headers(paths: list[Path]) -> tuple[dict[str, StoredTensor], tuple[tuple[str, str], ...]]:
    """The tensors of all files, and (file, what is wrong with it)."""
    table: dict[str, StoredTensor] = {}
    problems: list[tuple[str, str]] = []
    for path in paths:
        try:
            tensors = read_header(path)
        except InputError as error:
            problems.append((path.name, error.what))
            continue
        twice = sorted(tensors.keys() & table.keys())
        if twice:
            problems.append((path.name, f"has {_few(twice)}, which an earlier file has too"))
        table |= {key: tensor for key, tensor in tensors.items() if key not in table}
    return table, tuple(problems)


def read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one safetensors file.

    Raises InputError for a Git-LFS pointer, a header that is cut or absurdly long, and data that is cut short.
    """
    right = "fetch the file again"
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(8)
            if start == b"version ":
                raise InputError(str(path), "is a Git-LFS pointer, not weights", "git lfs pull fetches the file itself")
            length = int.from_bytes(start, "little")
            if len(start) < 8:
                raise InputError(str(path), f"is cut short: {size} bytes, and the length of a header takes 8", right)
            if length > HEADER_LIMIT:
                raise InputError(str(path), f"has a header length of {length:,} bytes: no header is so long", right)
            if 8 + length > size:
                what = f"is cut short inside its header: {size:,} bytes, of which the header takes {8 + length:,}"
                raise InputError(str(path), what, right)
            text = file.read(length)
    except OSError as error:
        raise InputError(str(path), f"cannot be read ({error.strerror})", "check it and its permissions") from error
    return _tensors(path, _object(path, text), size - 8 - length)


def _object(path: Path, text: bytes) -> dict[str, object]:
    try:
        header = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(str(path), f"has a header that is not JSON ({error})"[:160], "fetch the file again") from error
    if not isinstance(header, dict):
        raise InputError(str(path), f"has a header that is {describe(header)}", "an object: tensor -> type and shape")
    return {key: value for key, value in header.items() if key != "__metadata__"}


def _tensors(path: Path, header: dict[str, object], data: int) -> dict[str, StoredTensor]:
    """The header's entries, checked against each other and against the `data` bytes the file has behind it."""
    out, spans = {}, []
    for key, entry in header.items():
        tensor, begin, end = _entry(path, key, entry)
        if end - begin != tensor.nbytes:
            what = f"has {end - begin:,} bytes for {key}, whose shape and type take {tensor.nbytes:,}"
            raise InputError(str(path), what, "fetch the file again")
        out[key] = tensor
        spans += [(begin, end, key)] if end > begin else []
    spans.sort()
    for (_, end, key), (begin, _, other) in pairwise(spans):
        if begin < end:
            raise InputError(str(path), f"has {key} and {other} in the same bytes", "fetch the file again")
    last = spans[-1][1] if spans else 0
    if last > data:
        raise InputError(str(path), f"is cut short: {data:,} of {last:,} bytes of data", "fetch the file again")
    return out


def _entry(path: Path, key: str, entry: object) -> tuple[StoredTensor, int, int]:
    fields = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = (fields.get(name) for name in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or dtype not in BITS:
        raise InputError(str(path), f"has {key} of type {describe(dtype)}", f"one of {', '.join(BITS)}")
    if not _naturals(shape) or not _naturals(offsets) or not isinstance(offsets, list) or len(offsets) != 2:
        raise InputError(str(path), f"has {key} without a shape and two offsets", "fetch the file again")
    return StoredTensor(tuple(shape or ()), dtype), offsets[0], offsets[1]


def _naturals(value: object) -> bool:
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
