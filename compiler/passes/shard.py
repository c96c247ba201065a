"""Pass 2, shard: one block as a single socket sees it (SPMD), with collectives where values must meet.

Contract: a split dimension shrinks to its local size in every op and weight that carries it; a split reduction makes
its output partial, and an all_reduce stands before the first op that needs the sum (partial sums pass through linear
ops); a tensor split along a dimension its reader does not split is gathered. Block inputs and outputs are whole.
"""

from collections.abc import Iterable
from functools import lru_cache
from math import prod

from compiler.diagnostic import NOT_HERE, Code, Diagnostic, Refusals
from compiler.errors import nearest
from compiler.ir.actions import Shard, known
from compiler.ir.graph import CONTEXTS, Block, Op, Pattern, Role
from compiler.passes.mesh import NoArrangement, arrange
from compiler.passes.spmd import ExpertsApart, OverSockets, Shares, Walk

#: Never split: tokens and batch enter whole, slots follow the experts, a cached latent row is stored whole, and a
#: dimension that a merge (or kv_b) made holds unlike outputs side by side. The window of a convolution, and the rows it
#: keeps, are a few elements that slide together.
WHOLE = ("tokens", "batch", "slots", "latent_dim", "qkv_rows", "gate_up", "kv_b", "kernel", "taps")

#: Dimensions over matrices with scales of their own: experts, and what merge_qkv and merge_gate_up put side by side.
APART = ("experts", "qkv_rows", "gate_up")

#: Rotary embedding turns pairs of elements far apart in a row: its rows stay whole.
ROTATED = ("head_dim", "qk_dim", "rope")

#: What helps where splits do not go together.
ALIKE = ("fewer ways", "shard the whole part alike")


@lru_cache(maxsize=4096)
def shard_block(block: Block, actions: tuple[Shard, ...], sockets: int) -> tuple[Block, Refusals]:
    """`block` on one of `sockets` sockets. Refused splits leave it unsharded; nothing to split does not."""
    splits: dict[str, Shares] = {op.name: {} for op in block.ops}
    experts: dict[str, int] = {}
    refusals: list[tuple[Shard | None, Diagnostic]] = []
    for action in actions:
        refusals.extend((action, d) for d in _claim(block, action, sockets, splits, experts))
    for op in block.ops:
        if op.pattern is Pattern.SCATTER:
            splits[op.name] = _follow(block, op, splits)
    for op in block.ops:
        ways = prod(w for w, _ in splits[op.name].values()) * experts.get(op.name, 1)
        if ways > sockets:
            subject = f"{block.kind} {op.name}"
            rule = "the ways of its split dimensions multiply"
            levers = ("fewer ways",)
            refusals.append(
                (None, Diagnostic(Code.SHARD_OVER_SOCKETS, subject, rule, ways, sockets, "sockets", levers))
            )
    refusals.extend((None, d) for d in _block_scales(block, splits))
    if any(d.code not in NOT_HERE for _, d in refusals):
        return block, tuple(refusals)
    return _spread(block, splits, experts, sockets, tuple(refusals))


def _spread(
    block: Block, splits: dict[str, Shares], experts: dict[str, int], sockets: int, refusals: Refusals
) -> tuple[Block, Refusals]:
    """Walk the block with digits for what meets, or say why the sockets have none."""
    try:
        first = Walk(block, splits, experts, sockets)
        first.walk()
        digits = arrange(first.meetings, first.sums, sockets)
        return Walk(block, splits, experts, sockets, digits).run(), refusals
    except OverSockets as over:
        op, ways = over.args
        rule = "the ways in which an output and its partial sums are spread multiply"
        figures = (ways, sockets, "sockets")
        refusal = Diagnostic(Code.SHARD_OVER_SOCKETS, f"{block.kind} {op}", rule, *figures, ALIKE)
    except ExpertsApart as apart:
        op, found = apart.args
        rule = f"experts are spread {' and '.join(map(str, found))} ways: their slots are never on one socket"
        refusal = Diagnostic(Code.SHARD_MESH, f"{block.kind} {op}", rule, levers=ALIKE)
    except NoArrangement as none:
        met = ", ".join(f"{dim} {ways} ways" for dim, ways in none.keys)
        rule = f"no digits of {sockets} sockets keep apart what meets there or flows there: {met}"
        refusal = Diagnostic(Code.SHARD_MESH, f"{block.kind} {none.op}", rule, levers=ALIKE)
    return block, (*refusals, (None, refusal))


def _follow(block: Block, op: Op, splits: dict[str, Shares]) -> Shares:
    """The splits of the append's dimensions on which all readers of its outputs agree."""
    readers = [splits[r.name] for r in block.ops if set(r.inputs) & set(op.outputs)]
    shared = {d.name: [r.get(d.name) for r in readers] for d in op.dims}
    return {
        dim: found[0] for dim, found in shared.items() if found and found[0] and found.count(found[0]) == len(found)
    }


