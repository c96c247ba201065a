"""Text and JSON forms of a schedule. Both parse back to the same value; errors give line, column and a caret."""

import re
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from enum import StrEnum
from functools import partial
from typing import Any, get_type_hints

from compiler.errors import InputError, nearest
from compiler.ir.actions import FAMILY, Action, Hole
from compiler.ir.schedule import Schedule

HEADER = "# rdutune schedule, version 1"
#: Largest number of an action.
MOST = 2**62
_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_NUMBER = re.compile(r"^([0-9]{1,19})(KiB|MiB|GiB)?$")
_WORD = re.compile(r"\S+")


def print_schedule(schedule: Schedule) -> str:
    """Canonical text, one action a line, ending with a newline."""
    return "\n".join([HEADER, *(print_action(a) for a in schedule.actions)]) + "\n"


def print_action(action: Action) -> str:
    parts = [type(action).family]
    for f in fields(action):
        value = getattr(action, f.name)
        if not f.metadata["keyword"]:
            parts.append(str(value))
        elif value != f.default:
            parts.append(f"{f.name}={_print_number(value, f.metadata['kind'])}")
    return " ".join(parts)


def parse_schedule(text: str, where: str = "schedule") -> Schedule:
    """Read the text form. InputError says line, column, what is wrong and what is accepted, with a caret."""
    actions = []
    for number, line in enumerate(text.splitlines(), 1):
        code = line.split("#", 1)[0]
        if code.strip():
            actions.append(_parse_line(code, _failer(where, number, line)))
    return Schedule(tuple(actions))


def to_json(schedule: Schedule) -> dict[str, Any]:
    """JSON form: {"version": 1, "actions": [{"family": ..., argument: value}]}; a hole is its text."""
    return {"version": 1, "actions": [_action_to_json(a) for a in schedule.actions]}


def from_json(value: Any, where: str = "schedule") -> Schedule:
    """Read the JSON form; InputError names the element and key that is wrong."""
    version = value.get("version") if isinstance(value, dict) else None
    if type(version) is not int or version != 1 or not isinstance(value.get("actions"), list):
        raise InputError(where, "not a schedule", '{"version": 1, "actions": [{"family": ...}, ...]}')
    return Schedule(tuple(_action_from_json(a, f"{where}, actions[{i}]") for i, a in enumerate(value["actions"])))


Fail = Callable[[int, str, str], InputError]


def _failer(where: str, number: int, line: str) -> Fail:
    def fail(column: int, what: str, right: str) -> InputError:
        caret = " " * (column - 1) + "^"
        return InputError(
            f"{where}, line {number}, column {column}", what, f"  {line.rstrip()}\n  {caret}\n{right}".rstrip()
        )

    return fail


def _parse_line(code: str, fail: Fail) -> Action:
    words = [(m.group(), m.start() + 1) for m in _WORD.finditer(code)]
    family, column = words[0]
    if family not in FAMILY:
        raise fail(
            column, f"unknown action {family!r}", nearest(family, tuple(FAMILY)) or f"actions: {', '.join(FAMILY)}"
        )
    cls = FAMILY[family]
    positional = [f for f in fields(cls) if not f.metadata["keyword"]]
    keyword = {f.name: f for f in fields(cls) if f.metadata["keyword"]}
    values: dict[str, Any] = {}
    for text, column in words[1:]:
        if len(values) < len(positional):
            f = positional[len(values)]
            values[f.name] = _word(cls, f, text, partial(fail, column))
            continue
        name, equals, rest = text.partition("=")
        if not equals and name in keyword:
            raise fail(column, f"{name} has no value", usage(cls))
        if not equals or name not in keyword:
            raise fail(column, f"unexpected {text!r}", nearest(name, tuple(keyword)) or usage(cls))
        if name in values:
            raise fail(column, f"{name} twice", usage(cls))
        at = column + len(name) + 1
        values[name] = _number(keyword[name], rest, partial(fail, at))
    end = words[-1][1] + len(words[-1][0])
    for f in fields(cls):
        if f.name not in values and f.default is MISSING:
            raise fail(end, f"{family} needs {f.name}", usage(cls))
    try:
        return cls(**values)
    except ValueError as error:
        raise fail(column, str(error), usage(cls)) from None


