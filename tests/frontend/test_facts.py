"""One fact, many spellings; rules for absent keys; refusals by name."""

import pytest

from compiler.errors import InputError
from compiler.frontend import inspect_facts, load_model, open_door
from compiler.frontend.spec import Status
from tests.frontend.small import SMALL


def refused(spec_of, config, *words):
    with pytest.raises(InputError) as caught:
        spec_of(config)
    for word in words:
        assert word in str(caught.value)
    return caught.value


def fact(spec, name):
    return next(f for f in spec.facts if f.name == name)


# --- heads


def test_head_dim_by_rule_is_assumed_and_explicit_wins(spec_of, llama):
    spec = spec_of(llama)
    assert spec.layers[0].mixer.head_dim == 8
    assert fact(spec, "head_dim").status is Status.ASSUMED
    spec = spec_of(llama | {"head_dim": 16})
    assert spec.layers[0].mixer.head_dim == 16
    assert (fact(spec, "head_dim").key, fact(spec, "head_dim").status) == ("head_dim", "read")


@pytest.mark.parametrize(("hidden", "heads", "stated", "right"), [(896, 14, None, 64), (5120, 32, 128, 128)])
def test_head_dim_as_in_qwen_and_mistral_nemo(spec_of, llama, hidden, heads, stated, right):
    config = llama | {"hidden_size": hidden, "num_attention_heads": heads, "head_dim": stated}
    assert spec_of(config).layers[0].mixer.head_dim == right


def test_head_dim_is_needed_where_it_is_not_the_quotient(spec_of, published):
    for name in ("Qwen3-8B", "Qwen3-30B-A3B", "gpt-oss-20b"):
        config = published(name)
        del config["head_dim"]
        refused(spec_of, config, "head_dim")


def test_kv_heads_absent_is_all_heads_for_llama_only(spec_of, llama, published):
    spec = spec_of(llama | {"num_key_value_heads": None})
    assert (spec.layers[0].mixer.kv_heads, spec.layers[0].mixer.q_group) == (6, 1)
    assert fact(spec, "kv_heads").status is Status.ASSUMED
    refused(spec_of, published("Mistral-7B-v0.1") | {"num_key_value_heads": None}, "num_key_value_heads")


def test_head_counts_must_divide(spec_of, llama):
    refused(spec_of, llama | {"num_key_value_heads": 4}, "num_key_value_heads", "divisor of 6")
    refused(spec_of, llama | {"hidden_size": 49}, "hidden_size", "head_dim")


# --- spellings


def test_other_spellings_and_nested_paths(spec_of, llama):
    spec = spec_of(llama)
    for old, new in [("hidden_size", "n_embd"), ("num_hidden_layers", "n_layer"), ("num_key_value_heads", "n_head_kv")]:
        config = dict(llama)
        config[new] = config.pop(old)
        assert spec_of(config).params == spec.params
    config = dict(llama)
    config["attn_config"] = {"kv_n_heads": config.pop("num_key_value_heads")}
    spec = spec_of(config)
    assert fact(spec, "kv_heads").key == "attn_config.kv_n_heads"


def test_spellings_that_disagree(spec_of, llama):
    assert spec_of(llama | {"n_layer": 3}).layers
    refused(spec_of, llama | {"n_layer": 4}, "n_layer", "num_hidden_layers")


def test_a_missing_fact_lists_the_keys_tried(spec_of, deepseek):
    del deepseek["num_experts_per_tok"]
    refused(spec_of, deepseek, "num_experts_per_tok", "experts_per_token", "moe_top_k", "top_k_experts")


# --- windows


def test_window_off_by_flag(model_dir):
    spec = load_model(str(model_dir("Qwen2.5-7B")))
    assert {layer.mixer.window for layer in spec.layers} == {None}
    assert "ignored" in fact(spec, "window").note


def test_window_from_a_layer_on(spec_of, published):
    spec = spec_of(published("Qwen2.5-7B") | {"use_sliding_window": True, "max_window_layers": 20})
    assert [layer.mixer.window for layer in spec.layers] == [None] * 20 + [131_072] * 8
    assert spec.kinds == ("gqa_dense",) * 20 + ("swa_dense",) * 8


def test_mistral_window(spec_of, published):
    config = published("Mistral-7B-v0.1")
    assert {layer.mixer.window for layer in spec_of(config).layers} == {4096}
    assert {layer.mixer.window for layer in spec_of(config | {"sliding_window": None}).layers} == {None}
    del config["sliding_window"]
    refused(spec_of, config, "sliding_window")


