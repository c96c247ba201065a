"""partition: any sequence of fuse and cut gives sections that hold every op once, in order, and are convex."""

from collections.abc import Callable
from itertools import chain, pairwise

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.ir.actions import Cut, Fuse
from compiler.ir.graph import Block, Graph
from compiler.passes.partition import partition_block

Make = Callable[..., Graph]
Step = tuple[str, int, int]  # fuse first..last | cut after first | fuse all
BLOCKS = {"gqa_dense": "dense", "gqa_moe": "moe", "mla_moe": "mla"}

STEPS = st.lists(st.tuples(st.sampled_from(["fuse", "cut", "all"]), st.integers(0, 99), st.integers(0, 99)), max_size=7)


def actions(block: Block, steps: list[Step]) -> tuple[Fuse | Cut, ...]:
    names = [op.name for op in block.ops]
    out: list[Fuse | Cut] = []
    for kind, a, b in steps:
        low, high = sorted((a % len(names), b % len(names)))
        span = "all" if kind == "all" else f"{names[low]}..{names[high]}"
        out.append(Cut(block.kind, names[low]) if kind == "cut" else Fuse(block.kind, span))
    return tuple(out)


def by_hand(block: Block, steps: tuple[Fuse | Cut, ...]) -> list[list[str]]:
    """The same on lists of names: a fuse joins the sections its span touches, a cut ends one."""
    parts = [[op.name] for op in block.ops]
    for step in steps:
        if isinstance(step, Cut):
            (at,) = [i for i, part in enumerate(parts) if step.after in part]
            cut = parts[at].index(step.after) + 1
            parts[at : at + 1] = [half for half in (parts[at][:cut], parts[at][cut:]) if half]
            continue
        ends = (parts[0][0], parts[-1][-1]) if step.span == "all" else step.span.split("..")
        low, high = (next(i for i, part in enumerate(parts) if end in part) for end in ends)
        parts[low : high + 1] = [list(chain(*parts[low : high + 1]))]
    return parts


@pytest.mark.parametrize("kind", BLOCKS)
@settings(deadline=None, max_examples=40)
@given(steps=STEPS)
def test_any_fuse_and_cut(graph: Make, kind: str, steps: list[Step]) -> None:
    block = graph(BLOCKS[kind], sockets=1).block[kind]
    asked = actions(block, steps)
    spans, refusals = partition_block(block, asked)
    assert not refusals
    parts = [[op.name for op in block.ops[a:b]] for a, b in spans]
    assert parts == by_hand(block, asked)
    assert spans[0][0] == 0 and spans[-1][1] == len(block.ops)
    assert all(end == start for (_, end), (start, _) in pairwise(spans)) and all(a < b for a, b in spans)
    made = {name: op.name for op in block.ops for name in op.outputs}
    flow = nx.DiGraph([(made[i], op.name) for op in block.ops for i in op.inputs if i in made])
    section = {name: i for i, part in enumerate(parts) for name in part}
    between = nx.quotient_graph(flow, lambda a, b: section[a] == section[b])
    assert nx.is_directed_acyclic_graph(between)  # convex: no path leaves a section and comes back


@pytest.mark.parametrize(
    ("action", "code", "says", "levers"),
    [
        (Cut("gqa_dense", "ffn.actt"), "UNKNOWN_OP", "did you mean ffn.act", "ops: attn.norm"),
        (Fuse("gqa_dense", "ffn.norm..ffn.ac"), "UNKNOWN_OP", "no op 'ffn.ac'", "ops: attn.norm"),
        (
            Fuse("gqa_dense", "ffn.act..attn.norm"),
            "FUSE_ORDER",
            "ffn.act comes after attn.norm",
            "fuse gqa_dense attn.norm..ffn.act",
        ),
    ],
)
def test_refusals(graph: Make, action: Fuse | Cut, code: str, says: str, levers: str) -> None:
    block = graph().block["gqa_dense"]
    spans, ((refused, diagnostic),) = partition_block(block, (action,))
    assert refused is action and diagnostic.code == code and says in diagnostic.rule
    assert diagnostic.levers[0].startswith(levers)
    assert len(spans) == len(block.ops)  # what is refused changes nothing
