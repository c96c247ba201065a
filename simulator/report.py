"""What the simulator says of a program. Numbers only; `agent.report` turns it into words and pages."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Cause(StrEnum):
    """What a moment of the critical path is spent on."""

    WEIGHTS = "weights"  # HBM streams weights
    KV = "kv"  # cache rows stream in, through their ports or HBM
    DDR = "ddr"  # DDR streams weights or cache
    ACTIVATIONS = "activations"  # activations to and from HBM between sections
    COMPUTE = "compute"  # PCUs compute
    COLLECTIVE = "collective"  # sockets exchange values
    NETWORK = "network"  # links and PMU ports of the grid, of a placed program
    FILL = "fill"  # pipeline, hops and memory latency
    LAUNCH = "launch"  # launches and synchronisation between sections


def ordered(causes: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    """Seconds by cause, in the order of `Cause`."""
    return tuple((str(c), causes[c]) for c in Cause if c in causes)


@dataclass(frozen=True, slots=True)
class Bound:
    """Proven lower bound of a workload on a target: seconds, and which resource gives it.

    memory_s: HBM and DDR together; ddr_s: what HBM cannot hold, through DDR alone.
    """

    latency_s: float
    limiter: str
    memory_s: float
    compute_s: float
    ddr_s: float


@dataclass(frozen=True, slots=True)
class SectionReport:
    """One section: seconds a step over all its executions, how often it runs, and what they are spent on by cause.

    link_share: part of that time that the grid's fullest link moves bytes; 0 without places.
    """

    name: str
    block: str
    executions: int
    latency_s: float
    tiles: int
    stages: int
    pcus: int
    pmus: int
    sram_bytes: int
    limiter: str
    breakdown_s: tuple[tuple[str, float], ...]
    link_share: float


@dataclass(frozen=True)
class Report:
    """The measured step. Bytes are per socket and step; hbm_pct follows the published convention.

    hbm_pct = 100 x (all parameter bytes + KV bytes, once) / (sockets x peak HBM bandwidth x latency): it can exceed
    100 for a Mixture-of-Experts, which does not read all experts. hbm_read_pct counts the bytes that HBM moved.
    hidden_s: HBM time that prefetch moved behind other work.
    """

    program_id: str
    fidelity: str
    latency_s: float
    tokens_per_s_per_user: float
    tokens_per_s: float
    hbm_pct: float
    hbm_read_pct: float
    pcu_utilisation: float
    launches: int
    breakdown_s: tuple[tuple[str, float], ...]
    hidden_s: float
    sections: tuple[SectionReport, ...]
    hbm_read_bytes: int
    hbm_write_bytes: int
    ddr_read_bytes: int
    link_bytes: int
    sram_peak_bytes: int
    pcus_peak: int
    memory_hbm_bytes: int
    memory_ddr_bytes: int
    memory_spilled_bytes: int
    spill_s: float
    limiter: str
    bound: Bound

    @property
    def gap(self) -> float:
        """latency over bound; at least 1."""
        return self.latency_s / self.bound.latency_s

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Report":
        """The inverse of `to_json`. KeyError or TypeError if it is not a report."""
        known = {name: value[name] for name in cls.__dataclass_fields__}
        known["breakdown_s"] = ordered(known["breakdown_s"])
        known["sections"] = tuple(
            SectionReport(**{**s, "breakdown_s": ordered(s["breakdown_s"])}) for s in known["sections"]
        )
        known["bound"] = Bound(**known["bound"])
        return cls(**known)

    def to_json(self) -> dict[str, Any]:
        out = asdict(self)
        out["breakdown_s"] = dict(self.breakdown_s)
        for section in out["sections"]:
            section["breakdown_s"] = dict(section["breakdown_s"])
        out["gap"] = self.gap
        return out
