"""The storage type of a weight as its files have it: where its elements and scales are, and what they come to."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from compiler.errors import InputError
from compiler.frontend.weights import StoredTensor
from compiler.ir.dtype import DType, Element
from compiler.ir.graph import Tensor

#: Where the elements of `module.weight` may be: behind the key, or behind its module.
_DATA = ("", "_blocks", "_packed"), (".qweight",)
#: Scales and zero points, counted with the elements.
_SCALES = (
    ("_scale_inv", "_scale", "_scales", "_scale_2", "_global_scale", "_zero_point", ".absmax", ".nested_absmax"),
    (".scales", ".qzeros", ".SCB", ".scale"),
)
#: The group of each column, counted where the config says that columns are in another order.
_ORDER = ("_g_idx",), (".g_idx",)
_PLAIN = {"F32": DType.FP32, "BF16": DType.BF16, "F16": DType.FP16}
_FOUR = (Element.INT4, Element.FP4, Element.NF4)

Table = Mapping[str, StoredTensor]


@dataclass(frozen=True, slots=True)
class Found:
    """The tensors of one weight: elements, and the keys of all that is counted with them."""

    data: StoredTensor
    keys: tuple[str, ...]


def variants(key: str, suffixes: tuple[tuple[str, ...], tuple[str, ...]]) -> tuple[str, ...]:
    """The keys that `suffixes` give a weight: behind its key, and behind its module."""
    module = key.removesuffix(".weight")
    behind = tuple(module + suffix for suffix in suffixes[1]) if module != key else ()
    return tuple(key + suffix for suffix in suffixes[0]) + behind


def data_keys(key: str) -> tuple[str, ...]:
    """The keys under which the elements of a weight may be."""
    return variants(key, _DATA)


def counted_keys(key: str) -> tuple[str, ...]:
    """The keys of what belongs to a weight besides its elements."""
    return variants(key, _SCALES) + variants(key, _ORDER)


def find(table: Table, key: str, kept: DType) -> Found | None:
    """The tensors of the weight `key`, which the config stores as `kept`; None when its elements are not there."""
    place = next((name for name in data_keys(key) if name in table), None)
    if place is None:
        return None
    beside = variants(key, _SCALES) + (variants(key, _ORDER) if kept.label.endswith("_order") else ())
    return Found(table[place], (place, *(name for name in beside if name in table)))


def stored_type(table: Table, key: str, elements: int, kept: DType) -> DType | None:
    """The storage type of the weight `key` of `elements`, None when it is not there; `kept` where they agree.

    Raises InputError where the bytes of the file cannot be that many elements.
    """
    found = find(table, key, kept)
    if found is None:
        return None
    bits = Fraction(8 * found.data.nbytes, elements)
    element = _element(found.data.dtype, bits, kept)
    if element is None:
        what = f"has {list(found.data.shape)} of {found.data.dtype} in the file, but the config makes it {elements:,}"
        raise InputError(found.keys[0], f"{what} elements", "a config and weights of one checkpoint")
    bits = Fraction(8 * sum(table[name].nbytes for name in found.keys), elements)
    if (element, bits) == (kept.element, kept.bits):
        return kept
    if len(found.keys) == 1 and found.data.dtype in _PLAIN:
        return _PLAIN[found.data.dtype]
    group, rows = (kept.group, kept.rows) if element is kept.element else _groups(table, found, elements)
    return DType(f"{element.label}@{bits}", element, bits, group, rows)


def _element(name: str, bits: Fraction, kept: DType) -> Element | None:
    """What an element is by the type its container has and the bits it takes there."""
    if name in _PLAIN:
        return _PLAIN[name].element if bits == _PLAIN[name].bits else None
    if name.startswith("F8"):
        return Element.FP8 if bits == 8 else None
    if bits == 4:
        return kept.element if kept.element in _FOUR else Element.INT4
    return Element.INT8 if bits == 8 else None


def _groups(table: Table, found: Found, elements: int) -> tuple[int, int]:
    """(columns, rows) that share a scale, by the shape of the largest scale tensor; 1 where nothing is shared."""
    scales = [table[name] for name in found.keys[1:]]
    if len(found.data.shape) != 2 or not scales:
        return 1, 1
    rows, largest = found.data.shape[0], max(scales, key=lambda tensor: tensor.elements)
    if len(largest.shape) != 2 or not largest.elements:
        return 1, 1
    columns, (down, across) = elements // rows, largest.shape
    return (-(-columns // across) if across > 1 else 1), (-(-rows // down) if down > 1 else 1)


def stored_types(table: Table, weights: tuple[Tensor, ...], layer: int) -> dict[str, DType]:
    """Checkpoint key (with {layer}, {expert}) -> type of the file, for the `weights` of a block that differ from it.

    Raises InputError where a tensor contradicts the config, or the experts of a layer are stored in different ways.
    """
    sizes: dict[str, int] = {}
    for weight in weights:
        sizes[weight.key] = sizes.get(weight.key, 0) + weight.elements
    out = {}
    for weight in weights:
        types = _of_each(table, weight, sizes[weight.key], layer)
        if len(types) > 1:
            what = f"has experts stored as {' and as '.join(dtype.label for dtype in types)}"
            raise InputError(weight.key.replace("{layer}", str(layer)), what, "all experts of a layer in one type")
        if types and types[0] != weight.dtype:
            out[weight.key] = types[0]
    return out


def _of_each(table: Table, weight: Tensor, elements: int, layer: int) -> list[DType]:
    """The types of a weight in the files: one, or of experts in single tensors as many as differ."""
    key = weight.key.replace("{layer}", str(layer))
    count = weight.dims[0].size if "{expert}" in key else 1
    names = (key.replace("{expert}", str(n)) for n in range(count))
    types = (stored_type(table, name, elements // count, weight.dtype) for name in names)
    return list(dict.fromkeys(dtype for dtype in types if dtype is not None))
