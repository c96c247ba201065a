"""Operator fusion rules: what is parsed back is the section partition, edge by edge."""

from collections.abc import Callable
from typing import Any

import pytest
import yaml

from agent.presets import preset
from compiler.fusion_rules import print_rules
from compiler.ir.actions import Fuse
from compiler.ir.graph import Graph
from compiler.ir.schedule import Schedule
from compiler.pipeline import compile_schedule
from compiler.program import Program
from compiler.target import Target

Make = Callable[..., Graph]


def rules_of(graph: Graph, schedule: Schedule, target: Target) -> tuple[Program, dict[str, Any]]:
    program = compile_schedule(graph, schedule, target)
    assert isinstance(program, Program)
    text = print_rules(program)
    assert text.startswith(f"# operator fusion rules of {program.id}")
    return program, yaml.safe_load(text)


def edges(pattern: dict[str, Any]) -> set[tuple[str, str]]:
    found = {(name, child) for name, entry in pattern.items() for child in entry.get("children", ())}
    return found | {(name, entry["child"]) for name, entry in pattern.items() if "child" in entry}


@pytest.mark.parametrize("kind", ["dense", "moe", "mla", "alternating"])
@pytest.mark.parametrize("name", ["o1", "o3"])
def test_rules_are_the_sections(graph: Make, target: Target, kind: str, name: str) -> None:
    g = graph(kind)
    program, rules = rules_of(g, preset(name, g, target), target)
    assert rules
    want, wires = [], set()
    for section in program.sections:
        names = [f"{section.block}/{s.op.replace('.', '_').replace('@', '_')}" for s in section.stages]
        want.extend(names if len(names) > 1 else [])
        wires.update((names[p], names[i]) for i, s in enumerate(section.stages) for p in s.preds)
    found = {(rule.rsplit("_", 1)[0], rule): body["pattern"] for rule, body in rules.items()}
    got = [f"{block}/{entry}" for (block, _), pattern in found.items() for entry in pattern]
    assert set(got) <= set(want) and len(got) == len(set(got))
    assert {(f"{b}/{a}", f"{b}/{c}") for (b, _), p in found.items() for a, c in edges(p)} == wires
    for body in rules.values():
        assert list(body) == ["priority", "pattern"] and body["priority"] == len(body["pattern"]) > 1
        for entry in body["pattern"].values():
            assert entry["op_type"].isidentifier() and set(entry) <= {"op_type", "child", "children"}
            assert all(c in body["pattern"] for c in (entry.get("child"), *entry.get("children", ())) if c)


def test_a_rule_by_hand(graph: Make, target: Target) -> None:
    """norm feeds gate and up; both feed the activation. The rest is a section an op: no rules."""
    _, rules = rules_of(graph(sockets=1), Schedule((Fuse("gqa_dense", "ffn.norm..ffn.act"),)), target)
    assert rules == {
        "gqa_dense_1": {
            "priority": 4,
            "pattern": {
                "ffn_norm": {"op_type": "rms_norm", "children": ["ffn_gate_proj", "ffn_up_proj"]},
                "ffn_gate_proj": {"op_type": "linear", "child": "ffn_act"},
                "ffn_up_proj": {"op_type": "linear", "child": "ffn_act"},
                "ffn_act": {"op_type": "silu"},
            },
        }
    }


def test_parts_that_do_not_hang_together_are_rules_apart(graph: Make, target: Target) -> None:
    """q, k and v read one norm that is outside; only k and its rotation are connected."""
    _, rules = rules_of(graph(sockets=1), Schedule((Fuse("gqa_dense", "attn.q_proj..attn.k_rope"),)), target)
    patterns = [list(rule["pattern"]) for rule in rules.values()]
    assert patterns == [["attn_q_proj", "attn_q_rope"], ["attn_k_proj", "attn_k_rope"]]
