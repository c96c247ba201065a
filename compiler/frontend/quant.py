"""Storage types: the type each weight is kept in, from what the checkpoint says and what the user chose.

`auto` follows the checkpoint; `bf16` and `fp8` are the user's choice. Embedding, norms, router, biases and sinks are
never quantised, the head only where a rule names it: the published quantised checkpoints keep them as they are.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from compiler.errors import InputError, nearest
from compiler.frontend.quant_read import METHODS, read_dtype, read_quantisation
from compiler.frontend.quantisation import WeightKind
from compiler.frontend.spec import ModelSpec, MoE
from compiler.ir.dtype import FP8, DType, Element, Scheme

__all__ = [
    "CHOICES",
    "METHODS",
    "Kept",
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


def storage(spec: ModelSpec, weights: str) -> Storage:
    """The storage types of a model under the user's choice (`auto`, `bf16`, `fp8`).

    Raises InputError for another choice, and under `auto` for a quantisation method that is not supported.
    """
    if weights not in CHOICES:
        right = f"one of {', '.join(CHOICES)} {nearest(weights, CHOICES)}".rstrip()
        raise InputError("weights", f"{weights!r} is not a storage choice", right)
    if weights == "bf16":
        return Storage(DType.BF16, DType.BF16, DType.BF16)
    how = spec.quantisation
    if weights == "fp8":
        schemes = [rule.scheme for rule in how.rules if how.method == "fp8"]
        fp8 = next((s for s in schemes if s.element is Element.FP8 and s.columns), FP8)
        return Storage(DType.BF16, fp8, fp8)
    if not supported(spec):
        where, what = f"{spec.name}: quantization_config.quant_method", f"{how.method} is not supported"
        raise InputError(where, what, f"supported: {', '.join(METHODS)}; or choose the storage: weights bf16 or fp8")
    linear, expert, head = (_general(spec, kind) for kind in (WeightKind.LINEAR, WeightKind.EXPERT, WeightKind.HEAD))
    return Storage(spec.dtype, linear, expert, head)


def supported(spec: ModelSpec) -> bool:
    """Whether the storage of the checkpoint can be followed (`auto`)."""
    return spec.quantisation.method is None or bool(spec.quantisation.rules)


def _general(spec: ModelSpec, kind: WeightKind) -> Kept:
    """What the first rule without targets says of `kind`."""
    rules = (r.scheme for r in spec.quantisation.rules if kind in r.kinds and not r.targets)
    return next(rules, None) or spec.dtype


def stored_apart(
    spec: ModelSpec, weights: str, kept: Storage, keys: Iterable[tuple[str, WeightKind]], layer: int
) -> frozenset[tuple[str, Kept]]:
    """Which of the checkpoint `keys` (with {layer}, {expert}) the checkpoint stores otherwise than `kept` in `layer`.

    Under `fp8` the exclusions of an fp8 checkpoint hold too; those of another were made for another type and do not.
    Raises InputError where the experts of a layer are not all stored in the same way.
    """
    how = spec.quantisation
    if not how.patterns or weights == "bf16" or (weights == "fp8" and how.method != "fp8"):
        return frozenset()
    apart = []
    for key, kind in keys:
        stored = _stored(spec, kept, kind, key.replace("{layer}", str(layer)), layer)
        if weights == "fp8" and stored != kept.plain:
            stored = kept.of(kind)
        if stored != kept.of(kind):
            apart.append((key, stored))
    return frozenset(apart)


def _stored(spec: ModelSpec, kept: Storage, kind: WeightKind, key: str, layer: int) -> Kept:
    module = key.removesuffix(".weight")
    if "{expert}" not in module:
        rule = spec.quantisation.rule(kind, module)
        return rule.scheme if rule else kept.plain
    ffn = spec.layers[layer].ffn
    each = isinstance(ffn, MoE) and any(_NUMBERED.search(p) for p in spec.quantisation.patterns)
    count = ffn.experts if each and isinstance(ffn, MoE) else 1
    rules = [spec.quantisation.rule(kind, module.replace("{expert}", str(n))) for n in range(count)]
    if any(rule != rules[0] for rule in rules):
        odd = next(n for n, rule in enumerate(rules) if rule != rules[0])
        what = f"expert {odd} of layer {layer} is not stored as expert 0: single experts kept apart are not modelled"
        raise InputError(f"{spec.name}: quantization_config", what, "all experts of a layer or none")
    return rules[0].scheme if rules[0] else kept.plain
