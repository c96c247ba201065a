"""Refusals as data: which rule, about what, by how much, and what would make it fit."""

from dataclasses import dataclass
from enum import StrEnum

from compiler.ir.actions import Action


class Code(StrEnum):
    """Stable codes of every way the compiler says no."""

    UNKNOWN_BLOCK = "UNKNOWN_BLOCK"
    UNKNOWN_OP = "UNKNOWN_OP"
    UNKNOWN_DIM = "UNKNOWN_DIM"
    HOLE = "HOLE"
    REWRITE_NOT_APPLICABLE = "REWRITE_NOT_APPLICABLE"
    SHARD_ILLEGAL = "SHARD_ILLEGAL"
    SHARD_UNEVEN = "SHARD_UNEVEN"
    SHARD_BLOCK_SCALE = "SHARD_BLOCK_SCALE"
    SHARD_OVER_SOCKETS = "SHARD_OVER_SOCKETS"
    SHARD_MESH = "SHARD_MESH"
    FUSE_ORDER = "FUSE_ORDER"
    LOOP_NOT_REPEATED = "LOOP_NOT_REPEATED"
    LOOP_BODY_NOT_ONE_SECTION = "LOOP_BODY_NOT_ONE_SECTION"
    NOTHING_HERE = "NOTHING_HERE"
    EXPERTS_RANGE = "EXPERTS_RANGE"
    PLACE_ILLEGAL = "PLACE_ILLEGAL"
    SECTION_OVER_PCUS = "SECTION_OVER_PCUS"
    SECTION_OVER_SRAM = "SECTION_OVER_SRAM"
    HBM_OVER = "HBM_OVER"
    DDR_OVER = "DDR_OVER"
    LINK_OVER_STREAMS = "LINK_OVER_STREAMS"


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One refusal. `demand` and `bound` are in `unit`; `gap` is what is missing (0 where there is no quantity)."""

    code: Code
    subject: str
    rule: str
    demand: int = 0
    bound: int = 0
    unit: str = ""
    levers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.levers:
            raise ValueError(f"{self.code} {self.subject}: a refusal says what to try")

    @property
    def gap(self) -> int:
        return max(0, self.demand - self.bound)

    def __str__(self) -> str:
        text = f"{self.code} {self.subject}: {self.rule}"
        if self.unit:
            over = f" (over by {quantity(self.gap, self.unit)})" if self.gap else ""
            text += f": needs {quantity(self.demand, self.unit)}, has {quantity(self.bound, self.unit)}{over}"
        return f"{text}; try: {' | '.join(self.levers)}"


#: What a pass refused: the action at fault (None where several together are) and why.
Refusals = tuple[tuple[Action | None, Diagnostic], ...]
#: Codes that mean "this action has nothing to act on here": dropped for `*` unless no block has it.
NOT_HERE = frozenset(
    {Code.REWRITE_NOT_APPLICABLE, Code.UNKNOWN_OP, Code.UNKNOWN_DIM, Code.LOOP_NOT_REPEATED, Code.NOTHING_HERE}
)


def quantity(value: int, unit: str) -> str:
    """`value` with its unit, bytes in binary units."""
    if unit != "bytes":
        return f"{value:,} {unit}"
    for step, name in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if abs(value) >= step:
            return f"{value / step:,.1f} {name}"
    return f"{value:,} B"
