"""The walk of the shard pass: the ops, tensors and collectives of one socket, from what each op splits.

It is walked twice: first without digits, to find what meets where, then with the digits that `mesh.arrange` found. Both
walks put the same collectives, but that partial sums over different digits are completed before they are added.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import prod

from compiler.ir.graph import Block, Dim, Op, Pattern, Role, Tensor, is_cache, is_kept
from compiler.ir.mesh import Collective, CollectiveKind, Layout, Split
from compiler.passes.mesh import Digits, Key, Meeting, axes_of

Shares = dict[str, tuple[int, int]]  # dimension -> (ways, local size)
Keys = tuple[Key, ...]
EXPERTS = "experts"


class OverSockets(Exception):
    """An op, and the sockets its outputs and partial sums would take together."""


class ExpertsApart(Exception):
    """An op, and the different ways in which experts are spread that meet there."""


@dataclass
class Walk:
    """Walks a block's ops in order and writes the socket's ops, tensors and collectives.

    digits: None in the first walk. meetings, sums: what the first walk finds, as `mesh.arrange` takes it.
    """

    block: Block
    shares: dict[str, Shares]
    experts: dict[str, int]
    sockets: int
    digits: Digits | None = None
    meetings: list[Meeting] = field(default_factory=list)
    sums: list[tuple[Key, Key]] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    held: dict[str, Shares] = field(default_factory=dict)  # how a tensor is split
    partial: dict[str, Keys] = field(default_factory=dict)  # tensors that are partial sums, over which splits
    apart: dict[str, Key] = field(default_factory=dict)  # tensors whose slots lie on different sockets
    alias: dict[str, str] = field(default_factory=dict)  # tensor -> its whole form

    def run(self) -> Block:
        """The block of a socket."""
        outputs = self.walk()
        used = {n for op in self.ops for n in (*op.inputs, *op.outputs)} | set(self.block.inputs) | set(outputs)
        tensors = tuple(t for n, t in self.tensors.items() if n in used)
        return replace(self.block, ops=tuple(self.ops), tensors=tensors, outputs=outputs, sockets=self.sockets)

    def walk(self) -> tuple[str, ...]:
        """Walk the block; the names of its outputs. OverSockets, ExpertsApart where no socket can have a share."""
        kept = {t.name: self._cache_share(t) for t in self.block.tensors if is_cache(t)}
        kept |= self._weight_shares()
        for name in self.block.inputs:
            self._hold(self.block.tensor[name], kept.get(name, {}))
        for op in self.block.ops:
            self._op(op, kept)
        outputs = []
        for name in self.block.outputs:
            outputs.append(name if is_kept(self.block.tensor[name].role) else self._whole(name, {}))
        return tuple(outputs)

    def _cache_share(self, cache: Tensor) -> Shares:
        """A cache is stored as its reader splits it, a state that only leaves as its writer does."""
        readers = [op for op in self.block.ops if cache.name in op.inputs]
        if not readers and cache.role is Role.STATE:
            readers = [op for op in self.block.ops if cache.name in op.outputs]
        share = self.shares[readers[0].name] if readers else {}
        return {d.name: share[d.name] for d in cache.dims if d.name in share}

    def _weight_shares(self) -> dict[str, Shares]:
        """A weight is stored as its readers split it; what they split differently, whole."""
        wanted: dict[str, list[Shares]] = defaultdict(list)
        for op in self.block.ops:
            share, spread = self.shares[op.name], self.experts.get(op.name, 1)
            for weight in (t for t in map(self.block.tensor.get, op.inputs) if t and t.role is Role.WEIGHT):
                own = {EXPERTS: (spread, weight.dims[0].size // spread)} if spread > 1 else {}
                wanted[weight.name].append({**share, **own})
        return {
            name: {dim: s for dim, s in shares[0].items() if all(other.get(dim) == s for other in shares)}
            for name, shares in wanted.items()
        }

    def _splits(self, dims: Iterable[Dim], share: Shares) -> tuple[Split, ...]:
        """Which slices of (whole) `dims` a socket has; none before the digits are known."""
        if self.digits is None:
            return ()
        cut = [(d, *share[d.name]) for d in dims if d.name in share]
        return tuple(Split(d.name, self.digits[d.name, ways], d.size, local) for d, ways, local in cut)

    def _hold(self, tensor: Tensor, share: Shares, partial: Keys = (), apart: Key | None = None) -> None:
        held = {d.name: share[d.name] for d in tensor.dims if d.name in share}
        self.held[tensor.name] = held
        if partial:
            self.partial[tensor.name] = partial
        if apart:
            self.apart[tensor.name] = apart
        if self.digits is not None and (held or partial or apart):
            dims = tuple(Dim(d.name, held[d.name][1]) if d.name in held else d for d in tensor.dims)
            digit = self.digits[apart] if apart else None
            layout = Layout(self._splits(tensor.dims, held), axes_of(partial, self.digits), digit)
            tensor = replace(tensor, dims=dims, layout=layout)
        self.tensors[tensor.name] = tensor

    def _op(self, op: Op, kept: dict[str, Shares]) -> None:
        share = self.shares[op.name]
        through = self._through(op, share)
        inputs = []
        for name in op.inputs:
            tensor = self.block.tensor[name]
            if tensor.role is Role.WEIGHT:
                self._hold(tensor, kept[name])
                inputs.append(name)
            elif name in self.partial and through:
                inputs.append(name)
            else:
                need = {d.name: share[d.name] for d in tensor.dims if d.name in share}
                inputs.append(self._whole(name, need))
        if self.digits is not None:
            self.ops.append(self._local(op, tuple(inputs), self.digits))
        self._outputs(op, kept, through)

    def _local(self, op: Op, inputs: tuple[str, ...], digits: Digits) -> Op:
        """What a socket does of `op`, reading `inputs`."""
        share, spread, routing = self.shares[op.name], self.experts.get(op.name, 1), op.routing
        if routing and spread > 1:
            routing = replace(routing, sockets=spread, stride=digits[EXPERTS, spread].stride)
        if not share and inputs == op.inputs and routing == op.routing:
            return op
        dims = tuple(Dim(d.name, share[d.name][1]) if d.name in share else d for d in op.dims)
        return replace(op, dims=dims, inputs=inputs, routing=routing, splits=self._splits(op.dims, share))

    def _through(self, op: Op, share: Shares) -> Keys:
        """The splits whose partial sums pass through: a linear op that reads them as they are held, of a product one
        factor, of an addition all terms alike. Empty where they must be completed first."""
        values = [n for n in op.inputs if self.block.tensor[n].role is not Role.WEIGHT]
        sums = [n for n in values if n in self.partial]
        if not op.linear or not sums:
            return ()
        if any(share.get(dim) != held for n in sums for dim, held in self.held[n].items()):
            return ()
        first = self.partial[sums[0]]
        if set(first) & {(dim, ways) for dim, (ways, _) in share.items()}:
            return ()
        if op.pattern is not Pattern.MAP:
            return first if len(sums) == 1 else ()
        alike = len(sums) == len(values) and all(self._alike(first, self.partial[n]) for n in sums[1:])
        return first if alike else ()

    def _alike(self, a: Keys, b: Keys) -> bool:
        """Whether partial sums over `a` and over `b` are over the same groups of sockets, or could be."""
        if self.digits is not None:
            return axes_of(a, self.digits) == axes_of(b, self.digits)
        if prod(ways for _, ways in a) != prod(ways for _, ways in b):
            return False
        self.sums.extend((x, y) for x in a for y in b if x[1] == y[1])
        return True

    def _apart(self, op: Op) -> Key | None:
        spread = self.experts.get(op.name, 1)
        found = dict.fromkeys(self.apart[n] for n in op.inputs if n in self.apart)
        if spread > 1:
            found[EXPERTS, spread] = None
        if len(found) > 1:
            raise ExpertsApart(op.name, tuple(ways for _, ways in found))
        return next(iter(found), None)

    def _outputs(self, op: Op, kept: dict[str, Shares], through: Keys) -> None:
        share, apart = self.shares[op.name], self._apart(op)
        summed = tuple((d, share[d][0]) for d in op.reduced if d in share)
        own = tuple((d.name, share[d.name][0]) for d in op.dims if d.name in share)
        met = tuple(dict.fromkeys((*own, *((apart,) if apart else ()), *through)))
        if met:
            self.meetings.append((op.name, met))
        together = bool(apart) and "slots" in op.reduced  # the slots of all sockets meet: a sum over the experts
        partial = (*summed, *through, *((apart,) if apart and together else ()))
        for name in op.outputs:
            tensor = self.block.tensor[name]
            self._hold(tensor, kept.get(name, share), partial, None if together else apart)
            over = prod(w for w, _ in self.held[name].values()) * prod(w for _, w in partial)
            over *= apart[1] if apart and not together else 1
            if over > self.sockets:
                raise OverSockets(op.name, over)

    def _whole(self, name: str, need: Shares) -> str:
        """The name under which `name` can be read split as `need`, after the collectives that takes."""
        name = self.alias.get(name, name)
        if name in self.partial:
            name = self._collect(name, CollectiveKind.ALL_REDUCE, {}, self.partial[name])
        extra = {d: s for d, s in self.held[name].items() if need.get(d) != s}
        if extra:
            name = self._collect(name, CollectiveKind.ALL_GATHER, extra, ())
        return name

    def _collect(self, name: str, kind: CollectiveKind, gathered: Shares, summed: Keys) -> str:
        """Insert the collective that puts `gathered` dimensions together or completes the sum over `summed`."""
        source, base = self.tensors[name], self.block.tensor[name.split("@")[0]]
        result = f"{name}@{kind}"
        role = Role.ACTIVATION if is_kept(source.role) else source.role
        share = {d: s for d, s in self.held[name].items() if d not in gathered}
        self._hold(replace(base, name=result, role=role), share, (), self.apart.get(name))
        self.alias[base.name] = result
        if self.digits is None:
            return result
        if summed:
            collective = Collective(kind, axes_of(summed, self.digits))
        else:
            keys = [(d.name, gathered[d.name][0]) for d in base.dims if d.name in gathered]
            collective = Collective(kind, tuple(self.digits[key] for key in keys), tuple(dim for dim, _ in keys))
        self.ops.append(
            Op(
                f"{name}.{kind}",
                Pattern.COLLECTIVE,
                self.tensors[result].dims,
                (name,),
                (result,),
                flops_per_point=0,
                collective=collective,
                splits=self._splits(base.dims, share),
            )
        )
        return result
