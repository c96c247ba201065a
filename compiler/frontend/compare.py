"""What two graphs of one model must share, whichever way they were made: sizes, work, and the semantic operators.

Names, the order of ops and how element-wise work is grouped may differ; every contraction and every operator that the
hardware treats as a whole may not.
"""

from collections import Counter
from math import prod

from compiler.ir.graph import Block, Graph, Op, Pattern, Role

#: One thing that is counted: a word for what it is, and its sizes.
Item = tuple[str, tuple[int, ...]]

_FIELDS = {
    "contract": "flops, weight elements, experts, top-k",
    "attention": "kv heads, group, key dim, value dim, context",
    "scan": "state sizes",
    "convolution": "channels, kernel",
    "norm": "rows, width",
    "top-k": "rows, experts",
    "parameters": "elements",
    "contract flops": "operations",
    "stored": "bytes of caches and states",
}


def signature(graph: Graph) -> "Counter[Item]":
    """The multiset of contractions and semantic operators over all layers, with the totals as items of their own."""
    out: Counter[Item] = Counter()
    flops = 0
    for block in graph.blocks:
        times = graph.repeats[block.kind]
        for op in block.ops:
            if op.pattern is Pattern.CONTRACT:
                flops += op.flops * times
            for item in _items(block, op):
                out[item] += times
    out[("parameters", (graph.weight_elements,))] += 1
    out[("contract flops", (flops,))] += 1
    out[("stored", (graph.kv_nbytes,))] += 1
    return out


def differences(a: Graph, b: Graph) -> tuple[str, ...]:
    """What `a` and `b` do not share, in words; empty where they agree."""
    left, right = signature(a), signature(b)
    out = []
    for item in sorted(set(left) | set(right)):
        if left[item] != right[item]:
            kind, sizes = item
            out.append(f"{kind} ({_FIELDS[kind]}) {sizes}: {left[item]} against {right[item]}")
    return tuple(out)


def _items(block: Block, op: Op) -> list[Item]:
    weights = [block.tensor[name] for name in op.inputs if block.tensor[name].role is Role.WEIGHT]
    elements = sum(weight.elements for weight in weights)
    if op.pattern is Pattern.CONTRACT and "kernel" in op.reduced:
        return [("convolution", (elements, op.size("kernel")))]
    if op.pattern is Pattern.CONTRACT:
        routed = (op.routing.experts, op.routing.top_k) if op.routing else ()
        items: list[Item] = [("contract", (op.flops, elements, *routed))]
        return items + _attention(block, op)
    if op.pattern is Pattern.SCAN:
        state = [dim.size for dim in op.dims if dim.name not in ("tokens", "batch")]
        return [("scan", tuple(state))] if state else []  # positions counted from ids (RoBERTa) keep none
    if op.pattern is Pattern.SORT:
        return [("top-k", (op.points // prod(op.size(name) for name in op.sequential), op.size(op.sequential[0])))]
    if op.pattern is Pattern.REDUCE and not op.reduced and weights and "context" not in op.sequential:
        width = prod(op.size(name) for name in op.sequential)
        return [("norm", (op.points // width, width))]
    return []


def _attention(block: Block, op: Op) -> list[Item]:
    """The attention whose scores `op` computes: the values are found beside it."""
    prefix, _, name = op.name.rpartition(".")
    values = block.op.get(f"{prefix}.values")
    if name != "scores" or values is None:
        return []
    context = op.size(op.sequential[0])
    heads = op.size("kv_heads") * op.size("heads")
    group, key = op.size("q_group"), prod(op.size(dim) for dim in op.reduced)
    value = values.points // (values.size("tokens") * heads * group * context)
    return [("attention", (heads, group, key, value, context))]
