"""Where a section's stages and buffers lie on the chip, as data: what `place` adds to a program.

Cells, PCUs and PMUs are numbered along the sweep of `compiler.grid`; a range is (first, count). Bytes are of one loop
tile unless they say otherwise, on one link in one direction.
"""

from dataclasses import dataclass
from enum import StrEnum

Range = tuple[int, int]


class BufferKind(StrEnum):
    """What a buffer holds."""

    OUTPUT = "output"  # what its stage gives, for its readers
    STREAM = "stream"  # what comes from outside the section
    WEIGHTS = "weights"  # weights, held or in flight
    PREFETCH = "prefetch"  # weights that arrive ahead of their stages


@dataclass(slots=True)
class Buffer:
    """SRAM that a section needs, before it has a place. Not frozen, for construction speed on the tuner's hot path.

    stage: whose buffer it is (0 for prefetch, which belongs to the section). nbytes: all copies. tile_bytes: what is
    read from it a loop tile; made_bytes: what is written to it (less, where each tile adds to a whole). copies: loop
    tiles (or chunks) that lie there at once. readers: further stages that read it. lasting: it is live to the end of
    the section, whatever its readers; weights and prefetch from its beginning.
    """

    name: str
    stage: int
    kind: BufferKind
    nbytes: int
    tile_bytes: int
    made_bytes: int
    copies: int
    readers: tuple[int, ...]
    lasting: bool


@dataclass(frozen=True, slots=True)
class BufferPlace:
    """A buffer in its PMUs.

    pmus: its PMUs; pmu_bytes: bytes in each of them (fewer in the last). Even loop tiles begin at bank 0 of its first
    PMU, odd ones at bank `odd[1]` of its PMU number `odd[0]` in `pmus`, so that one tile is written while another is
    read from other banks. striped: every PMU has its share of each loop tile (or else they are filled one by one).
    first, last: stages during which it is live.
    """

    name: str
    stage: int
    kind: BufferKind
    nbytes: int
    pmus: tuple[Range, ...]
    pmu_bytes: int
    odd: tuple[int, int]
    striped: bool
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Route:
    """What one stage sends another a loop tile, by name; empty for what is outside: memory, other sockets, the
    iteration before. hops: of its longest branch."""

    producer: str
    consumer: str
    nbytes: int
    branches: int
    hops: int


@dataclass(frozen=True, slots=True)
class StagePlace:
    """A stage's PCUs, and what its place costs.

    hops: switches from its producers' buffers over its farthest PCU to its own buffer. link_bytes, crossing_bytes:
    that pass the slowest link of its routes inside chip tiles, and between them, before its own have passed, beside all
    that may run at the same time.
    port_bytes: most bytes that one PMU of its buffers takes or gives.
    """

    pcus: tuple[Range, ...]
    hops: int
    link_bytes: int
    crossing_bytes: int
    port_bytes: int


@dataclass(frozen=True, slots=True)
class SectionPlace:
    """A section on the grid, and how good its place is.

    link_bytes, crossing_bytes: of the fullest link inside and between chip tiles in the steady state; worst_link: the
    one that takes longest. byte_hops: bytes times links, of all routes. streams: most streams that share a link.
    """

    stages: tuple[StagePlace, ...]
    buffers: tuple[BufferPlace, ...]
    routes: tuple[Route, ...]
    link_bytes: int
    crossing_bytes: int
    worst_link: str
    byte_hops: int
    streams: int
