"""Gemma 4: shared caches, heads of two sizes, per-layer embeddings, experts beside a dense part, against its class."""

import json
from pathlib import Path

import pytest

from compiler.errors import InputError
from compiler.frontend import Frontend, build, load_model, open_door
from compiler.frontend.compare import differences
from compiler.frontend.describe import describe_model
from compiler.frontend.oracle import Level, checks
from compiler.frontend.spec import Attention, Dense, Layer, ModelSpec
from compiler.ir.graph import Phase, Role, Workload
from tests.frontend.oracle import class_shapes, graph_shapes
from tests.frontend.test_deleted import check

pytest.importorskip("torch")
pytest.importorskip("transformers")

SMALL = {
    "model_type": "gemma4_text",
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "global_head_dim": 14,
    "vocab_size": 100,
    "vocab_size_per_layer_input": 90,
    "hidden_size_per_layer_input": 6,
    "num_kv_shared_layers": 0,
    "sliding_window": 32,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "pad_token_id": 0,
}
MOE = {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 20}
NARROW = {"hidden_size_per_layer_input": 0}
VARIANTS = {
    "plain": {},
    "shared": {"num_kv_shared_layers": 3},
    "wide": {"num_kv_shared_layers": 2, "use_double_wide_mlp": True},
    "values": {"attention_k_eq_v": True, "num_global_key_value_heads": 1, **NARROW},
    "moe": {**MOE, **NARROW},
    "counted": {"layer_types": None, "num_hidden_layers": 7},
    "last": {"layer_types": ["full_attention"] * 3 + ["sliding_attention"] * 3},
    "bias": {"attention_bias": True, "tie_word_embeddings": False},
    "listed": {"global_head_dim": None, "per_layer_config": {"01": {"head_dim": 12}, "3": {}, "5": {}}},
}


def config(name: str) -> dict[str, object]:
    return {key: value for key, value in (SMALL | VARIANTS[name]).items() if value is not None}


@pytest.fixture
def written(tmp_path: Path):
    def write(values: dict[str, object]) -> str:
        (tmp_path / "config.json").write_text(json.dumps(values))
        return str(tmp_path)

    return write


@pytest.mark.parametrize("name", [name for name in VARIANTS if name != "listed"])
def test_the_class(written, name: str) -> None:
    model = written(config(name))
    spec = load_model(model)
    theirs = class_shapes(config(name))
    assert spec.params == sum(theirs.values())
    for phase in Phase:
        assert graph_shapes(build(spec, Workload(phase, 2, 64, 1)), "gemma4_text") == theirs
    for result in checks(lambda workload: build(spec, workload), model, (Level.FLOPS, Level.CACHE)):
        assert result.equal and result.ours > 0, result


def test_sizes_of_full_layers_may_be_listed(written) -> None:
    spec = load_model(written(config("listed") | {"per_layer_config": {k: {"head_dim": 12} for k in ("01", "3", "5")}}))
    assert [layer.mixer.head_dim for layer in spec.layers] == [10, 12] * 3
    with pytest.raises(InputError, match=r"per_layer_config\.1\.head_dim: is null"):
        load_model(written(config("listed") | {"per_layer_config": {"1": {}}}))


@pytest.mark.parametrize("name", ["values", "moe", "plain", "shared"])
def test_both_doors(written, name: str) -> None:
    model = written(config(name))
    for phase in (Phase.DECODE,) if name == "shared" else Phase:
        work = Workload(phase, 1, 64, 1, "bf16")
        graphs = [open_door(model, door).graph(work) for door in (Frontend.SPEC, Frontend.CAPTURE)]
        assert differences(*graphs) == ()


def test_a_shared_cache_is_stored_once_and_read_again(written) -> None:
    spec = load_model(written(config("shared")))
    assert [layer.mixer.borrows for layer in spec.layers] == [False] * 3 + [True] * 3
    graph = build(spec, Workload(Phase.DECODE, 1, 64, 1))
    late = graph.block[graph.sequence[-3]]
    assert {late.tensor[name].role for name in late.inputs if "cache" in name} == {Role.BORROWED}
    assert not late.stored
    # layers that store: window, full, window; two tensors of two heads each
    assert graph.kv_nbytes == 2 * 2 * 2 * (32 * 10 + 64 * 14 + 32 * 10)


def test_layers_that_only_read_caches_see_the_last_token_of_a_prompt(written) -> None:
    graph = build(load_model(written(config("shared"))), Workload(Phase.PREFILL, 2, 64, 1))
    tokens = [max(op.size("tokens") for op in graph.block[kind].ops) for kind in graph.sequence]
    assert tokens == [128] * 4 + [2] * 5


def test_a_cache_nobody_stores_is_refused(written) -> None:
    with pytest.raises(
        InputError, match="num_kv_shared_layers: is 5: by layer_types no layer before them is full_attention"
    ):
        load_model(written(SMALL | {"num_kv_shared_layers": 5}))
    own, other = Attention(2, 2, 8), Attention(2, 2, 16, borrows=True)
    with pytest.raises(ValueError, match="no earlier layer stores"):
        ModelSpec("m", "m", 32, 100, True, (Layer(own, Dense(8)), Layer(other, Dense(8))))


def test_a_described_model_is_the_same(written, tmp_path: Path) -> None:
    model = written(config("wide"))
    (tmp_path / "mine.py").write_text(describe_model(model))
    work = Workload(Phase.DECODE, 2, 64, 1)
    assert build(load_model(f"{tmp_path}/mine.py:model"), work).id == build(load_model(model), work).id


@pytest.mark.parametrize("name", ["shared", "moe"])
def test_a_key_deleted_or_null(spec_of, name: str) -> None:
    check(spec_of, config(name))
