"""Storage types. Sizes are exact: block scales are counted in the bits of an element."""

from enum import Enum
from fractions import Fraction


class DType(Enum):
    """A storage type: name and exact bits an element, block scales included.

    FP8_BLOCK: e4m3 with one FP32 scale a 128 x 128 block (DeepSeek-V3 technical report, section 3.3).
    MXFP4: e2m1 with one 8-bit scale a group of 32 (OCP Microscaling Formats v1.0).
    """

    FP32 = ("fp32", Fraction(32), 1)
    INT32 = ("int32", Fraction(32), 1)
    BF16 = ("bf16", Fraction(16), 1)
    FP16 = ("fp16", Fraction(16), 1)
    INT8 = ("int8", Fraction(8), 1)
    FP8 = ("fp8", Fraction(8), 1)
    FP8_BLOCK = ("fp8_block", 8 + Fraction(32, 128 * 128), 128)
    MXFP4 = ("mxfp4", 4 + Fraction(8, 32), 32)

    def __init__(self, label: str, bits: Fraction, group: int) -> None:
        self.label = label
        self.bits = bits
        #: Elements along a dimension that share a scale: a shard must hold whole groups.
        self.group = group
        self._num = bits.numerator
        self._den = bits.denominator * 8

    def nbytes(self, elements: int) -> int:
        """Bytes that `elements` elements take, rounded up to a whole byte."""
        return -(-elements * self._num // self._den)
