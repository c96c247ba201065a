"""A schedule: an ordered tuple of actions, in canonical order, with its identity."""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import cached_property

from compiler.canonical import identity
from compiler.ir.actions import RANK, Action, Cut, Fuse, Hole


@dataclass(frozen=True)
class Schedule:
    """Actions in canonical order: by family, then as written; of actions on one subject only the last is kept.

    fuse and cut keep their mutual order, since a later one changes what an earlier one did.
    """

    actions: tuple[Action, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "actions", _canonical(self.actions))

    @cached_property
    def holes(self) -> tuple[tuple[int, str, Hole], ...]:
        """Every hole as (index of its action, field, hole)."""
        return tuple(
            (i, f.name, value)
            for i, action in enumerate(self.actions)
            for f in fields(action)
            if isinstance(value := getattr(action, f.name), Hole)
        )

    @cached_property
    def text(self) -> str:
        from compiler.ir.text import print_schedule

        return print_schedule(self)

    @cached_property
    def id(self) -> str:
        return identity("schedule1", self.text)

    def with_actions(self, *extra: Action) -> "Schedule":
        """This schedule with further actions, which override earlier ones on the same subject."""
        return Schedule((*self.actions, *extra))

    def without(self, *gone: Action) -> "Schedule":
        return Schedule(tuple(a for a in self.actions if a not in gone))

    def filled(self, values: Iterable[int]) -> "Schedule":
        """This schedule with its holes replaced, in the order of `holes`. ValueError if the counts differ."""
        actions = list(self.actions)
        for (i, name, _), value in zip(self.holes, tuple(values), strict=True):
            actions[i] = replace(actions[i], **{name: value})
        return Schedule(tuple(actions))


def _canonical(actions: tuple[Action, ...]) -> tuple[Action, ...]:
    last: dict[object, int] = {}
    for i, action in enumerate(actions):
        last[_slot(action)] = i
    kept = [a for i, a in enumerate(actions) if last[_slot(a)] == i]
    return tuple(sorted(kept, key=lambda a: RANK[type(a)]))


def _slot(action: Action) -> object:
    """What an action overrides: its family and subject; a whole-block fuse also replaces nothing else."""
    kind = "section" if isinstance(action, Fuse | Cut) else type(action).family
    return (kind, type(action).family, action.subject)
