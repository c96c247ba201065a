"""Gemma 3n: alternating updates, augmented residuals, shared caches, sparse gates, against its class."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compiler.errors import InputError
from compiler.frontend import Frontend, build, load_model, open_door
from compiler.frontend.compare import differences
from compiler.frontend.describe import describe_model
from compiler.frontend.oracle import Level, checks
from compiler.frontend.spec import AltUp, Attention, Dense, Laurel, Layer, Wiring
from compiler.ir.graph import Phase, Role, Workload
from tests.frontend.oracle import class_shapes, graph_shapes
from tests.frontend.test_deleted import check

pytest.importorskip("torch")
pytest.importorskip("transformers")

Config = dict[str, Any]

SMALL: Config = {
    "model_type": "gemma3n_text",
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "vocab_size": 100,
    "vocab_size_per_layer_input": 90,
    "hidden_size_per_layer_input": 6,
    "num_kv_shared_layers": 2,
    "sliding_window": 32,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "laurel_rank": 7,
    "altup_num_inputs": 3,
    "activation_sparsity_pattern": [0.9, 0.9, 0.0, 0.0, 0.0, 0.0],
    "pad_token_id": 0,
}
VARIANTS: dict[str, Config] = {
    "shared": {},
    "plain": {"num_kv_shared_layers": 0},
    "four": {"num_kv_shared_layers": 4, "altup_num_inputs": 2, "attention_bias": True},
    "listed": {"intermediate_size": [80, 80, 64, 64, 64, 96], "altup_num_inputs": 4, "altup_active_idx": 1},
    "counted": {"layer_types": None, "activation_sparsity_pattern": None, "num_kv_shared_layers": 0},
    "untied": {"tie_word_embeddings": False, "num_kv_shared_layers": 1},
}


def config(name: str) -> Config:
    return {key: value for key, value in (SMALL | VARIANTS[name]).items() if value is not None}


@pytest.fixture
def written(tmp_path: Path) -> Callable[[Config], str]:
    def write(values: Config) -> str:
        (tmp_path / "config.json").write_text(json.dumps(values))
        return str(tmp_path)

    return write


@pytest.mark.parametrize("name", VARIANTS)
def test_the_class(written: Callable[[Config], str], name: str) -> None:
    model = written(config(name))
    spec = load_model(model)
    theirs = class_shapes(config(name))
    assert spec.params == sum(theirs.values())
    for phase in Phase:
        graph = build(spec, Workload(phase, 2, 64, 1))
        assert graph_shapes(graph, "gemma3n_text") == theirs
        assert graph.weight_elements == spec.params
    for result in checks(lambda workload: build(spec, workload), model, (Level.FLOPS, Level.CACHE)):
        assert result.equal and result.ours > 0, result


@pytest.mark.parametrize("name", ["plain", "four"])
def test_both_doors(written: Callable[[Config], str], name: str) -> None:
    """All tokens of a prompt pass the layers that only read caches in the captured graph: compared in decode only."""
    model = written(config(name))
    for phase in Phase if name == "plain" else (Phase.DECODE,):
        work = Workload(phase, 1, 64, 1, "bf16")
        graphs = [open_door(model, door).graph(work) for door in (Frontend.SPEC, Frontend.CAPTURE)]
        assert differences(*graphs) == ()
        assert graphs[0].sequence == graphs[1].sequence


def test_a_shared_cache_is_stored_once_and_read_again(written: Callable[[Config], str]) -> None:
    spec = load_model(written(config("four")))
    assert [layer.mixer.borrows for layer in spec.layers if isinstance(layer.mixer, Attention)] == [False] * 2 + [
        True
    ] * 4
    row = 2 * 2 * 10
    assert spec.kv_bytes_per_token == 2 * 2 * row
    graph = build(spec, Workload(Phase.DECODE, 1, 64, 1))
    assert graph.kv_nbytes == 2 * row * (32 + 64)
    for kind, tokens in (("swa_dense_2", 32), ("gqa_dense_2", 64)):
        block = graph.block[kind]
        borrowed = [block.tensor[name] for name in block.inputs if block.tensor[name].role is Role.BORROWED]
        assert sum(t.elements for t in borrowed) == row * tokens
        assert not block.stored
        assert "attn.k_proj" not in block.op and "attn.kv_append" not in block.op


def test_a_sparse_gate_is_an_op_between_gate_and_activation(written: Callable[[Config], str]) -> None:
    graph = build(load_model(written(config("plain"))), Workload(Phase.DECODE, 1, 64, 1))
    sparse, dense = graph.block["swa_dense"], graph.block["swa_dense_2"]
    assert sparse.op["ffn.act"].inputs == (sparse.op["ffn.cutoff"].outputs[0], "ffn.up")
    assert set(sparse.op) - set(dense.op) == {"ffn.cutoff"}
    assert set(dense.op) <= set(sparse.op)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_kv_shared_layers": 5}, "num_kv_shared_layers: is 5: by layer_types no layer before them is full"),
        ({"num_kv_shared_layers": 6}, "num_kv_shared_layers: is 6 of 6 layers"),
        ({"num_kv_shared_layers": None}, "add num_kv_shared_layers"),
        ({"altup_num_inputs": 1}, "altup_num_inputs: is 1"),
        ({"altup_active_idx": 3}, "altup_active_idx: is 3 of 3 streams"),
        ({"activation_sparsity_pattern": [0.5] * 5}, "activation_sparsity_pattern: has 5 entries for 6 layers"),
        ({"activation_sparsity_pattern": [1.0] * 6}, r"activation_sparsity_pattern\[0\]: is 1"),
        ({"intermediate_size": [80, 80]}, "intermediate_size: has 2 entries for 6 layers"),
        ({"laurel_rank": None}, "laurel_rank"),
    ],
)
def test_what_makes_no_sense_is_refused(spec_of: Callable[[Config], Any], changes: Config, message: str) -> None:
    with pytest.raises(InputError, match=message):
        spec_of(SMALL | changes)


def test_parts_that_make_no_sense_cannot_be_made() -> None:
    own, ffn = Attention(2, 2, 8), Dense(8)
    with pytest.raises(ValueError, match="nothing to predict"):
        AltUp(1)
    with pytest.raises(ValueError, match="no plain attention and ffn"):
        Layer(own, ffn, wiring=Wiring.PARALLEL, altup=AltUp(2))
    with pytest.raises(ValueError, match="no plain attention and ffn"):
        Layer(None, ffn, laurel=Laurel(2))
    with pytest.raises(ValueError, match="of the elements of a gate are zero"):
        Dense(8, gated=False, sparsity=0.5)


def test_a_described_model_is_the_same(written: Callable[[Config], str], tmp_path: Path) -> None:
    model = written(config("listed"))
    (tmp_path / "mine.py").write_text(describe_model(model))
    for phase in Phase:
        work = Workload(phase, 2, 64, 1)
        assert build(load_model(f"{tmp_path}/mine.py:model"), work).id == build(load_model(model), work).id


@pytest.mark.parametrize("name", ["shared", "plain", "listed"])
def test_a_key_deleted_or_null(spec_of: Callable[[Config], Any], name: str) -> None:
    check(spec_of, config(name))


@pytest.mark.parametrize("scaled", [True, False])
def test_the_scale_of_the_corrected_stream_is_counted_where_it_is_used(
    spec_of: Callable[[Config], Any], scaled: bool
) -> None:
    """The class has the parameter in any case, and reads it only with `altup_correct_scale`."""
    spec = spec_of(SMALL | {"altup_correct_scale": scaled})
    class_params = sum(class_shapes(SMALL).values())
    assert spec.params == class_params - (0 if scaled else 6 * 48)
    assert build(spec, Workload(Phase.DECODE, 1, 64, 1)).weight_elements == spec.params
