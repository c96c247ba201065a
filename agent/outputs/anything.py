"""Random schedules that may or may not be legal: every field of every action drawn from what a graph has, and more."""

from dataclasses import fields
from enum import EnumType
from random import Random
from typing import Any, get_type_hints

from compiler.ir.actions import ALL, FAMILIES, Action, SetLaunch
from compiler.ir.graph import Graph
from compiler.ir.schedule import Schedule

#: Numbers that are drawn for any count: small, odd, large.
NUMBERS = (0, 1, 2, 3, 4, 7, 8, 16, 100, 4096, 10**9)
#: Names that no graph has.
UNKNOWN = "nothing"


def anything(graph: Graph, random: Random, actions: int) -> Schedule:
    """A schedule of `actions` actions with fields drawn at random; what no action accepts at all is drawn again."""
    drawn: list[Action] = []
    while len(drawn) < actions:
        family = random.choice(FAMILIES)
        block = random.choice(graph.blocks)
        try:
            drawn.append(family(**{f.name: _value(family, f.name, block.kind, graph, random) for f in fields(family)}))
        except ValueError:
            continue
    return Schedule(tuple(drawn))


def _value(family: type[Action], name: str, kind: str, graph: Graph, random: Random) -> Any:
    hint = get_type_hints(family)[name]
    if isinstance(hint, EnumType):
        return random.choice(list(hint))
    if hint is not str:
        return random.choice(NUMBERS)
    block = graph.block[kind]
    ops = [op.name for op in block.ops]
    words = {
        "block": [*(kind,) * 12, *(ALL,) * 3, UNKNOWN, "+".join(b.kind for b in graph.blocks[1:3])],
        "part": [*ops, *(op.split(".")[0] for op in ops), ALL, UNKNOWN],
        "op": [*ops, ALL, UNKNOWN],
        "after": [*ops, UNKNOWN],
        "dim": [*dict.fromkeys(d.name for op in block.ops for d in op.dims), "experts", "splits", UNKNOWN],
        "span": ["all", f"{random.choice(ops)}..{random.choice(ops)}", f"{UNKNOWN}..{ops[0]}"],
    }
    assert family is not SetLaunch
    return random.choice(words[name])
