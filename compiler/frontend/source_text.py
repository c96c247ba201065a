"""Frozen dataclasses as Python source: only the fields that differ from their defaults, and the imports they need."""

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from fractions import Fraction
from typing import Any

from compiler.frontend import parts, spec
from compiler.ir import dtype

#: Longest line of a written file.
WIDTH = 116

Comment = Callable[[object, str, object], str]


def constants() -> Mapping[object, tuple[str, str]]:
    """Values with a name of their own: value -> (module, expression)."""
    named: dict[object, tuple[str, str]] = {}
    for module in (dtype, parts):
        for name, value in vars(module).items():
            if name.isupper() and isinstance(value, dtype.Scheme | parts.Norm):
                named[value] = (module.__name__, name)
    for name, value in vars(dtype.DType).items():
        if isinstance(value, dtype.DType):
            named[value] = (dtype.__name__, f"DType.{name}")
    return named


class Writer:
    """Writes values and remembers what has to be imported. `comment(owner, field, value)`: what stands behind one."""

    def __init__(self, comment: Comment) -> None:
        self.comment = comment
        self._constants = constants()
        self._imports: dict[str, set[str]] = {}
        self._named: dict[object, str] = {}

    def use(self, module: str, name: str) -> str:
        """`name`, imported from where a person would."""
        self._imports.setdefault(spec.__name__ if name in spec.__all__ else module, set()).add(name)
        return name

    def give_name(self, value: object, name: str) -> None:
        """From now on `value` is written as the variable `name`."""
        self._named[value] = name

    @property
    def imports(self) -> list[str]:
        return [f"from {module} import {', '.join(sorted(names))}" for module, names in sorted(self._imports.items())]

    def value(self, value: object, indent: int = 0) -> str:
        """`value` as an expression; what does not fit a line is broken, the closing bracket at `indent`."""
        if isinstance(value, Enum):
            return f"{self.use(type(value).__module__, type(value).__name__)}.{value.name}"
        if isinstance(value, Fraction):
            return f"{self.use('fractions', 'Fraction')}({value.numerator}, {value.denominator})"
        if isinstance(value, tuple):
            return self._tuple(value, indent)
        if is_dataclass(value) and not isinstance(value, type):
            return self._dataclass(value, indent)
        return text_literal(value) if isinstance(value, str) else repr(value)

    def _dataclass(self, value: Any, indent: int) -> str:
        if value in self._named:
            return self._named[value]
        if value in self._constants:
            module, expression = self._constants[value]
            self.use(module, expression.split(".")[0])
            return expression
        return self.made(value, indent)

    def made(self, value: Any, indent: int, skip: tuple[str, ...] = ()) -> str:
        """The call that makes `value`, one argument a line where there are comments."""
        name = self.use(type(value).__module__, type(value).__name__)
        pad, rows = " " * (indent + 4), []
        for field in told(value):
            if field.name not in skip:
                item = getattr(value, field.name)
                rows.append((f"{field.name}={self.value(item, indent + 4)}", self.comment(value, field.name, item)))
        flat = f"{name}({', '.join(text for text, _ in rows)})"
        if len(flat) + indent < WIDTH - 20 and "\n" not in flat and not any(note for _, note in rows):
            return flat
        return f"{name}(\n" + "".join(f"{pad}{_line(text, note)}\n" for text, note in rows) + " " * indent + ")"

    def _tuple(self, value: tuple[Any, ...], indent: int) -> str:
        if len(value) > 3 and any(value.count(item) > 2 for item in value[:8]):
            return self._runs(value)
        items = [self.value(item, indent + 4) for item in value]
        flat = f"({', '.join(items)}{',' if len(items) == 1 else ''})"
        if len(flat) + indent < WIDTH - 20 and "\n" not in flat:
            return flat
        pad = " " * (indent + 4)
        return "(\n" + "".join(f"{pad}{item},\n" for item in items) + " " * indent + ")"

    def _runs(self, value: tuple[Any, ...]) -> str:
        """`value` as periods that repeat: (*(dense,) * 3, *(moe,) * 58)."""
        parts_ = []
        for period, times in runs(value):
            items = [self.value(item) for item in period]
            if times == 1:
                parts_.extend(items)
            else:
                parts_.append(f"*({', '.join(items)}{',' if len(items) == 1 else ''}) * {times}")
        return f"({', '.join(parts_)}{',' if len(parts_) == 1 else ''})"


def text_literal(text: str) -> str:
    """A string literal in double quotes (JSON's escapes are Python's too)."""
    return json.dumps(text)


def _line(text: str, note: str) -> str:
    """An argument and the comment behind its first line."""
    if not note:
        return f"{text},"
    first, newline, rest = f"{text},".partition("\n")
    return f"{first}  # {note}{newline}{rest}"


def told(value: Any) -> list[Field[Any]]:
    """The fields of a dataclass value that a person would write: those that differ from their defaults."""
    return [field for field in fields(value) if field.init and getattr(value, field.name) != _default(field)]


def _default(field: Field[Any]) -> object:
    if field.default is not MISSING:
        return field.default
    return MISSING if field.default_factory is MISSING else field.default_factory()


def runs(value: tuple[Any, ...]) -> list[tuple[tuple[Any, ...], int]]:
    """`value` as (period, times): at each place the shortest period that covers most by repeating."""
    out: list[tuple[tuple[Any, ...], int]] = []
    at = 0
    while at < len(value):
        best, covered = value[at : at + 1], 1
        for size in range(1, min(16, (len(value) - at) // 2) + 1):
            period, times = value[at : at + size], 1
            while value[at + times * size : at + (times + 1) * size] == period:
                times += 1
            if times > 1 and times * size > covered:
                best, covered = period, times * size
        out.append((best, covered // len(best)))
        at += covered
    return out
