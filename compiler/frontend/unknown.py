"""A `model_type` nobody knows: which of its facts are known, near or unknown, and the nearest supported type.

The nearest type is the one that reads most of the config: every type is tried on it, with the keys it refuses taken
away one after another. What was taken away is the difference.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from difflib import SequenceMatcher, get_close_matches
from itertools import takewhile

from compiler.errors import InputError
from compiler.frontend.alias import ALIASES, STRUCTURAL, spellings
from compiler.frontend.facts import MissingFact, dig
from compiler.frontend.harmless import HARMLESS
from compiler.frontend.layer_words import LayerWord, entries_of, layer_words
from compiler.frontend.read import HERE, Source, describe
from compiler.frontend.spec import ModelSpec, Status

#: Keys taken away before a type is given up.
TRIES = 24
#: A key at least as like a spelling (0 to 1) is near it.
LIKE = 0.84
#: Types named on the page.
SHOWN = 12

#: Said where a config names code of its own.
_REMOTE = "its own code, named by auto_map, is never run or fetched: what it computes has to be described"

Reader = Callable[[Source], ModelSpec]


@dataclass(frozen=True, slots=True)
class Classified:
    """The facts of a config of unknown type.

    known: (fact, key, value); near: (key, value, what it is near to); unknown: (key, value). nearest: a supported type;
    difference: what it has not got or misses; spec: what it reads when that is taken away, None where it misses a fact.
    layers: what the config says of each layer; none where it says nothing. remote: whether `auto_map` names code.
    """

    where: str
    name: str
    model_type: str
    known: tuple[tuple[str, str, object], ...]
    near: tuple[tuple[str, object, str], ...]
    unknown: tuple[tuple[str, object], ...]
    nearest: str
    difference: tuple[str, ...]
    spec: ModelSpec | None
    layers: tuple[LayerWord, ...] = ()
    remote: bool = False

    @property
    def open(self) -> tuple[str, ...]:
        """What a person has to decide: the differences, and every key nobody understands."""
        said = " ".join(self.difference)
        rest = [(key, value, f"near {what}") for key, value, what in self.near if key not in said]
        rest += [(key, value, "no rule here reads it") for key, value in self.unknown if key not in said]
        strange = [str(word) for word in self.layers if not word.known]
        return (*self.difference, *strange, *(f"{key} is {describe(value)}: {what}" for key, value, what in rest))

    def error(self, types: Mapping[str, object], known_elsewhere: bool) -> InputError:
        """The page that refuses the model and says how to go on."""
        elsewhere = "transformers knows it, but it is not described here yet; " if known_elsewhere else ""
        strange = ", ".join(key for key, _ in self.unknown[:SHOWN]) or "none"
        what = f"{self.model_type} is not supported; facts not described here: {strange}"
        lines = [
            f"{elsewhere}known: {_listed([f'{fact} = {describe(value)} ({key})' for fact, key, value in self.known])}",
            f"near: {_listed([f'{key} = {describe(value)} ({what})' for key, value, what in self.near])}",
            f"unknown: {_listed([f'{key} = {describe(value)}' for key, value in self.unknown])}",
            f"layers: {self._layers()}",
            f"nearest supported type: {self.nearest}; difference: {_listed(list(self.difference))}",
            *([_REMOTE] if self.remote else []),
            "`rdutune describe MODEL --out mine.py` writes a start; complete it and give mine.py:model",
            f"supported: {', '.join(sorted(types))}",
            HERE,
        ]
        return InputError(self.where, what, "\n".join(lines))

    def _layers(self) -> str:
        """Each layer as known, near or unknown: by its word, else by the kind it has in the nearest type."""
        if self.layers:
            return _listed([str(word) for word in self.layers])
        if self.spec is None:
            return "no key says which layer is what, and the nearest type misses a fact"
        kinds = [f"{kind} x {self.spec.kinds.count(kind)}" for kind in dict.fromkeys(self.spec.kinds)]
        standing = "near" if self.difference else "known"
        return f"no key says which layer is what; as {self.nearest} reads them ({standing}): {', '.join(kinds)}"


def _listed(items: list[str]) -> str:
    more = f" and {len(items) - SHOWN} more" if len(items) > SHOWN else ""
    return ", ".join(items[:SHOWN]) + more if items else "nothing"


def classify_with(source: Source, model_type: str, types: Mapping[str, str], read: Reader) -> Classified:
    """Classify the facts of `source`. types: supported model types and their architecture; read: reads one of them."""
    spelled = [(fact, key) for fact, keys in ALIASES.items() for key in keys if fact not in _NAMING]
    there = [(fact, key, dig(source.values, key)) for fact, key in spelled]
    known = [(fact, source.prefix + key, value) for fact, key, value in there if value is not None]
    seen = {key.split(".")[0] for _, key, value in there if value is not None}
    near, unknown = [], []
    for key, value in source.values.items():
        if value is None or value is False or key in HARMLESS or key in seen or key in _NAMING:
            continue
        close = get_close_matches(key, _SPELLINGS, n=1, cutoff=LIKE)
        meaning = STRUCTURAL.get(key) or (f"like {close[0]}" if close else "")
        if meaning:
            near.append((key, value, meaning))
        else:
            unknown.append((key, value))
    nearest, difference, spec = _nearest(source, model_type, types, read)
    where = f"{source.where}: {source.label('model_type')}"
    if spec is not None:
        spec = replace(spec, model_type=model_type)
    facts = tuple(known), tuple(near), tuple(unknown)
    remote = bool(source.values.get("auto_map") or source.outer.get("auto_map"))
    layers = layer_words(source.values)
    return Classified(where, source.name, model_type, *facts, nearest, difference, spec, layers, remote)


_NAMING = ("model_type", "architectures")
_SPELLINGS = tuple(key for keys in ALIASES.values() for key in keys if "." not in key)


def _nearest(
    source: Source, model_type: str, types: Mapping[str, str], read: Reader
) -> tuple[str, tuple[str, ...], ModelSpec | None]:
    """(type, differences, what it reads of the rest): the fewest differences, then the nearest name."""
    stated = source.values.get("architectures") or source.outer.get("architectures")
    named = stated if isinstance(stated, list) else []
    tried = {name: _tried(source, name, read) for name in types}
    score = {
        name: (
            not t.whole,
            len(t.difference) + t.unread,
            t.spec is None,
            types[name] not in named,
            -_likeness(name, model_type),
        )
        for name, t in tried.items()
    }
    best = min(sorted(tried), key=lambda name: score[name])
    return best, tried[best].difference, tried[best].spec


@dataclass(frozen=True, slots=True)
class _Tried:
    """A type tried on a config: whether on all of it, the differences (keys it refuses, facts it misses), the keys it
    does not read, and what it reads where it misses nothing.
    """

    whole: bool
    difference: tuple[str, ...]
    unread: int = 0
    spec: ModelSpec | None = None


def _likeness(one: str, other: str) -> float:
    """How like two names are; of equally like ones, those that begin alike are the more like."""
    begin = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
    return SequenceMatcher(None, one, other).ratio() + begin / 100


def _tried(source: Source, name: str, read: Reader) -> _Tried:
    """What comes of reading a config as type `name`, with the keys it refuses taken away.

    A missing fact is lent a value to find the other differences; what is read then is no description. Of a layer
    pattern, layers of a refused word become those of another word of the pattern.
    """
    gone: list[str] = []
    lent: dict[str, object] = {}
    refused: dict[str, set[str]] = {}
    difference: list[str] = []
    for _ in range(TRIES):
        attempt = _as_type(source, name, gone, lent)
        try:
            spec = read(attempt)
        except MissingFact as error:
            difference.append(error.what)
            key = spellings(error.fact)[0]
            if key in lent:
                return _Tried(False, tuple(difference))
            lent[key] = 1
        except InputError as error:
            place = error.where.removeprefix(f"{source.where}: ")
            difference.append(error.what if place == source.where else f"{place} {error.what}")
            key = _key(error, attempt)
            if not key or (key in lent and key not in refused):
                return _Tried(False, tuple(difference))
            changed = _other_words(attempt.values[key], place, refused.setdefault(key, set()))
            if changed is None:
                lent.pop(key, None)
                gone.append(key)
            else:
                lent[key] = changed
        else:
            unread = sum(fact.status is Status.UNKNOWN for fact in spec.facts)
            whole = all(key in refused for key in lent)
            return _Tried(True, tuple(difference), unread, spec if whole else None)
    return _Tried(False, tuple(difference))


def _other_words(value: object, place: str, refused: set[str]) -> object:
    """A layer pattern without the word that is refused at `place` ("key[3]"); None where nothing can take its place."""
    entries, at = entries_of(value), re.search(r"\[(\d+)\]$", place)
    if entries is None or at is None or int(at[1]) >= len(entries):
        return None
    refused.add(entries[int(at[1])])
    rest = [word for word in entries if word not in refused]
    if not rest:
        return None
    changed = [rest[0] if word in refused else word for word in entries]
    return "".join(changed) if isinstance(value, str) else changed


def _key(error: InputError, source: Source) -> str:
    """The key an error is about, empty where it is none that is there."""
    place = error.where.removeprefix(f"{source.where}: ").removeprefix(source.prefix)
    key = place.split(".")[0].split("[")[0]
    return key if key in source.values else ""


def _as_type(source: Source, name: str, gone: list[str], lent: Mapping[str, object]) -> Source:
    """`source` under the model type `name`, without the keys `gone`, with those `lent`."""
    drop = {*gone, "architectures"}
    values = {key: value for key, value in source.values.items() if key not in drop} | {"model_type": name, **lent}
    if source.outer is source.values:
        return replace(source, values=values, outer=values)
    outer = {key: value for key, value in source.outer.items() if key not in drop} | {"model_type": name}
    return replace(source, values=values, outer=outer)
