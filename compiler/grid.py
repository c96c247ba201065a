"""The chip as a grid of cells, and the order in which stages are laid along it.

A cell is one PCU, one PMU and their switch; neighbouring cells have one link each way. A chip tile is a rectangle of
cells, a socket a rectangle of chip tiles. Cells are numbered along a sweep: row by row in turns through a column of
chip tiles, then back through the next one, so that cells with close numbers are close on the chip.
"""

from dataclasses import dataclass
from functools import lru_cache

from compiler.errors import InputError
from compiler.target import Target

#: A link is the cell that it leaves (y * width + x), times four, plus its direction.
RIGHT, LEFT, DOWN, UP = 0, 1, 2, 3
#: How a direction changes x and y.
STEP = ((1, 0), (-1, 0), (0, 1), (0, -1))


@dataclass(frozen=True, slots=True)
class Grid:
    """Width and height in cells of the socket, height of a chip tile; `at[n]` is (x, y) of cell n of the sweep.

    leaving: links that leave a chip tile for the next one.
    """

    width: int
    height: int
    tile_height: int
    at: tuple[tuple[int, int], ...]
    leaving: frozenset[int]

    def nearer_top(self, y: int) -> bool:
        """Whether row `y` is nearer to the upper edge of its chip tile, where memory ports are, than to the lower."""
        return 2 * (y % self.tile_height) < self.tile_height

    def across(self, y: int, x: int, to: int) -> range:
        """Links along row `y` from column `x` to column `to`."""
        row = y * self.width
        if to >= x:
            return range((row + x) * 4 + RIGHT, (row + to) * 4 + RIGHT, 4)
        return range((row + x) * 4 + LEFT, (row + to) * 4 + LEFT, -4)

    def along(self, x: int, y: int, to: int) -> range:
        """Links along column `x` from row `y` to row `to`."""
        step = 4 * self.width
        if to >= y:
            return range(y * step + 4 * x + DOWN, to * step + 4 * x + DOWN, step)
        return range(y * step + 4 * x + UP, to * step + 4 * x + UP, -step)

    def link_name(self, link: int) -> str:
        """`(x,y)->(x,y)`."""
        cell, direction = divmod(link, 4)
        y, x = divmod(cell, self.width)
        return f"({x},{y})->({x + STEP[direction][0]},{y + STEP[direction][1]})"


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
    leaving = [
        (y * width + x) * 4 + direction
        for x, y in at
        for direction, (dx, dy) in enumerate(STEP)
        if 0 <= x + dx < width and 0 <= y + dy < height
        if x // target.tile_columns != (x + dx) // target.tile_columns
        or y // target.tile_rows != (y + dy) // target.tile_rows
    ]
    return Grid(width, height, target.tile_rows, tuple(at), frozenset(leaving))
