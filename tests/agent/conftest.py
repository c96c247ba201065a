"""Small models written as configs, and what a tuner needs of them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compiler.frontend import build, load_model
from compiler.ir.graph import Graph, Phase, Workload
from compiler.target import Target, load_target

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 1024,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
MIXTRAL = {**LLAMA, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None}


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., str]:
    """Write a small config (llama, or mixtral with experts) and give its folder."""

    def write(name: str = "llama", **changed: Any) -> str:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        base = MIXTRAL if name.startswith("mixtral") else LLAMA
        (folder / "config.json").write_text(json.dumps({**base, **changed}))
        return str(folder)

    return write


@pytest.fixture
def graph(config: Callable[..., str]) -> Callable[..., Graph]:
    def make(
        name: str = "llama", sockets: int = 4, phase: Phase = Phase.DECODE, batch: int = 1, **changed: Any
    ) -> Graph:
        return build(load_model(config(name, **changed)), Workload(phase, batch, 1024, sockets))

    return make


@pytest.fixture(scope="session")
def target() -> Target:
    return load_target("sn40l")
