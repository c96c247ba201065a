"""The work of each op of a block for one loop tile, on one socket: what `map` turns into stages.

Contract: depends on the sharded block, the tile and the experts' allocation only, not on units, buffers or sections, so
that the tuner's numeric moves find it cached.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, prod

from compiler.ir.actions import Experts, known
from compiler.ir.dtype import DType
from compiler.ir.graph import Block, CollectiveKind, Op, Pattern, Role, Routing, Tensor, is_cache
from compiler.passes.rewrite import CORE
from compiler.routing import expected_active, expected_busiest, expected_loads
from compiler.target import Target

#: Vector passes a stored element takes to become BF16: one cast (fp8, int8, fp16); unpack and scale (mxfp4).
CONVERT_PASSES = {DType.BF16: 0, DType.FP32: 0, DType.MXFP4: 2}
#: Dimensions inside a cache row: a stream walks them in order, so they give no further ports.
ROW_DIMS = ("context", "head_dim", "latent_dim", "qk_dim", "v_dim", "kv_b")


@dataclass(frozen=True, slots=True)
class Edge:
    """A tensor as one loop tile sees it: bytes a tile, and whether it is whole at every tile (no token dimension).

    rows: context rows of a cache, 1 otherwise; ports: independent streams its rows can arrive on.
    """

    name: str
    nbytes: int
    whole: bool
    role: Role
    cache: bool
    rows: int
    ports: int


@dataclass(frozen=True, slots=True)
class Work:
    """One op's work for a tile; fields as in `compiler.program.Stage`. cap: PCUs its parallel dimensions can use."""

    op: str
    pattern: Pattern
    flops: int
    macs: int
    vector_ops: int
    cap: int
    regions: int
    weight_bytes: int
    expert_bytes: int
    resident_bytes: int
    prefetchable: bool
    link_bytes: int
    link_steps: int
    restarts: int
    streams: bool
    emits_early: bool
    inputs: tuple[Edge, ...]
    outputs: tuple[Edge, ...]


@dataclass(frozen=True, slots=True)
class Tiling:
    """Loop tile of a block: tokens a pass, context rows a step of streaming softmax, and the experts' allocation."""

    tokens: int
    context: int
    experts: Experts | None


@lru_cache(maxsize=8192)
def block_work(block: Block, tiling: Tiling, target: Target) -> tuple[Work, ...]:
    """Work of every op of `block`, in order."""
    return tuple(_op_work(block, op, tiling, target) for op in block.ops)


