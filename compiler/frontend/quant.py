"""Storage types: the type each weight is kept in, from what the checkpoint says and what the user chose.

`auto` follows the checkpoint; `bf16` and `fp8` are the user's choice. Embedding, norms, router, biases and sinks are
never quantised, the head only where a rule names it: the published quantised checkpoints keep them as they are.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from compiler.errors import InputError, nearest
from compiler.frontend.quant_read import METHODS, read_dtype, read_quantisation
from compiler.frontend.quantisation import Checkpoint, WeightKind
from compiler.ir.dtype import FP8, DType, Element, Scheme

__all__ = [
    "CHOICES",
    "METHODS",
    "Checkpoint",
    "Kept",
    "Matrix",
    "Storage",
    "WeightKind",
    "read_dtype",
    "read_quantisation",
    "storage",
    "stored_apart",
    "supported",
]

CHOICES = ("auto", "bf16", "fp8")

Kept = DType | Scheme
#: A pattern that names experts one by one, as a name or inside an expression.
_NUMBERED = re.compile(r"experts\\?\.[(\[]?\d")


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight that may be quantised: its checkpoint key (with {layer}, {expert}), its kind, and how many experts."""

    key: str
    kind: WeightKind
    experts: int = 1


@dataclass(frozen=True, slots=True)
class Storage:
    """How each kind of weight is stored. apart: checkpoint keys whose storage differs; head None: as plain."""

    plain: DType
    linear: Kept
    expert: Kept
    head: Kept | None = None
    apart: frozenset[tuple[str, Kept]] = frozenset()

    def dtype(self, kind: WeightKind, key: str, rows: int = 1, columns: int = 1) -> DType:
        """The storage type of a weight whose matrices have `rows` x `columns` (the contracted side)."""
        stored = dict(self.apart).get(key, self.of(kind))
        return stored.fitted(rows, columns) if isinstance(stored, Scheme) else stored

    def of(self, kind: WeightKind) -> Kept:
        """How weights of `kind` are stored where their key says nothing else."""
        if kind is WeightKind.LINEAR:
            return self.linear
        if kind is WeightKind.EXPERT:
            return self.expert
        return self.head or self.plain if kind is WeightKind.HEAD else self.plain

    def with_apart(self, apart: frozenset[tuple[str, Kept]]) -> "Storage":
        return replace(self, apart=apart)


def storage(checkpoint: Checkpoint, weights: str) -> Storage:
    """The storage types of a model under the user's choice (`auto`, `bf16`, `fp8`).

    Raises InputError for another choice, and under `auto` for a quantisation method that is not supported.
    """
    if weights not in CHOICES:
        right = f"one of {', '.join(CHOICES)} {nearest(weights, CHOICES)}".rstrip()
        raise InputError("weights", f"{weights!r} is not a storage choice", right)
    if weights == "bf16":
        return Storage(DType.BF16, DType.BF16, DType.BF16)
    how = checkpoint.quantisation
    if weights == "fp8":
        schemes = [rule.scheme for rule in how.rules if how.method == "fp8"]
        fp8 = next((s for s in schemes if s.element is Element.FP8 and s.columns), FP8)
        return Storage(DType.BF16, fp8, fp8)
    if not supported(checkpoint):
        where, what = f"{checkpoint.name}: quantization_config.quant_method", f"{how.method} is not supported"
        raise InputError(where, what, f"supported: {', '.join(METHODS)}; or choose the storage: weights bf16 or fp8")
    linear, expert, head = (_general(checkpoint, k) for k in (WeightKind.LINEAR, WeightKind.EXPERT, WeightKind.HEAD))
    return Storage(checkpoint.dtype, linear, expert, head)


def supported(checkpoint: Checkpoint) -> bool:
    """Whether the storage of the checkpoint can be followed (`auto`)."""
    return checkpoint.quantisation.method is None or bool(checkpoint.quantisation.rules)


def _general(checkpoint: Checkpoint, kind: WeightKind) -> Kept:
    """What the first rule without targets says of `kind`."""
    rules = (r.scheme for r in checkpoint.quantisation.rules if kind in r.kinds and not r.targets)
    return next(rules, None) or checkpoint.dtype


def stored_apart(
    checkpoint: Checkpoint, weights: str, kept: Storage, matrices: Iterable[Matrix], layer: int
) -> frozenset[tuple[str, Kept]]:
    """Which of the `matrices` the checkpoint stores otherwise than `kept` in `layer`, by key.

    Under `fp8` the exclusions of an fp8 checkpoint hold too; those of another were made for another type and do not.
    Raises InputError where the experts of a layer are not all stored in the same way.
    """
    how = checkpoint.quantisation
    if not how.patterns or weights == "bf16" or (weights == "fp8" and how.method != "fp8"):
        return frozenset()
    apart = []
    for matrix in matrices:
        stored, general = _stored(checkpoint, kept, matrix, layer), kept.of(matrix.kind)
        if weights == "fp8" and stored != kept.plain:
            stored = general
        if stored != general:
            apart.append((matrix.key, stored))
    return frozenset(apart)


def _stored(checkpoint: Checkpoint, kept: Storage, matrix: Matrix, layer: int) -> Kept:
    how, module = checkpoint.quantisation, matrix.key.replace("{layer}", str(layer)).removesuffix(".weight")
    each = "{expert}" in module and any(_NUMBERED.search(pattern) for pattern in how.patterns)
    names = [module.replace("{expert}", str(n)) for n in range(matrix.experts)] if each else [module]
    rules = [how.rule(matrix.kind, name) for name in names]
    if any(rule != rules[0] for rule in rules):
        odd = next(n for n, rule in enumerate(rules) if rule != rules[0])
        what = f"expert {odd} of layer {layer} is not stored as expert 0: single experts kept apart are not modelled"
        raise InputError(f"{checkpoint.name}: quantization_config", what, "all experts of a layer or none")
    return rules[0].scheme if rules[0] else kept.plain
