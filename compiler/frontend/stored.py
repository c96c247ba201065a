"""The storage type of a weight as its files have it: where its elements and scales are, and what they come to."""

from collections.abc import Iterable, Mapping
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
Suffixes = tuple[tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Found:
    """The tensors of one weight: its elements first, then all that is counted with them; `key`: of the elements."""

    key: str
    tensors: tuple[StoredTensor, ...]
    keys: tuple[str, ...]

    @property
    def data(self) -> StoredTensor:
        return self.tensors[0]


class Lookup:
    """Finds the tensors of weights in the files of a model. Suffixes that no key has are not looked for."""

    def __init__(self, names: Iterable[str], table: Table) -> None:
        self.table = table
        self._names = frozenset(names) | table.keys()
        self._data, self._scales, self._order = (self._there(suffixes) for suffixes in (_DATA, _SCALES, _ORDER))
        self._types: dict[tuple[tuple[StoredTensor, ...], int, DType], DType | None] = {}

    def _there(self, suffixes: Suffixes) -> Suffixes:
        every = tuple(suffix for both in suffixes for suffix in both if suffix)
        ends = [name for name in self._names if name.endswith(every)]
        seen = {suffix for suffix in every if any(name.endswith(suffix) for name in ends)} | {""}
        behind, module = (tuple(suffix for suffix in both if suffix in seen) for both in suffixes)
        return behind, module

    def data_keys(self, key: str) -> tuple[str, ...]:
        """The keys, of files that are not there too, under which the elements of a weight are."""
        return tuple(name for name in variants(key, self._data) if name in self._names)

    def counted_keys(self, key: str) -> tuple[str, ...]:
        """The keys of what belongs to a weight besides its elements."""
        names = variants(key, self._scales) + variants(key, self._order)
        return tuple(name for name in names if name in self._names)

    def find(self, key: str, kept: DType) -> Found | None:
        """The tensors of the weight `key`, which the config stores as `kept`; None when its elements are not there."""
        place = next((name for name in variants(key, self._data) if name in self.table), None)
        if place is None:
            return None
        beside = variants(key, self._scales)
        if kept.label.endswith("_order"):
            beside += variants(key, self._order)
        keys = (place, *(name for name in beside if name in self.table))
        return Found(place, tuple(self.table[name] for name in keys), keys)

    def type_of(self, found: Found, elements: int, kept: DType) -> DType:
        """The storage type of a weight of `elements`; `kept` where config and files agree.

        Raises InputError where the bytes of the file cannot be that many elements.
        """
        place = (found.tensors, elements, kept)
        if place not in self._types:
            self._types[place] = stored_type(found.tensors, elements, kept)
        dtype = self._types[place]
        if dtype is None:
            shape, name = list(found.data.shape), found.data.dtype
            what = f"has {shape} of {name} in the file, but the config makes it {elements:,} elements"
            raise InputError(found.key, what, "a config and weights of one checkpoint")
        return dtype


def variants(key: str, suffixes: Suffixes) -> tuple[str, ...]:
    """The keys that `suffixes` give a weight: behind its key, and behind its module."""
    behind = tuple([key + suffix for suffix in suffixes[0]])
    if not suffixes[1] or not key.endswith(".weight"):
        return behind
    module = key.removesuffix(".weight")
    return behind + tuple([module + suffix for suffix in suffixes[1]])


def stored_type(tensors: tuple[StoredTensor, ...], elements: int, kept: DType) -> DType | None:
    """The storage type of a weight whose elements and scales are `tensors`; None where they cannot be `elements`."""
    data = tensors[0]
    element = _element(data.dtype, Fraction(8 * data.nbytes, elements), kept)
    if element is None:
        return None
    bits = Fraction(8 * sum(tensor.nbytes for tensor in tensors), elements)
    if (element, bits) == (kept.element, kept.bits):
        return kept
    if len(tensors) == 1 and data.dtype in _PLAIN:
        return _PLAIN[data.dtype]
    group, rows = (kept.group, kept.rows) if element is kept.element else _groups(tensors, elements)
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


def _groups(tensors: tuple[StoredTensor, ...], elements: int) -> tuple[int, int]:
    """(columns, rows) that share a scale, by the shape of the largest scale tensor; 1 where nothing is shared."""
    data, scales = tensors[0], tensors[1:]
    if len(data.shape) != 2 or not scales:
        return 1, 1
    rows, largest = data.shape[0], max(scales, key=lambda tensor: tensor.elements)
    if len(largest.shape) != 2 or not largest.elements:
        return 1, 1
    columns, (down, across) = elements // rows, largest.shape
    return (-(-columns // across) if across > 1 else 1), (-(-rows // down) if down > 1 else 1)


def stored_types(lookup: Lookup, weights: tuple[Tensor, ...], layer: int) -> dict[str, DType]:
    """Checkpoint key (with {layer}, {expert}) -> type of the file, for the `weights` of a block that differ from it.

    Raises InputError where a tensor contradicts the config, or the experts of a layer are stored in different ways.
    """
    sizes: dict[str, int] = {}
    for weight in weights:
        sizes[weight.key] = sizes.get(weight.key, 0) + weight.elements
    out = {}
    for weight in weights:
        types = _of_each(lookup, weight, sizes[weight.key], layer)
        if len(types) > 1:
            what = f"has experts stored as {' and as '.join(dtype.label for dtype in types)}"
            raise InputError(weight.key.replace("{layer}", str(layer)), what, "all experts of a layer in one type")
        if types and types[0] != weight.dtype:
            out[weight.key] = types[0]
    return out


def _of_each(lookup: Lookup, weight: Tensor, elements: int, layer: int) -> list[DType]:
    """The types of a weight in the files: one, or of experts in single tensors as many as differ."""
    key = weight.key.replace("{layer}", str(layer))
    count = weight.dims[0].size if "{expert}" in key else 1
    found = [lookup.find(key.replace("{expert}", str(n)), weight.dtype) for n in range(count)]
    types = [lookup.type_of(item, elements // count, weight.dtype) for item in found if item is not None]
    return list(dict.fromkeys(types))