def _op_work(block: Block, op: Op, tiling: Tiling, target: Target) -> Work:
    share = _Tile(op, tiling)
    sizes = {d.name: share.size(d.name, d.size) for d in op.dims}
    points = prod(sizes.values())
    routed = _routed(op, sizes, tiling) if op.routing else None
    executed = points if routed is None else routed.points(points)
    padded = _lane_padded(sizes, executed, target.lanes)
    weights = [block.tensor[i] for i in op.inputs if block.tensor[i].role is Role.WEIGHT]
    touched = [(w, _touched(op, w, points, routed)) for w in weights]
    contract = op.pattern is Pattern.CONTRACT
    vectors = 0 if contract or op.pattern is Pattern.COLLECTIVE else padded // target.lanes * _passes(block, op, target)
    vectors += sum(-(-n // target.lanes) * CONVERT_PASSES.get(w.dtype, 1) for w, n in touched)
    nbytes = sum(w.dtype.nbytes(n) for w, n in touched)
    link_bytes, link_steps = _link(op, block, share)
    return Work(
        op=op.name,
        pattern=op.pattern,
        flops=points * op.flops_per_point if routed is None else routed.useful(points) * op.flops_per_point,
        macs=padded * op.flops_per_point // 2 if contract else 0,
        vector_ops=vectors,
        cap=_cap(op, sizes, routed, target),
        regions=routed.regions if routed else 1,
        weight_bytes=0 if op.routing else nbytes,
        expert_bytes=nbytes if op.routing else 0,
        resident_bytes=0 if op.pattern is Pattern.GATHER else sum(w.nbytes for w in weights),
        prefetchable=op.routing is None and op.pattern is not Pattern.GATHER,
        link_bytes=link_bytes,
        link_steps=link_steps,
        restarts=_restarts(op, routed, tiling),
        streams=op.pattern is Pattern.MAP,
        emits_early=op.pattern in (Pattern.MAP, Pattern.GATHER) or (contract and not op.sequential),
        inputs=tuple(_edge(block.tensor[i], share) for i in op.inputs if block.tensor[i].role is not Role.WEIGHT),
        outputs=tuple(_edge(block.tensor[o], share) for o in op.outputs),
    )


class _Tile:
    """Sizes inside a loop tile: only the token dimension is cut."""

    def __init__(self, op: Op, tiling: Tiling) -> None:
        self.tokens = (
            min(tiling.tokens, op.size("tokens")) if any(d.name == "tokens" for d in op.dims) else tiling.tokens
        )

    def size(self, name: str, size: int) -> int:
        return min(self.tokens, size) if name == "tokens" else size


def _edge(tensor: Tensor, tile: _Tile) -> Edge:
    whole = not any(d.name == "tokens" for d in tensor.dims)
    nbytes = tensor.nbytes if whole else tensor.dtype.nbytes(prod(tile.size(d.name, d.size) for d in tensor.dims))
    ports = prod(d.size for d in tensor.dims if d.name not in ROW_DIMS)
    rows = next((d.size for d in tensor.dims if d.name == "context"), 1)
    cache = tensor.role is Role.KV_CACHE and is_cache(tensor)
    return Edge(tensor.name, nbytes, whole, tensor.role, cache, rows, ports)


@dataclass(frozen=True, slots=True)
class _Routed:
    """Expected work of a routed op on the busiest socket, rounded up to whole rows and loads."""

    rows: int  # rows routed to this socket's experts
    padded_rows: int  # rows executed, padded to loop tiles and to the busiest region
    loads: int  # expert loads a tile of tokens, on this socket
    waves: int  # experts that the busiest region visits
    regions: int
    all_rows: int

    def points(self, points: int) -> int:
        return points * self.padded_rows // self.all_rows

    def useful(self, points: int) -> int:
        return points * self.rows // self.all_rows


def _routed(op: Op, sizes: dict[str, int], tiling: Tiling) -> _Routed:
    routing: Routing = op.routing  # type: ignore[assignment]
    tokens, slots = sizes["tokens"], routing.top_k
    regions = known(tiling.experts.regions) if tiling.experts else 1
    tile = known(tiling.experts.tile) if tiling.experts else default_tile(routing, tokens)
    rows = tokens * slots
    loads = expected_loads(routing.experts, slots, tokens, tile)
    active = min(routing.experts, ceil(expected_active(routing.experts, slots, tokens) - 1e-9))
    share = expected_busiest(routing.experts, active, routing.sockets) / active
    local_active = max(1, ceil(active * share - 1e-9))
    local_experts = routing.experts // routing.sockets
    busiest = expected_busiest(local_experts, min(local_active, local_experts), regions)
    imbalance = busiest * regions / local_active
    return _Routed(
        rows=ceil(rows * share - 1e-9),
        padded_rows=max(1, ceil(loads * tile * share * imbalance - 1e-9)),
        loads=max(1, ceil(loads * share - 1e-9)),
        waves=max(1, ceil(loads * share * imbalance / regions - 1e-9)),
        regions=regions,
        all_rows=rows,
    )


def default_tile(routing: Routing, tokens: int) -> int:
    """Rows of an expert's loop tile where the schedule says nothing: the power of two that holds the mean load."""
    mean = tokens * routing.top_k / routing.experts
    tile = 1
    while tile < mean:
        tile *= 2
    return tile


def _touched(op: Op, weight: Tensor, points: int, routed: _Routed | None) -> int:
    """Elements of a weight that one tile reads."""
    if op.pattern is Pattern.GATHER:
        return min(points, weight.elements)
    if routed is None:
        return weight.elements
    return weight.elements // weight.dims[0].size * routed.loads


def _lane_padded(sizes: dict[str, int], points: int, lanes: int) -> int:
    """Points when the dimension that wastes least is laid along the lanes and padded to whole vectors."""
    if not sizes:
        return points
    best = min(sizes.values(), key=lambda s: (-(-s // lanes) * lanes / s, -s))
    return -(-points // best) * (-(-best // lanes) * lanes)


def _cap(op: Op, sizes: dict[str, int], routed: _Routed | None, target: Target) -> int:
    """PCUs that the op's parallel dimensions can keep busy (of one region, times the regions)."""
    free = prod(s for n, s in sizes.items() if n not in op.reduced and n not in op.sequential)
    summed = prod(s for n, s in sizes.items() if n in op.reduced and n not in op.sequential)
    if routed is not None:  # one expert at a time in a region: its rows only
        rows = max(1, routed.padded_rows // max(1, routed.loads))
        free = free // (sizes["tokens"] * sizes["slots"]) * rows
    units = free if op.sequential else -(-free // target.lanes)
    if _streaming(op):  # scores and values are two contractions, each on PCUs of its own
        units *= 2
    return max(1, units * max(1, summed // target.min_reduction)) * (routed.regions if routed else 1)


def _streaming(op: Op) -> bool:
    """Whether this is streaming attention: one pass along the context, carrying a running maximum and sum."""
    return op.name == CORE


def _passes(block: Block, op: Op, target: Target) -> int:
    """Passes of a vector through a PCU: operations a point over the stages of its pipeline; top-k, one a winner."""
    if op.pattern is Pattern.SORT:
        return max(1, prod(d.size for d in block.tensor[op.outputs[0]].dims if d.name != "tokens"))
    return max(1, -(-op.flops_per_point // target.pcu_stages))


def _restarts(op: Op, routed: _Routed | None, tiling: Tiling) -> int:
    """Pipeline refills inside a tile: an expert switch each; each context step but the first of streaming softmax."""
    if routed is not None:
        return routed.waves - 1
    if _streaming(op):
        return -(-op.size("context") // tiling.context) - 1
    return 0


def _link(op: Op, block: Block, tile: _Tile) -> tuple[int, int]:
    """Bytes on the busiest link and dependent steps, sockets exchanging directly with their peers.

    all_reduce = reduce-scatter + all-gather: 2 (p-1)/p N bytes, 2 steps; all_gather: (p-1)/p N bytes, 1 step
    (Thakur, Rabenseifner and Gropp, 2005, with one step a phase since every pair of sockets has a link).
    """
    if op.collective is None:
        return 0, 0
    nbytes, ways = _edge(block.tensor[op.outputs[0]], tile).nbytes, op.collective.ways
    steps = 2 if op.collective.kind is CollectiveKind.ALL_REDUCE else 1
    return -(-steps * (ways - 1) * nbytes // ways), steps
