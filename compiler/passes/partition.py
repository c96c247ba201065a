"""Pass 3, partition: the ops of a sharded block into sections, runs of its order, hence convex.

Contract: every op is in exactly one section; without a fuse every op is a section of its own.
"""

from functools import lru_cache

from compiler.diagnostic import Code, Diagnostic, Refusals
from compiler.errors import nearest
from compiler.ir.actions import Cut, Fuse
from compiler.ir.graph import Block

Span = tuple[int, int]  # op indices, first and one past the last


@lru_cache(maxsize=4096)
def partition_block(block: Block, actions: tuple[Fuse | Cut, ...]) -> tuple[tuple[Span, ...], Refusals]:
    """Sections of `block` after its fuse and cut actions, in their order."""
    index = {op.name: i for i, op in enumerate(block.ops)}
    ends = set(range(1, len(block.ops) + 1))
    refusals: list[tuple[Fuse | Cut, Diagnostic]] = []
    for action in actions:
        if isinstance(action, Cut):
            if action.after in index:
                ends.add(index[action.after] + 1)
            else:
                refusals.append((action, _unknown(block, action.after, "cut")))
            continue
        first, _, last = (
            (block.ops[0].name, "", block.ops[-1].name) if action.span == "all" else action.span.partition("..")
        )
        unknown = [n for n in (first, last) if n not in index]
        refusals.extend((action, _unknown(block, n, "fuse")) for n in unknown)
        if unknown:
            continue
        if index[first] > index[last]:
            lever = f"fuse {block.kind} {last}..{first}"
            why = f"{first} comes after {last}"
            refusals.append((action, Diagnostic(Code.FUSE_ORDER, f"{block.kind} {action.span}", why, levers=(lever,))))
            continue
        ends -= set(range(index[first] + 1, index[last] + 1))
    bounds = sorted(ends)
    return tuple(zip([0, *bounds[:-1]], bounds, strict=True)), tuple(refusals)


def _unknown(block: Block, name: str, what: str) -> Diagnostic:
    names = tuple(op.name for op in block.ops)
    return Diagnostic(
        Code.UNKNOWN_OP,
        f"{what} {block.kind}",
        f"no op {name!r} after rewrite and shard; {nearest(name, names)}".rstrip("; "),
        levers=(f"ops: {', '.join(names)}",),
    )
