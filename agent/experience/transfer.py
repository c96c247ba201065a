"""Move a schedule to another model by the roles of its ops.

Block kinds are matched by mixer and ffn; every action of the matched kind is tried on the new graph's own starting
schedule, in order, and kept if the result still compiles. What does not apply is dropped and counted, never bent.
"""

from dataclasses import dataclass, replace

from compiler.ir.actions import ALL, Action, Cut, Fuse, Loop, SetLaunch
from compiler.ir.graph import Graph
from compiler.ir.schedule import Schedule
from compiler.pipeline import compile_schedule
from compiler.program import Program
from compiler.target import Target


@dataclass(frozen=True, slots=True)
class Transfer:
    """A schedule for the new graph, and how many edits of the source were kept and dropped."""

    schedule: Schedule
    kept: int
    dropped: int


def transfer(source: Schedule, graph: Graph, target: Target, base: Schedule) -> Transfer:
    """`base` (a schedule of `graph` that compiles) with the edits of `source` that apply.

    Sections and loops stay those of `base`: they follow from the new model's block order and size.
    """
    known = tuple(dict.fromkeys(getattr(a, "block", ALL) for a in source.actions))
    schedule, kept, dropped = base, 0, 0
    for action in _moved(source, graph, known):
        if action in schedule.actions:
            continue
        candidate = schedule.with_actions(action)
        if isinstance(compile_schedule(graph, candidate, target), Program):
            schedule, kept = candidate, kept + 1
        else:
            dropped += 1
    return Transfer(schedule, kept, dropped)


def _moved(source: Schedule, graph: Graph, known: tuple[str, ...]) -> list[Action]:
    """The source's actions in the new graph's block kinds."""
    out: list[Action] = []
    match = {b.kind: like(b.kind, known) for b in graph.blocks}
    for action in source.actions:
        if isinstance(action, Fuse | Cut | Loop):
            continue
        block = getattr(action, "block", ALL)
        if isinstance(action, SetLaunch) or block == ALL:
            out.append(action)
        else:
            out.extend(replace(action, block=kind) for kind, origin in match.items() if origin == block)  # type: ignore[call-arg]
    return out


def like(kind: str, known: tuple[str, ...]) -> str | None:
    """The kind of `known` with the same role: itself, else the one that shares most of mixer and ffn; None if nothing.

    Kinds are named mixer_ffn, with a number behind where two kinds of one model would share a name.
    """
    if kind in known:
        return kind
    parts = kind.split("_")[:2]
    if len(parts) < 2:
        return None

    def shared(other: str) -> int:
        theirs = other.split("_")[:2]
        return sum(weight for mine, its, weight in zip(parts, theirs, (1, 2), strict=False) if mine == its)

    best = max((o for o in known if "_" in o), key=shared, default=None)
    return best if best is not None and shared(best) else None
