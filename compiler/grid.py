"""The chip as a grid of cells, and the order in which stages are laid along it.

A cell is one PCU, one PMU and their switch; neighbouring cells have one link each way. A chip tile is a rectangle of
cells, a socket a rectangle of chip tiles. Cells are numbered along a sweep: row by row in turns through a column of
chip tiles, then back through the next one, so that cells with close numbers are close on the chip.
"""

from dataclasses import dataclass
from functools import lru_cache

from compiler.errors import InputError
from compiler.target import Target


@dataclass(frozen=True, slots=True)
class Grid:
    """Width and height in cells of the socket and of a chip tile; `at[n]` is (x, y) of cell n of the sweep."""

    width: int
    height: int
    tile_width: int
    tile_height: int
    at: tuple[tuple[int, int], ...]

    def crosses(self, x: int, y: int, to_x: int, to_y: int) -> bool:
        """Whether the link between two neighbouring cells leaves a chip tile."""
        return x // self.tile_width != to_x // self.tile_width or y // self.tile_height != to_y // self.tile_height

    def memory_port(self, y: int) -> int:
        """Row of the memory port next to row `y`: ports lie at the upper and the lower edge of each chip tile."""
        top = y - y % self.tile_height
        below = top + self.tile_height - 1
        return top if y - top <= below - y else below


@lru_cache(maxsize=64)
def grid_of(target: Target) -> Grid:
    """The grid of a target. InputError where its cells are not its PCUs and PMUs."""
    width, height = target.tiles_across * target.tile_columns, target.tiles_down * target.tile_rows
    cells = width * height
    if not cells == target.pcus == target.pmus:
        what = f"{cells} cells, {target.pcus} PCUs and {target.pmus} PMUs: a cell is one of each"
        right = "tiles_across x tiles_down x tile_columns x tile_rows = pcus = pmus"
        raise InputError(f"target {target.name}, the grid", what, right)
    at: list[tuple[int, int]] = []
    for column in range(target.tiles_across):
        rows = range(height) if column % 2 == 0 else range(height - 1, -1, -1)
        left = column * target.tile_columns
        xs = range(left, left + target.tile_columns)
        for i, y in enumerate(rows):
            # The first column of chip tiles ends beside the next one, the others begin beside the one before.
            rightwards = (height - 1 - i if column == 0 else i) % 2 == 0
            at.extend((x, y) for x in (xs if rightwards else reversed(xs)))
    return Grid(width, height, target.tile_columns, target.tile_rows, tuple(at))