def _claim(
    block: Block, action: Shard, sockets: int, splits: dict[str, Shares], experts: dict[str, int]
) -> Iterable[Diagnostic]:
    """Note in `splits` (and `experts`) what one action asks for; yield what is wrong with it."""
    subject = f"{block.kind} {action.part} {action.dim}"
    ways, pad = known(action.ways), known(action.pad)
    ops = [op for op in block.ops if action.part in ("*", op.name, op.name.split(".")[0])]
    if not ops:
        parts = tuple(dict.fromkeys([op.name.split(".")[0] for op in block.ops] + [op.name for op in block.ops]))
        hint = f"no op or part {action.part!r}; {nearest(action.part, parts)}".rstrip("; ")
        yield Diagnostic(Code.UNKNOWN_OP, subject, hint, levers=(f"parts: {', '.join(parts)}",))
        return
    if ways > sockets or sockets % ways:
        levers = tuple(f"ways={w}" for w in range(sockets, 0, -1) if sockets % w == 0)
        quantities = (ways, sockets, "sockets") if ways > sockets else (0, 0, "")
        rule = f"{ways} ways do not divide {sockets} sockets"
        yield Diagnostic(Code.SHARD_OVER_SOCKETS, subject, rule, *quantities, levers)
        return
    if action.dim == "experts" and any(op.routing for op in ops):
        count = next(op.routing.experts for op in ops if op.routing)
        if count % ways:
            levers = _ways(count, sockets) or ("shard ffn, the width of each expert",)
            yield Diagnostic(Code.SHARD_UNEVEN, subject, f"{count} experts on {ways} sockets", levers=levers)
            return
        experts.update({op.name: ways for op in ops if op.routing})
        return
    having = [op for op in ops if any(d.name == action.dim for d in op.dims)]
    legal = [op for op in having if action.dim in splittable(op) and _leaves_a_trace(block, op, action.dim)]
    if not legal:
        yield _illegal(block, action, subject, ops, bool(having))
        return
    if ways == 1:  # undoes an earlier split
        for op in legal:
            splits[op.name].pop(action.dim, None)
        return
    size = legal[0].size(action.dim)
    if size % ways and not pad:
        levers = (*_ways(size, sockets), "pad=1")
        yield Diagnostic(
            Code.SHARD_UNEVEN, subject, f"{size} {action.dim} on {ways} sockets is {size / ways:g}", levers=levers
        )
        return
    local = -(-size // ways)
    local = -(-local // pad) * pad if pad else local
    if local > size:
        rule = f"pad={pad} makes a shard of {local} {action.dim}, more than the {size} there are"
        yield Diagnostic(Code.SHARD_UNEVEN, subject, rule, levers=("a smaller pad", "fewer ways"))
        return
    for op in legal:
        splits[op.name][action.dim] = (ways, local)


def splittable(op: Op) -> tuple[str, ...]:
    """Dimensions of `op` that may be split over sockets.

    A cache append follows its readers and has none of its own. What is reduced otherwise than by a sum (partial
    softmaxes, which need each other's maxima; an argmax) gives no partial sums, so it stays whole.
    """
    if op.pattern is Pattern.SCATTER:
        return ()
    summed = () if op.pattern is Pattern.CONTRACT else op.reduced
    whole = (*WHOLE, *op.sequential, *summed, *(ROTATED if op.name.endswith("_rope") else ()))
    return tuple(d.name for d in op.dims if d.name not in whole)


def _leaves_a_trace(block: Block, op: Op, dim: str) -> bool:
    """Whether a slice of `dim` makes a slice, or a partial sum, of each output. A recurrence adds its state up with no
    sum that sockets could share, and of outputs side by side some may not have the dimension."""
    return dim in op.reduced or all(any(d.name == dim for d in block.tensor[o].dims) for o in op.outputs)


def _ways(size: int, sockets: int) -> tuple[str, ...]:
    return tuple(f"ways={w}" for w in range(sockets, 1, -1) if sockets % w == 0 and size % w == 0)[:2]


def _illegal(block: Block, action: Shard, subject: str, ops: list[Op], present: bool) -> Diagnostic:
    """Why no op has a dimension of that name to split: it stays whole (`present`), or is not there."""
    dims = tuple(dict.fromkeys(n for op in ops for n in (*splittable(op), *(("experts",) if op.routing else ()))))
    levers = tuple(f"shard {block.kind} {action.part} {dim} ways=N" for dim in dims)
    if present and action.dim in CONTEXTS and any(action.dim in op.sequential for op in ops):
        core = "attn.core" if action.dim == "context" else "cross.core"
        levers = (f"rewrite {block.kind} split_kv ways=N, then shard {core} splits", *levers)
    levers = levers or ("drop this line: nothing there can be split",)
    if not present:
        rule = f"no such dimension there; {nearest(action.dim, dims)}".rstrip("; ")
        return Diagnostic(Code.UNKNOWN_DIM, subject, rule, levers=levers)
    return Diagnostic(Code.SHARD_ILLEGAL, subject, f"{action.dim} stays whole there", levers=levers)


def _block_scales(block: Block, splits: dict[str, Shares]) -> Iterable[Diagnostic]:
    """Weights that share a scale a block must be split at block boundaries, in rows and in columns.

    Merged matrices keep their own scales: each of them must be split so.
    """
    for op in block.ops:
        split = splits[op.name]
        for weight in (block.tensor[i] for i in op.inputs if block.tensor[i].role is Role.WEIGHT):
            if max(weight.dtype.group, weight.dtype.rows) == 1 or not split:
                continue
            for reduced in (True, False):
                dims = [d for d in weight.dims if d.name not in APART and (d.name in op.reduced) == reduced]
                group = weight.dtype.group if reduced else weight.dtype.rows
                if not any(d.name in split for d in dims):
                    continue
                local = prod(split[d.name][1] if d.name in split else d.size for d in dims)
                if local % group:
                    whole = prod(d.size for d in dims)
                    ways = prod(split[d.name][0] for d in dims if d.name in split)
                    yield Diagnostic(
                        Code.SHARD_BLOCK_SCALE,
                        f"{block.kind} {op.name}",
                        f"a shard of {whole}/{ways} = {local} {'columns' if reduced else 'rows'} "
                        f"cuts {weight.dtype.label} blocks of {group}",
                        levers=(
                            "fewer sockets",
                            f"pad={group}",
                            "shard experts instead" if op.routing else "--weights bf16",
                        ),
                    )
