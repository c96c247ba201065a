"""A `model_type` nobody knows: which of its facts are known, near or unknown, and the nearest supported type.

The nearest type is the one that reads most of the config: every type is tried on it, with the keys it refuses taken
away one after another. What was taken away is the difference.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import SequenceMatcher, get_close_matches

from compiler.errors import InputError
from compiler.frontend.alias import ALIASES, HARMLESS, STRUCTURAL
from compiler.frontend.read import HERE, Source, describe
from compiler.frontend.spec import ModelSpec, Status

#: Keys taken away before a type is given up.
TRIES = 24
#: A key at least as like a spelling (0 to 1) is near it.
LIKE = 0.84
#: Types named on the page.
SHOWN = 12

Reader = Callable[[Source], ModelSpec]


@dataclass(frozen=True, slots=True)
class Classified:
    """The facts of a config of unknown type.

    known: (fact, key, value); near: (key, value, what it is near to); unknown: (key, value). nearest: a supported type;
    difference: what it has not got or misses; spec: what it reads when that is taken away, None where it misses a fact.
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

    @property
    def open(self) -> tuple[str, ...]:
        """What a person has to decide: the differences, and every key nobody understands."""
        said = " ".join(self.difference)
        rest = [(key, value, f"near {what}") for key, value, what in self.near if key not in said]
        rest += [(key, value, "no rule here reads it") for key, value in self.unknown if key not in said]
        return (*self.difference, *(f"{key} is {describe(value)}: {what}" for key, value, what in rest))

    def error(self, types: Mapping[str, object], known_elsewhere: bool) -> InputError:
        """The page that refuses the model and says how to go on."""
        elsewhere = "transformers knows it, but it is not described here yet; " if known_elsewhere else ""
        strange = ", ".join(key for key, _ in self.unknown[:SHOWN]) or "none"
        what = f"{self.model_type} is not supported; facts not described here: {strange}"
        lines = [
            f"{elsewhere}known: {_listed([f'{fact} = {describe(value)} ({key})' for fact, key, value in self.known])}",
            f"near: {_listed([f'{key} = {describe(value)} ({what})' for key, value, what in self.near])}",
            f"unknown: {_listed([f'{key} = {describe(value)}' for key, value in self.unknown])}",
            f"nearest supported type: {self.nearest}; difference: {_listed(list(self.difference))}",
            "`rdutune describe MODEL --out mine.py` writes a start; complete it and give mine.py:model",
            f"supported: {', '.join(sorted(types))}",
            HERE,
        ]
        return InputError(self.where, what, "\n".join(lines))


def _listed(items: list[str]) -> str:
    more = f" and {len(items) - SHOWN} more" if len(items) > SHOWN else ""
    return ", ".join(items[:SHOWN]) + more if items else "nothing"


def classify_with(source: Source, model_type: str, types: Mapping[str, str], read: Reader) -> Classified:
    """Classify the facts of `source`. types: supported model types and their architecture; read: reads one of them."""
    known, near, unknown = [], [], []
    for key, value in source.values.items():
        if value is None or key in HARMLESS or key in ("model_type", "architectures"):
            continue
        fact = next((fact for fact, keys in ALIASES.items() if any(k.split(".")[0] == key for k in keys)), "")
        close = get_close_matches(key, _SPELLINGS, n=1, cutoff=LIKE)
        if fact:
            known.append((fact, source.prefix + key, value))
        elif key in STRUCTURAL:
            near.append((key, value, STRUCTURAL[key]))
        elif close:
            near.append((key, value, f"like {close[0]}"))
        else:
            unknown.append((key, value))
    nearest, difference, spec = _nearest(source, model_type, types, read)
    where = f"{source.where}: {source.label('model_type')}"
    if spec is not None:
        spec = replace(spec, model_type=model_type)
    return Classified(
        where, source.name, model_type, tuple(known), tuple(near), tuple(unknown), nearest, difference, spec
    )


_SPELLINGS = tuple(key for keys in ALIASES.values() for key in keys if "." not in key)


def _nearest(
    source: Source, model_type: str, types: Mapping[str, str], read: Reader
) -> tuple[str, tuple[str, ...], ModelSpec | None]:
    """(type, differences, what it reads of the rest): the fewest differences, then the nearest name."""
    stated = source.values.get("architectures") or source.outer.get("architectures")
    named = stated if isinstance(stated, list) else []
    best: tuple[tuple[bool, int, bool, float, str], tuple[str, ...], ModelSpec | None] | None = None
    for name, architecture in types.items():
        spec, difference = _tried(source, name, read)
        unread = sum(fact.status is Status.UNKNOWN for fact in spec.facts) if spec else 0
        likeness = SequenceMatcher(None, name, model_type).ratio()
        score = (spec is None, len(difference) + unread, architecture not in named, -likeness, name)
        if best is None or score < best[0]:
            best = (score, difference, spec)
    if best is None:
        raise ValueError("no supported types")
    return best[0][-1], best[1], best[2]


def _tried(source: Source, name: str, read: Reader) -> tuple[ModelSpec | None, tuple[str, ...]]:
    """What type `name` reads of a config, and the differences: keys it refuses, or the fact it misses."""
    gone: list[str] = []
    difference: list[str] = []
    for _ in range(TRIES):
        attempt = _as_type(source, name, gone)
        try:
            return read(attempt), tuple(difference)
        except InputError as error:
            difference.append(
                f"{error.where.removeprefix(f'{source.where}: ')} {error.what}".removeprefix(source.where)
            )
            key = next(_keys(error, attempt), None)
            if key is None:
                return None, tuple(difference)
            gone.append(key)
    return None, tuple(difference)


def _keys(error: InputError, source: Source) -> Iterator[str]:
    """The key an error is about, if it is one that is there."""
    place = error.where.removeprefix(f"{source.where}: ").removeprefix(source.prefix)
    key = place.split(".")[0].split("[")[0]
    if key in source.values:
        yield key


def _as_type(source: Source, name: str, gone: list[str]) -> Source:
    """`source` under the model type `name`, without the keys `gone`."""
    drop = {*gone, "architectures"}
    values = {key: value for key, value in source.values.items() if key not in drop} | {"model_type": name}
    if source.outer is source.values:
        return replace(source, values=values, outer=values)
    return replace(
        source, values=values, outer={k: v for k, v in source.outer.items() if k not in drop} | {"model_type": name}
    )
