"""Sockets that run a program: layer by layer, section by section, tile by tile, op by op, on real numbers.

All sockets run the same program on their shares. Within a section a tile passes through all stages before the next one
begins, so that a stage that reads what a later tile makes finds it unwritten.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch

from compiler.frontend.parts import is_edge
from compiler.ir.graph import Block, Op, Phase, Role, Tensor, is_cache
from compiler.ir.mesh import CollectiveKind, groups
from compiler.program import Program, Section
from simulator.functional.attention import UNWRITTEN
from simulator.functional.kernels import kernel_of
from simulator.functional.named import Named
from simulator.functional.numbers import Bindings, LayerNumbers, Unmeant
from simulator.functional.tile import Tile
from simulator.functional.weights import cut, filled, share, whole

Caches = dict[tuple[int, str], Named]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step gives: the outputs of the last block, and the caches and states that it leaves, by layer."""

    outputs: dict[str, Named]
    caches: Caches


def execute(program: Program, bindings: Bindings, ids: Any, caches: Mapping[tuple[int, str], Named]) -> Outcome:
    """Run one step. ids: (tokens), sequence after sequence. caches: what the step before left, whole, by layer.

    Raises Unmeant, naming the op, where what it computes is not written down.
    """
    machine = _Machine(program, bindings, dict(caches))
    carry = {"ids": Named(("tokens",), ids)}
    layer = 0
    for run in program.runs:
        for _ in range(run.times):
            for sections in _blocks(program, run.sections):
                kind = sections[0].block
                carry |= machine.block(kind, layer, sections, carry)
                layer += not is_edge(kind)
    last = program.block[program.runs[-1].sections[-1].block]
    return Outcome({n: carry[n] for n in (*last.outputs, "logits") if n in carry}, machine.left)


def _blocks(program: Program, sections: tuple[Section, ...]) -> list[list[Section]]:
    """The sections of each layer in turn: a layer begins with the first op of its block."""
    out: list[list[Section]] = []
    for section in sections:
        if section.stages[0].op == program.block[section.block].ops[0].name:
            out.append([])
        out[-1].append(section)
    return out


@dataclass
class _Machine:
    """What lives longer than a layer."""

    program: Program
    bindings: Bindings
    caches: Caches
    left: Caches = field(default_factory=dict)

    def block(self, kind: str, layer: int, sections: list[Section], carry: Mapping[str, Named]) -> dict[str, Named]:
        """Run one layer; what it hands on."""
        block = self.program.block[kind]
        one = _Layer(self, block, layer, self.bindings.layer(layer, kind))
        for name in block.inputs:
            one.enter(block.tensor[name], carry)
        for section in sections:
            one.section(section)
        given: dict[str, Named] = {}
        for name in block.outputs:
            base = name.split("@")[0]
            value = one.memory[0][name]
            if is_cache(block.tensor[name]) or block.tensor[name].role is Role.KV_CACHE:
                self.left[layer, base] = one.gathered(name)
            elif base in ("y", "attn.y"):
                given["x"] = value
            else:
                given[base] = value
        return given


