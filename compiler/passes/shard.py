"""Pass 2, shard: one block as a single socket sees it (SPMD), with collectives where values must meet.

Contract: a split dimension shrinks to its local size in every op and weight that carries it; a split reduction makes
its output partial, and an all_reduce stands before the first op that needs the sum (partial sums pass through linear
ops); a tensor split along a dimension its reader does not split is gathered. Block inputs and outputs are whole.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod

from compiler.diagnostic import NOT_HERE, Code, Diagnostic, Refusals
from compiler.errors import nearest
from compiler.ir.actions import Shard, known
from compiler.ir.graph import (
    CONTEXTS,
    Block,
    Collective,
    CollectiveKind,
    Dim,
    Op,
    Pattern,
    Role,
    Tensor,
    is_cache,
    is_kept,
)

#: Never split: tokens and batch enter whole, slots follow the experts, a cached latent row is stored whole, and a
#: dimension that a merge (or kv_b) made holds unlike outputs side by side. The window of a convolution, and the rows it
#: keeps, are a few elements that slide together.
WHOLE = ("tokens", "batch", "slots", "latent_dim", "qkv_rows", "gate_up", "kv_b", "kernel", "taps")

#: Dimensions over matrices with scales of their own: experts, and what merge_qkv and merge_gate_up put side by side.
APART = ("experts", "qkv_rows", "gate_up")

#: Rotary embedding turns pairs of elements far apart in a row: its rows stay whole.
ROTATED = ("head_dim", "qk_dim", "rope")

Split = dict[str, tuple[int, int]]  # dimension -> (ways, local size)


@lru_cache(maxsize=4096)
def shard_block(block: Block, actions: tuple[Shard, ...], sockets: int) -> tuple[Block, Refusals]:
    """`block` on one of `sockets` sockets. Refused splits leave it unsharded; nothing to split does not."""
    splits: dict[str, Split] = {op.name: {} for op in block.ops}
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
    try:
        return _Sharder(block, splits, experts, sockets).run(), tuple(refusals)
    except _OverSockets as over:
        place, over_ways = over.args
        rule = "the ways in which an output and its partial sums are spread multiply"
        help_ = ("fewer ways", "shard the whole part alike")
        refusal = Diagnostic(Code.SHARD_OVER_SOCKETS, place, rule, over_ways, sockets, "sockets", help_)
        return block, (*refusals, (None, refusal))


def _follow(block: Block, op: Op, splits: dict[str, Split]) -> Split:
    """The splits of the append's dimensions on which all readers of its outputs agree."""
    readers = [splits[r.name] for r in block.ops if set(r.inputs) & set(op.outputs)]
    shared = {d.name: [r.get(d.name) for r in readers] for d in op.dims}
    return {
        dim: found[0] for dim, found in shared.items() if found and found[0] and found.count(found[0]) == len(found)
    }


