"""Quirks of published configs: the rows about reading a model, and refusals by name."""

import pytest

from compiler.errors import InputError
from compiler.frontend import build, load_model
from compiler.frontend.encoder_relatives import ENCODER_RELATIVES
from compiler.frontend.encoder_rows import ENCODERS
from compiler.frontend.families import FAMILIES
from compiler.frontend.hybrid_rows import HYBRIDS
from compiler.frontend.spec import Attention, Dense, MoE, QkNorm, Status, Wiring
from compiler.ir.graph import Phase, Workload
from tests.frontend.small import SMALL


def refused(spec_of, config, *words):
    with pytest.raises(InputError) as caught:
        spec_of(config)
    for word in words:
        assert word in str(caught.value)


def facts(spec):
    return {fact.name: fact for fact in spec.facts}


def mixers(spec):
    return [layer.mixer for layer in spec.layers]


# --- heads


def test_falcon_has_the_kv_heads_its_flags_say(spec_of, model_dir):
    spec = load_model(str(model_dir("Falcon-40B")))
    assert {(m.kv_heads, m.q_group) for m in mixers(spec)} == {(8, 16)}
    assert {layer.wiring for layer in spec.layers} == {Wiring.PARALLEL_NORMS}
    heads = {name: mixers(spec_of(SMALL[name]))[0].kv_heads for name in SMALL if name.startswith("falcon")}
    assert heads == {"falcon 7b": 1, "falcon 40b": 2, "falcon 11b": 3, "falcon rw": 6}


@pytest.mark.parametrize("key", ["multi_query", "new_decoder_architecture", "parallel_attn", "num_kv_heads"])
def test_falcon_without_a_flag_is_no_falcon(spec_of, published, key):
    config = published("Falcon-40B")
    del config[key]
    refused(spec_of, config, key)


def test_falcon_layouts_nobody_has(spec_of):
    refused(spec_of, SMALL["falcon 40b"] | {"parallel_attn": False}, "parallel_attn")
    refused(spec_of, SMALL["falcon 7b"] | {"num_ln_in_parallel_attn": 2}, "num_ln_in_parallel_attn")
    refused(spec_of, SMALL["falcon 7b"] | {"apply_residual_connection_post_layernorm": True}, "post_layernorm")
    refused(spec_of, SMALL["falcon 7b"] | {"head_dim": 9}, "head_dim", "8")


def test_alibi_rotates_nothing(spec_of, model_dir):
    for spec in (load_model(str(model_dir("BLOOM-176B"))), spec_of(SMALL["falcon rw"])):
        assert {(m.alibi, m.rotary) for m in mixers(spec)} == {(True, 0)}
        block = build(spec, Workload(Phase.DECODE, 1, 16, 1)).blocks[1]
        assert "attn.q_rope" not in block.op
        assert block.op["attn.softmax"].flops_per_point == 9


def test_rotated_part_of_a_head(spec_of, model_dir):
    assert mixers(load_model(str(model_dir("GLM-4.5"))))[0].rotary == 64
    assert mixers(load_model(str(model_dir("MiniMax-M2.5"))))[0].rotary == 64
    for name, right in {"gptj": 4, "gpt_neox": 2, "gpt_neox serial": 4, "phi": 4, "phi norms": 2, "glm": 5}.items():
        assert mixers(spec_of(SMALL[name]))[0].rotary == right, name
    v5 = SMALL["stablelm"] | {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}
    assert mixers(spec_of(v5))[0].rotary == 4
    refused(spec_of, v5 | {"partial_rotary_factor": 0.25}, "partial_rotary_factor")
    refused(spec_of, SMALL["gemma"] | {"partial_rotary_factor": 0.5}, "partial_rotary_factor")
    refused(spec_of, {k: v for k, v in SMALL["gptj"].items() if k != "rotary_dim"}, "rotary_dim")
    refused(spec_of, SMALL["gptj"] | {"rotary_dim": 9}, "rotary_dim")


