"""Hand-computed times: 1 byte of HBM, 1 MAC and 1 vector operation each take 1 ns on the test machine."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from compiler.target import Target
from simulator.estimate import estimate, traffic
from simulator.invariants import SimulatorFault
from simulator.report import Bound, Cause, Report
from simulator.timing import first_tile, interval, rates_of, section_pass, stage_s

FREE = Bound(1e-30, "hbm", 0.0, 0.0, 0.0)
W, C, X = {"weight_bytes": 100}, {"macs": 100}, {"link_bytes": 50, "link_steps": 1}
F: dict[str, Any] = {"preds": (0,), "streams": True}


def ns(seconds: float) -> float:
    return pytest.approx(seconds * 1e-9, rel=1e-6)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        pytest.param([W], 100, id="a weight stream"),
        pytest.param([W, W], 200, id="independent branches share HBM"),
        pytest.param([W, {**W, "preds": (0,)}], 200, id="a chain streams one after the other"),
        pytest.param([C, C], 100, id="independent branches compute at once"),
        pytest.param([C, {**C, "preds": (0,)}], 200, id="a chain computes in turn"),
        pytest.param([C, {**F, "vector_ops": 40}], 100, id="element-wise follows its producer"),
        pytest.param([C, {**F, "vector_ops": 140}], 140, id="a slow follower sets the pace"),
        pytest.param(
            [{**C, "emits_early": False}, {**F, "vector_ops": 40}], 140, id="a norm ends before it is followed"
        ),
        pytest.param([{"weight_bytes": 100, "macs": 30}], 100, id="compute hides behind its stream"),
        pytest.param([{"macs": 100, "pcus": 4, "pcus_used": 4}], 25, id="four units, a quarter of the time"),
        pytest.param([{"ddr_bytes": 100}], 1000, id="DDR is ten times slower"),
        pytest.param([W, {"ddr_bytes": 10}], 100, id="HBM and DDR at once"),
        pytest.param([X, X], 100, id="collectives share the links"),
        pytest.param([{"kv_bytes": 80}], 80, id="a cache stream"),
        pytest.param([{"read_bytes": 20, "write_bytes": 30, "carried_bytes": 50}], 100, id="boundary activations"),
    ],
)
def test_first_tile(make: SimpleNamespace, target: Target, stages: list[dict[str, Any]], expected: float) -> None:
    section = make.section(*(make.stage(f"op{i}", *s.pop("preds", ()), **s) for i, s in enumerate(map(dict, stages))))
    one = first_tile(section, rates_of(target), 0.0, False)
    assert one.latency_s == ns(expected)
    assert sum(one.causes.values()) == ns(expected)


@pytest.mark.parametrize(
    ("work", "seconds", "cause"),
    [
        ({"macs": 192 * 10}, 10 / 1.6e9, Cause.COMPUTE),
        ({"vector_ops": 10, "pcus": 2, "pcus_used": 2}, 5 / 1.6e9, Cause.COMPUTE),
        ({"weight_bytes": 640}, 10 / 1.6e9, Cause.WEIGHTS),
        ({"weight_bytes": 640, "pcus": 2, "pcus_used": 2}, 5 / 1.6e9, Cause.WEIGHTS),
        ({"kv_bytes": 640, "kv_ports": 2}, 5 / 1.6e9 / 0.8, Cause.KV),
    ],
)
def test_stage_on_sn40l(make: SimpleNamespace, work: dict[str, int], seconds: float, cause: Cause) -> None:
    """192 MACs, one vector and 64 bytes a port in a cycle of 1/1.6 ns; cache rows at 0.8 of that."""
    from compiler.target import load_target

    assert stage_s(make.stage("op", **work), rates_of(load_target("sn40l"))) == (pytest.approx(seconds), cause)


@pytest.mark.parametrize(
    ("window", "idle", "expected"),
    [(0, 60, 160), (1000, 60, 100), (30, 60, 130), (1000, 20, 100 + 0), (1000, 150, 150)],
)
def test_prefetch_hides_no_more_than_idle_time_and_its_sram(
    make: SimpleNamespace, target: Target, window: int, idle: int, expected: int
) -> None:
    """`idle` ns of compute with HBM idle, then a stream of 100 B that prefetch may have begun."""
    s = make.section(make.stage("a", macs=idle), make.stage("b", 0, **W), prefetch=window)
    one = first_tile(s, rates_of(target), 0.0, False)
    unhidden = 100 - min(idle, window, 100)
    assert one.latency_s == ns(idle + unhidden)
    assert one.hidden_s == ns(min(idle, window, 100))


def test_routed_experts_are_not_prefetched(make: SimpleNamespace, target: Target) -> None:
    s = make.section(make.stage("router", macs=60), make.stage("experts", 0, prefetchable=False, **W), prefetch=1000)
    assert first_tile(s, rates_of(target), 0.0, False).latency_s == ns(160)


def test_a_loop_carries_prefetched_weights_and_nothing_else(make: SimpleNamespace, target: Target) -> None:
    """An iteration of 100 ns of stream and 60 ns of compute: the first pays both, the others hide 60 ns."""
    s = make.section(make.stage("b", **W), make.stage("a", 0, macs=60), prefetch=1000)
    looped = estimate(make.program(s, times=5, looped=True), target, FREE)
    apart = estimate(make.program(s, times=5), target, FREE)
    assert looped.latency_s == ns(160 + 4 * 100)
    assert apart.latency_s == ns(5 * 160)
    assert looped.hbm_read_bytes == apart.hbm_read_bytes == 500


@pytest.mark.parametrize("tiles", [1, 2, 7, 100])
def test_pipeline_law(make: SimpleNamespace, target: Target, tiles: int) -> None:
    """Three stages of 30, 50 and 20 ns: fill of 100, then 50 a tile; never under (T + k - 1) x the mean stage."""
    s = make.section(make.stage("a", macs=30), make.stage("b", 0, macs=50), make.stage("c", 1, macs=20), tiles=tiles)
    assert section_pass(s, rates_of(target), 0.0, False).latency_s == ns(100 + (tiles - 1) * 50)


@pytest.mark.parametrize(
    ("changed", "step", "cause"),
    [
        ({}, 50, Cause.COMPUTE),
        ({"depth": 1}, 80, Cause.COMPUTE),
        ({"depth": 1, "weight_bytes": 90}, 140, Cause.COMPUTE),  # turns of what the stages move, too
        ({"depth": 1, "link_bytes": 70, "link_steps": 1}, 120, Cause.COMPUTE),
        ({"depth": 1, "ddr_bytes": 9}, 140, Cause.COMPUTE),
        ({"weight_bytes": 90}, 90, Cause.WEIGHTS),
        ({"weight_bytes": 90, "loads_once": True}, 50, Cause.COMPUTE),
        ({"ddr_bytes": 9}, 90, Cause.DDR),
        ({"link_bytes": 70, "link_steps": 1}, 70, Cause.COLLECTIVE),
        ({"read_bytes": 40, "write_bytes": 40}, 80, Cause.ACTIVATIONS),
        ({"kv_bytes": 70, "kv_ports": 9, "weight_bytes": 30, "read_bytes": 20}, 120, Cause.KV),
    ],
)
def test_interval(make: SimpleNamespace, target: Target, changed: dict[str, int], step: int, cause: Cause) -> None:
    s = make.section(make.stage("a", macs=30, **changed), make.stage("b", 0, macs=50), tiles=4)
    seconds, why, _ = interval(s, rates_of(target))
    assert (seconds, why) == (ns(step), cause)


def test_launches_and_their_mode(make: SimpleNamespace, target: Target) -> None:
    slow = replace(target, launch_hardware_s=1e-6, launch_software_s=5e-6)
    s = make.section(make.stage("a", **W))
    apart = make.program(s, s, times=3)
    assert apart.launches == 6
    assert estimate(apart, slow, FREE).latency_s == ns(6 * 1100)
    assert estimate(replace(apart, launch="software"), slow, FREE).latency_s == ns(6 * 5100)
    assert estimate(make.program(s, times=6, looped=True), slow, FREE).latency_s == ns(1000 + 600)


def test_traffic_counts_every_move(make: SimpleNamespace) -> None:
    s = make.section(
        make.stage("a", weight_bytes=5, loads_once=True, kv_bytes=7, read_bytes=11, flops=3),
        make.stage("b", 0, weight_bytes=13, write_bytes=17, ddr_bytes=19, link_bytes=23, link_steps=1),
        tiles=2,
    )
    t = traffic(make.program(s, times=10))
    assert t.hbm_read == 10 * (5 + 2 * 7 + 2 * 11 + 2 * 13)
    assert t.hbm_write == 10 * 2 * 17
    assert (t.ddr, t.link, t.flops) == (10 * 2 * 19, 10 * 2 * 23, 10 * 2 * 3)


def honest(make: SimpleNamespace, target: Target) -> Report:
    return estimate(make.program(make.section(make.stage("a", **W))), target, FREE)


@pytest.mark.parametrize(
    ("lie", "law"),
    [
        ({"bound": Bound(1.0, "hbm", 1.0, 0.0, 0.0)}, "below the proven bound"),
        ({"hbm_read_bytes": 200}, "HBM moves"),
        ({"hbm_write_bytes": 200}, "HBM moves"),
        ({"ddr_read_bytes": 200}, "DDR moves"),
        ({"link_bytes": 200}, "links move"),
        ({"bound": Bound(0.0, "memory", 1e-6, 0.0, 0.0)}, "fewer bytes are read"),
        ({"sram_peak_bytes": 2**40}, "SRAM holds"),
        ({"pcus_peak": 2000}, "PCUs"),
        ({"memory_hbm_bytes": 2**50}, "HBM holds"),
        ({"memory_ddr_bytes": 2**50}, "DDR holds"),
        ({"breakdown_s": (("weights", 1.0),)}, "breakdown"),
    ],
)
def test_a_report_that_breaks_a_law_is_a_fault(
    make: SimpleNamespace, target: Target, lie: dict[str, Any], law: str
) -> None:
    from simulator.invariants import check

    report = honest(make, target)
    check(report, target, 0)
    with pytest.raises(SimulatorFault, match=law):
        check(replace(report, **lie), target, 0)


def test_units_faster_than_peak_are_a_fault(make: SimpleNamespace, target: Target) -> None:
    from simulator.invariants import check

    with pytest.raises(SimulatorFault, match="faster than their peak"):
        check(honest(make, target), target, 10**12)


def test_report_reads_back(make: SimpleNamespace, target: Target) -> None:
    report = honest(make, target)
    assert Report.from_json(report.to_json()) == report