class _Layer:
    """One layer on all sockets: what each of them holds of every tensor."""

    def __init__(self, machine: _Machine, block: Block, layer: int, numbers: LayerNumbers) -> None:
        self.machine, self.block, self.layer, self.numbers = machine, block, layer, numbers
        self.workload = machine.program.workload
        self.sockets = range(self.workload.sockets)
        self.memory: list[dict[str, Named]] = [{} for _ in self.sockets]
        self.tokens = max(op.size("tokens") for op in block.ops)
        self.rows = self.workload.context
        if self.workload.phase is Phase.DECODE:
            self.rows = min(numbers.window or self.rows, self.rows)
        for op in (op for op in block.ops if "context" in [d.name for d in op.dims]):
            whole_rows = prod(_whole(op, dim) for dim in ("context", "splits"))
            if whole_rows < self.rows:
                raise Unmeant(f"{op.name} of {block.kind}: {self.rows} tokens in a window of {op.size('context')}")

    def enter(self, tensor: Tensor, carry: Mapping[str, Named]) -> None:
        """An input of the block, each socket its share."""
        if tensor.name in carry:
            value = carry[tensor.name]
            if value.size("tokens") > self.tokens:  # the head reads the last token of each sequence
                length = value.size("tokens") // self.tokens
                value = Named(value.dims, value.over(("tokens", *value.dims[1:]))[length - 1 :: length])
        else:
            value = self.machine.caches[self.layer, tensor.name]
            value = _laid_out(value, tensor)
        for socket in self.sockets:
            self.memory[socket][tensor.name] = share(value, tensor.layout.splits, socket)

    def section(self, section: Section) -> None:
        ops = [self.block.op[stage.op] for stage in section.stages]
        size = section.tile_tokens
        for begin in range(0, self.tokens, size):
            for op in ops:
                self._op(op, section, begin, min(begin + size, self.tokens))

    def _op(self, op: Op, section: Section, begin: int, end: int) -> None:
        if op.collective is not None:
            self._exchange(op, begin, end)
            return
        kernel = kernel_of(op)
        places, sequences, span = self._places(begin, end)
        for socket in self.sockets:
            memory = self.memory[socket]
            given = {n: self._read(op, n, socket, (begin, end), span) for n in op.inputs}
            splits = {s.dim: s for n in op.outputs for s in self.block.tensor[n].layout.splits} | {
                s.dim: s for s in op.splits
            }
            starts = {dim: s.axis.place(socket) * s.local for dim, s in splits.items()}
            if op.routing and op.routing.axis:
                starts["experts"] = op.routing.axis.place(socket) * (op.routing.experts // op.routing.sockets)
            summed = [s for s in op.splits if s.dim in op.reduced]
            now = {n: self._now(n, socket, span) for n in op.outputs if "tokens" not in self._dims(n)}
            tile = Tile(
                op=op,
                phase=self.workload.phase,
                numbers=self.numbers,
                positions=places,
                sequences=sequences,
                rows=self.rows,
                step=section.context_rows,
                expert_rows=_expert_rows(section, op),
                splits=splits,
                starts=starts,
                first=all(s.axis.place(socket) == 0 for s in summed),
                tensors=self.block.tensor,
                now=now,
            )
            for name, value in kernel(given, tile).items():
                for split in op.splits:  # out of a whole input an op gives its own share
                    if value.size(split.dim) == split.whole != split.local and split.dim in value.dims:
                        value = cut(value, split, socket)
                self._write(memory, name, value, (begin, end), span)

    def _dims(self, name: str) -> list[str]:
        return [d.name for d in self.block.tensor[name].dims]

    def _places(self, begin: int, end: int) -> tuple[Any, Any, tuple[int, int]]:
        """Of the tokens begin..end - 1: places in their sequences, sequences from the first, and which sequences."""
        token, w = torch.arange(begin, end), self.workload
        whole_prompt = w.phase is Phase.PREFILL and self.tokens == w.tokens
        length = w.context if whole_prompt else 1
        sequence = token // length
        place = token % length if whole_prompt else torch.full_like(token, w.context - 1)
        first = int(sequence[0])
        return place, sequence - first, (first, int(sequence[-1]) + 1)

    def _read(self, op: Op, name: str, socket: int, tokens: tuple[int, int], span: tuple[int, int]) -> Named:
        tensor = self.block.tensor[name]
        if tensor.role is Role.WEIGHT:
            return self._weight(tensor, socket)
        value = self.memory[socket][name]
        if "tokens" in value.dims:
            value = value.cut("tokens", *tokens)
        if "batch" in value.dims:
            value = value.cut("batch", *span)
        for split in op.splits:
            if split.dim in value.dims and tensor.layout.split(split.dim) is None:
                value = cut(value, split, socket)
        return value

    def _weight(self, tensor: Tensor, socket: int) -> Named:
        bindings, kind = self.machine.bindings, self.block.kind
        full = whole(tensor, lambda name: bindings.weight(self.layer, kind, name))
        return share(full, tensor.layout.splits, socket)

    def _now(self, name: str, socket: int, span: tuple[int, int]) -> Named:
        """A tensor that persists between tiles, as it is for the sequences `span`."""
        memory, tensor = self.memory[socket], self.block.tensor[name]
        if name not in memory:
            empty = 0.0 if tensor.role is Role.STATE else UNWRITTEN
            shape = [d.size for d in tensor.dims]
            memory[name] = Named(tuple(d.name for d in tensor.dims), torch.full(shape, empty))
        value = memory[name]
        return value.cut("batch", *span) if "batch" in value.dims else value

    def _write(
        self, memory: dict[str, Named], name: str, value: Named, tokens: tuple[int, int], span: tuple[int, int]
    ) -> None:
        """Store what a tile gives of a tensor."""
        dims = value.dims
        if name not in memory:
            whole_size = {"tokens": self.tokens, "batch": self.workload.batch}
            shape = [whole_size.get(d, n) for d, n in zip(dims, value.data.shape, strict=True)]
            memory[name] = Named(dims, torch.zeros(shape, dtype=value.data.dtype))
        place = {"tokens": slice(*tokens), "batch": slice(*span)}
        held = memory[name]
        held.data[tuple(place.get(d, slice(None)) for d in held.dims)] = value.over(held.dims)

    def _exchange(self, op: Op, begin: int, end: int) -> None:
        """A collective on one tile: each group of sockets adds what its members hold, or puts it together."""
        (source,), (result,) = op.inputs, op.outputs
        collective = op.collective
        assert collective is not None
        layout = self.block.tensor[source].layout
        for members in groups(collective.axes, len(self.sockets)):
            held = [self.memory[s][source] for s in members]
            parts = [v.cut("tokens", begin, end) if "tokens" in v.dims else v for v in held]
            if collective.kind is CollectiveKind.ALL_REDUCE:
                total = Named(parts[0].dims, torch.stack([p.data for p in parts]).sum(0))
            else:
                total = _together(parts, members, [layout.split(d) for d in collective.dims])
            for socket in members:
                self._write(self.memory[socket], result, total, (begin, end), (0, self.workload.batch))

    def gathered(self, name: str) -> Named:
        """The whole of a tensor that sockets hold split."""
        layout = self.block.tensor[name].layout
        parts = [self.memory[s][name] for s in self.sockets]
        return _together(parts, tuple(self.sockets), list(layout.splits))


def _expert_rows(section: Section, op: Op) -> int:
    """Rows of an expert's tile; of what has no experts, one."""
    return next((e.rows for e in section.experts if e.op == op.name), 1)


def _whole(op: Op, dim: str) -> int:
    """Size of a dimension of the op on all sockets."""
    return next((s.whole for s in op.splits if s.dim == dim), op.size(dim))


def _together(parts: list[Named], members: tuple[int, ...], splits: list[Any]) -> Named:
    """One value out of the members' slices along `splits`, without the padding."""
    first = parts[0]
    shape = [next((s.whole for s in splits if s.dim == d), first.size(d)) for d in first.dims]
    out = torch.zeros(shape, dtype=first.data.dtype)
    for part, socket in zip(parts, members, strict=True):
        place, take = [], []
        for d in first.dims:
            split = next((s for s in splits if s.dim == d), None)
            low, high = split.span(socket) if split else (0, part.size(d))
            place.append(slice(low, high))
            take.append(slice(0, high - low))
        out[tuple(place)] = part.data[tuple(take)]
    return Named(first.dims, out)


def _laid_out(value: Named, tensor: Tensor) -> Named:
    """A whole cache in the dimensions of `tensor`: rows in splits, filled up, where the program splits them."""
    sizes = {d.name: d.size for d in tensor.dims}
    for split in tensor.layout.splits:
        sizes[split.dim] = split.whole
    if "splits" in sizes and "splits" not in value.dims:
        value = filled(value, "context", sizes["splits"] * sizes["context"], UNWRITTEN)
        value = value.split("context", {"splits": sizes["splits"], "context": sizes["context"]})
    return Named(tuple(d.name for d in tensor.dims), value.over([d.name for d in tensor.dims]))
