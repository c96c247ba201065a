"""The sections of a program as operator fusion rules, in the YAML form that the vendor documents for its o1 mode.

A rule has a name, a `priority` (of rules that match the same operators the higher wins) and a `pattern`: entries with
an `op_type` and, for each edge, a `child` or `children` (SambaFlow documentation, "Operator fusion rule yaml syntax",
developer/latest/opfusion-rule-syntax). To be carried over by hand: an op type is the PyTorch operator that comes
closest, and a section of one op needs no rule.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from compiler.ir.graph import Block, Op, Pattern, Role
from compiler.program import Program, Section

#: PyTorch operators by the last word of an op's name, where its pattern does not say.
_BY_WORD = {
    "norm": "rms_norm",
    "softmax": "softmax",
    "residual": "add",
    "add": "add",
    "act": "silu",
    "rope": "rotary_embedding",
    "topk": "topk",
    "combine": "matmul",
    "core": "scaled_dot_product_attention",
}


def fusion_rules(program: Program) -> dict[str, Any]:
    """Rules of the different sections in the order of the program, those of a block numbered; longer ones win.

    A pattern is matched along its edges, so a section whose ops do not all hang together has a rule for each part.
    """
    rules: dict[str, Any] = {}
    seen: set[str] = set()
    count: Counter[str] = Counter()
    for section in program.sections:
        if section.name in seen:
            continue
        seen.add(section.name)
        for part in _connected(section):
            if len(part) > 1:
                count[section.block] += 1
                pattern = _pattern(program.block[section.block], section, part)
                rules[f"{section.block}_{count[section.block]}"] = {"priority": len(part), "pattern": pattern}
    return rules


def _connected(section: Section) -> list[list[int]]:
    """Stages that hang together, by index, in order."""
    part = list(range(len(section.stages)))
    for i, stage in enumerate(section.stages):
        for pred in stage.preds:
            old, new = part[i], part[pred]
            part = [new if p == old else p for p in part]
    return [[i for i, p in enumerate(part) if p == name] for name in dict.fromkeys(part)]


def print_rules(program: Program) -> str:
    """The text of a rule file."""
    import yaml

    head = f"# operator fusion rules of {program.id}: a rule for each section of two ops or more\n"
    rules = fusion_rules(program)
    return head + str(yaml.safe_dump(rules, sort_keys=False, default_flow_style=False))


def _pattern(block: Block, section: Section, part: list[int]) -> dict[str, Any]:
    names = {i: _entry(section.stages[i].op) for i in part}
    children = {i: [names[n] for n in part if i in section.stages[n].preds] for i in part}
    kinds = {i: op_type(block, block.op[section.stages[i].op]) for i in part}
    return {name: {"op_type": kinds[i], **_edges(children[i])} for i, name in names.items()}


def _entry(op: str) -> str:
    return op.replace(".", "_").replace("@", "_")


def _edges(children: Iterable[str]) -> dict[str, Any]:
    found = list(children)
    if not found:
        return {}
    return {"child": found[0]} if len(found) == 1 else {"children": found}


def op_type(block: Block, op: Op) -> str:
    """The PyTorch operator that comes closest to `op`."""
    word = op.name.split(".")[-1]
    if op.collective:
        return str(op.collective.kind)
    known = next((kind for end, kind in _BY_WORD.items() if word == end or word.endswith(f"_{end}")), None)
    return known or _BY_PATTERN[op.pattern](block, op)


def _contraction(block: Block, op: Op) -> str:
    return "linear" if _weights(block, op) else "matmul"


def _weights(block: Block, op: Op) -> bool:
    return any(block.tensor[n].role is Role.WEIGHT for n in op.inputs)


def _always(kind: str) -> Callable[[Block, Op], str]:
    return lambda block, op: kind


_BY_PATTERN: dict[Pattern, Callable[[Block, Op], str]] = {
    Pattern.CONTRACT: _contraction,
    Pattern.MAP: lambda block, op: "sum" if op.reduced else "mul",
    Pattern.REDUCE: _always("sum"),
    Pattern.SCAN: _always("cumsum"),
    Pattern.GATHER: lambda block, op: "embedding" if _weights(block, op) else "index_select",
    Pattern.SCATTER: _always("index_copy"),
    Pattern.SORT: _always("topk"),
    Pattern.COLLECTIVE: _always("all_reduce"),
}
