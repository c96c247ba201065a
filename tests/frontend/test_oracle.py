"""The graph against the published classes: parameters on the meta device, FLOPs of tiny instances counted by torch."""

import pytest

from compiler.errors import InputError
from compiler.frontend import build
from compiler.ir.graph import Pattern, Phase, Workload
from tests.frontend.oracle import causal_model, counted_flops, parameters

pytest.importorskip("torch")
pytest.importorskip("transformers")

PUBLISHED = [
    "Qwen2.5-7B",
    "Qwen3-8B",
    "gpt-oss-20b",
    "Mistral-7B-v0.1",
    "DeepSeek-V2-236B",
    "Meta-Llama-3.1-405B",
    "Mixtral-8x22B-v0.1",
    "Qwen3-235B-A22B",
    "deepseek-v2-lite",
    "DeepSeek-V3",
    "gpt-oss-120b",
]


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_equal_the_class(published, spec_of, name):
    config = published(name)
    spec = spec_of(config)
    assert spec.params == parameters(config)
    assert build(spec, Workload(Phase.PREFILL, 1, 8, 1)).weight_elements == spec.params


def test_shapes_of_a_layer_equal_the_class(llama, spec_of):
    config = llama | {"attention_bias": True, "mlp_bias": True}
    graph = build(spec_of(config), Workload(Phase.DECODE, 1, 4, 1))
    ours = {t.key.replace("{layer}", "0"): t.elements for block in graph.blocks for t in block.weights}
    theirs = {n: p.numel() for n, p in causal_model(config).named_parameters() if ".1." not in n and ".2." not in n}
    assert ours == theirs


@pytest.mark.parametrize(
    "name", ["Qwen2.5-7B", "Meta-Llama-3.1-8B", "Qwen3-30B-A3B", "deepseek-v2-lite", "gpt-oss-20b"]
)
def test_a_deleted_key_agrees_with_the_class_or_is_refused(published, spec_of, name):
    """Where a rule fills in for an absent key, the class has the same rule."""
    config = published(name) | {"num_hidden_layers": 2}
    if "layer_types" in config:
        config["layer_types"] = config["layer_types"][:2]
    for key in [k for k in config if k not in ("model_type", "quantization_config")]:
        without = {k: v for k, v in config.items() if k != key}
        try:
            spec = spec_of(without)
        except InputError:
            continue
        assert spec.params == parameters(without), key


@pytest.mark.parametrize("q_lora", [20, None])
@pytest.mark.parametrize("bias", [True, False])
def test_parameters_of_latent_attention(deepseek, spec_of, q_lora, bias):
    config = deepseek | {"q_lora_rank": q_lora, "attention_bias": bias}
    spec = spec_of(config)
    assert spec.params == parameters(config)
    graph = build(spec, Workload(Phase.DECODE, 1, 4, 1))
    ours = {t.key.replace("{layer}", "0"): t.elements for t in graph.block["mla_dense"].weights}
    theirs = {n: p.numel() for n, p in causal_model(config).named_parameters() if ".layers.0." in n}
    assert ours == theirs


TOKENS = 6


def contract_flops(spec):
    """FLOPs of the contractions of a prefill; combining experts is no matrix product in the class."""
    graph = build(spec, Workload(Phase.PREFILL, 1, TOKENS, 1))
    return sum(
        op.flops * graph.repeats[block.kind]
        for block in graph.blocks
        for op in block.ops
        if op.pattern is Pattern.CONTRACT and op.name != "ffn.combine"
    )


def test_flops_of_llama(llama, spec_of):
    assert contract_flops(spec_of(llama)) == counted_flops(llama, TOKENS)


def test_flops_of_qwen3(llama, spec_of):
    config = llama | {"model_type": "qwen3", "head_dim": 16}
    assert contract_flops(spec_of(config)) == counted_flops(config, TOKENS)


@pytest.mark.parametrize("experts", [2, 8])
def test_flops_of_mixtral(llama, spec_of, experts):
    config = llama | {"model_type": "mixtral", "num_local_experts": experts, "num_experts_per_tok": 2}
    assert contract_flops(spec_of(config)) == counted_flops(config, TOKENS)


@pytest.mark.parametrize("q_lora", [20, None])
def test_flops_of_deepseek(deepseek, spec_of, q_lora):
    config = deepseek | {"q_lora_rank": q_lora}
    config["head_dim"] = config["qk_rope_head_dim"]
    assert contract_flops(spec_of(config)) == counted_flops(config, TOKENS)
