"""diff: every difference is found, none is made up, and each stands in its group."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.difference import (
    PROGRAM_GROUPS,
    SCHEDULE_GROUPS,
    Difference,
    difference_lines,
    differences_json,
    program_differences,
    schedule_differences,
)
from agent.presets import preset
from compiler.frontend import build
from compiler.frontend.spec import Attention, Dense, Layer, ModelSpec
from compiler.ir.actions import ALL, Axis, Buffer, Cut, Fuse, Prefetch, Shard, Tile, Units
from compiler.ir.graph import Phase, Workload
from compiler.ir.schedule import Schedule
from compiler.pipeline import compile_schedule
from compiler.place import place
from compiler.program import Program
from compiler.target import load_target

BASE = Schedule(
    (Shard("a", "ffn", "ffn", 4), Shard("a", "attn", "heads", 2), Fuse("a", "all"), Tile("a", Axis.TOKENS, 8))
)
#: the other schedule -> (group, subject) of what is found
CHANGED: list[tuple[Schedule, list[tuple[str, str]]]] = [
    (BASE, []),
    (BASE.with_actions(Buffer(ALL, ALL, 1)), [("added", "buffer * * depth=1")]),
    (BASE.without(Fuse("a", "all")), [("removed", "fuse a all")]),
    (BASE.with_actions(Tile("a", Axis.TOKENS, 16)), [("changed", "tile a tokens")]),
    (Schedule((*BASE.actions[1::-1], *BASE.actions[2:])), [("reordered", "shard")]),
    (BASE.without(Fuse("a", "all")).with_actions(Cut("a", "x")), [("added", "cut a x"), ("removed", "fuse a all")]),
]  # fmt: skip


@pytest.mark.parametrize(("other", "found"), CHANGED)
def test_schedules(other: Schedule, found: list[tuple[str, str]]) -> None:
    assert [(d.group, d.subject) for d in schedule_differences(BASE, other)] == found
    back = schedule_differences(other, BASE)
    assert len(back) == len(found) and bool(found) == (other.text != BASE.text)


def test_fuse_and_cut_are_one_order() -> None:
    one, other = Schedule((Fuse("a", "all"), Cut("a", "x"))), Schedule((Cut("a", "x"), Fuse("a", "all")))
    assert [d.group for d in schedule_differences(one, other)] == ["reordered"]


ACTIONS = st.lists(
    st.sampled_from((*BASE.actions, Cut("a", "x"), Fuse("a", "p..q"), Prefetch("a", 4), Tile("a", Axis.TOKENS, 9))),
    unique=True,
)


@given(ACTIONS, ACTIONS)
def test_schedules_differ_exactly_where_their_text_does(a: list[Any], b: list[Any]) -> None:
    one, other = Schedule(tuple(a)), Schedule(tuple(b))
    found = schedule_differences(one, other)
    assert bool(found) == (one.text != other.text)
    assert [d.group for d in found] == sorted((d.group for d in found), key=SCHEDULE_GROUPS.index)


def program(*extra: Any, context: int = 256, name: str = "o3") -> Program:
    spec = ModelSpec("m", "m", hidden=512, vocab=1000, tied=False, layers=(Layer(Attention(4, 2, 64), Dense(768)),) * 3)
    graph, target = build(spec, Workload(Phase.DECODE, 1, context, 4, "bf16")), load_target("sn40l")
    made = compile_schedule(graph, preset(name, graph, target).with_actions(*extra), target)
    assert isinstance(made, Program)
    return made


def by_group(a: Program, b: Program) -> dict[str, list[Difference]]:
    found = program_differences(a, b)
    assert [PROGRAM_GROUPS.index(d.group) for d in found] == sorted(PROGRAM_GROUPS.index(d.group) for d in found)
    return {group: [d for d in found if d.group == group] for group in dict.fromkeys(d.group for d in found)}


def test_units_of_a_stage() -> None:
    found = by_group(program(), program(Units("gqa_dense", "ffn.act", 3)))
    assert set(found) <= {"program", "sections", "units", "buffers"}  # weights in flight are by the unit
    changed = {(d.subject, d.field): d.after for d in found["units"]}
    assert changed["gqa_dense ffn.act", "pcus"] == 3


def test_a_longer_context_changes_bytes_and_the_memory_map() -> None:
    found = by_group(program(), program(context=512))
    assert {(d.subject, d.field) for d in found["bytes"]} == {("gqa_dense attn.core", "kv_bytes")}
    kv, *extents = found["memory"]
    assert (kv.field, kv.after) == ("hbm_kv", 2 * kv.before)
    assert {(d.subject, d.field) for d in extents} == {
        ("gqa_dense kv in hbm", "nbytes"),
        *((f"{name} in hbm", "address") for name in ("head weights", "activations")),
    }


def test_a_place_is_compared_thing_by_thing() -> None:
    target = load_target("sn40l")
    one, other = (place(program(*extra), target) for extra in ((), (Units("gqa_dense", "ffn.act", 3),)))
    assert isinstance(one, Program) and isinstance(other, Program)
    found = by_group(one, other)
    assert {d.field for d in found["places"] if d.subject.endswith("ffn.act")} >= {"pcus"}
    assert all(d.field for d in found["places"])  # the same stages, buffers and routes
    gone = by_group(one, program())
    assert {(d.field, d.before, d.after) for d in gone["sections"]} >= {("placed", True, False)}
    assert all(d.after is None and not d.field for d in gone["places"])


def test_a_cut_leaves_the_stages_their_names() -> None:
    found = by_group(program(), program(Cut("gqa_dense", "attn.residual"), name="o1"))
    assert any(d.after is None for d in found["sections"]) and any(d.before is None for d in found["sections"])
    assert "stages" not in found  # none came, none went


def test_equal_programs_have_none_and_say_so() -> None:
    assert program_differences(program(), program()) == ()
    assert differences_json("programs", ()) == {"kind": "programs", "equal": True, "differences": {}}


def test_lines_and_json() -> None:
    found = (
        Difference("removed", "fuse a all", "", "fuse a all", None),
        Difference("changed", "tile a tokens", "", "tile a tokens size=8", "tile a tokens size=16"),
        Difference("units", "a attn.core", "pcus", 1000, 2000),
        Difference("units", "a attn.core", "depth", 2, 1),
    )
    assert list(difference_lines(found)) == [
        ("", "removed"), ("-", "fuse a all"),
        ("", "changed"), ("~", "tile a tokens size=8 -> tile a tokens size=16"),
        ("", "units"), ("~", "a attn.core: pcus 1,000 -> 2,000, depth 2 -> 1"),
    ]  # fmt: skip
    said = differences_json("schedules", found)
    assert said["equal"] is False and list(said["differences"]) == ["removed", "changed", "units"]
    assert said["differences"]["units"][0] == {"subject": "a attn.core", "field": "pcus", "before": 1000, "after": 2000}


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_change_of_a_program_is_found(data: st.DataObject) -> None:
    """Whatever part of the JSON changes, one difference at least is told; and none where nothing does."""
    one = _MADE[0] if _MADE else _MADE.append(program(name="o1")) or _MADE[0]  # type: ignore[func-returns-value]
    document = one.to_json()
    at: Any = document
    path = []
    while isinstance(at, dict | list) and at:
        keys = [k for k in at if k not in ("format", "version")] if isinstance(at, dict) else list(range(len(at)))
        path.append((at, data.draw(st.sampled_from(keys))))
        at = at[path[-1][1]]
    parent, key = path[-1]
    parent[key] = _other(at)
    changed = _Json(document)
    assert program_differences(one, changed)  # type: ignore[arg-type]
    assert not program_differences(changed, _Json(document))  # type: ignore[arg-type]


_MADE: list[Program] = []


def _other(value: Any) -> Any:
    return not value if isinstance(value, bool) else value + 1 if isinstance(value, int) else f"{value}x"


class _Json:
    """Stands for a program of which only the JSON matters."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.to_json: Callable[[], dict[str, Any]] = lambda: deepcopy(document)


def test_a_program_is_not_changed_by_comparing() -> None:
    one = program()
    before = one.to_json()
    program_differences(one, replace(one, model="other"))
    assert one.to_json() == before
