"""The work of each op of a block for one loop tile, on one socket: what `map` turns into stages.

Contract: depends on the sharded block, the tile and the experts' allocation only, not on units, buffers or sections, so
that the tuner's numeric moves find it cached.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, prod

from compiler.ir.actions import Experts, known
from compiler.ir.dtype import DType, Element
from compiler.ir.graph import CACHED, Block, Dim, Op, Pattern, Role, Routing, Tensor, is_cache
from compiler.ir.mesh import CollectiveKind
from compiler.passes.rewrite import CORES
from compiler.routing import expected_active, expected_busiest, expected_loads
from compiler.target import Target

#: Vector passes a stored element takes to become BF16. 8 and 16 bits: one cast. 4 bits: unpack, then scale (a zero
#: point is folded into that multiply-add). NF4: unpack, look up, scale. Scales of whole rows, matrices and blocks
#: multiply the sums, once for many elements.
CONVERT_PASSES = {
    Element.BF16: 0,
    Element.FP32: 0,
    Element.INT32: 0,
    Element.FP16: 1,
    Element.FP8: 1,
    Element.INT8: 1,
    Element.INT4: 2,
    Element.FP4: 2,
    Element.NF4: 3,
}
#: Relative: what is this close to a whole number is that number.
_ROUNDING = 1e-9
#: Dimensions inside a cache row: a stream walks them in order, so they give no further ports.
ROW_DIMS = ("context", "context_cross", "cached", "index_dim", "head_dim", "latent_dim", "qk_dim", "v_dim", "kv_b")


@dataclass(frozen=True, slots=True)
class Edge:
    """A tensor as one loop tile sees it: bytes a tile, bytes of all tiles, and whether every tile sees all of it that
    belongs to its sequences (no token dimension).

    rows: context rows of a cache, sequences of a recurrent state, 1 otherwise; ports: independent streams its rows can
    arrive on.
    """

    name: str
    nbytes: int
    total: int
    whole: bool
    role: Role
    cache: bool
    rows: int
    ports: int

    def copies(self, tiles: int) -> int:
        """How many are on chip where `tiles` tiles are: what is whole, once; twice where sequence follows sequence."""
        return tiles if not self.whole else 1 if self.nbytes == self.total else 2


@dataclass(frozen=True, slots=True)
class Work:
    """One op's work for a tile; fields as in `compiler.program.Stage`. cap: PCUs its parallel dimensions can use.

    regions, expert_rows: of routed experts, regions they run on and rows of a tile of one; 1 and 0 of other ops.
    """

    op: str
    pattern: Pattern
    flops: int
    macs: int
    vector_ops: int
    cap: int
    regions: int
    expert_rows: int
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


def convert_passes(dtype: DType) -> int:
    """Vector passes an element of `dtype` takes to become BF16; 8 bits in groups along a row are scaled one by one."""
    along = dtype.element.bits == 8 and dtype.group > 1 and dtype.rows == 1
    return CONVERT_PASSES[dtype.element] + along


@lru_cache(maxsize=8192)
def block_work(block: Block, tiling: Tiling, target: Target) -> tuple[Work, ...]:
    """Work of every op of `block`, in order."""
    share = _Tile(block, tiling)
    return tuple(_op_work(block, op, tiling, share, target) for op in block.ops)


def _op_work(block: Block, op: Op, tiling: Tiling, share: "_Tile", target: Target) -> Work:
    sizes = {d.name: share.size(d) for d in op.dims}
    points = prod(sizes.values())
    routed = _routed(block, op, sizes, tiling, target) if op.routing else None
    executed = points if routed is None else routed.points(points)
    padded = _lane_padded(sizes, executed, target.lanes)
    weights = [block.tensor[i] for i in op.inputs if block.tensor[i].role is Role.WEIGHT]
    touched = [(w, _touched(op, w, points, routed)) for w in weights]
    contract = op.pattern is Pattern.CONTRACT
    vectors = 0 if contract or op.pattern is Pattern.COLLECTIVE else padded // target.lanes * _passes(block, op, target)
    vectors += sum(-(-n // target.lanes) * convert_passes(w.dtype) for w, n in touched)
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
        expert_rows=routed.tile if routed else 0,
        weight_bytes=0 if op.routing else nbytes,
        expert_bytes=nbytes if op.routing else 0,
        resident_bytes=0 if op.pattern is Pattern.GATHER else sum(w.nbytes for w in weights),
        prefetchable=op.routing is None and op.pattern is not Pattern.GATHER,
        link_bytes=link_bytes,
        link_steps=link_steps,
        restarts=_restarts(op, routed, tiling),
        streams=op.pattern is Pattern.MAP,
        emits_early=op.pattern in (Pattern.MAP, Pattern.GATHER) or (contract and not op.sequential),
        inputs=tuple(_reads(block, op, i, share) for i in op.inputs if block.tensor[i].role is not Role.WEIGHT),
        outputs=tuple(share.edge(block.tensor[o]) for o in op.outputs),
    )


class _Tile:
    """Sizes inside a loop tile: tokens are cut, and with them the sequences (`batch`) that they belong to."""

    def __init__(self, block: Block, tiling: Tiling) -> None:
        tokens = max(op.size("tokens") for op in block.ops)
        batch = max((d.size for t in block.tensors for d in t.dims if d.name == "batch"), default=1)
        self.tokens, length = tiling.tokens, max(1, tokens // batch)
        aligned = length % self.tokens == 0 or self.tokens % length == 0
        self.batch = -(-self.tokens // length) + (0 if aligned else 1)  # a tile may begin inside a sequence

        self._edges: dict[str, Edge] = {}

    def size(self, dim: Dim) -> int:
        if dim.name == "tokens":
            return min(dim.size, self.tokens)
        return min(dim.size, self.batch) if dim.name == "batch" else dim.size

    def edge(self, tensor: Tensor) -> Edge:
        """The tensor as the tile sees it, made once: a producer and its readers ask for the same."""
        found = self._edges.get(tensor.name)
        if found is None:
            found = self._edges[tensor.name] = _edge(tensor, self)
        return found


def _edge(tensor: Tensor, tile: _Tile) -> Edge:
    sizes = {d.name: tile.size(d) for d in tensor.dims}
    whole = "tokens" not in sizes
    ports = prod(n for name, n in sizes.items() if name not in ROW_DIMS)
    cache = is_cache(tensor)
    nbytes = tensor.dtype.nbytes(prod(sizes.values()))
    rows = sizes.get("batch", 1) if tensor.role is Role.STATE else _cached_rows(sizes)
    return Edge(tensor.name, nbytes, tensor.nbytes, whole, tensor.role, cache, rows, ports)


def _cached_rows(sizes: dict[str, int]) -> int:
    """Rows of a cache a sequence, 1 for what is none."""
    return max((size for name, size in sizes.items() if name.startswith(CACHED)), default=1)


def _reads(block: Block, op: Op, name: str, tile: _Tile) -> Edge:
    """An input as the op reads it: of a cache, a gather reads the rows that it gives, no more."""
    edge = tile.edge(block.tensor[name])
    if op.pattern is not Pattern.GATHER or not edge.cache:
        return edge
    given = tile.edge(block.tensor[op.outputs[0]])
    return replace(edge, nbytes=min(edge.nbytes, given.nbytes), rows=min(edge.rows, given.rows))


@dataclass(frozen=True, slots=True)
class _Routed:
    """Expected work of a routed op on the busiest socket; expectations, so not whole numbers."""

    rows: float  # rows routed to this socket's experts
    padded_rows: float  # rows executed, padded to loop tiles and to the busiest region
    loads: float  # expert loads a tile of tokens, on this socket
    waves: float  # experts that the busiest region visits
    regions: int
    tile: int  # rows of an expert's loop tile
    all_rows: int

    def points(self, points: int) -> int:
        return _up(points * self.padded_rows / self.all_rows)

    def useful(self, points: int) -> int:
        return _up(points * self.rows / self.all_rows)


def _routed(block: Block, op: Op, sizes: dict[str, int], tiling: Tiling, target: Target) -> _Routed:
    routing: Routing = op.routing  # type: ignore[assignment]
    tokens, slots = sizes["tokens"], routing.top_k
    regions = known(tiling.experts.regions) if tiling.experts else 1
    if tiling.experts:
        tile = min(known(tiling.experts.tile), tokens)  # as every loop tile, no larger than what there is
    else:
        weights = [block.tensor[i] for i in op.inputs if block.tensor[i].role is Role.WEIGHT]
        nbytes = sum(w.nbytes for w in weights) // weights[0].dims[0].size
        macs = op.points * op.flops_per_point // 2 // (op.size("tokens") * op.size("slots"))
        tile = default_tile(routing, tokens, nbytes / target.hbm_bytes_per_s, 2 * macs / target.peak_flops)
    loads = expected_loads(routing.experts, slots, tokens, tile)
    active = expected_active(routing.experts, slots, tokens)
    share = _busiest(routing.experts, active, routing.sockets) / active
    local_active = active * share
    imbalance = _busiest(routing.experts // routing.sockets, local_active, regions) * regions / local_active
    return _Routed(
        rows=tokens * slots * share,
        padded_rows=loads * tile * share * imbalance,
        loads=loads * share,
        waves=loads * share * imbalance / regions,
        regions=regions,
        tile=tile,
        all_rows=tokens * slots,
    )


def _up(value: float) -> int:
    return ceil(value * (1 - _ROUNDING))


def _busiest(experts: int, active: float, groups: int) -> float:
    """Expected load of the fullest group for an expected number of active experts: linear between whole numbers."""
    low = min(experts, int(active * (1 + _ROUNDING)))
    part = min(max(0.0, active - low), 1.0)
    there = expected_busiest(experts, low, groups)
    if low == experts or not part:
        return there
    return there + part * (expected_busiest(experts, low + 1, groups) - there)


@lru_cache(maxsize=1024)
def default_tile(routing: Routing, tokens: int, load_s: float, row_s: float) -> int:
    """Rows of an expert's loop tile where the schedule says nothing: the power of two that costs least, the smallest of
    equals. More rows a tile mean fewer loads (`load_s` each) and more padded rows (`row_s` each), side by side.
    """
    best, least = 1, 0.0
    for tile in (1 << n for n in range(tokens.bit_length() + 1)):
        loads = expected_loads(routing.experts, routing.top_k, tokens, tile)
        cost = max(loads * load_s, loads * tile * row_s)
        if tile == 1 or cost < least * (1 - _ROUNDING):
            best, least = tile, cost
    return best


def _touched(op: Op, weight: Tensor, points: int, routed: _Routed | None) -> int:
    """Elements of a weight that one tile reads."""
    if op.pattern is Pattern.GATHER:
        return min(points, weight.elements)
    if routed is None:
        return weight.elements
    return _up(weight.elements // weight.dims[0].size * routed.loads)


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
        rows = max(1, int(routed.padded_rows / max(1.0, routed.loads) * (1 + _ROUNDING)))
        free = free // (sizes["tokens"] * sizes["slots"]) * rows
    units = free if op.sequential else -(-free // target.lanes)
    if _streaming(op):  # scores and values are two contractions, each on PCUs of its own
        units *= 2
    return max(1, units * max(1, summed // target.min_reduction)) * (routed.regions if routed else 1)


def _streaming(op: Op) -> bool:
    """Whether this is streaming attention: one pass along the context, carrying a running maximum and sum."""
    return op.name in CORES


def _passes(block: Block, op: Op, target: Target) -> int:
    """Passes of a vector through a PCU: operations a point over the stages of its pipeline; top-k, one a winner, or
    where there are many the steps of a bitonic top-k: sort runs of k, then merge and rebuild (Shanbhag, Pirk and
    Madden, SIGMOD 2018).
    """
    if op.pattern is Pattern.SORT:
        winners = max(1, prod(d.size for d in block.tensor[op.outputs[0]].dims if d.name != "tokens"))
        steps = (winners - 1).bit_length()
        return min(winners, steps * (steps + 1) // 2 + 2 * steps) if winners > 1 else 1
    return max(1, -(-op.flops_per_point // target.pcu_stages))


def _restarts(op: Op, routed: _Routed | None, tiling: Tiling) -> int:
    """Pipeline refills inside a tile: an expert switch each; each context step but the first of streaming softmax."""
    if routed is not None:
        return max(0, _up(routed.waves) - 1)
    if _streaming(op):
        return -(-op.context // tiling.context) - 1
    return 0


def _link(op: Op, block: Block, tile: _Tile) -> tuple[int, int]:
    """Bytes on the busiest link and dependent steps, sockets exchanging directly with their peers.

    all_reduce = reduce-scatter + all-gather: 2 (p-1)/p N bytes, 2 steps; all_gather: (p-1)/p N bytes, 1 step
    (Thakur, Rabenseifner and Gropp, 2005, with one step a phase since every pair of sockets has a link).
    """
    if op.collective is None:
        return 0, 0
    nbytes, ways = tile.edge(block.tensor[op.outputs[0]]).nbytes, op.collective.ways
    steps = 2 if op.collective.kind is CollectiveKind.ALL_REDUCE else 1
    return -(-steps * (ways - 1) * nbytes // ways), steps
