"""Configs for the tests: the published ones beside the repository, and small ones written out here."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compiler.frontend.families import read_spec
from compiler.frontend.read import Source
from compiler.frontend.spec import ModelSpec

MODELS = Path(__file__).parents[3] / "shared/models"

Config = dict[str, Any]


@pytest.fixture(scope="session")
def model_dir() -> Callable[[str], Path]:
    def find(name: str) -> Path:
        folder = MODELS / name
        if not folder.is_dir():
            pytest.skip(f"no published config {name} beside the repository")
        return folder

    return find


@pytest.fixture(scope="session")
def published(model_dir: Callable[[str], Path]) -> Callable[[str], Config]:
    """A published config.json as a dictionary of its own."""

    def read(name: str) -> Config:
        config: Config = json.loads((model_dir(name) / "config.json").read_text())
        return config

    return read


@pytest.fixture(scope="session")
def spec_of() -> Callable[[Config], ModelSpec]:
    """The ModelSpec of a config dictionary."""

    def read(config: Config) -> ModelSpec:
        return read_spec(Source("config.json", "test", config, config))

    return read


@pytest.fixture
def llama() -> Config:
    """A small llama, all sizes different."""
    return {
        "model_type": "llama",
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "vocab_size": 100,
        "tie_word_embeddings": False,
    }


@pytest.fixture
def deepseek() -> Config:
    """A small DeepSeek-V3, all sizes different."""
    return {
        "model_type": "deepseek_v3",
        "hidden_size": 48,
        "intermediate_size": 80,
        "moe_intermediate_size": 20,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "q_lora_rank": 20,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 10,
        "n_routed_experts": 8,
        "n_shared_experts": 2,
        "num_experts_per_tok": 2,
        "n_group": 4,
        "topk_group": 2,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "vocab_size": 100,
    }
