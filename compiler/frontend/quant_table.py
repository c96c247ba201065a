"""Typed reads of a `quantization_config` object: every error names the key."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from compiler.errors import InputError
from compiler.frontend.read import describe
from compiler.ir.dtype import DType

#: Every published spelling of "these modules are kept as they are".
EXCLUDING = (
    "modules_to_not_convert",
    "ignored_layers",
    "ignore",
    "exclude_modules",
    "llm_int8_skip_modules",
)
#: Prefixes of the modules of a language model inside a larger one, and what they are called here.
_OUTER = (
    ("model.language_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.lm_head", "lm_head"),
)


@dataclass(frozen=True)
class Table:
    """The object, its place for errors, and the type of what is not quantised (that of compressed-tensors scales)."""

    values: Mapping[str, object]
    place: str
    plain: DType

    def error(self, key: str, what: str, right: str) -> InputError:
        return InputError(f"{self.place}.{key}", what, right)

    def over(self, base: "Table") -> "Table":
        """This table where it says something, else `base`."""
        return Table({**base.values, **self.values}, self.place, self.plain)

    def number(self, key: str, known: tuple[int, ...]) -> int:
        """A needed integer, one of `known`."""
        value = self.values.get(key)
        if type(value) is not int or value not in known:
            raise self.error(key, f"is {describe(value)}, which is not modelled", " or ".join(map(str, known)))
        return value

    def group(self, key: str, needed: bool = False) -> int | None:
        """Elements of a group; None for one a row (-1), and when absent where it is not needed."""
        value = self.values.get(key)
        if value is None and not needed:
            return None
        if type(value) is not int or (value != -1 and not 1 <= value < 1 << 24):
            raise self.error(key, f"is {describe(value)}", "elements of a group, or -1 for one a row")
        return None if value == -1 else value

    def flag(self, key: str, default: bool) -> bool:
        value = self.values.get(key)
        if value is None:
            return default
        if type(value) is not bool:
            raise self.error(key, f"is {describe(value)}, not a boolean", "true or false")
        return value

    def word(self, key: str, known: tuple[str, ...], default: str) -> str:
        """One of `known`; `default` when absent, needed where that is empty."""
        value = self.values.get(key)
        if value is None and default:
            return default
        if not isinstance(value, str) or value not in known:
            raise self.error(key, f"is {describe(value)}, which is not modelled", f"one of {', '.join(known)}")
        return value

    def sides(self, key: str) -> tuple[int, int] | None:
        """[rows, columns] of a block, None when absent."""
        value = self.values.get(key)
        if value is None:
            return None
        good = isinstance(value, list) and len(value) == 2 and all(type(n) is int and 0 < n < 1 << 24 for n in value)
        if not good or not isinstance(value, list):
            raise self.error(key, f"is {value!r:.60}", "[rows, columns] of a block, or null")
        return value[0], value[1]

    def table(self, key: str) -> "Table | None":
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(key, f"is {describe(value)}, not an object", "an object or null")
        return Table(value, f"{self.place}.{key}", self.plain)

    def names(self, key: str) -> tuple[str, ...]:
        """A list of module patterns; empty when absent."""
        value = self.values.get(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
            raise self.error(key, f"is {describe(value)}", "a list of module names, * for any layer")
        return tuple(self._pattern(key, name) for name in value)

    def nested_names(self, key: str) -> tuple[str, ...]:
        """A list of lists of module names, flat."""
        value = self.values.get(key)
        if value is None:
            return ()
        lists = value if isinstance(value, list) else []
        names: list[object] = [name for inner in lists for name in (inner if isinstance(inner, list) else [None])]
        words = [name for name in names if isinstance(name, str) and name]
        if not words or len(words) != len(names):
            raise self.error(key, f"is {describe(value)}", "a list of lists of module names")
        return tuple(self._pattern(key, name) for name in words)

    def excluded(self) -> tuple[str, ...]:
        """The modules kept as they are, under any spelling; and those `dynamic` leaves out."""
        names = [name for key in EXCLUDING for name in self.names(key)]
        return tuple(dict.fromkeys((*names, *(f"re:{p}" for p, _ in self._dynamic(False)))))

    def dynamic(self) -> "tuple[tuple[str, Table], ...]":
        """(expression, overrides) of GPTQModel's `dynamic`."""
        return self._dynamic(True)

    def _dynamic(self, kept: bool) -> "tuple[tuple[str, Table], ...]":
        table = self.table("dynamic")
        out = []
        for key, value in table.values.items() if table else ():
            if key.startswith("-:") == kept:
                continue
            if not isinstance(value, dict):
                raise self.error(f"dynamic.{key}", f"is {describe(value)}, not an object", "what differs there")
            expression = self._checked("dynamic", re.sub(r"^[+-]:", "", key))
            out.append((expression, Table(value, f"{self.place}.dynamic.{key}", self.plain)))
        return tuple(out)

    def _pattern(self, key: str, name: str) -> str:
        """`name` as the language model calls it here."""
        if name.startswith("re:"):
            return f"re:{self._checked(key, name[3:])}"
        for outer, inner in _OUTER:
            if name.startswith(outer):
                return inner + name[len(outer) :]
        return name

    def _checked(self, key: str, expression: str) -> str:
        try:
            re.compile(expression)
        except re.error as error:
            raise self.error(key, f"has {expression!r:.60}: {error}", "a regular expression") from error
        return expression
