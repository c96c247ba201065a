"""What must survive from the model to a socket's share of it. A failure here is the compiler's fault and raises."""

from functools import lru_cache

from compiler.ir.graph import Block, Op, Pattern, Role, Tensor, is_kept
from compiler.ir.mesh import CollectiveKind, Layout, MeshAxis, Split, merged
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
    verify_mesh(block)


def verify_mesh(block: Block) -> None:
    """Every op finds its inputs as it needs them, and leaves its outputs as they say; what enters and leaves is whole.

    Made of the ops and layouts only: nothing that the shard pass thought is taken over.
    """
    for tensor in block.tensors:
        _sizes(f"{block.kind} {tensor.name}", tensor, tensor.layout.splits, block.sockets)
        _digits(f"{block.kind} {tensor.name}", tensor.layout.axes, block.sockets)
    for name in (*block.inputs, *block.outputs):
        tensor = block.tensor[name]
        if tensor.layout.partial or tensor.layout.apart or (tensor.layout.splits and not is_kept(tensor.role)):
            raise CompilerFault(f"{block.kind} {name}: enters or leaves as {tensor.layout}")
    for op in block.ops:
        where = f"{block.kind} {op.name}"
        _sizes(where, op, op.splits, block.sockets)
        if op.collective:
            _collective(where, block, op)
        else:
            _held_as_needed(where, block, op)
            _left_as_said(where, block, op)


def _digits(where: str, axes: tuple[MeshAxis, ...], sockets: int) -> None:
    if any(not a.disjoint(b) for i, a in enumerate(axes) for b in axes[i + 1 :]):
        raise CompilerFault(f"{where}: digits that overlap: {axes}")
    if any(sockets % (a.ways * a.stride) for a in axes):
        raise CompilerFault(f"{where}: digits that {sockets} sockets do not have: {axes}")


def _sizes(where: str, holder: Op | Tensor, splits: tuple[Split, ...], sockets: int) -> None:
    sizes = {d.name: d.size for d in holder.dims}
    if len({s.dim for s in splits}) != len(splits) or any(sizes.get(s.dim) != s.local for s in splits):
        raise CompilerFault(f"{where}: splits {splits} of {sizes}")


def _held_as_needed(where: str, block: Block, op: Op) -> None:
    """No input is split but as the op splits it, no partial sum is read but by a linear op, no slots but alike."""
    values = [block.tensor[n] for n in op.inputs if block.tensor[n].role is not Role.WEIGHT]
    routed = op.routing.axis if op.routing else None
    for tensor in (block.tensor[n] for n in op.inputs):
        for split in tensor.layout.splits:
            expert = split.dim == "experts" and op.routing is not None
            if split not in op.splits and not (expert and split.axis == routed):
                raise CompilerFault(f"{where}: reads {tensor.name}, split as {split}, which it does not split so")
    if routed and any(t.layout.split("experts") is None for t in _weights(block, op)):
        raise CompilerFault(f"{where}: spreads experts whose weights are whole")
    sums = [t for t in values if t.layout.partial]
    if sums and not op.linear:
        raise CompilerFault(f"{where}: reads the partial sum {sums[0].name}")
    if op.pattern is Pattern.MAP and sums and any(t.layout.partial != sums[0].layout.partial for t in values):
        raise CompilerFault(f"{where}: adds sums over {[t.layout.partial for t in values]}")
    if op.pattern is not Pattern.MAP and len(sums) > 1:
        raise CompilerFault(f"{where}: multiplies the partial sums {[t.name for t in sums]}")
    apart = _apart(block, op)
    if len(apart) > 1:
        raise CompilerFault(f"{where}: slots lie apart in different ways: {apart}")
    through = {a for t in sums for a in t.layout.partial}
    _digits(where, (*(s.axis for s in op.splits), *through, *apart), block.sockets)


def _weights(block: Block, op: Op) -> list[Tensor]:
    return [block.tensor[n] for n in op.inputs if block.tensor[n].role is Role.WEIGHT]


def _apart(block: Block, op: Op) -> set[MeshAxis]:
    found = {block.tensor[n].layout.apart for n in op.inputs} | {op.routing.axis if op.routing else None}
    return {axis for axis in found if axis}


def _left_as_said(where: str, block: Block, op: Op) -> None:
    """Each output is split as the op splits it (a cache may keep a slice of that), and a sum over what it reduces."""
    summed = {s.axis for s in op.splits if s.dim in op.reduced}
    if summed and op.pattern is not Pattern.CONTRACT:
        raise CompilerFault(f"{where}: splits {op.reduced}, which it does not add up")
    through = {a for n in op.inputs for a in block.tensor[n].layout.partial}
    apart = next(iter(_apart(block, op)), None)
    together = apart if "slots" in op.reduced else None
    partial = merged((*summed, *through, *((together,) if together else ())))
    for tensor in (block.tensor[n] for n in op.outputs):
        names = {d.name for d in tensor.dims}
        splits = {s for s in op.splits if s.dim in names}
        lost = {s.dim for s in op.splits} - names - set(op.reduced)
        said = tensor.layout
        kept = is_kept(tensor.role) and splits.issubset(said.splits)
        if lost or not (set(said.splits) == splits or kept):
            raise CompilerFault(f"{where}: writes {tensor.name} as {said.splits}, splits {op.splits}")
        if said.partial != partial or said.apart != (None if together else apart):
            raise CompilerFault(f"{where}: writes {tensor.name} as {said}, makes {partial} with slots {apart}")


def _collective(where: str, block: Block, op: Op) -> None:
    """A reduction completes the sum over exactly its groups; a gather puts exactly its dimensions together."""
    collective, source, result = op.collective, block.tensor[op.inputs[0]], block.tensor[op.outputs[0]]
    assert collective is not None
    before, splits = source.layout, source.layout.splits
    if collective.kind is CollectiveKind.ALL_GATHER:
        gathered = [before.split(dim) for dim in collective.dims]
        if [s.axis if s else None for s in gathered] != list(collective.axes):
            raise CompilerFault(f"{where}: gathers {collective} of {before}")
        splits = tuple(s for s in splits if s.dim not in collective.dims)
    elif before.partial != collective.axes:
        raise CompilerFault(f"{where}: adds up {collective.axes} of {before}")
    sizes = {s.dim: s.whole for s in before.splits if s.dim in collective.dims}
    dims = [(d.name, sizes.get(d.name, d.size)) for d in source.dims]
    partial = before.partial if collective.kind is CollectiveKind.ALL_GATHER else ()
    if result.layout != Layout(splits, partial, before.apart) or dims != [(d.name, d.size) for d in result.dims]:
        raise CompilerFault(f"{where}: leaves {result.layout} of {before}")


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
