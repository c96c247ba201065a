"""The compiler's output: what one socket runs, as data. The simulator needs nothing else but the target.

All sockets run the same program (SPMD); sizes are those of the busiest socket. Work is in operations and bytes, never
in seconds: a program can be simulated on a target that is faster or slower than the one it was compiled for.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from compiler.canonical import identity
from compiler.compulsory import Compulsory
from compiler.ir.actions import Launch
from compiler.ir.graph import Block, Pattern, Workload
from compiler.placement import Buffer, SectionPlace

PROGRAM_VERSION = 2


@dataclass(slots=True)
class Stage:
    """One op of a section on its PCUs and PMUs. Work and bytes are for one loop tile unless they say `once`.

    Not frozen, for construction speed on the tuner's hot path; nobody changes a stage after the emit pass.

    Attributes:
        op, pattern: the op's name and parallel pattern.
        pcus: PCUs allocated; pcus_used: how many of them the op's parallel dimensions can keep busy.
        pmus: PMUs allocated to its buffers and weights.
        flops: useful floating-point operations; macs: multiply-accumulate slots with lane and tile padding.
        vector_ops: vector operations of element-wise work (lanes wide), conversion of stored weights included.
        weight_bytes: weights read from HBM a load; ddr_bytes: from DDR a load.
        loads_once: weights stay on chip for all tiles; otherwise every tile loads them again.
        prefetchable: the address of the weights is known before the stage's inputs are (false for routed experts).
        kv_bytes: cache rows read from HBM; kv_ports: streams they arrive on.
        kv_ddr_bytes: cache rows read from DDR, and appended there.
        read_bytes, write_bytes: activations (and appended cache rows) to and from HBM, at section boundaries.
        carried_bytes: boundary bytes that a loop keeps on chip (not read or written inside a loop).
        link_bytes, link_steps: volume on the busiest link and number of dependent steps of a collective.
        restarts: times the pipeline refills inside a tile (expert switches, context steps of streaming softmax).
        preds: indices of the stages it waits for; streams: it follows its producers element by element;
        emits_early: its first outputs leave long before its last (false for norms, top-k, attention, collectives).
        depth: tiles its output buffer holds.
    """

    op: str
    pattern: Pattern
    pcus: int
    pcus_used: int
    pmus: int
    flops: int
    macs: int
    vector_ops: int
    weight_bytes: int
    ddr_bytes: int
    loads_once: bool
    prefetchable: bool
    kv_bytes: int
    kv_ddr_bytes: int
    kv_ports: int
    read_bytes: int
    write_bytes: int
    carried_bytes: int
    link_bytes: int
    link_steps: int
    restarts: int
    preds: tuple[int, ...]
    streams: bool
    emits_early: bool
    depth: int


@dataclass(frozen=True, slots=True)
class ExpertTile:
    """How an op of routed experts runs: on `regions` regions of the chip, in tiles of `rows` rows an expert."""

    op: str
    regions: int
    rows: int


@dataclass(slots=True)
class Section:
    """Stages resident together. `tiles` loop tiles flow through; `prefetch_bytes` of SRAM let streams run ahead.

    tile_tokens: tokens of a loop tile (the last may have fewer); context_rows: rows that a step of streaming softmax
    takes; experts: a row for each op of routed experts.
    buffers: what lies in SRAM; place: where everything lies, None until `place` has run.
    """

    name: str
    block: str
    stages: tuple[Stage, ...]
    tiles: int
    prefetch_bytes: int
    sram_bytes: int
    pcus: int
    pmus: int
    tile_tokens: int
    context_rows: int
    experts: tuple[ExpertTile, ...]
    buffers: tuple[Buffer, ...] = ()
    place: SectionPlace | None = None


@dataclass(slots=True)
class Run:
    """Sections executed in order, `times` times; `looped`: one launch for all of it, sections resident together."""

    sections: tuple[Section, ...]
    times: int
    looped: bool


@dataclass(frozen=True, slots=True)
class Extent:
    """Bytes of a tier from `address` on: what `holds` says (weights, experts, kv, activations) of a block kind."""

    block: str
    holds: str
    tier: str
    address: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class MemoryMap:
    """Bytes a socket holds between executions, by class and tier, and what did not fit HBM.

    spilled: bytes of weights and cache that a socket keeps in DDR because HBM is full. extents: where each class of
    each block kind lies, all its layers after each other; those of a tier leave no gaps.
    """

    hbm_weights: int
    hbm_kv: int
    hbm_activations: int
    ddr_weights: int
    ddr_kv: int
    spilled: int
    extents: tuple[Extent, ...] = ()

    @property
    def hbm_bytes(self) -> int:
        return self.hbm_weights + self.hbm_kv + self.hbm_activations

    @property
    def ddr_bytes(self) -> int:
        return self.ddr_weights + self.ddr_kv


@dataclass(frozen=True)
class Program:
    """A compiled schedule: runs in order, the launch mode, and the memory map of a socket.

    blocks: what a socket executes, one block a kind, with the layouts of its tensors; a section's stages are ops of its
    block, in order. They are the compiler's own and compared by object: two programs are the same if their JSON is.
    weight_elements, weight_nbytes, kv_nbytes: of the model, each tensor once, on all sockets together; compulsory: what
    no schedule of it avoids. target: the name of what it was compiled for.
    """

    graph_id: str
    schedule_id: str
    target_id: str
    compiler_version: int
    model: str
    workload: Workload
    launch: Launch
    runs: tuple[Run, ...]
    memory: MemoryMap
    weight_nbytes: int
    kv_nbytes: int
    weight_elements: int
    compulsory: Compulsory
    target: str
    blocks: tuple[Block, ...]

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        return tuple(s for run in self.runs for s in run.sections)

    @property
    def launches(self) -> int:
        """Kernel launches a step."""
        return sum(1 if run.looped else run.times * len(run.sections) for run in self.runs)

    @property
    def placed(self) -> bool:
        """Whether its sections have places on the grid."""
        return all(s.place is not None for s in self.sections)

    @cached_property
    def id(self) -> str:
        """Identity by what it was compiled from: the compiler is deterministic, so equal inputs are equal programs."""
        made_of = [self.graph_id, self.schedule_id, self.target_id, self.compiler_version, *(["placed"] * self.placed)]
        return identity(f"program{PROGRAM_VERSION}", made_of)

    @cached_property
    def block(self) -> dict[str, Block]:
        return {b.kind: b for b in self.blocks}

    def to_json(self) -> dict[str, Any]:
        """The program as JSON: `compiler.program_json` has the form."""
        from compiler.program_json import program_to_json

        return program_to_json(self)

    @classmethod
    def from_json(cls, value: Any, where: str = "program") -> "Program":
        """The inverse of `to_json`. InputError names the place that is wrong, and what would be right."""
        from compiler.program_json import program_from_json

        return program_from_json(value, where)
