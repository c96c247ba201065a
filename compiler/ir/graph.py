"""The model as dataflow: ops over named dimensions, in blocks that repeat.

An `Op` is a loop nest over named dimensions in one of the parallel patterns the hardware is named after. Everything
here is frozen and validates on construction: a graph that exists is well formed. Sizes are whole-model (before
sharding); bytes come from dtypes and dimensions, never from a stored number.
"""

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from math import prod
from typing import Any

from compiler.canonical import identity
from compiler.ir.dtype import DType
from compiler.ir.mesh import WHOLE_LAYOUT, Collective, Layout, MeshAxis, Split


class Pattern(StrEnum):
    """The parallel pattern of an op."""

    CONTRACT = "contract"  # einsum: multiply-accumulate over the reduced dimensions
    MAP = "map"  # element-wise; streams: an output element needs its input elements only
    REDUCE = "reduce"  # reads all of a dimension before it gives an output (norm, softmax, argmax)
    SCAN = "scan"
    GATHER = "gather"  # reads the addressed rows only
    SCATTER = "scatter"
    SORT = "sort"  # top-k
    COLLECTIVE = "collective"  # between sockets; inserted by the shard pass


class Role(StrEnum):
    """What a tensor is, which decides where it lives between executions."""

    WEIGHT = "weight"
    ACTIVATION = "activation"
    KV_CACHE = "kv_cache"
    STATE = "state"  # of a recurrence: read and written whole, however long the context
    BORROWED = "borrowed"  # a cache that another layer stores
    INPUT = "input"
    OUTPUT = "output"


class Phase(StrEnum):
    DECODE = "decode"
    PREFILL = "prefill"


@dataclass(frozen=True, slots=True)
class Dim:
    """A named dimension and its size in elements (>= 1)."""

    name: str
    size: int

    def __post_init__(self) -> None:
        if not self.name.isidentifier() or self.size < 1:
            raise ValueError(f"dimension {self.name!r} of size {self.size}")


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a block. `key` is the checkpoint name of a weight, with `{layer}` for the layer index.

    layout: after the shard pass, how the sockets hold it; `dims` are then those of one socket.
    """

    name: str
    dims: tuple[Dim, ...]
    dtype: DType
    role: Role
    key: str = ""
    layout: Layout = WHOLE_LAYOUT

    def __post_init__(self) -> None:
        names = [d.name for d in self.dims]
        if len(set(names)) != len(names):
            raise ValueError(f"tensor {self.name}: a dimension twice: {names}")
        if (self.role is Role.WEIGHT) != bool(self.key):
            raise ValueError(f"tensor {self.name}: weights, and only weights, have a checkpoint key")

    @property
    def elements(self) -> int:
        return prod(d.size for d in self.dims)

    @property
    def nbytes(self) -> int:
        return self.dtype.nbytes(self.elements)


@dataclass(frozen=True, slots=True)
class Routing:
    """Top-k routing of tokens over experts; an op with it reads the chosen experts' weights only.

    sockets: over how many sockets whole experts are spread (1 before the shard pass), along the digit of that `stride`.
    """

    experts: int
    top_k: int
    sockets: int = 1
    stride: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.top_k <= self.experts or self.experts % self.sockets:
            raise ValueError(f"top-{self.top_k} of {self.experts} experts over {self.sockets} sockets")

    @property
    def axis(self) -> MeshAxis | None:
        """The digit of the socket number that says which experts a socket has; None where it has all."""
        return MeshAxis(self.sockets, self.stride) if self.sockets > 1 else None


@dataclass(frozen=True, slots=True)
class Op:
    """A loop nest over `dims`. `reduced` dimensions do not appear in the outputs; `sequential` ones run in order.

    A sequential dimension is walked by one unit from start to end, so it can be neither spread over units nor sharded:
    the normalised dimension of a norm, the context a cache stream is read along, the experts a top-k sorts.
    flops_per_point: floating-point operations at each point of the iteration space (2 for a multiply-accumulate).
    linear: outputs are linear in the activations, so partial sums of a sharded contraction may pass through.
    splits: after the shard pass, dimensions of which a socket has a slice; `dims` are then those of one socket.
    """

    name: str
    pattern: Pattern
    dims: tuple[Dim, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    reduced: tuple[str, ...] = ()
    flops_per_point: int = 1
    sequential: tuple[str, ...] = ()
    routing: Routing | None = None
    linear: bool = False
    collective: Collective | None = None
    splits: tuple[Split, ...] = ()

    def __post_init__(self) -> None:
        names = {d.name for d in self.dims}
        if len(names) != len(self.dims):
            raise ValueError(f"op {self.name}: a dimension twice")
        if not names.issuperset(self.reduced) or not names.issuperset(self.sequential):
            raise ValueError(f"op {self.name}: reduced or sequential dimensions outside the iteration space")
        if not self.outputs:
            raise ValueError(f"op {self.name}: no output")
        if self.collective and (len(self.inputs), len(self.outputs)) != (1, 1):
            raise ValueError(f"op {self.name}: a collective of {self.inputs} into {self.outputs}")

    @property
    def points(self) -> int:
        return prod(d.size for d in self.dims)

    @property
    def flops(self) -> int:
        return self.points * self.flops_per_point

    def size(self, dim: str) -> int:
        """Size of dimension `dim`, 1 where the op has no such dimension."""
        return next((d.size for d in self.dims if d.name == dim), 1)

    @property
    def context(self) -> int:
        """Rows that an attention walks: of its own context or of an encoder's output; 1 where it walks none."""
        return max(self.size(name) for name in CONTEXTS)


