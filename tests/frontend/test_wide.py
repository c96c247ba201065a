"""Structures a trace must get right beyond the usual decoder: against the classes, in small."""

import json
from pathlib import Path
from typing import Any

import pytest

from compiler.errors import InputError
from compiler.frontend.door import Frontend, Model, open_door
from compiler.frontend.oracle import COUNTED, checks
from compiler.ir.graph import Phase, Workload

pytest.importorskip("transformers")

UNKNOWN = Path(__file__).with_name("unknown_module.py")
DECODE = Workload(Phase.DECODE, 2, 4096, 1, "bf16")

_SIZES = {
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "pad_token_id": 0,
}
_LATENT = {"q_lora_rank": 24, "kv_lora_rank": 20, "qk_nope_head_dim": 10, "qk_rope_head_dim": 6, "v_head_dim": 11}
_ROUTED = {"n_routed_experts": 6, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 28}
_INDEX = {"index_topk": 100, "index_n_heads": 3, "index_head_dim": 22}

#: Small models by type; what is given stands over the class defaults.
SMALL: dict[str, dict[str, Any]] = {
    "llama4_text": {"head_dim": 16, "num_local_experts": 6, "intermediate_size_mlp": 40, "num_experts_per_tok": 2},
    "apertus": {},
    "afmoe": {"head_dim": 16, "num_experts": 6, "moe_intermediate_size": 28, "num_dense_layers": 1},
    "minimax": {"head_dim": 16, "num_local_experts": 6},
    "deepseek_v32": _LATENT | _ROUTED | _INDEX | {"num_key_value_heads": 4, "first_k_dense_replace": 1},
    "zamba2": {
        "num_hidden_layers": 5,
        "layers_block_type": ["mamba", "hybrid", "hybrid", "hybrid", "hybrid"],
        "num_mem_blocks": 2,
        "attention_hidden_size": 128,
        "attention_head_dim": 32,
        "num_key_value_heads": 4,
        "n_mamba_heads": 8,
        "mamba_d_state": 10,
        "adapter_rank": 7,
    },
}


@pytest.fixture
def small(tmp_path: Path) -> Any:
    def make(model_type: str, **more: Any) -> str:
        values = _SIZES | SMALL.get(model_type, {}) | {"model_type": model_type} | more
        (tmp_path / "config.json").write_text(json.dumps(values))
        return str(tmp_path)

    return make


def _opened(model: str) -> Model:
    return open_door(model, Frontend.CAPTURE)


@pytest.mark.parametrize("model_type", SMALL)
def test_a_trace_equals_its_class(model_type: str, small: Any) -> None:
    model = small(model_type)
    opened = _opened(model)
    opened.graph(DECODE)
    for check in checks(opened.graph, model, COUNTED):
        assert check.equal, check


def test_only_the_chosen_experts_of_llama4_are_met(small: Any) -> None:
    graph = _opened(small("llama4_text")).graph(DECODE)
    block = next(block for block in graph.blocks if "ffn.experts_down" in block.op)
    routing = block.op["ffn.experts_down"].routing
    assert routing is not None
    assert (routing.experts, routing.top_k) == (6, 2)


def test_attention_behind_an_indexer_reads_the_chosen_rows(small: Any) -> None:
    block = _opened(small("deepseek_v32")).graph(DECODE).blocks[1]
    sizes = {name: {d.name: d.size for d in block.op[name].dims} for name in ("attn.index_scores", "attn.scores")}
    assert sizes["attn.index_scores"] == {"tokens": 2, "index_heads": 3, "cached": 4096}
    assert sizes["attn.scores"] == {"tokens": 2, "heads": 4, "qk_dim": 16, "context": 100}
    kept = {t.name: [d.size for d in t.dims] for t in block.stored}
    assert kept == {"attn.latent_cache": [2, 4096, 26], "attn.index_cache": [2, 4096, 22]}


def test_weights_of_several_layers_are_counted_once(small: Any) -> None:
    graph = _opened(small("zamba2")).graph(DECODE)
    hybrid = [block for block in graph.blocks if "attn.scores" in block.op]
    shared = [
        {t.key for t in block.weights if "shared_transformer" in t.key and "{layer}" not in t.key} for block in hybrid
    ]
    assert len(hybrid) == 2  # two blocks of weights that take turns
    assert all(shared)
    assert not shared[0] & shared[1]


def test_a_tied_embedding_has_its_own_name(small: Any) -> None:
    graph = _opened(small("llama", tie_word_embeddings=True)).graph(DECODE)
    keys = [t.key for kind in ("embed", "head") for t in graph.block[kind].weights if len(t.dims) > 1]
    assert keys == ["model.embed_tokens.weight"] * 2


def test_unknown_operators_are_listed_with_module_and_line() -> None:
    source = UNKNOWN.read_text().splitlines()
    lines = {name: next(n for n, line in enumerate(source, 1) if name in line) for name in ("special.i0", "digamma")}
    with pytest.raises(InputError) as refused:
        _opened(f"{UNKNOWN}:stack").graph(DECODE)
    message = str(refused.value)
    assert "2 operators cannot be lowered" in message
    assert f"aten.special_i0.default in act (unknown_module.py:{lines['special.i0']}): is not known" in message
    assert f"aten.digamma.default in the module itself (unknown_module.py:{lines['digamma']})" in message
