"""Pass 5, allocate: where weights and caches live between executions, and whether a socket can hold them.

Contract: what the schedule does not place goes to HBM; if HBM is full, what costs least bytes moved a step for each
byte freed leaves for DDR first (rows of a table that few tokens ask for, experts that few tokens reach, then weights,
then cache, which is read and appended to). What was placed explicitly never moves. Every byte has an address: the
extents of a tier follow each other without gaps, so they sum up to what is used of it.
"""

from dataclasses import dataclass
from functools import lru_cache

from compiler.diagnostic import Code, Diagnostic
from compiler.ir.actions import Class, Tier
from compiler.ir.graph import Block, Op, Pattern, Role, Tensor, is_cache, is_kept
from compiler.program import Extent, MemoryMap
from compiler.routing import expected_active
from compiler.target import Target

#: Which class leaves first of those that cost the same.
SPILL_ORDER = (Class.EXPERTS, Class.WEIGHTS, Class.KV)


@dataclass(frozen=True, slots=True)
class Demand:
    """Bytes a socket stores for one class of one block kind, all its layers, and where the schedule wants them.

    moved_bytes: bytes of them that a step reads and writes, expected; more than `nbytes` where they move twice.
    """

    block: str
    tensors: Class
    nbytes: int
    moved_bytes: int
    tier: Tier | None


@dataclass(frozen=True, slots=True)
class Layout:
    """The memory map, and the share of each (block, class) that is in DDR as (bytes in DDR, bytes in all)."""

    memory: MemoryMap
    in_ddr: dict[tuple[str, Class], tuple[int, int]]


def demands(block: Block, repeats: int, tier_of: dict[Class, Tier | None]) -> list[Demand]:
    """What `repeats` layers of a sharded block store on a socket."""
    return [
        Demand(block.kind, cls, nbytes * repeats, moved * repeats, tier_of.get(cls))
        for cls, nbytes, moved in _stored(block)
    ]


@lru_cache(maxsize=1024)
def _stored(block: Block) -> tuple[tuple[Class, int, int], ...]:
    """Bytes of one layer by class: stored, and moved a step."""
    routed = {i for op in block.ops if op.routing for i in op.inputs}
    experts = [t for t in block.weights if t.name in routed]
    weights = [t for t in block.weights if t.name not in routed]
    rows = (
        (Class.EXPERTS, sum(t.nbytes for t in experts), sum(_read_bytes(block, t) for t in experts)),
        (Class.WEIGHTS, sum(t.nbytes for t in weights), sum(_read_bytes(block, t) for t in weights)),
        (Class.KV, sum(t.nbytes for t in block.stored), _cache_bytes(block)),
    )
    return tuple(row for row in rows if row[1])


def _cache_bytes(block: Block) -> int:
    """Bytes of caches and states that a step reads and writes, each row once however many loop tiles walk them."""
    read = [t for t in (block.tensor[n] for n in block.inputs) if is_cache(t) and t.role is not Role.BORROWED]
    written = [t for t in (block.tensor[n] for n in block.outputs) if is_kept(t.role) and t.role is not Role.BORROWED]
    return sum(_read_bytes(block, t) for t in read) + sum(t.nbytes for t in written)


def _read_bytes(block: Block, tensor: Tensor) -> int:
    """Bytes that a step reads of what is stored: all of it, or the rows gathered, or the experts reached."""
    return min(tensor.nbytes, sum(_touched(block, op, tensor) for op in block.ops if tensor.name in op.inputs))


def _touched(block: Block, op: Op, tensor: Tensor) -> int:
    if op.pattern is Pattern.GATHER:
        return block.tensor[op.outputs[0]].nbytes
    if op.routing is None or tensor.role is not Role.WEIGHT:
        return tensor.nbytes
    active = expected_active(op.routing.experts, op.routing.top_k, op.size("tokens"))
    return int(tensor.nbytes * active / op.routing.experts)


