"""What no schedule of a graph avoids: bytes that are read once a step, and FLOPs of contractions. For the bound."""

from dataclasses import dataclass
from functools import lru_cache

from compiler.ir.actions import Rewrite, Rule
from compiler.ir.graph import Block, Graph, Op, Pattern, Role, Tensor, is_cache
from compiler.passes.rewrite import rewrite_block
from compiler.routing import expected_active


@dataclass(frozen=True, slots=True)
class Compulsory:
    """All sockets together, one step. read_bytes: weights that are used and rows of caches; flops: of contractions.

    Experts count as `compiler.routing` expects them to be reached.
    """

    read_bytes: int
    flops: int


@lru_cache(maxsize=256)
def compulsory_of(graph: Graph) -> Compulsory:
    """The compulsory work of `graph`'s workload."""
    nbytes = sum(_touched_bytes(b) * graph.repeats[b.kind] for b in graph.blocks)
    flops = sum(_contract_flops(b) * graph.repeats[b.kind] for b in graph.blocks)
    return Compulsory(nbytes, flops)


def _touched_bytes(block: Block) -> int:
    """Weights used and cached rows read in one execution of a block."""
    total = 0
    for op in block.ops:
        for name in op.inputs:
            tensor = block.tensor[name]
            if tensor.role is Role.WEIGHT:
                total += tensor.dtype.nbytes(_elements(op, tensor.elements))
    return total + sum(
        _read_bytes(block, t)
        for t in (block.tensor[n] for n in block.inputs)
        if is_cache(t) and t.role is not Role.BORROWED
    )


def _read_bytes(block: Block, cache: Tensor) -> int:
    """All of a cache, or the rows gathered where nothing else reads it."""
    readers = [op for op in block.ops if cache.name in op.inputs]
    if any(op.pattern is not Pattern.GATHER for op in readers):
        return cache.nbytes
    return min(cache.nbytes, sum(block.tensor[op.outputs[0]].nbytes for op in readers))


def _elements(op: Op, elements: int) -> int:
    if op.pattern is Pattern.GATHER:
        return min(elements, op.points)
    if op.routing is None:
        return elements
    active = expected_active(op.routing.experts, op.routing.top_k, op.size("tokens"))
    return int(elements * active / op.routing.experts)


def _contract_flops(block: Block) -> int:
    """FLOPs of contractions, the least over the rewrites that change them (mla_absorb)."""
    forms = [block]
    if "attn.kv_b_proj" in block.op:
        absorbed, _ = rewrite_block(block, (Rewrite(block.kind, Rule.MLA_ABSORB),))
        forms.append(absorbed)
    return min(sum(op.flops for op in form.ops if op.pattern is Pattern.CONTRACT) for form in forms)
