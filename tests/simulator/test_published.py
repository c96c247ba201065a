"""Against the published machine: ../shared/validation, rows marked calibration, and the bands of MICRO'24."""

import csv
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.evaluate import Measured, evaluate
from agent.presets import preset
from compiler.ir.actions import Launch, Loop, SetLaunch
from compiler.ir.graph import Graph, Phase
from compiler.ir.schedule import Schedule
from compiler.target import MAX_FITTED, Target, load_target
from simulator.report import Report

VALIDATION = Path(__file__).parents[3] / "shared/validation"
SN40L = load_target("sn40l")
GraphOf = Callable[..., Graph]


def measure(graph: Graph, schedule: Schedule, target: Target = SN40L) -> Report:
    evaluation = evaluate(graph, schedule, target)
    assert isinstance(evaluation, Measured), evaluation
    return evaluation.report


def calibration() -> list[tuple[str, int, float]]:
    path = VALIDATION / "decode_pct_of_peak_hbm.csv"
    if not path.is_file():
        return []
    rows = csv.DictReader(path.open())
    return [
        (r["model"], int(r["sockets"]), float(r["pct_of_peak"]))
        for r in rows
        if r["platform"].startswith("SN40L") and r["batch"] == "1"
    ]


@pytest.mark.parametrize(
    ("model", "sockets", "pct"),
    calibration()
    or [pytest.param("", 0, 0.0, marks=pytest.mark.skip(reason="no published rows beside the repository"))],
)
def test_o3_decode_reaches_the_published_share_of_peak(
    published: GraphOf, model: str, sockets: int, pct: float
) -> None:
    graph = published(f"Meta-{model}", sockets)
    assert measure(graph, preset("o3", graph, SN40L)).hbm_pct == pytest.approx(pct, rel=0.05)


def test_at_most_three_numbers_are_fitted() -> None:
    fitted = [name for name, origin in SN40L.provenance if origin.kind == "fitted"]
    assert fitted == ["hbm_efficiency", "kv_stream_efficiency", "collective_step_s"]
    assert len(fitted) <= MAX_FITTED


@pytest.mark.parametrize("model", ["Meta-Llama-3.1-8B", "Meta-Llama-3.1-70B", "Mistral-7B-v0.1", "Llama-2-7b-chat-hf"])
def test_decode_bands(published: GraphOf, model: str) -> None:
    """MICRO'24 VI-A2, decode on 8 sockets: fusion 1-13x (software launches), hardware over software launches 1.4-8x,
    o0 to o3 2-13x in all; kernel looping up to 2.2x (arXiv 2410.23668)."""
    graph = published(model)
    o0, o3 = preset("o0", graph, SN40L), preset("o3", graph, SN40L)
    apart = o3.without(*(a for a in o3.actions if isinstance(a, Loop)))
    software = SetLaunch(Launch.SOFTWARE)
    fused_hw, fused_sw = measure(graph, apart).latency_s, measure(graph, apart.with_actions(software)).latency_s
    unfused_hw, unfused_sw = measure(graph, o0).latency_s, measure(graph, o0.with_actions(software)).latency_s
    looped = measure(graph, o3).latency_s
    assert 1 < unfused_sw / fused_sw <= 13
    assert 1.4 <= fused_sw / fused_hw <= 8
    assert 2 <= unfused_hw / looped <= 13
    assert 1.05 <= fused_hw / looped <= 2.2


def test_kernel_calls_of_llama_8b(published: GraphOf) -> None:
    """4 with looping, 35 without, hundreds at o0."""
    graph = published("Meta-Llama-3.1-8B")
    o3 = preset("o3", graph, SN40L)
    assert measure(graph, o3).launches == 4
    assert measure(graph, o3.without(*(a for a in o3.actions if isinstance(a, Loop)))).launches == 35
    assert measure(graph, preset("o0", graph, SN40L)).launches > 300


def test_prefill_gains_less_from_launches(published: GraphOf) -> None:
    """Hardware over software launches at most 1.1x in prefill (read to its one decimal), fusion 1.5-3x."""
    graph = published("Llama-2-7b-chat-hf", phase=Phase.PREFILL)
    o0, o3 = preset("o0", graph, SN40L), preset("o3", graph, SN40L)
    apart = o3.without(*(a for a in o3.actions if isinstance(a, Loop)))
    software = SetLaunch(Launch.SOFTWARE)
    ratio = measure(graph, apart.with_actions(software)).latency_s / measure(graph, apart).latency_s
    assert 1.0 < round(ratio, 1) <= 1.1
    assert 1.5 <= measure(graph, o0).latency_s / measure(graph, apart).latency_s <= 3


def test_weights_beyond_hbm_spill_and_say_what_it_costs(published: GraphOf) -> None:
    """DeepSeek-V3 in BF16, 1.34 TB, on 16 sockets with 1.10 TB of HBM."""
    graph = published("DeepSeek-V3", 16, weights="bf16")
    report = measure(graph, preset("o3", graph, SN40L))
    assert graph.weight_nbytes == 2 * 671_026_404_352
    assert 16 * report.memory_hbm_bytes <= 16 * SN40L.hbm_bytes < graph.weight_nbytes
    assert report.memory_spilled_bytes * 16 >= graph.weight_nbytes - 16 * SN40L.hbm_bytes
    assert report.spill_s >= 0.9 * report.ddr_read_bytes / SN40L.ddr_bytes_per_s > 0
    fits = published("DeepSeek-V3", 16, weights="fp8")
    assert measure(fits, preset("o3", fits, SN40L)).memory_spilled_bytes == 0


FASTER = [
    "hbm_bytes_per_s", "ddr_bytes_per_s", "link_bytes_per_s", "clock_hz", "hbm_efficiency", "kv_stream_efficiency",
    "port_bytes_per_cycle", "hbm_bytes",
]  # fmt: skip
SLOWER = ["hbm_latency_s", "collective_step_s", "launch_hardware_s", "stage_latency_cycles"]


@pytest.mark.parametrize("name", FASTER + SLOWER)
@pytest.mark.parametrize(("model", "phase"), [("Mixtral-8x7B-v0.1", Phase.DECODE), ("gpt-oss-20b", Phase.PREFILL)])
def test_every_number_of_the_target_pulls_the_right_way(
    published: GraphOf, name: str, model: str, phase: Phase
) -> None:
    from dataclasses import replace

    graph = published(model, 8, phase, 4)
    better = 1.04 if name in FASTER else 0.5
    value = getattr(SN40L, name) * better
    changed = replace(SN40L, **{name: type(getattr(SN40L, name))(value)})
    for schedule in (preset("o0", graph, SN40L), preset("o3", graph, SN40L)):
        assert measure(graph, schedule, changed).latency_s <= measure(graph, schedule).latency_s
    if name not in ("ddr_bytes_per_s", "hbm_bytes", "port_bytes_per_cycle"):
        o0 = preset("o0", graph, SN40L)
        assert measure(graph, o0, changed).latency_s < measure(graph, o0).latency_s


@pytest.mark.parametrize("phase", list(Phase))
def test_more_work_takes_longer(published: GraphOf, phase: Phase) -> None:
    times = [
        measure(g, preset("o3", g, SN40L)).latency_s
        for b in (1, 2, 8, 32)
        if (g := published("Mixtral-8x7B-v0.1", 8, phase, b))
    ]
    assert times == sorted(times)