@dataclass(frozen=True, eq=False)
class Block:
    """One kind of layer. `ops` are in dataflow order; `inputs` and `outputs` are its boundary tensors.

    Compared by object (passes cache their result a block); `Graph.id` is the identity by content.
    """

    kind: str
    ops: tuple[Op, ...]
    tensors: tuple[Tensor, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    #: After the shard pass: over how many sockets; a socket's op may then read a slice of a whole tensor, and an append
    #: keep a slice of what it gets.
    sockets: int = 1

    def __post_init__(self) -> None:
        known = {t.name: t for t in self.tensors}
        if len(known) != len(self.tensors):
            raise ValueError(f"block {self.kind}: a tensor name twice")
        if len({o.name for o in self.ops}) != len(self.ops):
            raise ValueError(f"block {self.kind}: an op name twice")
        if not known.keys() >= set(self.inputs):
            raise ValueError(f"block {self.kind}: an input that is no tensor")
        ready = {t.name for t in self.tensors if t.role is Role.WEIGHT} | set(self.inputs)
        for op in self.ops:
            for name in op.inputs:
                if name not in ready:
                    raise ValueError(f"block {self.kind}: op {op.name} reads {name} before it is produced")
            for name in op.outputs:
                if name not in known:
                    raise ValueError(f"block {self.kind}: op {op.name} writes unknown tensor {name}")
                if name in ready:
                    raise ValueError(f"block {self.kind}: {name} is written twice or is an input")
                ready.add(name)
            sizes = {d.name: d.size for d in op.dims}
            for name in (*op.inputs, *op.outputs):
                if op.collective and name in op.inputs:
                    continue  # a gather reads less than it gives
                reads = self.sockets > 1 and name in op.inputs
                keeps = self.sockets > 1 and op.pattern is Pattern.SCATTER and name in op.outputs
                for dim in known[name].dims:
                    size = sizes.get(dim.name, dim.size)
                    sliced = (reads and dim.size > size) or (keeps and dim.size < size)
                    if op.routing is None and dim.size != size and not sliced:
                        raise ValueError(
                            f"block {self.kind}: op {op.name} has {dim.name}={sizes[dim.name]}, "
                            f"tensor {name} has {dim.size}"
                        )
        if not ready.issuperset(self.outputs):
            raise ValueError(f"block {self.kind}: an output nobody writes")

    @cached_property
    def tensor(self) -> dict[str, Tensor]:
        return {t.name: t for t in self.tensors}

    @cached_property
    def op(self) -> dict[str, Op]:
        return {o.name: o for o in self.ops}

    @cached_property
    def weights(self) -> tuple[Tensor, ...]:
        return tuple(t for t in self.tensors if t.role is Role.WEIGHT)

    @cached_property
    def stored(self) -> tuple[Tensor, ...]:
        """Caches and states that stay in memory between steps: those that enter, or in prefill those that are made."""
        return self._stored(self.inputs) or self._stored(self.outputs)

    def _stored(self, names: tuple[str, ...]) -> tuple[Tensor, ...]:
        return tuple(t for t in (self.tensor[n] for n in names) if is_cache(t) and t.role is not Role.BORROWED)


@dataclass(frozen=True, slots=True)
class Workload:
    """What is asked of the model. `context`: cached tokens in decode, prompt tokens in prefill, a sequence.

    `weights` is the storage choice given by the user: auto, bf16 or fp8 (per-tensor dtypes are in the graph). `mtp`:
    whether the model's MTP modules run too.
    """

    phase: Phase
    batch: int
    context: int
    sockets: int
    weights: str = "auto"
    mtp: bool = False

    def __post_init__(self) -> None:
        if min(self.batch, self.context, self.sockets) < 1:
            raise ValueError(f"batch, context and sockets must be at least 1: {self}")

    @property
    def tokens(self) -> int:
        """Tokens that pass through the model in one step."""
        return self.batch if self.phase is Phase.DECODE else self.batch * self.context


@dataclass(frozen=True, eq=False)
class Graph:
    """A model and its workload: block kinds, and the order in which they run (`sequence`, one kind a layer)."""

    model: str
    model_type: str
    blocks: tuple[Block, ...]
    sequence: tuple[str, ...]
    workload: Workload

    def __post_init__(self) -> None:
        if {b.kind for b in self.blocks} != set(self.sequence) or len({b.kind for b in self.blocks}) != len(
            self.blocks
        ):
            raise ValueError("the sequence and the block kinds differ")

    @cached_property
    def block(self) -> dict[str, Block]:
        return {b.kind: b for b in self.blocks}

    @cached_property
    def repeats(self) -> dict[str, int]:
        return {b.kind: self.sequence.count(b.kind) for b in self.blocks}

    @cached_property
    def runs(self) -> tuple[tuple[tuple[str, ...], int], ...]:
        """The sequence as (period of kinds, times), greedily by the shortest period that covers the most layers."""
        seq, i = self.sequence, 0
        out: list[tuple[tuple[str, ...], int]] = []
        while i < len(seq):
            best: tuple[tuple[str, ...], int] = ((seq[i],), 1)
            for period in range(1, 5):
                body, times = seq[i : i + period], 1
                while len(body) == period and seq[i + times * period : i + (times + 1) * period] == body:
                    times += 1
                if times > 1 and times * period > len(best[0]) * best[1]:
                    best = (body, times)
            out.append(best)
            i += len(best[0]) * best[1]
        return tuple(out)

    @cached_property
    def weight_elements(self) -> int:
        """Parameters, each checkpoint tensor once (tied weights share a key)."""
        return sum(n for _, n, _ in self._weights())

    @cached_property
    def weight_nbytes(self) -> int:
        """Parameter bytes as stored, each checkpoint tensor once."""
        return sum(n for _, _, n in self._weights())

    def _weights(self) -> list[tuple[str, int, int]]:
        seen: dict[str, tuple[str, int, int]] = {}
        for block in self.blocks:
            parts: Counter[str] = Counter()
            for t in block.weights:
                times = self.repeats[block.kind] if "{layer}" in t.key else 1  # the layers share what has no number
                parts[t.key] += 1  # parts of a fused projection share a key
                key = f"{block.kind}/{t.key}/{t.name}" if "{layer}" in t.key else f"{t.key}/{parts[t.key]}"
                seen.setdefault(key, (key, t.elements * times, t.nbytes * times))
        return list(seen.values())

    @cached_property
    def kv_nbytes(self) -> int:
        """Bytes of cache and recurrent state at the workload's context, all layers, whole batch."""
        return sum(t.nbytes * self.repeats[b.kind] for b in self.blocks for t in b.stored)

    @cached_property
    def flops(self) -> int:
        return sum(op.flops * self.repeats[b.kind] for b in self.blocks for op in b.ops)

    @cached_property
    def id(self) -> str:
        """Structural identity: what is computed, not what the model is called."""
        w = self.workload
        return identity(
            "graph1",
            {
                "blocks": [_block_form(b) for b in self.blocks],
                "sequence": [[list(k), n] for k, n in self.runs],
                "workload": [w.phase, w.batch, w.context, w.sockets],
                "stored": [self.weight_elements, self.weight_nbytes],  # tied weights are stored once
            },
        )


#: Along which an attention walks: the tokens of its own sequence, or those of an encoder's output.
CONTEXTS = ("context", "context_cross")
#: How the names of dimensions begin along which the rows of a cache lie.
CACHED = ("context", "cached")


def is_cache(tensor: Tensor) -> bool:
    """Whether a tensor is a cache (rows along a context, or along `cached` where attention selects its context; not
    the rows that are appended) or a recurrent state."""
    rows = tensor.role in (Role.KV_CACHE, Role.BORROWED) and any(d.name.startswith(CACHED) for d in tensor.dims)
    return rows or tensor.role is Role.STATE


def is_kept(role: Role) -> bool:
    """Whether what has this role outlives the step (or is another layer's that does), so that no loop carries it."""
    return role in (Role.KV_CACHE, Role.STATE, Role.BORROWED)


def _block_form(block: Block) -> dict[str, Any]:
    return {
        "kind": block.kind,
        "tensors": [[t.name, [[d.name, d.size] for d in t.dims], t.dtype.label, t.role] for t in block.tensors],
        "ops": [
            [
                o.name,
                o.pattern,
                [[d.name, d.size] for d in o.dims],
                o.inputs,
                o.outputs,
                o.reduced,
                o.flops_per_point,
                o.sequential,
                [o.routing.experts, o.routing.top_k] if o.routing else [],
                o.linear,
            ]
            for o in block.ops
        ],
        "io": [block.inputs, block.outputs],
    }
