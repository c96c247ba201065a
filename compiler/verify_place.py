"""Invariants of a place on the grid. A failure here is the compiler's fault and raises."""

from collections.abc import Iterable

from compiler.passes.banks import stripe_banks
from compiler.passes.lifetimes import always, surely_done, users
from compiler.placement import Buffer, BufferKind, BufferPlace, Range
from compiler.program import Section
from compiler.target import Target
from compiler.verify import CompilerFault


def verify_places(sections: Iterable[Section], target: Target) -> None:
    """Sections that are on the chip together: every unit belongs to one stage, every buffer fits its PMUs with even and
    odd loop tiles in different banks, and no PMU holds two buffers that are live at the same time."""
    taken: dict[int, str] = {}
    held: set[int] = set()
    for section in sections:
        place = section.place
        if place is None or len(place.stages) != len(section.stages) or len(place.buffers) != len(section.buffers):
            raise CompilerFault(f"{section.name}: not every stage and buffer has a place")
        for stage, at in zip(section.stages, place.stages, strict=True):
            mine = cells_of(at.pcus)
            if len(mine) != stage.pcus:
                raise CompilerFault(f"{section.name} {stage.op}: {len(mine)} of {stage.pcus} PCUs are placed")
            for cell in mine:
                if not 0 <= cell < target.pcus or cell in taken:
                    raise CompilerFault(f"{section.name} {stage.op}: PCU {cell} belongs to {taken.get(cell)}")
                taken[cell] = f"{section.name} {stage.op}"
        mine = _verify_buffers(section, place.buffers, target)
        if held & mine:
            raise CompilerFault(f"{section.name}: PMUs {sorted(held & mine)[:3]} are another section's")
        held |= mine


def cells_of(ranges: tuple[Range, ...]) -> set[int]:
    """The numbers in ranges of (first, count)."""
    return {n for first, count in ranges for n in range(first, first + count)}


def _verify_buffers(section: Section, places: tuple[BufferPlace, ...], target: Target) -> set[int]:
    done = surely_done(section)
    placed = [cells_of(at.pmus) for at in places]
    every = set().union(*placed)
    shared = len(every) < sum(map(len, placed))
    by_pmu: dict[int, list[Buffer]] = {}
    for buffer, at, cells in zip(section.buffers, places, placed, strict=True):
        if len(cells) * target.pmu_bytes < buffer.nbytes or not all(0 <= c < target.pmus for c in cells):
            raise CompilerFault(f"{section.name} {buffer.name}: {buffer.nbytes} bytes in PMUs {at.pmus}")
        _verify_banks(section, buffer, at, len(cells), target)
        for cell in sorted(cells) if shared else ():
            for other in by_pmu.get(cell, ()):
                if not (_after(buffer, other, section, done) or _after(other, buffer, section, done)):
                    raise CompilerFault(f"{section.name}: {other.name} and {buffer.name} are live in PMU {cell}")
            by_pmu.setdefault(cell, []).append(buffer)
    return every


def _verify_banks(section: Section, buffer: Buffer, at: BufferPlace, pmus: int, target: Target) -> None:
    """Even and odd loop tiles begin, and end, in different banks of the PMUs."""
    if buffer.copies < 2:
        return
    even, odd = stripe_banks(buffer.nbytes, buffer.copies, pmus if at.striped else 1, target)
    begin = at.odd[0] * target.pmu_banks + at.odd[1]
    room = target.pmu_banks if at.striped else pmus * target.pmu_banks
    if begin < even or begin + odd > room:
        raise CompilerFault(f"{section.name} {buffer.name}: even and odd loop tiles share a bank")


def _after(later: Buffer, earlier: Buffer, section: Section, done: tuple[int, ...]) -> bool:
    """Whether everyone who uses `earlier` has finished when `later` begins."""
    if always(later, section) or always(earlier, section):
        return False
    lasting = earlier.lasting and earlier.kind is BufferKind.OUTPUT
    return not lasting and not users(earlier) & ~done[later.stage]
