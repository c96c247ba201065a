"""bound: a closed-form lower bound on the time of a workload on a target, whatever the schedule.

Each part holds for every schedule of the language: SRAM does not keep weights or cache between steps, so every weight
that is used and every cached row crosses HBM or DDR once a step at no more than peak bandwidth, shared by all sockets,
both tiers at once; every FLOP of a contraction runs on a PCU; and what does not fit HBM comes from DDR. The parts may
overlap, so the bound is their maximum, plus one launch. Expert traffic is the expectation of `compiler.routing`, the
same figure that the estimate uses.
"""

from functools import lru_cache

from compiler.ir.actions import Rule
from compiler.ir.graph import Block, Graph, Op, Pattern, Role, Tensor, is_cache
from compiler.routing import expected_active
from compiler.target import Target
from simulator.report import Bound


@lru_cache(maxsize=256)
def bound_of(graph: Graph, target: Target) -> Bound:
    """Lower bound of `graph`'s workload on `target`."""
    sockets = graph.workload.sockets
    nbytes = sum(_touched_bytes(b) * graph.repeats[b.kind] for b in graph.blocks)
    flops = sum(_contract_flops(b) * graph.repeats[b.kind] for b in graph.blocks)
    stored = graph.weight_nbytes + graph.kv_nbytes
    room = sockets * target.hbm_bytes
    # What HBM cannot hold is read from DDR; the least-touched bytes stay there, so only what exceeds them must move.
    idle = stored - min(stored, nbytes)
    from_ddr = max(0, stored - room - idle)
    memory_s = nbytes / (sockets * (target.hbm_bytes_per_s + target.ddr_bytes_per_s))
    ddr_s = from_ddr / (sockets * target.ddr_bytes_per_s)
    compute_s = flops / (sockets * target.peak_flops)
    parts = {"memory": memory_s, "compute": compute_s, "ddr": ddr_s}
    limiter = max(parts, key=lambda k: parts[k])
    launch_s = min(target.launch_hardware_s, target.launch_software_s)
    return Bound(parts[limiter] + launch_s, limiter, memory_s, compute_s, ddr_s)


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
    from compiler.ir.actions import Rewrite
    from compiler.passes.rewrite import rewrite_block

    forms = [block]
    if "attn.kv_b_proj" in block.op:
        absorbed, _ = rewrite_block(block, (Rewrite(block.kind, Rule.MLA_ABSORB),))
        forms.append(absorbed)
    return min(sum(op.flops for op in form.ops if op.pattern is Pattern.CONTRACT) for form in forms)
