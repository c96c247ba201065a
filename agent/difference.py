"""What differs between two schedules or two programs, grouped. Pure; equal ones have no difference, others some.

Programs are compared as their JSON, laid out so that a thing keeps its name when sections change: sections, stages,
ops and tensors each by name, a section as the list of its stages.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from agent.explain import changes_between
from compiler.ir.actions import RANK
from compiler.ir.schedule import Schedule
from compiler.ir.text import print_action
from compiler.program import Program

#: The groups, in the order in which they are told.
SCHEDULE_GROUPS = ("added", "removed", "changed", "reordered")
PROGRAM_GROUPS = (
    "program",
    "memory",
    "runs",
    "sections",
    "stages",
    "units",
    "bytes",
    "work",
    "buffers",
    "places",
    "blocks",
    "ops",
    "tensors",
)
_UNITS = ("pcus", "pcus_used", "pmus", "depth")


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that differs. before, after: its JSON, None where it is not there; field: empty for a whole thing."""

    group: str
    subject: str
    field: str
    before: Any
    after: Any

    def to_json(self) -> dict[str, Any]:
        out = {"subject": self.subject, "field": self.field, "before": self.before, "after": self.after}
        return {key: value for key, value in out.items() if key != "field" or value}


def schedule_differences(a: Schedule, b: Schedule) -> tuple[Difference, ...]:
    """Actions added, removed and changed from `a` to `b`, and families whose order changed."""
    found: list[Difference] = []
    for change in changes_between(a, b):
        if len(change.gone) == len(change.new) == 1 and change.gone[0].subject == change.new[0].subject:
            subject = " ".join((change.new[0].family, *map(str, change.new[0].subject)))
            pair = (print_action(change.gone[0]), print_action(change.new[0]))
            found.append(Difference("changed", subject, "", *pair))
            continue
        found.extend(Difference("removed", print_action(x), "", print_action(x), None) for x in change.gone)
        found.extend(Difference("added", print_action(x), "", None, print_action(x)) for x in change.new)
    for rank in sorted(set(RANK.values())):  # families that keep their order among each other have one rank
        kept = [[x for x in s.actions if RANK[type(x)] == rank and x in other.actions] for s, other in ((a, b), (b, a))]
        if kept[0] != kept[1]:
            families = " and ".join(dict.fromkeys(x.family for x in kept[0]))
            found.append(Difference("reordered", families, "", *([print_action(x) for x in side] for side in kept)))
    return tuple(sorted(found, key=lambda d: SCHEDULE_GROUPS.index(d.group)))


def program_differences(a: Program, b: Program) -> tuple[Difference, ...]:
    """Everything in which the JSON of two programs differs, by group."""
    before, after = (_view(program.to_json()) for program in (a, b))
    found = [d for group in before for d in _named(group, before[group], after[group])]
    return tuple(sorted(found, key=lambda d: PROGRAM_GROUPS.index(d.group)))


