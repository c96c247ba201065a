"""Features, distance and the values' own rules."""

import pytest
from experience_samples import DIAGNOSTIC, graph, measured, method, moe_graph, rejected, schedule
from hypothesis import given
from hypothesis import strategies as st

from agent.experience.records import (
    NEAR,
    Evaluation,
    Method,
    Run,
    RunStatus,
    StartKind,
    Status,
    Trial,
    WorkloadRecord,
    diagnostics_from_json,
    diagnostics_to_json,
    distance,
    evaluation_key,
    features,
    start_kind,
)  # fmt: skip
from compiler.canonical import identity
from compiler.ir.graph import Phase
from compiler.target import Target

NAMES = st.sampled_from(
    ["phase", "log2.sockets", "log2.context", "dim.hidden", "dim.rank", "block.dense", "op.up", "other"]
)
MAPS = st.dictionaries(NAMES, st.floats(-60, 60) | st.sampled_from(["decode", "prefill"]), max_size=8)


def test_features_of_two_layers_by_hand() -> None:
    # weights: 2 layers x 2 x 64 x 256 x 2 bytes = 131072; FLOPs: 2 x 2 x 2 x 64 x 256 = 131072; no cache
    assert features(graph()) == {
        "block.dense": 1.0, "dim.ffn": 8.0, "dim.hidden": 6.0, "log2.batch": 0.0, "log2.context": 7.0,
        "log2.experts": 0.0, "log2.flops_per_byte": 0.0, "log2.sockets": 0.0, "log2.tokens": 0.0, "log2.top_k": 0.0,
        "log2.weight_bytes": 17.000011, "op.down": 0.5, "op.up": 0.5, "phase": "decode",
    }  # fmt: skip
    assert list(features(graph())) == sorted(features(graph()))


def test_routing_is_a_feature() -> None:
    of = features(moe_graph(experts=8, top_k=2))
    assert (of["log2.experts"], of["log2.top_k"]) == (3.0, 1.0)
    assert "dim.experts" not in of


@given(MAPS, MAPS)
def test_distance_is_symmetric_and_never_negative(a: dict[str, float | str], b: dict[str, float | str]) -> None:
    assert distance(a, b) == distance(b, a) >= 0
    assert distance(a, a) == distance(dict(reversed(a.items())), a) == 0


@given(MAPS, MAPS, MAPS)
def test_distance_keeps_the_triangle_inequality(
    a: dict[str, float | str], b: dict[str, float | str], c: dict[str, float | str]
) -> None:
    numbers = [{k: v for k, v in m.items() if not isinstance(v, str)} for m in (a, b, c)]
    assert (
        distance(numbers[0], numbers[2]) <= distance(numbers[0], numbers[1]) + distance(numbers[1], numbers[2]) + 1e-9
    )


def test_sizes_are_near_and_another_phase_socket_count_or_structure_is_far() -> None:
    base = features(graph())
    bigger = features(graph(hidden=128, ffn=512, context=1024))
    assert 0 < distance(base, bigger) <= NEAR
    for other in (graph(phase=Phase.PREFILL), graph(sockets=2), moe_graph()):
        assert NEAR < distance(base, features(other)) < 200


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (None, StartKind.NONE),
        (0.0, StartKind.EXACT),
        (1e-6, StartKind.NEAR),
        (NEAR, StartKind.NEAR),
        (8.1, StartKind.FAR),
    ],
)
def test_start_kind(value: float | None, kind: StartKind) -> None:
    assert start_kind(value) is kind


def test_the_key_is_the_content(target: Target) -> None:
    by = method(target)
    e = measured("graph1-a", 0, by, 1e-3)
    assert e.key == identity("eval1", ["graph1-a", schedule(0).id, target.id, "1", "fast"])
    assert e.key == rejected("graph1-a", 0, by).key == evaluation_key("graph1-a", schedule(0).id, by)


def test_diagnostics_parse_back() -> None:
    assert diagnostics_from_json(diagnostics_to_json([DIAGNOSTIC])) == (DIAGNOSTIC,)


@pytest.mark.parametrize("latency_s", [None, 0.0, -1.0, float("nan"), float("inf"), "1", True])
def test_no_measurement_without_a_latency(target: Target, latency_s: float) -> None:
    with pytest.raises(ValueError, match="latency"):
        Evaluation("graph1-a", schedule(0), method(target), Status.MEASURED, latency_s)


def test_values_refuse_nonsense(target: Target) -> None:
    by = method(target)
    with pytest.raises(ValueError, match="report's is"):
        Evaluation("g", schedule(0), by, Status.MEASURED, 1.0, '{"latency_s": 2.0}')
    with pytest.raises(ValueError, match="rejected"):
        Evaluation("g", schedule(0), by, Status.REJECTED, 1.0, diagnostics=(DIAGNOSTIC,))
    with pytest.raises(ValueError, match="rejected"):
        Evaluation("g", schedule(0), by, Status.REJECTED)
    with pytest.raises(ValueError, match="needs target"):
        Method(target.id, "", "fast")
    with pytest.raises(ValueError, match="parent"):
        Trial(1, "s", "e", 1, "edit")
    with pytest.raises(ValueError, match="64 bits"):
        Run("r", "k", "g", by, 2**63, 1, "search", RunStatus.DONE, "now")
    with pytest.raises(ValueError, match="feature"):
        WorkloadRecord("g", "m", "t", "decode", 1, 1, 1, "auto", {"dim.hidden": float("nan")})