def test_layer_types_of_wrong_length_or_kind(spec_of, published):
    config = published("gpt-oss-20b")
    types = config["layer_types"]
    refused(spec_of, config | {"layer_types": types[:-1]}, "layer_types", "23 entries for 24 layers")
    refused(spec_of, config | {"layer_types": ["linear_attention", *types[1:]]}, "layer_types[0]", "linear_attention")
    refused(spec_of, config | {"layer_types": None}, "layer_types")
    refused(spec_of, config | {"sliding_window": None}, "sliding_window")
    assert spec_of(config | {"layer_types": [*types, "full_attention"], "num_nextn_predict_layers": 1}).mtp_modules == 1
    llama_types = {"layer_types": ["full_attention", "full_attention", "sliding_attention"]}
    refused(spec_of, published("Meta-Llama-3.1-8B") | llama_types | {"num_hidden_layers": 3}, "layer_types")


# --- experts


def test_mixtral_experts_have_the_width_of_the_ffn(model_dir):
    moe = load_model(str(model_dir("Mixtral-8x7B-v0.1"))).layers[0].ffn
    assert (moe.experts, moe.top_k, moe.width, moe.shared_width) == (8, 2, 14_336, 0)


def test_which_layers_are_moe_qwen(spec_of, published):
    config = published("Qwen3-30B-A3B") | {"num_hidden_layers": 6}
    kinds = [kind == "gqa_moe" for kind in spec_of(config | {"decoder_sparse_step": 2}).kinds]
    assert kinds == [False, True] * 3
    kinds = [kind == "gqa_moe" for kind in spec_of(config | {"mlp_only_layers": [0, 5]}).kinds]
    assert kinds == [False, True, True, True, True, False]
    refused(spec_of, config | {"mlp_only_layers": [6]}, "mlp_only_layers")


def test_which_layers_are_moe_deepseek(spec_of, deepseek):
    def moe(**keys):
        return [kind == "mla_moe" for kind in spec_of(deepseek | keys).kinds]

    assert moe() == [False, True, True, True]
    assert moe(first_k_dense_replace=0, moe_layer_freq=2) == [True, False, True, False]
    assert moe(moe_layer_freq=[0, 0, 1, 1]) == [False, False, True, True]
    assert moe(moe_layer_freq=None) == [False, True, True, True]
    assert moe(first_k_dense_replace=4) == [False] * 4
    refused(spec_of, deepseek | {"moe_layer_freq": [0, 1]}, "moe_layer_freq", "2 entries for 4 layers")
    refused(spec_of, deepseek | {"moe_layer_freq": [0, 2, 1, 1]}, "moe_layer_freq")
    refused(spec_of, deepseek | {"first_k_dense_replace": 5}, "first_k_dense_replace")


def test_routing_that_cannot_be(spec_of, deepseek):
    refused(spec_of, deepseek | {"num_experts_per_tok": 9}, "num_experts_per_tok", "8 experts")
    refused(spec_of, deepseek | {"n_group": 3}, "n_group")
    refused(spec_of, deepseek | {"topk_group": 5}, "topk_group")
    refused(spec_of, deepseek | {"topk_group": 1, "num_experts_per_tok": 3}, "topk_group")
    refused(spec_of, deepseek | {"scoring_func": "sqrtsoftplus"}, "scoring_func")


def test_shared_experts_add_up_to_one(spec_of, deepseek):
    assert spec_of(deepseek).layers[1].ffn.shared_width == 40
    assert spec_of(deepseek | {"n_shared_experts": 0}).layers[1].ffn.shared_width == 0


# --- latent attention


def test_latent_attention_ignores_kv_heads(spec_of, deepseek):
    spec = spec_of(deepseek | {"num_key_value_heads": 3})
    assert spec.kv_elements_per_token_per_layer == (20,) * 4
    assert "ignored" in fact(spec, "kv_heads").note


def test_q_lora_null_is_one_projection_and_absent_is_refused(spec_of, deepseek):
    assert spec_of(deepseek | {"q_lora_rank": None}).layers[0].mixer.q_lora is None
    del deepseek["q_lora_rank"]
    refused(spec_of, deepseek, "q_lora_rank", "null")


