"""The first half of the compiler: each block kind through rewrite, shard and partition.

What an action asks of a block that does not have it is refused here; an action on `*` only if no block has it.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from compiler.diagnostic import NOT_HERE, Code, Diagnostic, Refusals
from compiler.errors import nearest
from compiler.ir.actions import (
    ALL,
    Action,
    Axis,
    Buffer,
    Class,
    Cut,
    Experts,
    Fuse,
    Loop,
    Place,
    Prefetch,
    Rewrite,
    Shard,
    Tier,
    Tile,
    Units,
    known,
)
from compiler.ir.graph import Block, Graph, Pattern, Phase, Role, Tensor
from compiler.ir.schedule import Schedule
from compiler.passes.partition import Span, partition_block
from compiler.passes.rewrite import rewrite_block
from compiler.passes.shard import shard_block

A = TypeVar("A", bound=Action)


@dataclass(frozen=True, slots=True)
class Lowered:
    """One block kind after rewrite, shard and partition, with the actions that map it."""

    source: Block
    block: Block
    spans: tuple[Span, ...]
    actions: tuple[Action, ...]

    def last(self, cls: type[A], **having: object) -> A | None:
        """The last action of a family whose fields equal `having`."""
        for action in reversed(self.actions):
            if isinstance(action, cls) and all(getattr(action, k) == v for k, v in having.items()):
                return action
        return None


class Refused:
    """Collects what the passes refuse; an action on `*` is refused only if it acts nowhere."""

    def __init__(self) -> None:
        self.found: list[Diagnostic] = []
        self.absent: dict[Action, list[Diagnostic]] = {}

    def add(self, refusals: Refusals) -> None:
        """Take what one pass refuses of one block."""
        absent: dict[Action, Diagnostic] = {}
        for action, diagnostic in refusals:
            if action is not None and getattr(action, "block", "") == ALL and diagnostic.code in NOT_HERE:
                absent.setdefault(action, diagnostic)
            else:
                self.found.append(diagnostic)
        for action, diagnostic in absent.items():
            self.absent.setdefault(action, []).append(diagnostic)

    def all(self, blocks: int) -> tuple[Diagnostic, ...]:
        nowhere = [diagnostics[0] for diagnostics in self.absent.values() if len(diagnostics) >= blocks]
        return tuple(dict.fromkeys([*self.found, *nowhere]))


def lower_block(block: Block, schedule: Schedule, sockets: int) -> Block:
    """The block as a socket runs it, for enumeration; refusals are ignored here (the compiler reports them)."""
    return lower(block, schedule, sockets, Refused()).block


def unknown_blocks(graph: Graph, schedule: Schedule) -> list[Diagnostic]:
    kinds = tuple(graph.block)
    out = []
    for action in schedule.actions:
        name = getattr(action, "block", ALL)
        for kind in name.split("+") if isinstance(action, Loop) else (name,):
            if kind != ALL and kind not in graph.block:
                hint = f"no block kind {kind!r} in {graph.model}; {nearest(kind, kinds)}".rstrip("; ")
                out.append(Diagnostic(Code.UNKNOWN_BLOCK, action.family, hint, levers=(f"kinds: {', '.join(kinds)}",)))
    return out


@lru_cache(maxsize=256)
def _loans(graph: Graph) -> tuple[tuple[str, str, str], ...]:
    """(borrower, lender, cache) of block kinds: who reads a cache, and who may store it: of the same name and sizes."""
    borrowed = [(b, t) for b in graph.blocks for t in map(b.tensor.get, b.inputs) if t and t.role is Role.BORROWED]
    return tuple(
        (block.kind, lender.kind, cache.name)
        for block, cache in borrowed
        for lender in graph.blocks
        for stored in lender.stored
        if (stored.name, stored.dims) == (cache.name, cache.dims)
    )


def loan_refusals(graph: Graph, lowered: dict[str, "Lowered"]) -> list[Diagnostic]:
    """Caches of which a borrower reads what its socket does not store: a lender may split no dimension otherwise."""
    out = []
    for borrower, lender, cache in _loans(graph):
        read, stored = (lowered[kind].block.tensor[cache].layout.splits for kind in (borrower, lender))
        apart = [s for s in stored if s not in read]
        if apart:
            how = ", ".join(f"{s.dim} {s.axis.ways} ways" for s in apart)
            rule = f"{lender} stores it split along {how}, so a socket that reads it as {borrower} does has not all"
            levers = (f"shard {borrower} and {lender} alike", "split_kv with the same ways")
            out.append(Diagnostic(Code.SHARD_MESH, f"{borrower} {cache}", rule, levers=levers))
    return out


def lower(block: Block, schedule: Schedule, sockets: int, refused: Refused) -> Lowered:
    mine = tuple(a for a in schedule.actions if getattr(a, "block", "") in (ALL, block.kind))
    rewritten, refusals = rewrite_block(block, tuple(a for a in mine if isinstance(a, Rewrite)))
    refused.add(refusals)
    sharded, refusals = shard_block(rewritten, tuple(a for a in mine if isinstance(a, Shard)), sockets)
    refused.add(refusals)
    spans, refusals = partition_block(sharded, tuple(a for a in mine if isinstance(a, Fuse | Cut)))
    refused.add(refusals)
    low = Lowered(block, sharded, spans, mine)
    refused.add(_numeric_refusals(low))
    return low


def _numeric_refusals(low: Lowered) -> Refusals:
    """Actions on ops or numbers that this block does not have."""
    block = low.block
    out: list[tuple[Action | None, Diagnostic]] = []
    for action in low.actions:
        where = f"{action.family} {block.kind}"
        missing = lacks(block, action)
        if isinstance(action, Units | Buffer) and action.op != ALL and action.op not in block.op:
            names = tuple(block.op)
            hint = f"no op {action.op!r}; {nearest(action.op, names)}".rstrip("; ")
            out.append((action, Diagnostic(Code.UNKNOWN_OP, where, hint, levers=(f"ops: {', '.join(names)}",))))
        elif missing:
            levers = ("drop this line", "name a block kind that has some")
            out.append((action, Diagnostic(Code.NOTHING_HERE, where, f"the block has no {missing}", levers=levers)))
        elif isinstance(action, Experts):
            out.extend((action, d) for d in _regions(block, action))
        elif isinstance(action, Place) and action.tier is Tier.SRAM and action.tensors is Class.KV:
            rule = "a cache outlives its section: hbm or ddr"
            out.append((action, Diagnostic(Code.PLACE_ILLEGAL, where, rule, levers=("place it in hbm",))))
    return tuple(out)


def lacks(block: Block, action: Action) -> str:
    """What `action` acts on and `block` does not have; empty where it has."""
    routed = any(op.routing for op in block.ops)
    if isinstance(action, Place):
        held = ahead_bytes(block) if action.tier is Tier.SRAM else len(unrouted(block))
        has = {Class.EXPERTS: routed, Class.KV: bool(block.stored), Class.WEIGHTS: bool(held)}[action.tensors]
        words = {Class.EXPERTS: "routed experts", Class.KV: "cache", Class.WEIGHTS: "weights to place there"}
        return "" if has else words[action.tensors]
    if isinstance(action, Experts):
        return "" if routed else "routed experts"
    if isinstance(action, Prefetch):
        return "" if ahead_bytes(block) else "weights whose address is known ahead"
    if isinstance(action, Tile) and action.axis is Axis.CONTEXT:
        return "" if any(op.context > 1 for op in block.ops) else "context"
    if isinstance(action, Units) and action.op in block.op and block.op[action.op].collective:
        return f"units for {action.op}, which is between sockets"
    return ""


#: Tokens of a loop tile in prefill where the schedule says nothing.
DEFAULT_PREFILL_TILE = 128


def default_tile(tokens: int, phase: Phase) -> int:
    """Tokens of a loop tile where the schedule says nothing: in decode all, in one pass."""
    return tokens if phase is Phase.DECODE else min(tokens, DEFAULT_PREFILL_TILE)


def unrouted(block: Block) -> tuple[Tensor, ...]:
    """Weights but those of routed experts."""
    routed = {name for op in block.ops if op.routing for name in op.inputs}
    return tuple(t for t in block.weights if t.name not in routed)


def ahead_bytes(block: Block) -> int:
    """Bytes of weights whose address is known before their stage runs: not routed experts, not rows of a table."""
    tables = {name for op in block.ops if op.pattern is Pattern.GATHER for name in op.inputs}
    return sum(t.nbytes for t in unrouted(block) if t.name not in tables)


def _regions(block: Block, action: Experts) -> list[Diagnostic]:
    routing = next(op.routing for op in block.ops if op.routing)
    local = routing.experts // routing.sockets
    if local % known(action.regions) == 0:
        return []
    levers = tuple(f"regions={r}" for r in range(local, 0, -1) if local % r == 0)[:6]
    rule = f"{action.regions} regions do not divide a socket's {local} experts"
    return [Diagnostic(Code.EXPERTS_RANGE, f"experts {block.kind}", rule, levers=levers)]
