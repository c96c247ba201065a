"""The values of the experience store, and how alike two workloads are. Pure; nothing here knows of tables.

Every value validates on construction, so a record that exists is well formed. Identities are content hashes.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import cached_property
from math import fsum, inf, log2
from typing import Any

from compiler.canonical import canonical_json, identity
from compiler.diagnostic import Code, Diagnostic
from compiler.ir.graph import Graph
from compiler.ir.schedule import Schedule
from simulator.report import Report

Features = Mapping[str, float | str]

#: Weight of a feature in `distance`, by its full name or else by its prefix up to the first dot. Logarithms are base 2,
#: so a weight is the cost of a doubling; fractions (block, op) differ by at most 2 in sum.
WEIGHTS: Mapping[str, float] = {
    "phase": 32.0,  # decode and prefill share little: further than any two sizes of one architecture
    "log2.sockets": 16.0,  # another socket count needs another sharding
    "log2.batch": 0.5,
    "log2.context": 0.5,
    "log2.tokens": 0.25,
    "log2.experts": 1.0,
    "log2.top_k": 1.0,
    "log2.weight_bytes": 0.25,
    "log2.flops_per_byte": 0.5,
    "dim.hidden": 0.5,
    "dim.ffn": 0.5,
    "dim.heads": 0.5,
    "dim.kv_heads": 0.5,
    "dim": 0.25,
    "block": 4.0,  # a schedule names block kinds
    "op": 8.0,  # and op roles: where these differ its actions do not apply
}
_OTHER_WEIGHT = 0.25
#: A workload up to this distance is near: one architecture and phase, the same sockets, sizes within a few doublings.
NEAR = 8.0


class Status(StrEnum):
    """What came of an evaluation."""

    MEASURED = "measured"
    REJECTED = "rejected"


class RunStatus(StrEnum):
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class StartKind(StrEnum):
    """What a run started from: a record of the same workload, of one near or far, or none at all."""

    EXACT = "exact"
    NEAR = "near"
    FAR = "far"
    NONE = "none"


def start_kind(distance: float | None) -> StartKind:
    """exact at distance 0, near up to `NEAR`, far beyond; none when there is no record (None)."""
    if distance is None:
        return StartKind.NONE
    if distance == 0:
        return StartKind.EXACT
    return StartKind.NEAR if distance <= NEAR else StartKind.FAR


def features(graph: Graph) -> dict[str, float | str]:
    """What makes workloads alike, by sorted name; a function of what `Graph.id` hashes, rounded to 6 decimals.

    phase; log2.* of sockets, batch, context, tokens, experts, top_k, weight_bytes and flops_per_byte (FLOPs over weight
    and cache bytes); dim.NAME: log2 of the largest size of every other named dimension (hidden, ffn, heads ...);
    block.KIND: its fraction of the layers; op.NAME: its fraction of all op executions of a step.
    """
    w = graph.workload
    routings = [op.routing for block in graph.blocks for op in block.ops if op.routing]
    out: dict[str, float] = {
        "log2.sockets": log2(w.sockets),
        "log2.batch": log2(w.batch),
        "log2.context": log2(w.context),
        "log2.tokens": log2(w.tokens),
        "log2.experts": log2(max((r.experts for r in routings), default=1)),
        "log2.top_k": log2(max((r.top_k for r in routings), default=1)),
        "log2.weight_bytes": log2(1 + graph.weight_nbytes),
        "log2.flops_per_byte": log2(1 + graph.flops) - log2(1 + graph.weight_nbytes + graph.kv_nbytes),
    }
    for name, size in _dim_sizes(graph).items():
        out[f"dim.{name}"] = log2(size)
    for kind, times in graph.repeats.items():
        out[f"block.{kind}"] = times / len(graph.sequence)
    executions = sum(len(b.ops) * graph.repeats[b.kind] for b in graph.blocks)
    for block in graph.blocks:
        for op in block.ops:
            name = f"op.{op.name}"
            out[name] = out.get(name, 0.0) + graph.repeats[block.kind] / executions
    return dict(sorted({"phase": w.phase.value, **{name: round(value, 6) for name, value in out.items()}}.items()))


def _dim_sizes(graph: Graph) -> dict[str, int]:
    """The largest size of every named dimension but those that the workload and the routing already give."""
    sizes: dict[str, int] = {}
    for block in graph.blocks:
        for dims in (*(op.dims for op in block.ops), *(tensor.dims for tensor in block.tensors)):
            for dim in dims:
                sizes[dim.name] = max(dim.size, sizes.get(dim.name, 1))
    return {name: size for name, size in sizes.items() if name not in ("tokens", "batch", "context", "experts")}


def distance(a: Features, b: Features) -> float:
    """Weighted L1 distance of two feature maps (`WEIGHTS`): symmetric, at least 0, and 0 for equal maps.

    A number that one side lacks counts as 0 (a dimension of size 1, a kind or op that does not occur); words, such as
    the phase, cost their weight when they differ.
    """
    return fsum(_weight(name) * _gap(a.get(name, 0.0), b.get(name, 0.0)) for name in sorted({*a, *b}))


def _weight(name: str) -> float:
    return WEIGHTS.get(name, WEIGHTS.get(name.partition(".")[0], _OTHER_WEIGHT))


def _gap(a: float | str, b: float | str) -> float:
    if isinstance(a, str) or isinstance(b, str):
        return float(a != b)
    return abs(a - b)


@dataclass(frozen=True, slots=True)
class Method:
    """How a latency was obtained. Records are served only where all three are equal; others are stale.

    version: of the compiler and simulator together. fidelity: as in `Report.fidelity`.
    """

    target_id: str
    version: str
    fidelity: str

    def __post_init__(self) -> None:
        if not (self.target_id and self.version and self.fidelity):
            raise ValueError(f"a method needs target, version and fidelity: {self}")


@dataclass(frozen=True, slots=True)
class WorkloadRecord:
    """A workload as the store knows it: what it is called, what is asked, and its features."""

    id: str
    model: str
    model_type: str
    phase: str
    batch: int
    context: int
    sockets: int
    weights: str
    features: Features = field(hash=False)

    def __post_init__(self) -> None:
        for name, value in self.features.items():
            if not isinstance(value, str) and not (_is_number(value) and -inf < value < inf):
                raise ValueError(f"feature {name} is {value!r}")

    @classmethod
    def of(cls, graph: Graph) -> "WorkloadRecord":
        w = graph.workload
        return cls(
            graph.id,
            graph.model,
            graph.model_type,
            w.phase.value,
            w.batch,
            w.context,
            w.sockets,
            w.weights,
            features(graph),
        )


def evaluation_key(graph_id: str, schedule_id: str, method: Method) -> str:
    """The content key of an evaluation."""
    return identity("eval1", [graph_id, schedule_id, method.target_id, method.version, method.fidelity])


@dataclass(frozen=True)
class Evaluation:
    """What came of one schedule: measured (latency, canonical JSON of the report) or rejected with diagnostics."""

    graph_id: str
    schedule: Schedule
    method: Method
    status: Status
    latency_s: float | None = None
    report_json: str | None = None
    diagnostics: tuple[Diagnostic, ...] = ()

    def __post_init__(self) -> None:
        if self.status is Status.REJECTED:
            if self.latency_s is not None or self.report_json is not None or not self.diagnostics:
                raise ValueError("a rejected evaluation has diagnostics, and neither latency nor report")
            return
        if self.diagnostics or not _is_latency(self.latency_s):
            raise ValueError(
                f"a measured evaluation has a latency above 0 s and no diagnostics; latency is {self.latency_s!r}"
            )
        if self.report is not None and self.report.get("latency_s", self.latency_s) != self.latency_s:
            raise ValueError(f"the latency is {self.latency_s!r}, the report's is {self.report['latency_s']!r}")

    @classmethod
    def measured(cls, graph_id: str, schedule: Schedule, method: Method, report: Report) -> "Evaluation":
        if report.fidelity != method.fidelity:
            raise ValueError(f"a {report.fidelity} report for a {method.fidelity} evaluation")
        text = canonical_json(report.to_json())
        return cls(graph_id, schedule, method, Status.MEASURED, report.latency_s, text)

    @classmethod
    def rejected(
        cls, graph_id: str, schedule: Schedule, method: Method, diagnostics: Iterable[Diagnostic]
    ) -> "Evaluation":
        return cls(graph_id, schedule, method, Status.REJECTED, diagnostics=tuple(diagnostics))

    @cached_property
    def key(self) -> str:
        return evaluation_key(self.graph_id, self.schedule.id, self.method)

    @cached_property
    def report(self) -> dict[str, Any] | None:
        """The report as `Report.to_json` gave it; None if rejected or not kept. ValueError if it is not an object."""
        value = None if self.report_json is None else json.loads(self.report_json)
        if value is not None and not isinstance(value, dict):
            raise ValueError("the report is not a JSON object")
        return value


def diagnostics_to_json(diagnostics: Iterable[Diagnostic]) -> str:
    return canonical_json([asdict(d) for d in diagnostics])


def diagnostics_from_json(text: str) -> tuple[Diagnostic, ...]:
    """The inverse of `diagnostics_to_json`; ValueError, TypeError or KeyError for anything else."""
    return tuple(
        Diagnostic(**{**raw, "code": Code(raw["code"]), "levers": tuple(raw["levers"])}) for raw in json.loads(text)
    )


@dataclass(frozen=True, slots=True)
class Trial:
    """One step of a run. `parent_index` is the trial it was edited from, `origin` says by which edit."""

    index: int
    schedule_id: str
    evaluation_key: str
    parent_index: int | None
    origin: str

    def __post_init__(self) -> None:
        if self.index < 0 or (self.parent_index is not None and not 0 <= self.parent_index < self.index):
            raise ValueError(f"trial {self.index} with parent {self.parent_index}")


@dataclass(frozen=True, slots=True)
class Run:
    """One tuning run. `key` hashes all that decides its outcome; `id` names this one execution of it.

    evals: the evaluations allowed. started: ISO 8601, given by the caller. start_from: the graph id whose record it
    started from. Counts: all trials, the rejected among them, and those that the store already had.
    """

    id: str
    key: str
    graph_id: str
    method: Method
    seed: int
    evals: int
    proposer: str
    status: RunStatus
    started: str
    best_schedule_id: str | None = None
    best_latency_s: float | None = None
    evaluations_total: int = 0
    evaluations_rejected: int = 0
    evaluations_cached: int = 0
    start_kind: StartKind = StartKind.NONE
    start_from: str | None = None

    def __post_init__(self) -> None:
        if not -(2**63) <= self.seed < 2**63:
            raise ValueError(f"seed {self.seed} does not fit 64 bits")
        if (self.best_schedule_id is None) != (self.best_latency_s is None):
            raise ValueError("a best schedule and its latency go together")
        if self.best_latency_s is not None and not _is_latency(self.best_latency_s):
            raise ValueError(f"best latency {self.best_latency_s!r}")
        counts = (self.evaluations_total, self.evaluations_rejected, self.evaluations_cached)
        if min(self.evals, *counts) < 0 or max(counts) > self.evaluations_total:
            raise ValueError(f"evaluations: {counts} of {self.evals}")
        if (self.start_kind is StartKind.NONE) != (self.start_from is None):
            raise ValueError(f"start {self.start_kind} from {self.start_from}")


@dataclass(frozen=True, slots=True)
class Incumbent:
    """The best measured schedule of a workload under one method."""

    graph_id: str
    schedule: Schedule
    latency_s: float


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Another workload's incumbent, and how far that workload is."""

    distance: float
    workload: WorkloadRecord
    schedule: Schedule
    latency_s: float

    @property
    def kind(self) -> StartKind:
        return start_kind(self.distance)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_latency(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < inf