def test_norms_that_a_family_always_has(spec_of):
    refused(spec_of, SMALL["minimax_m2"] | {"use_qk_norm": False}, "use_qk_norm")
    assert mixers(spec_of(SMALL["minimax_m2"]))[0].qk_norm is QkNorm.FULL


# --- patterns


def test_gemma_windows(spec_of, model_dir, published):
    spec = load_model(str(model_dir("Gemma-3-27b-it")))
    assert [m.window for m in mixers(spec)[:7]] == [1024] * 5 + [None, 1024]
    assert [m.window for m in mixers(spec)].count(None) == 10
    spec = load_model(str(model_dir("Gemma-2-9b")))
    assert [m.window for m in mixers(spec)[:3]] == [4096, None, 4096]
    assert facts(spec)["window_pattern"].status is Status.ASSUMED
    assert {m.softcap for m in mixers(spec)} == {True}
    assert spec.softcap
    head = build(spec, Workload(Phase.DECODE, 1, 16, 1)).block["head"]
    assert [op.name for op in head.ops] == ["head.norm", "head.lm_head", "head.softcap"]
    config = published("Gemma-3-27b-it")["text_config"]
    refused(spec_of, config | {"layer_types": config["layer_types"][:-1]}, "layer_types", "61 entries for 62 layers")


def test_llama4_chunks_where_it_rotates(spec_of, model_dir):
    spec = load_model(str(model_dir("Llama-4-Scout-17B-16E-Instruct")))
    assert [(m.chunk, m.rotary, m.qk_norm) for m in mixers(spec)[2:5]] == [
        (8192, None, QkNorm.HEAD),
        (None, 0, QkNorm.NONE),
        (8192, None, QkNorm.HEAD),
    ]
    assert spec.layers[0].ffn.shared_width == 8192
    graph = build(spec, Workload(Phase.DECODE, 1, 100_000, 1))
    row = 2 * 8 * 128 * 2
    assert graph.kv_nbytes == row * (36 * 8192 + 12 * 100_000)
    interleaved = spec_of(SMALL["llama4 interleaved"])
    assert [type(layer.ffn) for layer in interleaved.layers] == [Dense, MoE, Dense, MoE]
    assert [m.rotary for m in mixers(interleaved)] == [None, 0, None, 0]
    assert [type(layer.ffn) for layer in spec_of(SMALL["llama4 listed"]).layers] == [MoE, Dense, Dense, MoE]


@pytest.mark.parametrize(
    ("edit", "word"),
    [
        ({"no_rope_layers": [1, 0, 1]}, "3 entries for 4 layers"),
        ({"no_rope_layers": [1, 0, 1, 2]}, "no_rope_layers"),
        ({"moe_layers": [4]}, "moe_layers"),
        ({"interleave_moe_layer_step": None, "moe_layers": None}, "interleave_moe_layer_step"),
        ({"interleave_moe_layer_step": 2, "intermediate_size_mlp": None}, "intermediate_size_mlp"),
        ({"layer_types": ["sliding_attention"] * 4}, "layer_types[0]"),
    ],
)
def test_llama4_patterns_that_make_no_sense(spec_of, edit, word):
    refused(spec_of, SMALL["llama4"] | edit, word)


def test_chunk_absent_is_not_null(spec_of):
    config = SMALL["llama4"] | {"attention_chunk_size": None}
    assert {m.chunk for m in mixers(spec_of(config))} == {None}
    del config["attention_chunk_size"]
    refused(spec_of, config, "attention_chunk_size")


def test_layers_without_positions(spec_of):
    assert [m.rotary for m in mixers(spec_of(SMALL["smollm3"]))] == [None, 0, None, 0]
    assert [(m.window, m.rotary) for m in mixers(spec_of(SMALL["cohere2"]))] == [(32, None), (None, 0)] * 2
    assert [(m.window, m.rotary) for m in mixers(spec_of(SMALL["exaone4"]))] == [(32, None), (None, 0)] * 2
    assert {(m.window, m.rotary) for m in mixers(spec_of(SMALL["exaone4 full"]))} == {(None, None)}