def test_mtp_modules_are_reported_and_not_layers(model_dir):
    spec = load_model(str(model_dir("DeepSeek-R1")))
    assert (spec.mtp_modules, len(spec.layers)) == (1, 61)
    assert fact(spec, "mtp_modules").key == "num_nextn_predict_layers"


def test_kimi_is_read_as_deepseek(model_dir):
    spec = load_model(str(model_dir("Kimi-K2-Instruct")))
    assert spec.params == 1_026_408_209_408
    assert spec.kinds.count("mla_dense") == 1


# --- biases, tying


def test_biases(spec_of, llama, published):
    spec = spec_of(llama)
    assert spec_of(llama | {"attention_bias": True}).params == spec.params + 3 * (48 + 16 + 16 + 48)
    assert spec_of(llama | {"mlp_bias": True}).params == spec.params + 3 * (80 + 80 + 48)
    mixer = spec_of(published("Qwen2.5-7B")).layers[0].mixer
    assert (mixer.q_bias, mixer.k_bias, mixer.v_bias, mixer.o_bias) == (True, True, True, False)
    config = published("gpt-oss-20b")
    del config["attention_bias"]
    refused(spec_of, config, "attention_bias")


def test_tied_embeddings_count_once(spec_of, llama):
    assert spec_of(llama).params - spec_of(llama | {"tie_word_embeddings": True}).params == 100 * 48
    del llama["tie_word_embeddings"]
    assert fact(spec_of(llama), "tied").status is Status.ASSUMED


# --- positions


@pytest.mark.parametrize(
    "keys",
    [
        {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "extra": [1]}},
        {"rope_scaling": {"type": "yarn", "factor": 40, "mscale": 1.0}},
        {"rope_scaling": None},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
        {"rope_parameters": {"full_attention": {"rope_type": "default"}, "sliding_attention": {"rope_theta": 1e4}}},
        {"partial_rotary_factor": 1.0},
    ],
)
def test_rope_in_every_layout(spec_of, llama, keys):
    assert spec_of(llama | keys).params == spec_of(llama).params


