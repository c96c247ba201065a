"""What must survive from the model to a socket's share of it. A failure here is the compiler's fault and raises."""

from functools import lru_cache

from compiler.ir.graph import Block, Pattern
from compiler.program import MemoryMap, Section


class CompilerFault(AssertionError):
    """A pass broke an invariant: our bug, never a bad proposal."""


@lru_cache(maxsize=4096)
def verify_sharded(source: Block, block: Block) -> None:
    """All sockets together do at least the work and hold at least the weights and cache of the source block."""
    sockets = block.sockets
    held = sum(t.elements for t in block.weights)
    need = sum(t.elements for t in source.weights)
    if held * sockets < need:
        raise CompilerFault(f"{block.kind}: {sockets} sockets hold {held * sockets} of {need} weights")
    for name in ("attn.q_proj", "attn.o_proj", "ffn.down_proj", "ffn.router", "head.lm_head"):
        before, after = source.op.get(name), block.op.get(name)
        if before and after and after.flops * sockets < before.flops:
            raise CompilerFault(f"{block.kind} {name}: {after.flops * sockets} of {before.flops} FLOPs remain")
    cache = sum(t.nbytes for t in source.stored)
    local = sum(t.nbytes for t in block.stored)
    if local * sockets < cache:
        raise CompilerFault(f"{block.kind}: {sockets} sockets hold {local * sockets} of {cache} cache bytes")
    written = {o for op in block.ops for o in op.outputs}
    for op in block.ops:
        if op.pattern is Pattern.COLLECTIVE and op.collective is None:
            raise CompilerFault(f"{block.kind} {op.name}: a collective between no sockets")
    if not written.issuperset(n for n in block.outputs if n not in block.inputs):
        raise CompilerFault(f"{block.kind}: an output nobody writes")


def verify_sections(block: Block, sections: tuple[Section, ...]) -> None:
    """The sections of one block run each of its ops once, in order; stages wait for earlier stages only."""
    ran = [stage.op for section in sections for stage in section.stages]
    if ran != [op.name for op in block.ops]:
        raise CompilerFault(f"{block.kind}: the sections run {ran}")
    for section in sections:
        for i, stage in enumerate(section.stages):
            if any(not 0 <= p < i for p in stage.preds):
                raise CompilerFault(f"{section.name} {stage.op}: waits for stages {stage.preds}")
            if stage.pcus_used > max(1, stage.pcus):
                raise CompilerFault(f"{section.name} {stage.op}: uses {stage.pcus_used} of {stage.pcus} PCUs")


def verify_memory(memory: MemoryMap) -> None:
    """The extents of each tier follow each other without gaps and sum up to what is used of it."""
    used = {"hbm": 0, "ddr": 0}
    for extent in memory.extents:
        if extent.nbytes <= 0 or extent.address != used[extent.tier]:
            raise CompilerFault(f"{extent} begins after {used[extent.tier]} bytes of its tier")
        used[extent.tier] += extent.nbytes
    if (used["hbm"], used["ddr"]) != (memory.hbm_bytes, memory.ddr_bytes):
        raise CompilerFault(f"extents of {used} in a memory of {memory.hbm_bytes} and {memory.ddr_bytes} bytes")