def usage(cls: type[Action]) -> str:
    """The shape of a family's line, e.g. `shard BLOCK PART DIM ways=N [pad=N]`."""
    parts = [cls.family]
    for f in fields(cls):
        if not f.metadata["keyword"]:
            options = _enum(cls, f)
            parts.append("|".join(options) if options else f.name.upper())
        else:
            text = f"{f.name}={'BYTES' if f.metadata['kind'] == 'bytes' else 'N'}"
            parts.append(text if f.default is MISSING else f"[{text}]")
    return "usage: " + " ".join(parts)


def _enum(cls: type[Action], f: "Field[Any]") -> tuple[str, ...]:
    hint = get_type_hints(cls)[f.name]
    return tuple(hint) if isinstance(hint, type) and issubclass(hint, StrEnum) else ()


def _word(cls: type[Action], f: "Field[Any]", text: str, fail: Callable[[str, str], InputError]) -> Any:
    options = _enum(cls, f)
    if options:
        if text not in options:
            raise fail(
                f"unknown {f.metadata['kind']} {text!r}", nearest(text, options) or f"one of: {', '.join(options)}"
            )
        return get_type_hints(cls)[f.name](text)
    if "=" in text:
        raise fail(f"expected {_a(f.metadata['kind'])}, found {text!r}", usage(cls))
    return text


def _a(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def _number(f: "Field[Any]", text: str, fail: Callable[[str, str], InputError]) -> int | Hole:
    low, is_bytes = f.metadata["low"], f.metadata["kind"] == "bytes"
    right = f"a whole number of at least {low}, a hole ?, or a range LOW..HIGH" + (
        " (KiB, MiB, GiB allowed)" if is_bytes else ""
    )
    if text == "?":
        return Hole()
    ends = text.split("..")
    matches = [_NUMBER.match(e) for e in ends]
    if len(ends) > 2 or any(m is None or (m.group(2) and not is_bytes) for m in matches):
        raise fail(f"{f.name} is {text!r}", right)
    numbers = [int(m.group(1)) * _UNITS.get(m.group(2) or "", 1) for m in matches if m]
    if numbers[-1] > MOST:
        raise fail(f"{f.name} is {text}", "numbers up to 2**62")
    if numbers[0] < low or numbers != sorted(numbers):
        raise fail(f"{f.name} is {text}", right)
    return numbers[0] if len(numbers) == 1 else Hole(*numbers)


def _print_number(value: int | Hole, kind: str) -> str:
    if isinstance(value, Hole):
        return "?" if value.low is None else f"{_print_int(value.low, kind)}..{_print_int(value.high or 0, kind)}"
    return _print_int(value, kind)


def _print_int(value: int, kind: str) -> str:
    for name in ("GiB", "MiB", "KiB"):
        if kind == "bytes" and value and value % _UNITS[name] == 0:
            return f"{value // _UNITS[name]}{name}"
    return str(value)


def _action_to_json(action: Action) -> dict[str, Any]:
    out: dict[str, Any] = {"family": type(action).family}
    for f in fields(action):
        value = getattr(action, f.name)
        out[f.name] = value if isinstance(value, int) else str(value)
    return out


def _action_from_json(value: Any, where: str) -> Action:
    if not isinstance(value, dict) or str(value.get("family")) not in FAMILY:
        raise InputError(where, "not an action", f"family is one of: {', '.join(FAMILY)}")
    cls = FAMILY[str(value["family"])]
    known = {f.name: f for f in fields(cls)}
    values: dict[str, Any] = {}
    for name, raw in value.items():
        if name == "family":
            continue
        place = f"{where}, key {name!r}"
        if name not in known:
            raise InputError(place, "unknown", nearest(name, tuple(known)) or usage(cls))
        if isinstance(raw, bool) or not isinstance(raw, str | int):
            raise InputError(place, f"{raw!r} is neither text nor a whole number", usage(cls))
        f = known[name]

        def fail(what: str, right: str, at: str = place) -> InputError:
            return InputError(at, what, right)

        text = str(raw)
        if f.metadata["keyword"]:
            values[name] = _number(f, text, fail)
        elif not text or _WORD.fullmatch(text) is None or "#" in text:
            raise InputError(place, f"{text!r} is not one word", usage(cls))
        else:
            values[name] = _word(cls, f, text, fail)
    for f in fields(cls):
        if f.name not in values and f.default is MISSING:
            raise InputError(where, f"{cls.family} needs {f.name}", usage(cls))
    try:
        return cls(**values)
    except ValueError as error:
        raise InputError(where, str(error), usage(cls)) from None
