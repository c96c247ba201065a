"""Sizes of published models, computed by hand or published by their authors."""

import re
import time
from pathlib import Path

import pytest

from compiler.frontend import build, load_model, model_summary, open_door
from compiler.frontend.spec import Attention, Dense, LatentAttention, Layer, ModelSpec, MoE
from compiler.ir.graph import Phase, Workload

PARAMS = {
    "Meta-Llama-3.1-8B": 8_030_261_248,
    "Meta-Llama-3.1-70B": 70_553_706_496,
    "Meta-Llama-3.1-405B": 405_853_388_800,
    "Mixtral-8x7B-v0.1": 46_702_792_704,
    "Qwen3-30B-A3B": 30_532_122_624,
    "deepseek-v2-lite": 15_706_484_224,
    "DeepSeek-V3": 671_026_404_352,
    "gpt-oss-120b": 116_829_156_672,
    "gpt-oss-20b": 20_914_757_184,
    "Qwen2.5-7B": 7_615_616_512,
    "Llama-2-7b-chat-hf": 6_738_415_616,
    "Mistral-7B-v0.1": 7_241_732_096,
    "WizardLM-2-8x22B": 140_620_634_112,
}


@pytest.mark.parametrize("name", PARAMS)
def test_parameters(model_dir, name):
    spec = load_model(str(model_dir(name)))
    assert spec.params == PARAMS[name]
    graph = build(spec, Workload(Phase.DECODE, 1, 128, 1))
    assert graph.weight_elements == spec.params


def test_active_parameters_count_the_chosen_experts(model_dir):
    spec = load_model(str(model_dir("Mixtral-8x7B-v0.1")))
    expert = 3 * 4096 * 14336
    assert spec.active_params == spec.params - 32 * 6 * expert == 12_879_925_248
    spec = load_model(str(model_dir("gpt-oss-120b")))
    expert = 3 * 2880 * 2880 + 3 * 2880  # biases of gate, up and down
    assert spec.active_params == spec.params - 36 * 124 * expert
    dense = load_model(str(model_dir("Meta-Llama-3.1-8B")))
    assert dense.active_params == dense.params


def test_cache_of_a_latent_model_is_latent_and_rotary_key(model_dir):
    spec = load_model(str(model_dir("DeepSeek-V3")))
    assert spec.kv_elements_per_token_per_layer == (512 + 64,) * 61
    assert spec.kv_bytes_per_token == 61 * 576 * 2


def test_cache_of_gpt_oss_counts_all_layers_and_holds_the_window(model_dir):
    spec = load_model(str(model_dir("gpt-oss-120b")))
    assert spec.kv_bytes_per_token == 36 * 2 * 8 * 64 * 2 == 73_728
    graph = build(spec, Workload(Phase.DECODE, 1, 4096, 1))
    row = 2 * 8 * 64 * 2
    assert graph.kv_nbytes == 18 * row * (128 + 4096)
    assert graph.sequence == ("embed", *("swa_moe", "gqa_moe") * 18, "head", "sample")
    short = build(spec, Workload(Phase.DECODE, 1, 100, 1))
    assert short.kv_nbytes == 36 * row * 100


def test_llama_decode_by_hand(model_dir):
    graph = build(load_model(str(model_dir("Meta-Llama-3.1-8B"))), Workload(Phase.DECODE, 1, 4096, 1))
    assert graph.kv_nbytes == 32 * 2 * 8 * 128 * 2 * 4096 == 536_870_912
    assert graph.weight_nbytes == 2 * PARAMS["Meta-Llama-3.1-8B"]
    flops = {op.name: op.flops for op in graph.block["gqa_dense"].ops}
    assert flops["attn.q_proj"] == flops["attn.o_proj"] == 2 * 4096 * 4096
    assert flops["attn.k_proj"] == flops["attn.v_proj"] == 2 * 4096 * 1024
    assert flops["attn.scores"] == flops["attn.values"] == 2 * 32 * 128 * 4096
    assert flops["attn.softmax"] == 7 * 32 * 4096
    assert flops["ffn.gate_proj"] == flops["ffn.up_proj"] == flops["ffn.down_proj"] == 2 * 4096 * 14336
    assert flops["ffn.act"] == 9 * 14336
    assert flops["attn.norm"] == flops["ffn.norm"] == 4 * 4096
    assert flops["attn.kv_append"] == 0
    assert graph.block["head"].op["head.lm_head"].flops == 2 * 4096 * 128_256
    assert graph.block["embed"].op["embed.gather"].flops == 0


