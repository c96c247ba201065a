"""Storage types. Sizes are exact: scales and zero points are counted in the bits of an element.

A `Scheme` says how matrices are stored (element, groups, scales); a `DType` is what that comes to for one tensor. Both
are linear in the elements, so that parts of a tensor add up to it; what a scheme stores once a matrix is spread evenly.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import ClassVar


class Element(Enum):
    """What one element is: name and bits. INTn, FP4 and NF4 mean something only with their scales."""

    FP32 = ("fp32", 32)
    INT32 = ("int32", 32)
    BF16 = ("bf16", 16)
    FP16 = ("fp16", 16)
    INT8 = ("int8", 8)
    FP8 = ("fp8", 8)
    INT4 = ("int4", 4)
    FP4 = ("fp4", 4)  # e2m1
    NF4 = ("nf4", 4)  # an index into 16 quantiles (QLoRA, arXiv 2305.14314, section 3)

    def __init__(self, label: str, bits: int) -> None:
        self.label = label
        self.bits = bits


@dataclass(frozen=True, slots=True)
class DType:
    """The storage type of a tensor: name, element, exact bits an element with scales and zero points included.

    group: elements along a contracted dimension that share a scale, of which a shard must hold whole ones; rows: the
    same along the others. 1 where no cut can split a group.
    """

    label: str
    element: Element
    bits: Fraction
    group: int = 1
    rows: int = 1

    FP32: ClassVar["DType"]
    INT32: ClassVar["DType"]
    BF16: ClassVar["DType"]
    FP16: ClassVar["DType"]
    INT8: ClassVar["DType"]
    FP8: ClassVar["DType"]
    FP8_BLOCK: ClassVar["DType"]
    MXFP4: ClassVar["DType"]

    def nbytes(self, elements: int) -> int:
        """Bytes that `elements` elements take, rounded up to a whole byte."""
        return -(-elements * self.bits.numerator // (self.bits.denominator * 8))


@dataclass(frozen=True, slots=True)
class Scheme:
    """How a matrix is stored. Groups of `rows` x `columns` elements share a scale, None: all of that side.

    scale, zero: bits of a group's scale and zero point (0: none). flat: groups of `columns` run through the matrix as
    one row after another. nested: that many scales share another FP32 scale. matrix, column: further bits a matrix and
    a contracted index.
    """

    label: str
    element: Element
    scale: int = 0
    zero: int = 0
    rows: int | None = 1
    columns: int | None = None
    flat: bool = False
    nested: int = 0
    matrix: int = 0
    column: int = 0

    def __post_init__(self) -> None:
        if min(1 if n is None else n for n in (self.rows, self.columns)) < 1:
            raise ValueError(f"scheme {self.label}: a group of {self.rows} x {self.columns}")
        if min(self.scale, self.zero, self.nested, self.matrix, self.column) < 0:
            raise ValueError(f"scheme {self.label}: bits below 0")

    def total_bits(self, rows: int, columns: int) -> int:
        """Bits of a matrix of `rows` x `columns` (the contracted side); a group that it cuts is stored whole."""
        groups = -(-rows // (self.rows or rows)) * -(-columns // (self.columns or columns))
        if self.flat:
            groups = -(-rows * columns // (self.columns or rows * columns))
        outer = 32 * -(-groups // self.nested) if self.nested else 0
        once = self.matrix + self.column * columns
        return self.element.bits * rows * columns + (self.scale + self.zero) * groups + outer + once

    def fitted(self, rows: int, columns: int) -> DType:
        """The storage type of matrices of `rows` x `columns`."""
        bits = Fraction(self.total_bits(rows, columns), rows * columns)
        scaled = bool(self.scale or self.zero)
        group = self.columns if scaled and self.columns else 1
        made = DType(self.label, self.element, bits, group, (self.rows or 1) if scaled else 1)
        return next((known for known in _NAMED if known == made), made)


def blended(parts: Iterable[tuple[DType, int]]) -> DType:
    """The type of a tensor put together from (type, elements) of one label: the same bytes."""
    pairs = list(parts)
    first = pairs[0][0]
    if any(dtype.label != first.label for dtype, _ in pairs):
        raise ValueError(f"types of different kinds: {', '.join(dtype.label for dtype, _ in pairs)}")
    if all(dtype == first for dtype, _ in pairs):
        return first
    bits = sum((dtype.bits * n for dtype, n in pairs), Fraction(0)) / sum(n for _, n in pairs)
    return DType(first.label, first.element, bits, first.group, first.rows)


def _plain(element: Element) -> DType:
    return DType(element.label, element, Fraction(element.bits))


DType.FP32 = _plain(Element.FP32)
DType.INT32 = _plain(Element.INT32)
DType.BF16 = _plain(Element.BF16)
DType.FP16 = _plain(Element.FP16)
DType.INT8 = _plain(Element.INT8)
DType.FP8 = _plain(Element.FP8)
#: e4m3 with one FP32 scale a 128 x 128 block (DeepSeek-V3 technical report, section 3.3).
DType.FP8_BLOCK = DType("fp8_block", Element.FP8, 8 + Fraction(32, 128 * 128), 128, 128)
#: e2m1 with one 8-bit scale a group of 32 (OCP Microscaling Formats v1.0).
DType.MXFP4 = DType("mxfp4", Element.FP4, 4 + Fraction(8, 32), 32)

_NAMED = (
    DType.FP32, DType.INT32, DType.BF16, DType.FP16, DType.INT8, DType.FP8, DType.FP8_BLOCK, DType.MXFP4,
)  # fmt: skip


def named(label: str) -> DType | None:
    """The type with a name of its own that is called `label`."""
    return next((dtype for dtype in _NAMED if dtype.label == label), None)


#: Schemes with a name of their own.
BF16 = Scheme("bf16", Element.BF16)
FP16 = Scheme("fp16", Element.FP16)
FP32 = Scheme("fp32", Element.FP32)
FP8 = Scheme("fp8", Element.FP8)
FP8_BLOCK = Scheme("fp8_block", Element.FP8, scale=32, rows=128, columns=128)
MXFP4 = Scheme("mxfp4", Element.FP4, scale=8, columns=32)
#: e2m1, an e4m3 scale a group of 16, an FP32 scale a matrix (NVIDIA ModelOpt, NVFP4).
NVFP4 = Scheme("nvfp4", Element.FP4, scale=8, columns=16, matrix=32)
