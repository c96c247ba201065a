"""Quantised checkpoints through both doors: the same rules, ignore lists and headers give the same graph."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compiler.errors import InputError
from compiler.frontend import build, load_model
from compiler.frontend.capture.ir import Captured
from compiler.frontend.capture.lower import lower
from compiler.frontend.door import Frontend, open_door
from compiler.ir.graph import Graph, Phase, Workload
from tests.frontend.small import SMALL
from tests.frontend.test_weights import tensors, write

Config = dict[str, Any]

#: Published configs that say how they are quantised, and bytes of weights a parameter in a range they must be in.
PUBLISHED = {
    "Qwen3-235B-A22B-FP8": (1.0, 1.02),
    "DeepSeek-V3": (1.0, 1.02),
    "MiniMax-M2.5": (1.0, 1.02),
    "gpt-oss-20b": (0.6, 0.7),
}
FP8 = {"quant_method": "fp8", "weight_block_size": [16, 16]}
NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}
INT4 = {
    "quant_method": "compressed-tensors",
    "config_groups": {"g": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "group_size": 16}}},
}
QWEN: Config = {
    "model_type": "qwen3_moe",
    **{key: value for key, value in SMALL["olmoe"].items() if key != "model_type"},
    "head_dim": 10,
    "moe_intermediate_size": 20,
    "norm_topk_prob": True,
    "mlp_only_layers": [],
    "decoder_sparse_step": 1,
}
OSS: Config = SMALL["mistral"] | {
    "model_type": "gpt_oss",
    "head_dim": 8,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": 32,
    "attention_bias": True,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
SKIPPED = {"modules_to_not_convert": ["lm_head", "model.layers.1.mlp", "model.layers.2.self_attn.q_proj", "gate"]}

#: Config, its quantization_config, and the sequence of layer kinds that its exclusions make of four layers.
CASES: dict[str, tuple[Config, Config, str]] = {
    "fp8": (QWEN, FP8, "gqa_moe gqa_moe gqa_moe gqa_moe"),
    "fp8 skips": (QWEN, FP8 | SKIPPED, "gqa_moe gqa_moe_2 gqa_moe_3 gqa_moe"),
    "mxfp4": (OSS, {"quant_method": "mxfp4"}, "swa_moe gqa_moe swa_moe gqa_moe"),
    "mxfp4 skips": (
        OSS,
        {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.3.mlp.experts"]},
        "swa_moe gqa_moe swa_moe gqa_moe_2",
    ),
    "nvfp4": (QWEN, NVFP4 | {"ignore": ["lm_head", "model.layers.3*"]}, "gqa_moe gqa_moe gqa_moe gqa_moe_2"),
    "nvfp4 head": (QWEN, NVFP4, "gqa_moe gqa_moe gqa_moe gqa_moe"),
    "int4": (SMALL["glm4_moe"], INT4 | {"ignore": ["lm_head"]}, "gqa_dense gqa_moe gqa_moe gqa_moe"),
    "int4 skips": (
        SMALL["glm4_moe"],
        INT4 | {"ignore": ["lm_head", "re:.*layers[.]2[.]mlp[.]shared_experts.*"]},
        "gqa_dense gqa_moe gqa_moe_2 gqa_moe",
    ),
    "int4 fused": (
        SMALL["gpt_neox"],
        INT4 | {"ignore": ["re:.*[.]1[.]attention[.]query_key_value"]},
        "gqa_dense gqa_dense_2 gqa_dense gqa_dense",
    ),
    "fbgemm": (SMALL["seed_oss"], {"quant_method": "fbgemm_fp8"}, "gqa_dense gqa_dense gqa_dense gqa_dense"),
}


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Captured]:
    pytest.importorskip("transformers")
    from compiler.frontend.capture.trace import capture

    store = tmp_path_factory.mktemp("captures")
    return lambda model: capture(model, store)


def keys(graph: Graph) -> list[tuple[str, str, int]]:
    """Key, type and bytes of every weight."""
    return sorted((t.key, t.dtype.label, t.nbytes) for block in graph.blocks for t in block.weights)


def both(folder: str, captured: Callable[[str], Captured], weights: str = "auto") -> Graph:
    """The graph of the spec door, equal to that of the capture door in every phase."""
    trace, spec = captured(folder), load_model(folder)
    for phase in Phase:
        workload = Workload(phase, 3, 300, 1, weights)
        made, built = lower(trace, workload), build(spec, workload)
        assert keys(made) == keys(built)
        assert (made.sequence, made.weight_nbytes) == (built.sequence, built.weight_nbytes)
        assert made.id == built.id
    return built


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_checkpoints(name: str, model_dir: Any, captured: Callable[[str], Captured]) -> None:
    low, high = PUBLISHED[name]
    graph = both(str(model_dir(name)), captured)
    assert low < graph.weight_nbytes / graph.weight_elements < high
    both(str(model_dir(name)), captured, "fp8")


@pytest.mark.parametrize("name", CASES)
def test_small_checkpoints(name: str, tmp_path: Path, captured: Callable[[str], Captured]) -> None:
    config, how, kinds = CASES[name]
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": how}))
    graph = both(str(tmp_path), captured)
    assert " ".join(graph.sequence[1:-2]) == kinds
    plain = build(load_model(str(tmp_path)), Workload(Phase.DECODE, 3, 300, 1, "bf16"))
    assert graph.weight_nbytes < plain.weight_nbytes
    both(str(tmp_path), captured, "fp8")


def test_types_of_weights_files(tmp_path: Path, llama: Config, captured: Callable[[str], Captured]) -> None:
    """The headers decide in both doors: an fp32 norm everywhere, one layer and the head in another type."""
    (tmp_path / "config.json").write_text(json.dumps(llama | {"torch_dtype": "bfloat16"}))
    alone = both(str(tmp_path), captured)
    write(tmp_path / "model.safetensors", tensors())
    assert both(str(tmp_path), captured).id == alone.id
    found = tensors() | {"model.layers.1.mlp.up_proj.weight": ((80, 48), "F32"), "lm_head.weight": ((100, 48), "F16")}
    write(tmp_path / "model.safetensors", found | {"model.norm.weight": ((48,), "F32")})
    graph = both(str(tmp_path), captured)
    assert graph.sequence[1:4] == ("gqa_dense", "gqa_dense_2", "gqa_dense")
    assert graph.weight_nbytes - alone.weight_nbytes == 2 * (80 * 48 + 48)
    assert {t.dtype.label for t in graph.block["head"].weights} == {"fp32", "fp16"}


def test_the_facts_of_a_captured_checkpoint(tmp_path: Path, llama: Config) -> None:
    how = {"quant_method": "fp8", "weight_block_size": [16, 16]}
    (tmp_path / "config.json").write_text(json.dumps(llama | {"quantization_config": how}))
    (tmp_path / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1")
    facts = {fact.name: fact for fact in open_door(str(tmp_path), Frontend.CAPTURE, tmp_path / "store").facts}
    assert json.loads(str(facts["quantisation"].value)) == how
    assert "is a Git-LFS pointer, not weights" in str(facts["weights"].value)


def test_a_quantisation_nobody_knows_is_refused_by_both(
    tmp_path: Path, llama: Config, captured: Callable[[str], Captured]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(llama | {"quantization_config": {"quant_method": "novel"}}))
    workload = Workload(Phase.DECODE, 1, 64, 1, "auto")
    for make in (lambda: lower(captured(str(tmp_path)), workload), lambda: build(load_model(str(tmp_path)), workload)):
        with pytest.raises(InputError, match="novel is not supported"):
            make()
    both(str(tmp_path), captured, "bf16")


def test_one_storage_for_a_capture_that_is_stored(
    tmp_path: Path, llama: Config, captured: Callable[[str], Captured]
) -> None:
    """What the files say is read anew: a capture from the store follows a weights file that came later."""
    (tmp_path / "config.json").write_text(json.dumps(llama))
    first = both(str(tmp_path), captured)
    write(tmp_path / "model.safetensors", tensors("F32"))
    assert both(str(tmp_path), captured).weight_nbytes == 2 * first.weight_nbytes
