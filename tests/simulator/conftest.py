"""A machine with round numbers, a way to make programs of a few stages by hand, and the published configs."""

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from compiler.compulsory import Compulsory
from compiler.frontend import build, load_model
from compiler.ir.actions import Launch
from compiler.ir.graph import Graph, Phase, Workload
from compiler.program import MemoryMap, Program, Run, Section, Stage
from compiler.target import Target, load_target

MODELS = Path(__file__).parents[3] / "shared/models"
MIB = 2**20
NOTHING = Compulsory(0, 0)


@pytest.fixture(scope="session")
def target() -> Target:
    """Round numbers: HBM 1 GB/s at full efficiency, 1 MAC and 1 vector a nanosecond a PCU, no latencies or launches."""
    tiny = 1e-18
    return replace(
        load_target("sn40l"),
        lanes=1,
        pcu_stages=1,
        clock_hz=1e9,
        port_bytes_per_cycle=10**6,
        hbm_bytes_per_s=1e9,
        hbm_efficiency=1.0,
        kv_stream_efficiency=1.0,
        ddr_bytes_per_s=1e8,
        link_bytes_per_s=1e9,
        hbm_latency_s=tiny,
        ddr_latency_s=tiny,
        collective_step_s=tiny,
        launch_hardware_s=tiny,
        launch_software_s=tiny,
        stage_latency_cycles=0,
    )


def stage(op: str, *preds: int, **changed: Any) -> Stage:
    """A stage of one PCU that does nothing, but for what is `changed`."""
    base: dict[str, Any] = {f.name: 0 for f in fields(Stage)}
    flags = {"loads_once": False, "prefetchable": True, "streams": False, "emits_early": True}
    base |= {"op": op, "pattern": "contract", "pcus": 1, "pcus_used": 1, "pmus": 1, "kv_ports": 1, "depth": 2, **flags}
    return Stage(**{**base, "preds": preds, **changed})


def section(*stages: Stage, tiles: int = 1, prefetch: int = 0) -> Section:
    return Section("s", "b", stages, tiles, prefetch, MIB, 1, 2, 1, 1, ())


def program(*sections: Section, times: int = 1, looped: bool = False) -> Program:
    memory = MemoryMap(0, 0, 0, 0, 0, 0)
    workload = Workload(Phase.DECODE, 1, 1, 1)
    runs = (Run(sections, times, looped),)
    return Program(
        "graph",
        "schedule",
        "target",
        1,
        "model",
        workload,
        Launch.HARDWARE,
        runs,
        memory,
        0,
        0,
        0,
        NOTHING,
        "target",
        (),
    )


@pytest.fixture(scope="session")
def make() -> SimpleNamespace:
    """make.stage, make.section, make.program: programs by hand."""
    return SimpleNamespace(stage=stage, section=section, program=program)


@pytest.fixture(scope="session")
def published() -> Callable[..., Graph]:
    """The graph of a published config; skipped where the configs are not beside the repository."""

    def make(name: str, sockets: int = 8, phase: Phase = Phase.DECODE, batch: int = 1, weights: str = "auto") -> Graph:
        if not (MODELS / name).is_dir():
            pytest.skip(f"no published config {name} beside the repository")
        return build(load_model(str(MODELS / name)), Workload(phase, batch, 4096, sockets, weights))

    return make
