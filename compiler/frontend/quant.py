"""Storage types: what a config says about quantisation, and the type each weight is kept in.

`auto` follows the checkpoint; `bf16` and `fp8` are the user's choice. Embedding, head, norms, router, biases and sinks
are never quantised: the published fp8 and mxfp4 checkpoints keep them as they are.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum, auto
from fnmatch import fnmatchcase

from compiler.errors import InputError, nearest
from compiler.frontend.facts import Facts
from compiler.frontend.read import describe
from compiler.frontend.spec import ModelSpec, Quantisation
from compiler.ir.dtype import DType

CHOICES = ("auto", "bf16", "fp8")
METHODS = ("fp8", "mxfp4")

_STATED = {
    "bfloat16": DType.BF16,
    "bf16": DType.BF16,
    "float16": DType.FP16,
    "fp16": DType.FP16,
    "half": DType.FP16,
    "float32": DType.FP32,
    "fp32": DType.FP32,
    "float": DType.FP32,
}


class WeightKind(Enum):
    """What decides the storage type of a weight."""

    PLAIN = auto()  # embedding, head, norm, router, bias, sinks
    LINEAR = auto()
    EXPERT = auto()  # the matrices of routed experts


@dataclass(frozen=True, slots=True)
class Storage:
    """The storage type of each kind of weight; weights whose checkpoint key is in `excluded` are kept plain."""

    plain: DType
    linear: DType
    expert: DType
    excluded: frozenset[str] = frozenset()

    def dtype(self, kind: WeightKind, key: str) -> DType:
        if kind is WeightKind.PLAIN or key in self.excluded:
            return self.plain
        return self.linear if kind is WeightKind.LINEAR else self.expert

    def without(self, keys: frozenset[str]) -> "Storage":
        return replace(self, excluded=keys)


def read_dtype(facts: Facts) -> DType:
    """The storage type of what is not quantised; bf16 when the config is silent."""
    if facts.find("dtype") is None:
        facts.assume("dtype", "bfloat16", "bf16 storage when the config is silent")
        return DType.BF16
    name = facts.word("dtype", (*_STATED, *(f"torch.{name}" for name in _STATED)), "")
    return _STATED[name.removeprefix("torch.")]


def read_quantisation(facts: Facts) -> Quantisation:
    """How the checkpoint stores linear weights. An unknown method is kept by name: `storage` refuses it."""
    table = facts.table("quantisation")
    if table is None:
        return Quantisation()
    method = table.get("quant_method")
    if not isinstance(method, str) or not method:
        raise facts.error("quantisation", f"is {describe(method)}", f"one of {', '.join(METHODS)}", ".quant_method")
    if method not in METHODS:
        return Quantisation(method)
    return Quantisation(method, _block(facts, table), _excluded(facts, table))


def _block(facts: Facts, table: dict[str, object]) -> int | None:
    block = table.get("weight_block_size")
    if block is None:
        return None
    side = DType.FP8_BLOCK.group
    if block != [side, side] or any(type(n) is not int for n in block):
        raise facts.error("quantisation", f"is {block!r:.60}", f"[{side}, {side}] or null", ".weight_block_size")
    return side


def _excluded(facts: Facts, table: dict[str, object]) -> tuple[str, ...]:
    names = table.get("modules_to_not_convert")
    at = ".modules_to_not_convert"
    if names is None:
        return ()
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise facts.error("quantisation", f"is {describe(names)}", "a list of module names, * for any layer", at)
    for name in names:
        if re.search(r"experts\.\d", name):
            what = f"names {name}: single experts kept apart are not modelled"
            raise facts.error("quantisation", what, "all experts of a layer or none", at)
    return tuple(names)


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
    fp8 = DType.FP8 if how.block is None else DType.FP8_BLOCK
    if weights == "fp8":
        return Storage(DType.BF16, fp8, fp8)
    if how.method is None:
        return Storage(spec.dtype, spec.dtype, spec.dtype)
    if how.method == "fp8":
        return Storage(spec.dtype, fp8, fp8)
    if how.method == "mxfp4":
        return Storage(spec.dtype, spec.dtype, DType.MXFP4)
    where, what = f"{spec.name}: quantization_config.quant_method", f"{how.method} is not supported"
    raise InputError(where, what, f"supported: {', '.join(METHODS)}; or choose the storage: weights bf16 or fp8")


def excluded_keys(spec: ModelSpec, weights: str, keys: Iterable[str], layer: int) -> frozenset[str]:
    """Which of the checkpoint `keys` (with {layer}, {expert}) the checkpoint keeps unquantised in `layer`.

    A pattern names a module from the start, or its end; `*` is anything. Under `fp8` the exclusions of an fp8
    checkpoint hold too; those of an mxfp4 checkpoint were made for another type and do not.
    """
    how = spec.quantisation
    if not how.excluded or weights == "bf16" or (weights == "fp8" and how.method != "fp8"):
        return frozenset()
    return frozenset(key for key in keys if _matches(how.excluded, key, layer))


def _matches(patterns: tuple[str, ...], key: str, layer: int) -> bool:
    module = key.removesuffix(".weight").replace("{layer}", str(layer)).replace("{expert}", "0")
    parts = module.split(".")
    names = {".".join(parts[:n]) for n in range(1, len(parts) + 1)} | {".".join(parts[n:]) for n in range(len(parts))}
    exact = names.intersection(patterns)
    return bool(exact) or any("*" in p and (fnmatchcase(module, p) or fnmatchcase(module, f"{p}.*")) for p in patterns)
