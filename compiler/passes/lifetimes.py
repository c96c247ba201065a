"""When buffers of a section are live, and which of them may share PMUs.

Never kinder than the machine: with several loop tiles in flight everything is live all the time. With one, a buffer
may take a PMU whose buffers are surely done with: every stage that uses them has finished before the taker's stage can
start, whatever the rates (`surely_done` follows the rules by which stages start, not their order in the section).
"""

from compiler.placement import Buffer, BufferKind
from compiler.program import Section


def surely_done(section: Section) -> tuple[int, ...]:
    """For each stage, a bit mask of the stages that have finished when it starts.

    A stage waits for its producers and so for theirs; an element-wise one starts with the first of their outputs, so
    only what its producers had waited for is done.
    """
    before: list[int] = []
    done: list[int] = []
    for stage in section.stages:
        finished = started = 0
        for p in stage.preds:
            finished |= before[p] | 1 << p
            started |= done[p]
        before.append(finished)
        done.append(started if stage.streams else finished)
    return tuple(done)


def users(buffer: Buffer) -> int:
    """Bit mask of the stages that write or read a buffer."""
    mask = 1 << buffer.stage
    for reader in buffer.readers:
        mask |= 1 << reader
    return mask


def always(buffer: Buffer, section: Section) -> bool:
    """Whether a buffer is live from the first stage on to the last: all are with several loop tiles in flight; else
    what is there before the first stage, which an output is that the iteration before has left."""
    if section.tiles > 1 or not buffer.lasting:
        return section.tiles > 1
    return buffer.kind is not BufferKind.OUTPUT or section.stages[buffer.stage].carried_bytes > 0


def live(buffer: Buffer, section: Section) -> tuple[int, int]:
    """First and last stage during which a buffer is live."""
    end = len(section.stages) - 1
    if always(buffer, section):
        return 0, end
    return buffer.stage, end if buffer.lasting else max([buffer.stage, *buffer.readers])


def share(section: Section, pmus: list[int]) -> list[list[int]]:
    """Numbers of the PMUs of each buffer, which needs `pmus[b]`: the fewest that first fit gives, from 0 on."""
    done = surely_done(section)
    everyone = (1 << len(section.stages)) - 1
    used: list[int] = []  # by PMU: the stages that must have finished before it is free
    out: list[list[int]] = [[] for _ in pmus]
    for b in sorted(range(len(pmus)), key=lambda b: (section.buffers[b].stage, b)):
        buffer = section.buffers[b]
        fixed = always(buffer, section)
        free = () if fixed else (n for n, mask in enumerate(used) if not mask & ~done[buffer.stage])
        taken = [n for n, _ in zip(free, range(pmus[b]), strict=False)]
        taken.extend(range(len(used), len(used) + pmus[b] - len(taken)))
        used.extend([0] * (taken[-1] + 1 - len(used)) if taken else [])
        mask = everyone if fixed or buffer.lasting else users(buffer)
        for n in taken:
            used[n] |= mask
        out[b] = taken
    return out
