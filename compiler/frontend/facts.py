"""Read facts out of a configuration, one by one, and remember for each the key it came from.

`null` is absent. What is needed and missing, or is there and makes no sense, is an `InputError`; a fact taken by a rule
is recorded as assumed, with the rule; what nobody read is reported, or refused where it would change the structure.
"""

import json
import math
from dataclasses import dataclass
from typing import TypeVar

from compiler.errors import InputError
from compiler.frontend.alias import (
    LIMIT,
    LIMITS,
    OUTER_FACTS,
    STRUCTURAL,
    spellings,
    structural_keys,
    structural_parents,
)
from compiler.frontend.harmless import HARMLESS
from compiler.frontend.read import Source, describe
from compiler.frontend.spec import Fact, FactValue, Status

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Found:
    """A value in the configuration: `key` as a fact remembers it, `place` as an error names it."""

    key: str
    place: str
    value: object


class MissingFact(InputError):
    """A needed fact that is under none of its spellings."""

    def __init__(self, fact: str, where: str, what: str, right: str) -> None:
        super().__init__(where, what, right)
        self.fact = fact


class Facts:
    """The facts of one configuration; reading one records it."""

    def __init__(self, source: Source, family: str) -> None:
        self.source = source
        self.family = family
        self._facts: dict[str, Fact] = {}
        self._read: set[str] = set()

    # --- looking up

    def find(self, fact: str) -> Found | None:
        """The value of `fact` under any spelling; None when absent or null; InputError when spellings disagree."""
        found: list[Found] = []
        for key in spellings(fact):
            self._note(key)
            for values, outer in self._places(fact):
                value = dig(values, key)
                if value is not None:
                    found.append(Found(self.source.label(key, outer), self._place(key, outer), value))
                    break
        for other in found[1:]:
            if (type(other.value), other.value) != (type(found[0].value), found[0].value):
                what = f"is {describe(other.value)}, but {found[0].place} is {describe(found[0].value)}"
                raise self._at(other.place, what, "one value: both are spellings of the same fact")
        return found[0] if found else None

    def _note(self, key: str) -> None:
        """Remember that `key`, and every object it is inside, was read."""
        parts = key.split(".")
        self._read.update(".".join(parts[:end]) for end in range(1, len(parts) + 1))

    def states(self, fact: str) -> bool:
        """Whether any spelling of `fact` is written down, null included."""
        return any(key in self.source.values for key in spellings(fact))

    def _places(self, fact: str) -> list[tuple[object, bool]]:
        places: list[tuple[object, bool]] = [(self.source.values, False)]
        if fact in OUTER_FACTS and self.source.outer is not self.source.values:
            places.append((self.source.outer, True))
        return places

    # --- typed reads

    def integer(self, fact: str, low: int = 1) -> int:
        """A needed integer of at least `low`."""
        value = self.maybe_integer(fact, low)
        if value is None:
            raise self.missing(fact)
        return value

    def maybe_integer(self, fact: str, low: int = 1) -> int | None:
        """An integer of at least `low`, None when absent. InputError for any other type, and for absurd sizes."""
        found = self.find(fact)
        if found is None:
            return None
        value, high = found.value, LIMITS.get(fact, LIMIT)
        if type(value) is not int:
            raise self.error(fact, f"is {describe(value)}, not an integer", f"an integer from {low} to {high}")
        if not low <= value <= high:
            raise self.error(fact, f"is {describe(value)}", f"an integer from {low} to {high}")
        return self._take(fact, found, value)

    def flag(self, fact: str, default: bool | None = None) -> bool:
        """A boolean; `default` is the rule when absent (recorded as assumed), None where it is needed."""
        found = self.find(fact)
        if found is None:
            if default is None:
                raise self.missing(fact)
            return bool(self.assume(fact, default, f"{self.family} takes {json.dumps(default)} when the key is absent"))
        if type(found.value) is not bool:
            raise self.error(fact, f"is {describe(found.value)}, not a boolean", "true or false")
        return self._take(fact, found, found.value)

    def number(self, fact: str, default: float | None = None) -> float | None:
        """A positive finite number; `default` when absent (recorded as assumed where it is not None)."""
        found = self.find(fact)
        if found is None:
            if default is not None:
                self.assume(fact, default, f"{self.family} takes {default:g} when the key is absent")
            return default
        value = found.value
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e30:
            raise self.error(fact, f"is {describe(value)}", "a positive number")
        return self._take(fact, found, value)

    def cap(self, fact: str, usual: float | None) -> bool:
        """Whether there is a soft cap: a number, none where the config says null, `usual` where it is silent."""
        if self.find(fact) is None and self.states(fact):
            return False
        return self.number(fact, usual) is not None

    def word(self, fact: str, known: tuple[str, ...], default: str) -> str:
        """One of `known`; `default` when absent (recorded as assumed)."""
        found = self.find(fact)
        if found is None:
            self.assume(fact, default, f"{self.family} takes {default} when the key is absent")
            return default
        if not isinstance(found.value, str) or found.value not in known:
            raise self.error(fact, f"is {describe(found.value)}, which is not modelled", f"one of {_list(known)}")
        return self._take(fact, found, found.value)

    def items(self, fact: str) -> list[object] | None:
        """A list, None when absent."""
        found = self.find(fact)
        if found is None:
            return None
        if not isinstance(found.value, list):
            raise self.error(fact, f"is {describe(found.value)}, not a list", "a list")
        self._take(fact, found, found.value)
        return found.value

    def table(self, fact: str) -> dict[str, object] | None:
        """An object, None when absent."""
        found = self.find(fact)
        if found is None:
            return None
        if not isinstance(found.value, dict):
            raise self.error(fact, f"is {describe(found.value)}, not an object", "an object or null")
        self._take(fact, found, found.value)
        return found.value

    # --- recording

    def assume(self, fact: str, value: FactValue, note: str) -> FactValue:
        """Record a fact taken by a documented rule."""
        self._facts[fact] = Fact(fact, value, self.source.label(spellings(fact)[0]), note, Status.ASSUMED)
        return value

    def fixed(self, fact: str, value: FactValue, note: str) -> None:
        """Record a fact that the code of the family fixes, whatever the config says."""
        self._facts[fact] = Fact(fact, value, self.source.label("model_type"), note)

    def record(self, fact: str, found: Found) -> None:
        """Record a fact whose value was checked by the caller."""
        self._take(fact, found, found.value)

    def ignore(self, fact: str, why: str) -> None:
        """Record that the family's published code makes no use of `fact`."""
        for key in spellings(fact):
            self._note(key)
            value = dig(self.source.values, key)
            if value is not None:
                self._facts[f"{fact}.ignored"] = Fact(fact, storable(value), self.source.label(key), f"ignored: {why}")

    def unread(self) -> None:
        """Report every key nobody read as an unknown fact; InputError for one that would change the structure."""
        for key, value in self.source.values.items():
            if key not in self._read:
                self._unread_one(key, key, value)
            elif key in structural_parents() and isinstance(value, dict):
                for inner in [name for name in value if f"{key}.{name}" not in self._read]:
                    self._unread_one(f"{key}.{inner}", inner, value[inner])
        self._unread_outer()

    def _unread_one(self, key: str, name: str, value: object) -> None:
        """`key` is nobody's: `name` inside the objects it is in."""
        if name in HARMLESS or value is None or (key != name and _says_nothing(value)):
            return
        if key not in structural_keys():
            self._unknown(key, value, self.source.label(key))
        elif not _says_nothing(value):
            meaning = STRUCTURAL.get(key, "structure")
            what = f"is {describe(value)}: {meaning} that {self.family} as described here has not got"
            right = "remove the key if the model does not use it, or describe it in Python"
            raise self._at(self._place(key, False), what, right)

    def _unread_outer(self) -> None:
        """Report what surrounds a nested language model (a vision part, for instance)."""
        inner = self.source.values
        for key, value in self.source.outer.items() if self.source.outer is not inner else ():
            if key not in self._read and key not in HARMLESS and value is not None and value is not inner:
                self._unknown(key, value, key)

    def _unknown(self, key: str, value: object, label: str) -> None:
        self._facts[f"key {key}"] = Fact(key, storable(value), label, "no rule here reads this key", Status.UNKNOWN)

    def value(self, fact: str) -> FactValue:
        """The value of a fact recorded so far, None where there is none."""
        found = self._facts.get(fact)
        return found.value if found else None

    def all(self) -> tuple[Fact, ...]:
        return tuple(self._facts.values())

    def _take(self, fact: str, found: Found, value: _T) -> _T:
        note = found.place if self.source.defaults else ""
        self._facts[fact] = Fact(fact, storable(value), found.key, note)
        return value

    # --- refusing

    def error(self, fact: str, what: str, right: str, at: str = "") -> InputError:
        """An InputError at the key `fact` was found under; `at` says where inside its value."""
        found = self.find(fact)
        place = found.place if found else self._place(spellings(fact)[0], False)
        return self._at(place + at, what, right)

    def _at(self, place: str, what: str, right: str) -> InputError:
        return InputError(f"{self.source.where}: {place}", what, right)

    def _place(self, key: str, outer: bool) -> str:
        return key if outer else self.source.prefix + key

    def missing(self, fact: str, hint: str = "") -> InputError:
        """An InputError for a needed fact under none of its spellings."""
        keys = ", ".join(self.source.prefix + key for key in spellings(fact))
        what = f"{self.family} needs {fact}, and it is missing or null; keys looked for: {keys}"
        right = hint or f"add {spellings(fact)[0]} as the publisher's config has it"
        return MissingFact(fact, self.source.where, what, right)


def storable(value: object) -> FactValue:
    """A JSON value as an immutable fact value without NaN or Infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, list):
        return tuple(storable(item) for item in value)
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return json.dumps(value, sort_keys=True, default=str)


def dig(values: object, key: str) -> object:
    """The value under a dotted key, None when it is not there."""
    for part in key.split("."):
        if not isinstance(values, dict):
            return None
        values = values.get(part)
    return values


def _list(words: tuple[str, ...]) -> str:
    return ", ".join(words[:12])


def _says_nothing(value: object) -> bool:
    return value in (None, False, 0, "", [], {})