def test_glm_has_dense_layers_first(model_dir):
    spec = load_model(str(model_dir("GLM-4.5")))
    assert [type(layer.ffn) for layer in spec.layers[:4]] == [Dense, Dense, Dense, MoE]
    assert spec.mtp_modules == 1
    assert (len(spec.layers), spec.layers[3].ffn.shared_width) == (92, 1536)


def test_ernie_experts_from_a_layer_to_a_layer(spec_of):
    kinds = [type(layer.ffn) for layer in spec_of(SMALL["ernie4_5_moe"]).layers]
    assert kinds == [Dense, MoE, MoE, Dense]
    last = spec_of(SMALL["ernie4_5_moe"] | {"moe_layer_end_index": -1, "moe_layer_interval": 2})
    assert [type(layer.ffn) for layer in last.layers] == [Dense, MoE, Dense, MoE]
    refused(spec_of, SMALL["ernie4_5_moe"] | {"moe_layer_interval": None}, "moe_layer_interval")


# --- experts


def test_spellings_of_experts(spec_of, published):
    config = published("DBRX-132B")
    spec = spec_of(config)
    ffn = spec.layers[0].ffn
    assert (ffn.experts, ffn.top_k, ffn.width, spec.layers[0].mixer.kv_heads) == (16, 4, 10752, 8)
    assert facts(spec)["experts"].key == "ffn_config.moe_num_experts"
    for outer, key in (("ffn_config", "moe_num_experts"), ("ffn_config", "moe_top_k"), ("attn_config", "kv_n_heads")):
        inner = {k: v for k, v in config[outer].items() if k != key}
        refused(spec_of, config | {outer: inner}, key)


def test_hunyuan_may_list_the_chosen_experts(spec_of):
    config = SMALL["hunyuan_v1_moe"]
    spec = spec_of(config | {"moe_topk": [1, 2, 2, 1], "num_shared_expert": [1] * 4, "moe_intermediate_size": [80] * 4})
    assert [layer.ffn.top_k for layer in spec.layers] == [1, 2, 2, 1]
    refused(spec_of, config | {"moe_topk": [1, 2]}, "moe_topk", "2 entries for 4 layers")
    refused(spec_of, config | {"moe_topk": [1, 2, 5, 1]}, "moe_topk")
    refused(spec_of, config | {"num_shared_expert": 2}, "num_shared_expert")
    refused(spec_of, config | {"moe_intermediate_size": 40}, "moe_intermediate_size")


def test_routers_are_the_families_own(spec_of):
    refused(spec_of, SMALL["phimoe"] | {"num_experts_per_tok": 3}, "num_experts_per_tok")
    refused(spec_of, SMALL["minimax_m2"] | {"scoring_func": "softmax"}, "scoring_func")
    refused(spec_of, SMALL["granitemoe"] | {"norm_topk_prob": False}, "norm_topk_prob")


# --- a description of each block


def test_nemotron_super(spec_of, published, model_dir):
    spec = load_model(str(model_dir("Llama-3_3-Nemotron-Super-49B-v1")))
    assert spec.params == 49_867_145_216
    assert mixers(spec).count(None) == 31
    assert {(m.kv_heads, m.q_group) for m in mixers(spec) if m} == {(8, 8)}
    assert spec.layers[0].ffn.width == 14_336  # 2.625 x 8192 x 2 / 3
    assert len({layer.ffn.width for layer in spec.layers}) > 3
    graph = build(spec, Workload(Phase.DECODE, 1, 1000, 1))
    assert graph.weight_elements == spec.params
    assert graph.kv_nbytes == 49 * 1000 * 2 * 8 * 128 * 2
    config = published("Llama-3_3-Nemotron-Super-49B-v1")
    blocks = config["block_configs"]
    refused(spec_of, config | {"block_configs": blocks[:-1]}, "block_configs", "79 entries for 80 layers")
    refused(spec_of, {k: v for k, v in config.items() if k != "block_configs"}, "block_configs")