def test_deepseek_decode_by_hand(model_dir):
    graph = build(load_model(str(model_dir("DeepSeek-V3"))), Workload(Phase.DECODE, 2, 1000, 1))
    assert graph.repeats == {"embed": 1, "mla_dense": 3, "mla_moe": 58, "head": 1, "sample": 1}
    assert graph.sequence[1:5] == ("mla_dense", "mla_dense", "mla_dense", "mla_moe")
    flops = {op.name: op.flops for op in graph.block["mla_moe"].ops}
    assert flops["attn.kv_b_proj"] == 2 * 2 * 1000 * 128 * 256 * 512
    assert flops["attn.scores"] == 2 * 2 * 128 * 192 * 1000
    assert flops["attn.values"] == 2 * 2 * 128 * 128 * 1000
    assert flops["ffn.experts_gate"] == 2 * 2 * 8 * 7168 * 2048
    assert flops["ffn.combine"] == 2 * 2 * 8 * 7168
    assert flops["ffn.shared_up_proj"] == 2 * 2 * 7168 * 2048
    assert graph.kv_nbytes == 61 * 2 * 1000 * 576 * 2


def test_prefill_heads_the_last_token_of_each_sequence_only(model_dir):
    graph = build(load_model(str(model_dir("Meta-Llama-3.1-8B"))), Workload(Phase.PREFILL, 3, 10, 1))
    assert graph.block["gqa_dense"].op["attn.q_proj"].size("tokens") == 30
    assert graph.block["gqa_dense"].op["attn.scores"].flops == 2 * 30 * 32 * 128 * 10
    assert graph.block["head"].op["head.lm_head"].size("tokens") == 3
    assert graph.kv_nbytes == 32 * 2 * 8 * 128 * 2 * 30


def test_deepseek_reads_fast(model_dir):
    folder = str(model_dir("DeepSeek-V3"))
    load_model(folder)
    best = min(_seconds(folder) for _ in range(5))
    assert best < 0.05


def _seconds(folder: str) -> float:
    start = time.perf_counter()
    load_model(folder)
    return time.perf_counter() - start


def test_summary(model_dir):
    summary = model_summary(open_door(str(model_dir("DeepSeek-V3"))))
    assert summary == {
        "name": "DeepSeek-V3",
        "model_type": "deepseek_v3",
        "frontend": "spec",
        "params": 671_026_404_352,
        "active_params": summary["active_params"],
        "mtp_modules": 1,
        "mtp_params": 11_610_067_968,
        "kv_bytes_per_token": 70_272,
        "state_bytes": 0,
        "layers": [{"kind": "mla_dense", "repeat": 3}, {"kind": "mla_moe", "repeat": 58}],
    }
    assert 37_000_000_000 < summary["active_params"] < 38_000_000_000  # published: 37B activated
    layers = model_summary(open_door(str(model_dir("gpt-oss-20b"))))["layers"]
    assert layers == [{"kind": "swa_moe", "repeat": 12}, {"kind": "gqa_moe", "repeat": 12}]


def test_a_model_composed_by_hand():
    gqa, mla = Attention(2, 3, 8), LatentAttention(4, None, 16, 8, 4, 10)
    dense, plain = Dense(20), Dense(30, gated=False, bias=True)
    layers = (Layer(gqa, dense), Layer(mla, plain), Layer(Attention(2, 3, 8, window=5), MoE(4, 2, 6, 7)))
    layers += (Layer(Attention(2, 3, 8, window=9), dense), Layer(gqa, dense), Layer(Attention(1, 6, 8), dense))
    spec = ModelSpec("mine", "mine", 48, 100, True, layers)
    assert spec.kinds == ("gqa_dense", "mla_dense", "swa_moe", "swa_dense", "gqa_dense", "gqa_dense_2")
    attention = 48 * (48 + 16 + 16 + 48)
    latent = 48 * 4 * 12 + 48 * 20 + 16 + 16 * 4 * 18 + 40 * 48
    moe = 4 * 3 * 48 * 6 + 4 * 48 + 3 * 48 * 7
    expected = 100 * 48 + 48 + 6 * 2 * 48 + 4 * attention + 48 * (48 + 8 + 8 + 48) + latent
    expected += 4 * 3 * 48 * 20 + (2 * 48 * 30 + 30 + 48) + moe
    assert spec.params == expected
    for phase in Phase:
        graph = build(spec, Workload(phase, 2, 7, 1))
        assert graph.weight_elements == expected
        assert graph.sequence == ("embed", *spec.kinds, "head", "sample")
        assert graph.block["swa_moe"].op["attn.scores"].size("context") == 5
        assert graph.block["swa_dense"].op["attn.scores"].size("context") == 7
        assert "ffn.up_proj" not in graph.block["mla_dense"].op
        assert graph.block["mla_dense"].op["ffn.act"].flops_per_point == 8


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Attention(0, 1, 8),
        lambda: Attention(1, 1, 8, window=0),
        lambda: LatentAttention(4, 0, 16, 8, 4, 10),
        lambda: Dense(0),
        lambda: MoE(4, 5, 6),
        lambda: MoE(4, 2, 6, -1),
        lambda: ModelSpec("mine", "mine", 48, 100, True, ()),
    ],
)
def test_a_spec_cannot_hold_nonsense(wrong):
    with pytest.raises(ValueError, match=r"at least 1|top-5"):
        wrong()


def test_the_example_of_the_readme_runs():
    text = (Path(__file__).parents[2] / "compiler/frontend/README.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", text, re.S)
    exec(compile(example, "README.md", "exec"), {})