@pytest.mark.parametrize(
    ("keys", "word"),
    [
        ({"rope_scaling": 3}, "rope_scaling"),
        ({"rope_scaling": {"type": 3}}, "rope_scaling.type"),
        ({"rope_parameters": {"full_attention": {"rope_theta": -1}}}, "rope_parameters.full_attention.rope_theta"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial"),
        ({"partial_rotary_factor": 0.5}, "partial"),
        ({"rope_theta": float("nan")}, "rope_theta"),
    ],
)
def test_rope_that_makes_no_sense(spec_of, llama, keys, word):
    refused(spec_of, llama | keys, word)


# --- what is not read


@pytest.mark.parametrize(
    "keys",
    [
        {"num_local_experts": 8},
        {"sliding_window": 4096},
        {"index_topk": 2048},
        {"kv_lora_rank": 512},
        {"final_logit_softcapping": 30.0},
        {"shared_expert_intermediate_size": 100},
        {"is_encoder_decoder": True},
        {"hybrid_override_pattern": "M-*"},
    ],
)
def test_structure_that_is_not_modelled_is_refused_by_name(spec_of, llama, keys):
    (key,) = keys
    refused(spec_of, llama | keys, key)
    nothing = {key: False if keys[key] is True else None}
    assert spec_of(llama | nothing).params == spec_of(llama).params


def test_keys_nobody_reads_are_unknown_and_harmless_ones_are_not_listed(spec_of, llama):
    spec = spec_of(llama | {"novel_gate": {"a": 1}, "bos_token_id": 1, "attention_dropout": 0.1, "gone": None})
    assert [(f.name, f.key) for f in spec.facts if f.status is Status.UNKNOWN] == [("novel_gate", "novel_gate")]


@pytest.mark.parametrize(
    "names", [["MixtralForCausalLM"], ["LlamaForSequenceClassification"], [3], "LlamaForCausalLM", {}]
)
def test_architectures_that_are_not_the_language_model(spec_of, llama, names):
    refused(spec_of, llama | {"architectures": names}, "architectures")


def test_architectures_of_the_same_shape(spec_of, llama):
    assert spec_of(llama | {"architectures": ["LlamaForCausalLM"]}).layers
    assert spec_of(llama | {"architectures": []}).layers
    spec = spec_of(llama | {"architectures": ["MyForCausalLM"]})
    assert fact(spec, "architectures").status is Status.ASSUMED


def test_every_published_fact_has_a_key(model_dir):
    for name in ("DeepSeek-V3", "gpt-oss-120b", "Qwen3-30B-A3B", "Meta-Llama-3.1-8B"):
        rows = inspect_facts(open_door(str(model_dir(name))))
        assert not [row for row in rows if row["status"] == "unknown"]
        assert all(row["key"] for row in rows if row["status"] == "read")
        assert all(row["note"] for row in rows if row["status"] == "assumed")
        assert {"hidden", "vocab", "layers", "heads"} <= {row["name"] for row in rows}


@pytest.mark.parametrize("kind", ["deepseek_v2", "deepseek_v3", "deepseek_v32", "exaone_moe", "glm_moe_dsa", "glm4_moe_lite", "kimi_linear", "glm4_moe", "dots1", "solar_open"])  # fmt: skip
def test_numbers_of_silent_configs_are_those_of_the_class(kind: str) -> None:
    """A gate's scale changes no shape, and is not another model's all the same."""
    transformers = pytest.importorskip("transformers")
    from compiler.frontend.ffn_facts import USUAL_SCALES

    config = transformers.AutoConfig.for_model(kind)
    assert USUAL_SCALES.get(kind, 1.0) == getattr(config, "routed_scaling_factor", 1.0)


@pytest.mark.parametrize(
    ("key", "op", "kind"), [("attn_logit_softcapping", "attn.softmax", "gqa_dense"), ("final_logit_softcapping", "head.softcap", "head")]
)  # fmt: skip
def test_a_soft_cap_is_there_unless_the_config_says_null(published, spec_of, key: str, op: str, kind: str) -> None:
    from compiler.frontend import build
    from compiler.ir.graph import Phase, Workload

    whole = published("Gemma-2-9b")

    def flops(config: dict) -> int:
        graph = build(spec_of(config), Workload(Phase.DECODE, 1, 64, 1))
        return graph.block[kind].op[op].flops if op in graph.block[kind].op else 0

    silent = {name: value for name, value in whole.items() if name != key}
    assert flops(whole) == flops(silent) > flops(whole | {key: None})


# --- spellings that mean another thing in another family


@pytest.mark.parametrize(
    ("name", "changes", "key"),
    [
        ("gemma", {"qkv_bias": True}, "qkv_bias"),
        ("youtu", {"qkv_bias": True}, "qkv_bias"),
        ("phi", {"use_qk_norm": True}, "use_qk_norm"),
        ("cohere", {"qk_layernorm": True}, "qk_layernorm"),
        ("phi norms", {"head_dim": 10}, "head_dim: is 10"),
        ("olmoe", {"head_dim": 10}, "head_dim: is 10"),
        ("glm4_moe", {"moe_layer_freq": 2}, "moe_layer_freq: is 2"),
        ("glm4_moe_lite", {"head_dim": 8}, "head_dim: is 8"),
        ("glm4_moe_lite", {"first_k_dense_replace": 2}, "first_k_dense_replace: is 2"),
    ],
)
def test_what_the_class_does_not_read_as_another_family_does_is_refused(spec_of, name, changes, key):
    refused(spec_of, SMALL[name] | changes, key)


@pytest.mark.parametrize(
    ("name", "group", "inner", "value"),
    [
        ("mpt", "attn_config", "kv_n_heads", 2),
        ("mpt", "attn_config", "attn_type", "multiquery_attention"),
        ("mpt", "attn_config", "prefix_lm", True),
        ("mpt", "ffn_config", "ffn_type", "mptglu"),
        ("mpt", "ffn_config", "moe_num_experts", 4),
        ("dbrx", "attn_config", "alibi", True),
    ],
)
def test_a_key_inside_an_object_is_refused_by_its_place(spec_of, name, group, inner, value):
    config = SMALL[name] | {group: SMALL[name].get(group, {}) | {inner: value}}
    refused(spec_of, config, f"{group}.{inner}: is")


def test_a_key_inside_an_object_that_nobody_knows_is_reported(spec_of):
    spec = spec_of(SMALL["dbrx"] | {"ffn_config": SMALL["dbrx"]["ffn_config"] | {"mystery": 3}})
    assert fact(spec, "ffn_config.mystery").status is Status.UNKNOWN


def test_biases_fixed_by_the_code_are_those_of_the_config_that_repeats_them(spec_of, llama):
    plain = llama | {"model_type": "qwen2"}
    assert spec_of(plain | {"qkv_bias": True}).params == spec_of(plain).params