def allocate(wanted: list[Demand], activation_bytes: int, target: Target) -> tuple[Layout, list[Diagnostic]]:
    """Lay out a socket's HBM and DDR. Diagnostics give demand, capacity and what would make it fit."""
    ddr = {(d.block, d.tensors): d.nbytes for d in wanted if d.tier is Tier.DDR}
    hbm_bytes = activation_bytes + sum(d.nbytes for d in wanted if d.tier is not Tier.DDR)
    spilled, over = 0, hbm_bytes - target.hbm_bytes
    if over > 0:
        for d in sorted((d for d in wanted if d.tier is None), key=_cost):
            move = min(d.nbytes, over - spilled)
            if move:
                ddr[d.block, d.tensors] = move
                spilled += move
    diagnostics = _over(wanted, hbm_bytes - spilled, sum(ddr.values()), target)
    total = {(d.block, d.tensors): d.nbytes for d in wanted}
    kv = sum(n for (_, c), n in total.items() if c is Class.KV)
    ddr_kv = sum(n for (_, c), n in ddr.items() if c is Class.KV)
    ddr_bytes = sum(ddr.values())
    memory = MemoryMap(
        hbm_weights=sum(total.values()) - kv - (ddr_bytes - ddr_kv),
        hbm_kv=kv - ddr_kv,
        hbm_activations=activation_bytes,
        ddr_weights=ddr_bytes - ddr_kv,
        ddr_kv=ddr_kv,
        spilled=spilled,
        extents=_extents(total, ddr, activation_bytes),
    )
    return Layout(memory, {key: (n, total[key]) for key, n in ddr.items()}), diagnostics


def _cost(d: Demand) -> tuple[float, int, int, str]:
    """Least bytes moved a step for a byte freed first; then by class, then what frees most."""
    return d.moved_bytes / d.nbytes, SPILL_ORDER.index(d.tensors), -d.nbytes, d.block


def _extents(
    total: dict[tuple[str, Class], int], ddr: dict[tuple[str, Class], int], activation_bytes: int
) -> tuple[Extent, ...]:
    """Addresses, block by block in the order of the model, activations last in HBM."""
    at = {Tier.HBM: 0, Tier.DDR: 0}
    out = []
    activations = [("", "activations", Tier.HBM, activation_bytes)]
    rows = [(b, str(c), t, n) for (b, c), size in total.items() for t, n in _split(size, ddr.get((b, c), 0))]
    for block, holds, tier, nbytes in (*rows, *activations):
        if nbytes:
            out.append(Extent(block, holds, str(tier), at[tier], nbytes))
            at[tier] += nbytes
    return tuple(out)


def _split(nbytes: int, in_ddr: int) -> tuple[tuple[Tier, int], tuple[Tier, int]]:
    return (Tier.HBM, nbytes - in_ddr), (Tier.DDR, in_ddr)


def _over(wanted: list[Demand], hbm_bytes: int, ddr_bytes: int, target: Target) -> list[Diagnostic]:
    """What does not fit a socket even after spilling."""
    out = []
    if hbm_bytes > target.hbm_bytes:
        fixed = any(d.tier is Tier.HBM or d.tier is Tier.SRAM for d in wanted)
        free = "no place ... hbm or sram, so that it may spill" if fixed else "fuse more: sections leave less behind"
        levers = ("more sockets", free, "a shorter context or a smaller batch", "--weights fp8")
        rule = "weights, cache and activations placed there"
        out.append(Diagnostic(Code.HBM_OVER, "a socket's HBM", rule, hbm_bytes, target.hbm_bytes, "bytes", levers))
    if ddr_bytes > target.ddr_bytes:
        rule, few = "weights and cache that HBM does not hold", ("more sockets", "--weights fp8")
        out.append(Diagnostic(Code.DDR_OVER, "a socket's DDR", rule, ddr_bytes, target.ddr_bytes, "bytes", few))
    return out
