"""Small instances of eleven architectures, each built once a worker, with the class's logits and the caches of decode."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from agent.outputs.check import compiled
from agent.outputs.compare import Bench, bench, history
from agent.outputs.instance import instance
from compiler.ir.graph import Graph, Phase
from compiler.ir.schedule import Schedule
from compiler.ir.text import parse_schedule
from compiler.program import Program
from compiler.target import load_target
from simulator.functional.machine import Caches

pytest.importorskip("torch")
pytest.importorskip("transformers")

_HYBRIDS = json.loads((Path(__file__).parents[1] / "frontend/hybrids.json").read_text())
_LLAMA: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 72, "num_hidden_layers": 4, "num_attention_heads": 8}
_LLAMA |= {"num_key_value_heads": 4, "vocab_size": 136, "rms_norm_eps": 1e-5, "tie_word_embeddings": False}
_LATENT = {"q_lora_rank": 28, "kv_lora_rank": 32, "qk_nope_head_dim": 20, "qk_rope_head_dim": 8, "v_head_dim": 12}
_DEEPSEEK = {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 40, "n_shared_experts": 2}
_DEEPSEEK |= {"n_group": 4, "topk_group": 2, "first_k_dense_replace": 1, "num_key_value_heads": 8}
_MOE = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 40, "head_dim": 16}
_EXPERTS = {"num_local_experts": 8, "num_experts_per_tok": 3}
_TYPES = {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 7, "head_dim": 16}
_SINKS = {"hidden_act": "silu", "attention_bias": True}

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": _LLAMA,
    "qwen2": _LLAMA | {"tie_word_embeddings": True, "use_sliding_window": False},
    "olmo2": _LLAMA,
    "gemma2": _LLAMA | _TYPES | {"query_pre_attn_scalar": 16, "tie_word_embeddings": True},
    "phi3": _LLAMA | {"sliding_window": None},
    "mixtral": _LLAMA | _EXPERTS | {"sliding_window": None},
    "deepseek_v3": _LLAMA | _LATENT | _DEEPSEEK,
    "gpt_oss": _LLAMA | _EXPERTS | _TYPES | _SINKS,
    "qwen3_moe": _LLAMA | _MOE | {"norm_topk_prob": True, "mlp_only_layers": [1], "decoder_sparse_step": 1},
    "qwen3_next": _HYBRIDS["qwen3_next"],
    "mamba2": _HYBRIDS["mamba2"],
}
TARGET = load_target("sn40l")


@dataclass(frozen=True)
class Small:
    """An architecture ready to be compared. `path` has its config.json."""

    path: str
    bench: Bench
    before: Caches

    def graph(self, phase: Phase, sockets: int) -> Graph:
        return self.bench.graph(phase, sockets)

    def program(self, phase: Phase, sockets: int, text: str) -> tuple[Graph, Program]:
        graph = self.graph(phase, sockets)
        return graph, compiled(graph, parse_schedule(text), TARGET)

    def error(self, graph: Graph, program: Program) -> float:
        return self.bench.error(program, graph, self.before)


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Small]:
    @cache
    def make(name: str) -> Small:
        folder = tmp_path_factory.mktemp(name)
        (folder / "config.json").write_text(json.dumps({"model_type": name} | CONFIGS[name]))
        of = bench(instance(str(folder)))
        return Small(str(folder), of, history(of, lambda graph: compiled(graph, Schedule(()), TARGET)))

    return make