def _claim(
    block: Block, action: Shard, sockets: int, splits: dict[str, Split], experts: dict[str, int]
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
    legal = [op for op in having if action.dim in splittable(op)]
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


def _block_scales(block: Block, splits: dict[str, Split]) -> Iterable[Diagnostic]:
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


class _OverSockets(Exception):
    """Internal to this module: an op and the sockets its outputs would take."""


@dataclass
class _Sharder:
    """Walks a block's ops in order and writes the socket's ops, tensors and collectives."""

    block: Block
    splits: dict[str, Split]
    experts: dict[str, int]
    sockets: int
    ops: list[Op] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    held: dict[str, Split] = field(default_factory=dict)  # how a tensor is split
    partial: dict[str, int] = field(default_factory=dict)  # tensors that are partial sums, over how many sockets
    apart: dict[str, int] = field(default_factory=dict)  # tensors whose slots lie on different sockets
    alias: dict[str, str] = field(default_factory=dict)  # tensor -> its whole form

    def run(self) -> Block:
        caches = {t.name: self._cache_split(t) for t in self.block.tensors if is_cache(t)}
        for name in self.block.inputs:
            self._hold(self.block.tensor[name], caches.get(name, {}))
        for op in self.block.ops:
            self._op(op, caches)
        outputs = []
        for name in self.block.outputs:
            outputs.append(name if is_kept(self.block.tensor[name].role) else self._whole(name, {}))
        used = {n for op in self.ops for n in (*op.inputs, *op.outputs)} | set(self.block.inputs) | set(outputs)
        tensors = tuple(t for n, t in self.tensors.items() if n in used)
        return replace(self.block, ops=tuple(self.ops), tensors=tensors, outputs=tuple(outputs), sockets=self.sockets)

    def _cache_split(self, cache: Tensor) -> Split:
        """A cache is stored as its reader splits it, a state that only leaves as its writer does."""
        readers = [op for op in self.block.ops if cache.name in op.inputs]
        if not readers and cache.role is Role.STATE:
            readers = [op for op in self.block.ops if cache.name in op.outputs]
        split = self.splits[readers[0].name] if readers else {}
        return {d.name: split[d.name] for d in cache.dims if d.name in split}

    def _hold(self, tensor: Tensor, split: Split) -> None:
        held = {d.name: split[d.name] for d in tensor.dims if d.name in split}
        self.held[tensor.name] = held
        if held:
            dims = tuple(Dim(d.name, held[d.name][1]) if d.name in held else d for d in tensor.dims)
            tensor = replace(tensor, dims=dims)
        self.tensors[tensor.name] = tensor

    def _op(self, op: Op, caches: dict[str, Split]) -> None:
        split, spread = self.splits[op.name], self.experts.get(op.name, 1)
        passes = self._passes(op, split)
        inputs = []
        for name in op.inputs:
            tensor = self.block.tensor[name]
            if tensor.role is Role.WEIGHT:
                weight_split = dict(split)
                if spread > 1:
                    weight_split["experts"] = (spread, tensor.dims[0].size // spread)
                self._hold(tensor, weight_split)
                inputs.append(name)
            elif name in self.partial and passes:
                inputs.append(name)
            else:
                need = {d.name: split[d.name] for d in tensor.dims if d.name in split}
                inputs.append(self._whole(name, need))
        dims = tuple(Dim(d.name, split[d.name][1]) if d.name in split else d for d in op.dims)
        routing = replace(op.routing, sockets=spread) if op.routing and spread > 1 else op.routing
        self.ops.append(replace(op, dims=dims, inputs=tuple(inputs), routing=routing))
        self._outputs(op, caches, spread, passes)

    def _passes(self, op: Op, split: Split) -> bool:
        """Whether partial sums may pass through: a linear op that reads them as they are held; of an addition both
        sides partial alike."""
        values = [n for n in op.inputs if self.block.tensor[n].role is not Role.WEIGHT]
        if not op.linear or not any(n in self.partial or n in self.apart for n in values):
            return False
        if any(split.get(dim) != held for n in values if n in self.partial for dim, held in self.held[n].items()):
            return False
        if op.pattern is not Pattern.MAP:
            return True
        return len({self.partial.get(n, 0) for n in values}) == 1

    def _outputs(self, op: Op, caches: dict[str, Split], spread: int, passes: bool) -> None:
        split = self.splits[op.name]
        summed = prod(split[d][0] for d in op.reduced if d in split)
        apart = max([spread, *(self.apart.get(n, 1) for n in op.inputs)])
        through = max((self.partial.get(n, 1) for n in op.inputs), default=1) if passes else 1
        for name in op.outputs:
            self._hold(self.block.tensor[name], caches.get(name, split))
            if apart > 1 and not op.linear:
                self.apart[name] = apart
            total = summed * through * (apart if op.linear and apart > 1 else 1)
            if total > 1:
                self.partial[name] = total
            spread_over = prod(w for w, _ in self.held[name].values()) * total * self.apart.get(name, 1)
            if spread_over > self.sockets:
                raise _OverSockets(f"{self.block.kind} {op.name}", spread_over)

    def _whole(self, name: str, need: Split) -> str:
        """The name under which `name` can be read split as `need`, after the collectives that takes."""
        name = self.alias.get(name, name)
        if name in self.partial:
            name = self._collect(name, CollectiveKind.ALL_REDUCE, self.partial[name], self.tensors[name].dims)
        extra = {d: s for d, s in self.held[name].items() if need.get(d) != s}
        if extra:
            base = self.block.tensor[name.split("@")[0]]
            full = {d.name: d for d in base.dims}
            dims = tuple(full[d.name] if d.name in extra else d for d in self.tensors[name].dims)
            name = self._collect(name, CollectiveKind.ALL_GATHER, prod(w for w, _ in extra.values()), dims)
        return name

    def _collect(self, name: str, kind: CollectiveKind, ways: int, dims: tuple[Dim, ...]) -> str:
        source = self.tensors[name]
        result = f"{name}@{kind}"
        role = Role.ACTIVATION if is_kept(source.role) else source.role
        self.tensors[result] = replace(source, name=result, dims=dims, role=role)
        gathered = {d.name for d, old in zip(dims, source.dims, strict=True) if d != old}
        self.held[result] = (
            {d: s for d, s in self.held[name].items() if d not in gathered} if gathered else self.held[name]
        )
        self.ops.append(
            Op(
                f"{name}.{kind}",
                Pattern.COLLECTIVE,
                dims,
                (name,),
                (result,),
                flops_per_point=0,
                collective=Collective(kind, ways),
            )
        )
        self.alias[name.split("@")[0]] = result
        return result
