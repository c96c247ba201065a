"""bound: a closed-form lower bound on the time of a workload on a target, whatever the schedule.

Each part holds for every schedule of the language: SRAM does not keep weights or cache between steps, so every weight
that is used and every cached row crosses HBM or DDR once a step at no more than peak bandwidth, shared by all sockets,
both tiers at once; every FLOP of a contraction runs on a PCU; and what does not fit HBM comes from DDR. The parts may
overlap, so the bound is their maximum, plus one launch. Expert traffic is the expectation of `compiler.routing`, the
same figure that the estimate uses.
"""

from compiler.compulsory import Compulsory, compulsory_of
from compiler.ir.graph import Graph
from compiler.program import Program
from compiler.target import Target
from simulator.report import Bound


def bound_of(graph: Graph, target: Target) -> Bound:
    """Lower bound of `graph`'s workload on `target`."""
    return _bound(compulsory_of(graph), graph.weight_nbytes + graph.kv_nbytes, graph.workload.sockets, target)


def bound_of_program(program: Program, target: Target) -> Bound:
    """Lower bound of the workload that `program` was compiled for: equal to that of its graph."""
    stored = program.weight_nbytes + program.kv_nbytes
    return _bound(program.compulsory, stored, program.workload.sockets, target)


def _bound(work: Compulsory, stored: int, sockets: int, target: Target) -> Bound:
    """stored: bytes of weights and cache, each once, on all sockets together."""
    nbytes, flops = work.read_bytes, work.flops
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
