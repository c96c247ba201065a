"""Pass 5, allocate: where weights and caches live between executions, and whether a socket can hold them.

Contract: what the schedule does not place goes to HBM; if HBM is full, experts spill to DDR first (they are read
least a stored byte), then other weights, then cache, and the memory map says how many bytes. What was placed
explicitly never moves.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from compiler.diagnostic import Code, Diagnostic
from compiler.ir.actions import Class, Tier
from compiler.ir.graph import Block
from compiler.program import MemoryMap
from compiler.target import Target

#: What leaves a full HBM first.
SPILL_ORDER = (Class.EXPERTS, Class.WEIGHTS, Class.KV)


@dataclass(frozen=True, slots=True)
class Demand:
    """Bytes a socket stores for one class of one block kind, all its layers, and where the schedule wants them."""

    block: str
    tensors: Class
    nbytes: int
    tier: Tier | None


@dataclass(frozen=True, slots=True)
class Layout:
    """The memory map, and the share of each (block, class) that is in DDR as (bytes in DDR, bytes in all)."""

    memory: MemoryMap
    in_ddr: dict[tuple[str, Class], tuple[int, int]]


def demands(block: Block, repeats: int, tier_of: dict[Class, Tier | None]) -> Iterable[Demand]:
    """What `repeats` layers of a sharded block store on a socket."""
    routed = {i for op in block.ops if op.routing for i in op.inputs}
    for cls, nbytes in (
        (Class.EXPERTS, sum(t.nbytes for t in block.weights if t.name in routed)),
        (Class.WEIGHTS, sum(t.nbytes for t in block.weights if t.name not in routed)),
        (Class.KV, sum(t.nbytes for t in block.stored)),
    ):
        if nbytes:
            yield Demand(block.kind, cls, nbytes * repeats, tier_of.get(cls))


def allocate(wanted: list[Demand], activation_bytes: int, target: Target) -> tuple[Layout, list[Diagnostic]]:
    """Lay out a socket's HBM and DDR. Diagnostics give demand, capacity and what would make it fit."""
    ddr = {(d.block, d.tensors): d.nbytes for d in wanted if d.tier is Tier.DDR}
    hbm_bytes = activation_bytes + sum(d.nbytes for d in wanted if d.tier is not Tier.DDR)
    spilled, over = 0, hbm_bytes - target.hbm_bytes
    movable = [d for d in wanted if d.tier is None]
    for d in sorted(movable, key=lambda d: (SPILL_ORDER.index(d.tensors), -d.nbytes, d.block)):
        move = min(d.nbytes, max(0, over - spilled))
        if move:
            ddr[d.block, d.tensors] = move
            spilled += move
    diagnostics = []
    if over > spilled:
        fixed = any(d.tier is Tier.HBM or d.tier is Tier.SRAM for d in wanted)
        levers = (
            "more sockets",
            *(
                ("no place ... hbm or sram, so that it may spill",)
                if fixed
                else ("fuse more: sections leave less behind",)
            ),
            "a shorter context or a smaller batch",
            "--weights fp8",
        )
        diagnostics.append(
            Diagnostic(
                Code.HBM_OVER,
                "a socket's HBM",
                "weights, cache and activations placed there",
                hbm_bytes - spilled,
                target.hbm_bytes,
                "bytes",
                levers,
            )
        )
    ddr_bytes = sum(ddr.values())
    if ddr_bytes > target.ddr_bytes:
        diagnostics.append(
            Diagnostic(
                Code.DDR_OVER,
                "a socket's DDR",
                "weights and cache that HBM does not hold",
                ddr_bytes,
                target.ddr_bytes,
                "bytes",
                ("more sockets", "--weights fp8"),
            )
        )
    total = {(d.block, d.tensors): d.nbytes for d in wanted}
    kv = sum(n for (_, c), n in total.items() if c is Class.KV)
    ddr_kv = sum(n for (_, c), n in ddr.items() if c is Class.KV)
    memory = MemoryMap(
        hbm_weights=sum(total.values()) - kv - (ddr_bytes - ddr_kv),
        hbm_kv=kv - ddr_kv,
        hbm_activations=activation_bytes,
        ddr_weights=ddr_bytes - ddr_kv,
        ddr_kv=ddr_kv,
        spilled=spilled,
    )
    return Layout(memory, {key: (n, total[key]) for key, n in ddr.items()}), diagnostics
