"""What a kernel knows of the loop tile and the socket it runs for."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from compiler.ir.graph import Op, Phase, Role, Tensor
from compiler.ir.mesh import Split
from simulator.functional.named import Named
from simulator.functional.numbers import LayerNumbers


@dataclass(frozen=True, slots=True)
class Tile:
    """One op on one loop tile of one socket.

    positions, sequences: of each token of the tile, its place in its sequence and the number of the sequence, counted
    from the first sequence of the tile. rows: cached rows a sequence has by the end of the step. step: context rows a
    step of streaming softmax; expert_rows: rows of an expert's tile. starts: where the socket's share of a dimension
    begins; splits: how it is split. first: whether this socket is the one that adds what a partial sum has once. now:
    tensors of the block that persist between tiles, as they are for the sequences of this tile.
    """

    op: Op
    phase: Phase
    numbers: LayerNumbers
    positions: Any
    sequences: Any
    rows: int
    step: int
    expert_rows: int
    splits: Mapping[str, Split]
    starts: Mapping[str, int]
    first: bool
    tensors: Mapping[str, Tensor]
    now: Mapping[str, Named]

    def weights(self, given: Mapping[str, Named]) -> dict[str, Named]:
        """Inputs that are weights."""
        return {n: v for n, v in given.items() if self.tensors[n].role is Role.WEIGHT}

    def flowing(self, given: Mapping[str, Named]) -> dict[str, Named]:
        """Inputs that are none."""
        return {n: v for n, v in given.items() if self.tensors[n].role is not Role.WEIGHT}

    def start(self, dim: str) -> int:
        """The first element along `dim` that the op works on here."""
        return self.starts.get(dim, 0)

    def whole(self, dim: str, local: int) -> int:
        """Elements along `dim` on all sockets; `local` where it is not split."""
        return self.splits[dim].whole if dim in self.splits else local
