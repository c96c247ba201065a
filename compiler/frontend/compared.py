"""A config against the weights files beside it: what is missing, extra, of another shape or another type, by name."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from compiler.errors import InputError
from compiler.frontend.build import build
from compiler.frontend.parts import numbered
from compiler.frontend.quant import supported
from compiler.frontend.spec import Fact, ModelSpec, Status
from compiler.frontend.stored import Lookup
from compiler.frontend.weights import UNPACKED, Stored, read_stored
from compiler.ir.dtype import DType
from compiler.ir.graph import Block, Pattern, Phase, Tensor, Workload

#: What stands beside weights: scales of activations and caches, shapes, tables; buffers that are no parameters.
_BESIDE = re.compile(
    r"(_shape|[._]g_idx|\.input_scale|\.input_global_scale|\.activation_scale|quant_map|\.quant_state\..*|\.weight_format"
    r"|\.[kvq]_scale|inv_freq|e_score_correction_bias|masked_bias|attn\.bias)$"
)
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
#: Prefixes of the language model inside a larger one.
_OUTER = (("model.language_model.", "model."), ("language_model.", ""))
#: Names listed of each kind of difference.
SHOWN = 8


@dataclass(frozen=True, slots=True)
class Expected:
    """A tensor the config says there is. shape: () where only the number of elements is compared."""

    key: str
    shape: tuple[int, ...]
    elements: int
    dtype: DType


def with_stored(spec: ModelSpec, folder: Path) -> ModelSpec:
    """`spec` with what the weights files in `folder` say: types from them, differences as facts.

    A file that cannot be read is a fact too, since the config alone says how large a model is. Raises InputError where
    the shape of a tensor contradicts the config.
    """
    found = read_stored(folder)
    if found is None:
        return spec
    stored = renamed(found)
    facts = (*spec.facts, *file_facts(stored), *_differences(spec, stored, folder))
    return replace(spec, stored=stored, facts=facts)


def file_facts(stored: Stored) -> tuple[Fact, ...]:
    """How many tensors the files hold, and what is wrong with a file."""
    note, source = "not used: what it would say comes from the config", stored.source
    count = f"{len(stored.tensors)} tensors"
    there = [Fact("weights", count, source, "sizes and types from the headers")] if stored.tensors else []
    return (*there, *(Fact("weights", f"{at} {what}", at, note, Status.UNKNOWN) for at, what in stored.problems))


def renamed(found: Stored) -> Stored:
    """`found` with the language model of a larger one under the names it has alone."""
    tensors = tuple((_renamed(key), tensor) for key, tensor in found.tensors)
    return replace(found, tensors=tensors, names=tuple(_renamed(name) for name in found.names))


def _renamed(key: str) -> str:
    for outer, inner in _OUTER:
        if key.startswith(outer):
            return inner + key[len(outer) :]
    return key


def _differences(spec: ModelSpec, stored: Stored, folder: Path) -> Iterator[Fact]:
    if not stored.names:
        return
    known, lookup = {*stored.names, *stored.table}, Lookup(stored.names, stored.table)
    claimed: set[str] = set()
    missing, types = [], []
    for item in expected(spec):
        there = lookup.data_keys(item.key)
        if not there:
            missing.append(item.key)
            continue
        claimed.update(there, lookup.counted_keys(item.key))
        dtype = _checked(lookup, item, folder)
        if dtype is not None and dtype != item.dtype:
            types.append(f"{item.key}: {dtype.label}, config: {item.dtype.label}")
    mtp = {key for key in known - claimed if _of_mtp(spec, key)}
    extra = sorted(key for key in known - claimed - mtp if not _BESIDE.search(key))
    if mtp:
        yield Fact("weights.mtp", f"{len(mtp)} tensors", stored.source, "of the MTP modules")
    yield from _fact("weights.missing", missing, stored, "the config has them, the files have not", Status.UNKNOWN)
    yield from _fact("weights.extra", extra, stored, "the files have them, the config has not", Status.UNKNOWN)
    yield from _fact("weights.types", types, stored, "the files decide", Status.READ)


def _fact(name: str, items: list[str], stored: Stored, note: str, status: Status) -> Iterator[Fact]:
    if items:
        more = (f"and {len(items) - SHOWN} more",) if len(items) > SHOWN else ()
        yield Fact(name, (*items[:SHOWN], *more), stored.source, f"{len(items)}: {note}", status)


def _of_mtp(spec: ModelSpec, key: str) -> bool:
    if key.startswith(("mtp.", "model.mtp.")):
        return True
    found = _LAYER.search(key)
    return found is not None and 0 <= int(found[1]) - len(spec.layers) < spec.mtp_modules


def _checked(lookup: Lookup, item: Expected, folder: Path) -> DType | None:
    """The type of a tensor in the files, None when its file is not there. InputError for a shape that contradicts."""
    found = lookup.find(item.key, item.dtype)
    if found is None:
        return None
    whole = tuple(n for n in found.data.shape if n != 1)
    shape = tuple(n for n in item.shape if n != 1)
    own = found.key == item.key and (found.data.elements == item.elements or found.data.dtype in UNPACKED)
    # A projection kept as columns x rows (GPT-2) has the same size and does the same work.
    if own and item.shape and whole not in (shape, shape[::-1]):
        what = f"has shape {list(found.data.shape)} in the file, but the config makes it {list(item.shape)}"
        raise InputError(f"{folder}: {item.key}", what, "a config and weights of one checkpoint")
    try:
        return lookup.type_of(found, item.elements, item.dtype)
    except InputError as error:
        raise InputError(f"{folder}: {error.where}", error.what, error.right) from None


# --- what the config says there is


def expected(spec: ModelSpec) -> Iterator[Expected]:
    """Every checkpoint tensor of a model, in order of layers; a tensor that two weights share once."""
    weights = "auto" if supported(spec.checkpoint) else "bf16"
    phase = Phase.PREFILL if spec.encodes or spec.encoder else Phase.DECODE
    graph = build(replace(spec, stored=None), Workload(phase, 1, 1, 1, weights))
    seen: set[str] = set()
    for kind, layer in numbered(graph.sequence):
        for item in _of_block(graph.block[kind], layer):
            if item.key not in seen:
                seen.add(item.key)
                yield item


def _of_block(block: Block, layer: int) -> Iterable[Expected]:
    by_key: dict[str, list[Tensor]] = {}
    for weight in block.weights:
        by_key.setdefault(weight.key.replace("{layer}", str(layer)), []).append(weight)
    for key, weights in by_key.items():
        elements = sum(weight.elements for weight in weights)
        shape = _shape(block, weights[0], key) if len(weights) == 1 else ()
        if "{expert}" not in key:
            yield Expected(key, shape, elements, weights[0].dtype)
            continue
        count = weights[0].dims[0].size
        for number in range(count):
            name = key.replace("{expert}", str(number))
            yield Expected(name, shape, elements // count, weights[0].dtype)


def _shape(block: Block, weight: Tensor, key: str) -> tuple[int, ...]:
    """Rows and columns of a matrix, the length of a vector; () for what is stored in a layout of its own."""
    dims = [d for d in weight.dims if d.name != "experts" or "{expert}" not in key]
    op = next(op for op in block.ops if weight.name in op.inputs)
    if op.pattern is Pattern.REDUCE and dims and dims[0].name in ("buckets", "ratio"):
        return tuple(d.size for d in dims)
    if weight.name.startswith("b.") or op.pattern is Pattern.REDUCE:
        return (weight.elements,) if len(dims) == len(weight.dims) else ()
    if op.pattern is Pattern.GATHER:
        return (dims[0].size, weight.elements // dims[0].size)
    slides = any(name.startswith("kernel") for name in op.reduced)
    if op.pattern is not Pattern.CONTRACT or (op.routing and "{expert}" not in key) or slides:
        return ()
    rows, columns = 1, 1
    for dim in dims:
        rows, columns = (rows, columns * dim.size) if dim.name in op.reduced else (rows * dim.size, columns)
    return rows, columns
