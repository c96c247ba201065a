"""Frozen values as JSON and back, by their type hints: one reader for whatever the dataclasses hold.

Fields at their default are left out, enums are their words, fractions `a/b`, a named storage type its label, a
dimension [name, size]. Reading is strict: unknown and missing keys, wrong types, NaN, numbers out of range and values
that a class refuses give an InputError with the path of the place.
"""

import math
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from compiler.errors import InputError, nearest
from compiler.ir.dtype import DType, Element, named
from compiler.ir.graph import Dim

#: Largest whole number of a file: what no count of bytes or operations reaches.
MOST = 2**62
_FRACTION = re.compile(r"[0-9]{1,19}(/[0-9]{1,19})?")
_WORDS: dict[type, str] = {int: "a whole number", bool: "true or false", str: "text", float: "a number"}

Write = Callable[["Codec", Any], Any]
Read = Callable[["Codec", Any, str], Any]


class Codec:
    """Writes and reads values; `hooks` has (write, read) of classes with a form of their own."""

    def __init__(self, hooks: Mapping[type, tuple[Write, Read]] | None = None) -> None:
        self._hooks = {**_HOOKS, **(hooks or {})}

    def encode(self, value: Any) -> Any:
        """`value` as JSON. TypeError for what has no form here: a fault of ours."""
        hook = self._hooks.get(type(value))
        if hook is not None:
            return hook[0](self, value)
        if isinstance(value, StrEnum):
            return str(value)
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, tuple):
            return [self.encode(item) for item in value]
        if is_dataclass(value):
            return self.encode_fields(value)
        raise TypeError(f"no JSON form of {type(value).__name__}")

    def encode_fields(self, value: Any) -> dict[str, Any]:
        """A dataclass as an object of the fields that are not at their default."""
        pairs = ((f, getattr(value, f.name)) for f in fields(value))
        return {f.name: self.encode(v) for f, v in pairs if f.default is MISSING or v != f.default}

    def decode(self, hint: Any, value: Any, where: str) -> Any:
        """The value of type `hint` that `value` is the JSON of; `where` is its place, for InputError."""
        if hint in self._hooks:
            return self._hooks[hint][1](self, value, where)
        origin, arguments = get_origin(hint), get_args(hint)
        if origin in (types.UnionType, Union):
            (some,) = (a for a in arguments if a is not type(None))
            return None if value is None else self.decode(some, value, where)
        if origin is tuple:
            return self._tuple(arguments, value, where)
        if isinstance(hint, type) and issubclass(hint, StrEnum):
            if not isinstance(value, str) or value not in tuple(hint):
                right = nearest(str(value), tuple(hint)) or f"one of: {', '.join(hint)}"
                raise InputError(where, f"{shown(value)} is not a {hint.__name__.lower()}", right)
            return hint(value)
        if is_dataclass(hint):
            return self.decode_fields(hint, value, where)
        return _scalar(hint, value, where)

    def decode_fields(self, cls: Any, value: Any, where: str) -> Any:
        """A dataclass from its object: no unknown key, none missing but those with a default."""
        if not isinstance(value, dict):
            raise InputError(where, f"{shown(value)} is not an object", f"an object with {', '.join(_hints(cls))}")
        hints, defaults = _hints(cls), _defaults(cls)
        for key in value:
            if key not in hints:
                right = nearest(str(key), tuple(hints)) or f"keys: {', '.join(hints)}"
                raise InputError(f"{where}, key {shown(key)}", "unknown", right)
        missing = [key for key in hints if key not in value and key not in defaults]
        if missing:
            raise InputError(where, f"missing: {', '.join(missing)}", f"keys: {', '.join(hints)}")
        found = {key: self.decode(hints[key], item, f"{where}.{key}") for key, item in value.items()}
        try:
            return cls(**found)
        except ValueError as error:
            raise InputError(where, str(error)) from None

    def _tuple(self, arguments: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise InputError(where, f"{shown(value)} is not a list")
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return tuple(self.decode(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value))
        if len(value) != len(arguments):
            raise InputError(where, f"a list of {len(value)}", f"a list of {len(arguments)}")
        pairs = enumerate(zip(arguments, value, strict=True))
        return tuple(self.decode(hint, item, f"{where}[{i}]") for i, (hint, item) in pairs)


def shown(value: Any) -> str:
    """A value as an error names it, cut short."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


@lru_cache(maxsize=256)
def _hints(cls: Any) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return {f.name: hints[f.name] for f in fields(cls)}


@lru_cache(maxsize=256)
def _defaults(cls: Any) -> frozenset[str]:
    return frozenset(f.name for f in fields(cls) if f.default is not MISSING)


def _scalar(hint: Any, value: Any, where: str) -> Any:
    if hint not in _WORDS:
        raise TypeError(f"no JSON form of {hint}")
    given = type(value)
    if given is not hint and not (hint is float and given is int):
        raise InputError(where, f"{shown(value)} is not {_WORDS[hint]}", _WORDS[hint])
    if hint is int and not 0 <= value <= MOST:
        raise InputError(where, f"{shown(value)} is out of range", "a whole number from 0 to 2**62")
    if hint is float and not math.isfinite(value):
        raise InputError(where, f"{value} is not finite", "a finite number")
    return value


def _read_fraction(codec: Codec, value: Any, where: str) -> Fraction:
    if isinstance(value, str) and _FRACTION.fullmatch(value) and value.split("/")[-1].strip("0"):
        return Fraction(value)
    raise InputError(where, f"{shown(value)} is not a fraction", "text such as 4 or 17/4")


def _read_element(codec: Codec, value: Any, where: str) -> Element:
    labels = {e.label: e for e in Element}
    if isinstance(value, str) and value in labels:
        return labels[value]
    raise InputError(where, f"{shown(value)} is not an element type", f"one of: {', '.join(labels)}")


def _write_dtype(codec: Codec, value: DType) -> Any:
    return value.label if named(value.label) == value else codec.encode_fields(value)


def _read_dtype(codec: Codec, value: Any, where: str) -> DType:
    if not isinstance(value, str):
        made: DType = codec.decode_fields(DType, value, where)
        if not made.bits:
            raise InputError(f"{where}.bits", "an element of no bits", "a fraction above 0")
        return made
    found = named(value)
    if found is None:
        raise InputError(where, f"{shown(value)} is not a storage type", "a label such as bf16, or an object")
    return found


def _read_dim(codec: Codec, value: Any, where: str) -> Dim:
    if not isinstance(value, list) or len(value) != 2:
        raise InputError(where, f"{shown(value)} is not a dimension", '["name", size]')
    name, size = codec.decode(str, value[0], f"{where}[0]"), codec.decode(int, value[1], f"{where}[1]")
    try:
        return Dim(name, size)
    except ValueError as error:
        raise InputError(where, str(error)) from None


_HOOKS: dict[type, tuple[Write, Read]] = {
    Fraction: (lambda codec, value: str(value), _read_fraction),
    Element: (lambda codec, value: value.label, _read_element),
    DType: (_write_dtype, _read_dtype),
    Dim: (lambda codec, value: [value.name, value.size], _read_dim),
}
