"""A checkpoint's quantisation as data: rules that give a weight its storage scheme, and what they leave out."""

import re
from dataclasses import dataclass
from enum import Enum, auto
from fnmatch import fnmatchcase
from functools import cached_property

from compiler.frontend.weights import Stored
from compiler.ir.dtype import DType, Scheme


class WeightKind(Enum):
    """What decides the storage type of a weight."""

    PLAIN = auto()  # embedding, norm, router, bias, sinks
    HEAD = auto()  # the matrix of the logits
    LINEAR = auto()
    EXPERT = auto()  # the matrices of routed experts


MATRICES = (WeightKind.LINEAR, WeightKind.EXPERT)


class Patterns:
    """Module patterns, ready to be asked: whole parts of a name in a row; with `*` the name from its start, or a module
    it is inside; after `re:` a regular expression from its start.
    """

    def __init__(self, patterns: tuple[str, ...]) -> None:
        self._names = frozenset(p for p in patterns if "*" not in p and not p.startswith("re:"))
        self._globs = tuple(p for p in patterns if "*" in p and not p.startswith("re:"))
        self._expressions = tuple(re.compile(p[3:]) for p in patterns if p.startswith("re:"))

    def match(self, module: str) -> bool:
        """Whether a pattern names `module`."""
        parts = module.split(".")
        ends = range(1, len(parts) + 1)
        if self._names and any(".".join(parts[a:b]) in self._names for b in ends for a in range(b)):
            return True
        if any(fnmatchcase(module, g) or fnmatchcase(module, f"{g}.*") for g in self._globs):
            return True
        return any(e.match(module) for e in self._expressions)


@dataclass(frozen=True)
class Rule:
    """Weights of `kinds` are stored as `scheme`; where `targets` (see `Patterns`) are given, those only."""

    scheme: Scheme
    kinds: tuple[WeightKind, ...] = MATRICES
    targets: tuple[str, ...] = ()

    @cached_property
    def _targets(self) -> Patterns:
        return Patterns(self.targets)

    def fits(self, kind: WeightKind, module: str) -> bool:
        return kind in self.kinds and (not self.targets or self._targets.match(module))


@dataclass(frozen=True)
class Quantisation:
    """How the publisher's checkpoint stores its matrices. `method` None: as everything else; without rules: not known.

    The first rule that fits a weight decides; what no rule fits, and the modules `excluded`, are kept as they are.
    """

    method: str | None = None
    rules: tuple[Rule, ...] = ()
    excluded: tuple[str, ...] = ()

    @cached_property
    def _excluded(self) -> Patterns:
        return Patterns(self.excluded)

    def rule(self, kind: WeightKind, module: str) -> Rule | None:
        """The rule for the weight of `module` (a full name, no `{layer}` in it)."""
        if self.excluded and self._excluded.match(module):
            return None
        return next((rule for rule in self.rules if rule.fits(kind, module)), None)

    @cached_property
    def patterns(self) -> tuple[str, ...]:
        """Every pattern that names modules."""
        return (*self.excluded, *(target for rule in self.rules for target in rule.targets))


@dataclass(frozen=True)
class Checkpoint:
    """How a publisher stores the model `name`: the type of what is not quantised, how matrices are stored, and what the
    weights files say where they are there.
    """

    name: str
    dtype: DType = DType.BF16
    quantisation: Quantisation = Quantisation()
    stored: Stored | None = None