@pytest.mark.parametrize(
    ("part", "key", "value"),
    [
        ("attention", "n_heads_in_group", 7),
        ("attention", "n_heads_in_group", None),
        ("attention", "replace_with_linear", True),
        ("attention", "num_sink_tokens", 4),
        ("attention", "window_length", -1),
        ("attention", "no_op", "yes"),
        ("ffn", "ffn_mult", None),
        ("ffn", "sparsify", ["2:4"]),
    ],
)
def test_blocks_that_are_not_modelled(spec_of, published, part, key, value):
    config = published("Llama-3_3-Nemotron-Super-49B-v1")
    first, *rest = config["block_configs"]
    config["block_configs"] = [first | {part: first[part] | {key: value}}, *rest]
    refused(spec_of, config, f"block_configs[0].{part}.{key}")


def test_a_layer_with_nothing_in_it(spec_of, published):
    config = published("Llama-3_3-Nemotron-Super-49B-v1")
    first, *rest = config["block_configs"]
    nothing = {part: first[part] | {"no_op": True} for part in ("attention", "ffn")}
    refused(spec_of, config | {"block_configs": [nothing, *rest]}, "block_configs[0]")


# --- types


def test_an_unknown_type_is_read_by_its_architecture(spec_of, published):
    config = published("Kimi-K2-Instruct")
    spec = spec_of(config | {"model_type": "kimi_k9"})
    assert spec.params == spec_of(config).params == 1_026_408_209_408
    assert (spec.model_type, facts(spec)["model_type"].status) == ("deepseek_v3", Status.ASSUMED)
    assert "kimi_k9" in facts(spec)["model_type"].note
    refused(spec_of, config | {"model_type": "kimi_k9", "strange_gate": 3}, "kimi_k9", "strange_gate")
    refused(spec_of, config | {"model_type": "kimi_k9", "architectures": ["KimiForCausalLM"]}, "kimi_k9")
    refused(spec_of, config | {"model_type": "mamba2"}, "mamba2")


def test_the_language_part_may_name_its_own_type(spec_of, published):
    config = published("Gemma-3-27b-it")["text_config"]
    assert spec_of(config).params == spec_of(config | {"model_type": "gemma3"}).params
    spec = load_model("mistral3")  # a language part of its own size, by class default
    assert (spec.model_type, spec.hidden, mixers(spec)[0].window) == ("mistral", 5120, None)


def test_a_structural_key_of_another_family_is_refused(spec_of):
    for key, value in {"alibi": True, "attention_chunk_size": 8, "use_parallel_residual": True, "bias": True}.items():
        refused(spec_of, SMALL["olmo2"] | {key: value}, key)
    refused(spec_of, SMALL["gemma3"] | {"use_bidirectional_attention": True}, "use_bidirectional_attention")


def test_every_row_has_a_small_instance():
    outer = {"gemma3", "mistral3", "llama4", "nemotron-nas", "deci", "kimi_k2"}
    elsewhere = {"llama", "qwen2", "qwen3", "mixtral", "qwen3_moe", "deepseek_v2", "deepseek_v3", "gpt_oss"}
    elsewhere |= {"deepseek_v4", "gemma4", "gemma4_text", "gemma3n", "gemma3n_text"}  # tests of their own
    others = {*HYBRIDS, *ENCODERS, *ENCODER_RELATIVES}  # each with tests of its own
    assert set(FAMILIES) - others == {c["model_type"] for c in SMALL.values()} | outer | elsewhere


def test_a_spec_by_hand_with_alibi_counts():
    assert Attention(2, 3, 8, alibi=True).params(48) == Attention(2, 3, 8).params(48)