def _view(program: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Groups of things by name. Nothing is lost: every field of the JSON stands in one of them."""
    blocks, runs, extents = program.pop("blocks"), program.pop("runs"), program["memory"].get("extents", ())
    sections = [section for run in runs for section in run["sections"]]
    names = iter(_unique(section["name"] for section in sections))
    stages = [{"name": f"{s['block']} {stage['op']}", **stage} for s in sections for stage in s["stages"]]
    return {
        "program": {"program": {k: v for k, v in program.items() if k not in ("workload", "memory", "compulsory")}}
        | {k: program[k] for k in ("workload", "compulsory")}
        | {"blocks": {"order": [b["kind"] for b in blocks]}},
        "memory": {"memory": {k: v for k, v in program["memory"].items() if k != "extents"}}
        | _by_name([{**e, "name": f"{e['block']} {e['holds']} in {e['tier']}".lstrip()} for e in extents]),
        "runs": {f"run {i}": {**run, "sections": [next(names) for _ in run["sections"]]} for i, run in enumerate(runs)},
        "sections": _by_name([_alone(section) for section in sections]),
        "stages": _by_name(stages),
        "buffers": _by_name(
            [{**b, "name": f"{s['name']} {b['name']}"} for s in sections for b in s.get("buffers", ())]
        ),
        "places": _by_name([place for section in sections for place in _places(section)]),
        "blocks": {b["kind"]: {k: _order(v) for k, v in b.items()} for b in blocks},
        "ops": _by_name([{**op, "name": f"{b['kind']} {op['name']}"} for b in blocks for op in b["ops"]]),
        "tensors": _by_name([{**t, "name": f"{b['kind']} {t['name']}"} for b in blocks for t in b["tensors"]]),
    }


def _alone(section: dict[str, Any]) -> dict[str, Any]:
    """A section without what is compared by itself: its stages by name only, of its place the figures."""
    place = section.get("place")
    figures = {k: v for k, v in place.items() if not isinstance(v, list)} if place else {}
    own = {k: v for k, v in section.items() if k not in ("buffers", "place")}
    return {**own, "stages": [stage["op"] for stage in section["stages"]], "placed": place is not None, **figures}


def _places(section: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What has a place on the grid: stages, buffers and routes, each by name."""
    place, name = section.get("place"), section["name"]
    if not place:
        return
    for stage, at in zip(section["stages"], place["stages"], strict=True):
        yield {**at, "name": f"{name} {stage['op']}"}
    yield from ({**b, "name": f"{name} {b['name']}"} for b in place["buffers"])
    for route in place["routes"]:
        ends = " to ".join(route[end] or "outside" for end in ("producer", "consumer"))
        yield {**route, "name": f"{name} route {ends}"}


def _order(value: Any) -> Any:
    """Of the ops and tensors of a block their names: what they are is compared by itself."""
    return [x["name"] for x in value] if isinstance(value, list) and value and isinstance(value[0], dict) else value


def _by_name(things: list[dict[str, Any]]) -> dict[str, Any]:
    names = _unique(thing["name"] for thing in things)
    return {name: {k: v for k, v in thing.items() if k != "name"} for name, thing in zip(names, things, strict=True)}


def _unique(names: Iterable[str]) -> Iterator[str]:
    """The names, a further one of a kind with its count: a block that runs in two places has its stages twice."""
    seen: Counter[str] = Counter()
    for name in names:
        seen[name] += 1
        yield name if seen[name] == 1 else f"{name} #{seen[name]}"


def _named(group: str, a: dict[str, Any], b: dict[str, Any]) -> Iterator[Difference]:
    for name in dict.fromkeys((*a, *b)):
        if name not in a or name not in b:
            yield Difference(group, name, "", a.get(name), b.get(name))
            continue
        for field in dict.fromkeys((*a[name], *b[name])):
            before, after = a[name].get(field), b[name].get(field)
            if before != after:
                yield Difference(_group(group, field), name, field, before, after)


def _group(group: str, field: str) -> str:
    """Of a stage's figures: units and buffers, bytes, or other work."""
    if group != "stages":
        return group
    return "units" if field in _UNITS else "bytes" if field.endswith("_bytes") else "work"


def differences_json(kind: str, found: Sequence[Difference]) -> dict[str, Any]:
    """The one object of `diff --json`; `kind` says what was compared: schedules or programs."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for d in found:
        groups.setdefault(d.group, []).append(d.to_json())
    return {"kind": kind, "equal": not found, "differences": groups}


def difference_lines(found: Sequence[Difference]) -> Iterator[tuple[str, str]]:
    """Lines to read as (sign, text): a group's name without a sign, below it - and + for what is on one side, ~ else.

    The fields of one thing stand on one line.
    """
    for group, members in groupby(found, key=lambda d: d.group):
        yield "", group
        for (subject, whole), rows in groupby(members, key=lambda d: (d.subject, not d.field)):
            mine = list(rows)
            if not whole:
                yield "~", f"{subject}: " + ", ".join(f"{d.field} {_word(d.before)} -> {_word(d.after)}" for d in mine)
            for d in mine if whole else ():
                if d.before is None or d.after is None:
                    yield ("+" if d.before is None else "-"), subject
                elif d.group == "reordered":
                    yield "~", f"{subject}: {'; '.join(d.before)} -> {'; '.join(d.after)}"
                else:
                    yield "~", f"{d.before} -> {d.after}"


def _word(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 100 else text[:97] + "..."
