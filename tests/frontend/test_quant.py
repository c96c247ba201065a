"""Bytes of quantised checkpoints, computed by hand from the published layouts; ignore lists; what is refused."""

import json
import re
from math import ceil

import pytest

from compiler.errors import InputError
from compiler.frontend import build, load_model
from compiler.frontend.facts import Facts
from compiler.frontend.quant import read_quantisation
from compiler.frontend.read import Source
from compiler.frontend.spec import WeightKind
from compiler.ir.dtype import FP8_BLOCK, MXFP4, NVFP4, Element
from compiler.ir.graph import Phase, Workload
from compiler.passes.work import convert_passes

DECODE = Workload(Phase.DECODE, 1, 64, 1)
#: The down projection of the small llama: 48 rows of 80 columns.
ROWS, COLUMNS = 48, 80
N = ROWS * COLUMNS


def group(num_bits, kind, **more):
    return {"g": {"targets": ["Linear"], "weights": {"num_bits": num_bits, "type": kind, **more}}}


def packed(*args, **more):
    return {"quant_method": "compressed-tensors", "config_groups": group(*args, **more), "ignore": ["lm_head"]}


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 16}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 40, "zero_point": True, "version": "gemm"}
FOUR = {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False, "bnb_4bit_quant_type": "nf4"}

#: quantization_config -> label, bytes of the 48 x 80 matrix, vector passes an element takes.
TABLE = [
    ({"quant_method": "fp8"}, "fp8_tensor", N + 4, 1),
    ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8_block", N + 4 * 1 * 1, 1),
    ({"quant_method": "fp8", "weight_block_size": [32, 32]}, "fp8_block_32x32", N + 4 * 2 * 3, 1),
    ({"quant_method": "fp8", "weight_block_size": [1, 16]}, "fp8_block_1x16", N + 4 * 48 * 5, 2),
    ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, "fp8_channel", N + 4 * 48, 1),
    ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8_tensor", N + 4, 1),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}, "nvfp4", N // 2 + 48 * 5 + 4, 2),
    (packed(8, "float", strategy="tensor"), "fp8_tensor_s16", N + 2, 1),
    (packed(8, "float", strategy="channel"), "fp8_channel_s16", N + 2 * 48, 1),
    (packed(8, "float", strategy="block", block_structure=[16, 40]), "fp8_block_16x40_s16", N + 2 * 3 * 2, 1),
    (packed(8, "int", strategy="channel"), "int8_channel", N + 2 * 48, 1),
    (packed(8, "int", strategy="group", group_size=32), "int8_g32", N + 2 * 48 * 3, 2),
    (packed(4, "int", strategy="group", group_size=32), "int4_g32", N // 2 + 2 * 48 * 3, 2),
    (packed(4, "int", group_size=16, symmetric=False), "int4_g16_zp", N // 2 + 48 * 5 * 2 + 48 * 5 // 2, 2),
    (packed(4, "int", group_size=16, actorder="group"), "int4_g16_order", N // 2 + 48 * 5 * 2 + 80 * 4, 2),
    (packed(4, "int", group_size=-1, scale_dtype="torch.float32"), "int4_channel_s32", N // 2 + 48 * 4, 2),
    (packed(4, "float", strategy="tensor_group", group_size=16), "nvfp4", N // 2 + 48 * 5 + 4, 2),
    (packed(4, "float", strategy="group", group_size=32), "mxfp4", N // 2 + 48 * 3, 2),
    (GPTQ, "int4_g16_zp", N // 2 + 48 * 5 * 2 + 48 * 5 // 2, 2),
    (GPTQ | {"desc_act": True}, "int4_g16_zp_order", N // 2 + 48 * 5 * 2 + 48 * 5 // 2 + 80 * 4, 2),
    (GPTQ | {"bits": 8, "group_size": -1}, "int8_channel_zp", N + 48 * 2 + 48, 1),
    (AWQ, "int4_g40_zp", N // 2 + 48 * 2 * 2 + 48 * 2 // 2, 2),
    (FOUR, "nf4_g64", N // 2 + 4 * 60, 3),
    (FOUR | {"bnb_4bit_use_double_quant": True}, "nf4_g64_double", N // 2 + 60 + 4 * 1, 3),
    (FOUR | {"bnb_4bit_quant_type": "fp4"}, "fp4_g64", N // 2 + 4 * 60, 2),
    ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8_channel_s32", N + 4 * 48, 1),
]


def weights(spec, **changes):
    graph = build(spec, Workload(Phase.DECODE, 1, 64, 1, **changes))
    return {f"{kind}/{t.name}": t for kind in graph.sequence for t in graph.block[kind].weights}


@pytest.mark.parametrize(("config", "label", "nbytes", "passes"), TABLE)
def test_bytes_of_a_matrix(spec_of, llama, config, label, nbytes, passes):
    found = weights(spec_of(llama | {"quantization_config": config}))
    down = found["gqa_dense/w.ffn.down_proj"]
    assert (down.dtype.label, down.nbytes, convert_passes(down.dtype)) == (label, nbytes, passes)
    assert found["gqa_dense/w.attn.norm"].dtype.label == "bf16"
    assert found["embed/w.embed.gather"].dtype.label == "bf16"
    plain = {t.dtype.label for t in weights(spec_of(llama | {"quantization_config": config}), weights="bf16").values()}
    assert plain == {"bf16"}


def test_every_element_has_a_cost():
    assert {element: convert_passes(dtype_of(element)) for element in Element} == {
        Element.BF16: 0, Element.FP32: 0, Element.INT32: 0, Element.FP16: 1, Element.FP8: 1, Element.INT8: 1,
        Element.INT4: 2, Element.FP4: 2, Element.NF4: 3,
    }  # fmt: skip


def dtype_of(element):
    from compiler.ir.dtype import Scheme

    return Scheme(element.label, element).fitted(1, 1)


# --- totals of published checkpoints


def matrix(rows, columns):
    """An fp8 matrix with an FP32 scale a block of 128 x 128."""
    return rows * columns + 4 * ceil(rows / 128) * ceil(columns / 128)


def deepseek_bytes(c):
    h, heads, rank = c["hidden_size"], c["num_attention_heads"], c["kv_lora_rank"]
    nope, rope, v = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    q = c["q_lora_rank"]
    attention = matrix(q, h) + matrix(heads * (nope + rope), q) + matrix(rank + rope, h)
    attention += matrix(heads * (nope + v), rank) + matrix(h, heads * v) + 2 * (q + rank + 2 * h)
    layers, first, width = c["num_hidden_layers"], c["first_k_dense_replace"], c["moe_intermediate_size"]
    experts = c["n_routed_experts"] * (2 * matrix(width, h) + matrix(h, width))
    shared = c["n_shared_experts"] * width
    moe = experts + 2 * matrix(shared, h) + matrix(h, shared) + 2 * c["n_routed_experts"] * h
    dense = 2 * matrix(c["intermediate_size"], h) + matrix(h, c["intermediate_size"])
    edges = 2 * (2 * c["vocab_size"] * h + h)
    return edges + layers * attention + first * dense + (layers - first) * moe


@pytest.mark.parametrize("name", ["DeepSeek-V3", "DeepSeek-R1", "Kimi-K2-Instruct"])
def test_deepseek_totals(model_dir, published, name):
    graph = build(load_model(str(model_dir(name))), DECODE)
    assert graph.weight_nbytes == deepseek_bytes(published(name))


def test_qwen_total(model_dir, published):
    c = published("Qwen3-235B-A22B-FP8")
    h, d, q, kv = c["hidden_size"], c["head_dim"], c["num_attention_heads"], c["num_key_value_heads"]
    attention = matrix(q * d, h) + 2 * matrix(kv * d, h) + matrix(h, q * d) + 2 * (2 * d + 2 * h)
    width = c["moe_intermediate_size"]
    moe = c["num_experts"] * (2 * matrix(width, h) + matrix(h, width)) + 2 * c["num_experts"] * h
    total = 94 * (attention + moe) + 2 * (2 * c["vocab_size"] * h + h)
    assert build(load_model(str(model_dir("Qwen3-235B-A22B-FP8"))), DECODE).weight_nbytes == total


def test_minimax_total(model_dir, published):
    """One norm over all heads of q, one over those of k; the router's correction is a buffer."""
    c = published("MiniMax-M2.5")
    h, q, kv, width = c["hidden_size"], 48 * 128, 8 * 128, c["intermediate_size"]
    attention = matrix(q, h) + 2 * matrix(kv, h) + matrix(h, q) + 2 * (q + kv + 2 * h)
    moe = 256 * (2 * matrix(width, h) + matrix(h, width)) + 2 * 256 * h
    total = 62 * (attention + moe) + 2 * (2 * c["vocab_size"] * h + h)
    assert build(load_model(str(model_dir("MiniMax-M2.5"))), DECODE).weight_nbytes == total


@pytest.mark.parametrize("name", ["WizardLM-2-8x22B", "BLOOM-176B"])
def test_totals_that_an_index_states(model_dir, name):
    folder = model_dir(name)
    text = (folder / "model.safetensors.index.json").read_text()
    (stated,) = re.findall(r'"total_size": (\d+)', text.split("=======")[0])
    assert build(load_model(str(folder)), DECODE).weight_nbytes == int(stated)


@pytest.mark.parametrize("name", ["gpt-oss-20b", "gpt-oss-120b"])
def test_gpt_oss_totals(model_dir, published, name):
    """Blocks of 16 bytes and a scale of one, 32 elements of a row each; everything else in bf16."""
    c = published(name)
    spec = load_model(str(model_dir(name)))
    rows = c["num_hidden_layers"] * c["num_local_experts"] * 3 * 2880
    assert build(spec, DECODE).weight_nbytes == rows * (2880 // 32) * 17 + 2 * (spec.params - rows * 2880)


def rules(published, name):
    config = published(name)
    return read_quantisation(Facts(Source("config.json", name, config, config), name))


@pytest.mark.parametrize("name", ["DeepSeek-V3.2", "MiniMax-M2.5"])
def test_block_scales_are_fp32_whatever_their_values(published, name):
    (rule,) = rules(published, name).rules
    assert rule.scheme is FP8_BLOCK


def test_excluded_routers_of_minimax(published):
    how = rules(published, "MiniMax-M2.5")
    assert how.rule(WeightKind.LINEAR, "model.layers.3.block_sparse_moe.gate") is None
    assert how.rule(WeightKind.EXPERT, "model.layers.3.block_sparse_moe.experts.1.w1") is not None


def test_deepseek_v4_has_experts_of_another_type(published):
    """experts in fp4, 32 elements a scale; the scales of the blocks are bytes (torch.float8_e8m0fnu)."""
    experts, linear = rules(published, "DeepSeek-V4-Flash").rules
    assert (experts.scheme, experts.kinds) == (MXFP4, (WeightKind.EXPERT,))
    assert linear.scheme.total_bits(256, 256) == 8 * (256 * 256 + 4)


# --- what is left out


def apart(spec_of, llama, config):
    found = weights(spec_of(llama | {"quantization_config": config}))
    return {name for name, t in found.items() if t.dtype.label == "bf16" and not name.endswith("norm")}


EDGES = {"embed/w.embed.gather", "head/w.head.lm_head"}


@pytest.mark.parametrize(
    "config",
    [
        {"quant_method": "fp8", "modules_to_not_convert": ["down_proj"]},
        {"quant_method": "fp8", "ignored_layers": ["mlp.down_proj"]},
        {"quant_method": "fp8", "modules_to_not_convert": ["model.language_model.layers.*.mlp.down_proj"]},
        {"quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": ["lm_head", "*.down_proj"]},
        packed(8, "float", strategy="channel") | {"ignore": ["lm_head", "re:.*mlp.down_proj$"]},
        {"quant_method": "bitsandbytes", "load_in_8bit": True, "llm_int8_skip_modules": ["down_proj"]},
        AWQ | {"modules_to_not_convert": ["down_proj"]},
        GPTQ | {"dynamic": {r"-:.*\.down_proj": {}}},
        GPTQ | {"modules_in_block_to_quantize": [["self_attn.q_proj", "self_attn"], ["mlp.up_proj", "mlp.gate_proj"]]},
    ],
)
def test_ignore_lists_of_each_kind(spec_of, llama, config):
    assert apart(spec_of, llama, config) == EDGES | {"gqa_dense/w.ffn.down_proj"}


def test_a_name_in_the_middle_leaves_out_all_inside(spec_of, llama):
    found = apart(spec_of, llama, AWQ | {"modules_to_not_convert": ["self_attn"]})
    assert found == EDGES | {f"gqa_dense/w.attn.{n}_proj" for n in "qkvo"}


def test_groups_and_overrides_by_module(spec_of, llama):
    groups = {
        "a": {"targets": ["re:.*self_attn.*"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}
    }
    config = {"quant_method": "compressed-tensors", "ignore": ["lm_head"]}
    mixed = config | {"config_groups": groups | group(4, "int", group_size=16)}
    found = weights(spec_of(llama | {"quantization_config": mixed}))
    assert found["gqa_dense/w.attn.q_proj"].dtype.label == "fp8_channel_s16"
    assert found["gqa_dense/w.ffn.up_proj"].dtype.label == "int4_g16"
    overridden = GPTQ | {"dynamic": {r"+:.*\.up_proj": {"bits": 8}}}
    found = weights(spec_of(llama | {"quantization_config": overridden}))
    assert found["gqa_dense/w.ffn.up_proj"].dtype.label == "int8_g16_zp"
    assert found["gqa_dense/w.ffn.gate_proj"].dtype.label == "int4_g16_zp"


def test_heads_that_are_quantised(spec_of, llama):
    config = packed(8, "float", strategy="channel") | {"ignore": []}
    assert apart(spec_of, llama, config) == {"embed/w.embed.gather"}
    assert apart(spec_of, llama, GPTQ | {"lm_head": True}) == {"embed/w.embed.gather"}


def test_experts_one_by_one(spec_of, deepseek):
    """All experts of a layer, or none."""
    every = [f"model.layers.2.mlp.experts.{n}.{p}_proj" for n in range(8) for p in ("gate", "up", "down")]

    def built(names):
        config = {"quant_method": "fp8", "modules_to_not_convert": names}
        return build(spec_of(deepseek | {"quantization_config": config}), DECODE)

    graph = built(every)
    assert graph.sequence[1:5] == ("mla_dense", "mla_moe", "mla_moe_2", "mla_moe")
    assert graph.block["mla_moe_2"].tensor["w.ffn.experts_up"].dtype.label == "bf16"
    with pytest.raises(InputError, match="expert 7 of layer 2"):
        built(every[:-3])
    with pytest.raises(InputError, match="expert 3 of layer"):
        built(["re:.*experts.3.gate_proj"])


# --- the file of ModelOpt


def modelopt(folder, llama, quantization, **config):
    (folder / "config.json").write_text(json.dumps(llama | config))
    (folder / "hf_quant_config.json").write_text(json.dumps({"producer": {}, "quantization": quantization}))
    return str(folder)


def test_hf_quant_config_beside_the_config(tmp_path, llama):
    quantization = {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head", "model.layers.0*"]}
    model = modelopt(tmp_path, llama, quantization)
    graph = build(load_model(model), DECODE)
    assert graph.sequence == ("embed", "gqa_dense", "gqa_dense_2", "gqa_dense_2", "head", "sample")
    assert {t.dtype.label for t in graph.block["gqa_dense"].weights} == {"bf16"}
    assert graph.block["gqa_dense_2"].tensor["w.ffn.up_proj"].dtype.label == "nvfp4"
    (rule,) = load_model(model).quantisation.rules
    assert rule.scheme is NVFP4
    both = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    assert load_model(modelopt(tmp_path, llama, quantization, quantization_config=both)).quantisation.rules == (rule,)


@pytest.mark.parametrize(
    ("quantization", "config", "word"),
    [
        ({"quant_algo": "NVFP4"}, {"quant_method": "modelopt", "quant_algo": "FP8"}, "quant_algo"),
        ({"quant_algo": "NVFP4"}, {"quant_method": "awq", "bits": 4}, "awq"),
        ({"quant_algo": "MIXED_PRECISION"}, None, "MIXED_PRECISION"),
        ({"quant_algo": None}, None, "quant_algo"),
        ({"quant_algo": "NVFP4", "group_size": 32}, None, "group_size"),
        ([], None, "quantization"),
    ],
)
def test_hf_quant_config_that_makes_no_sense(tmp_path, llama, quantization, config, word):
    with pytest.raises(InputError, match=word) as caught:
        load_model(modelopt(tmp_path, llama, quantization, quantization_config=config))
    assert "hf_quant_config.json" in str(caught.value)


# --- refused


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ({"quant_method": "gptq", "group_size": 128}, "bits"),
        ({"quant_method": "gptq", "bits": 3, "group_size": 128}, "bits"),
        ({"quant_method": "gptq", "bits": 4}, "group_size"),
        (GPTQ | {"group_size": 0}, "group_size"),
        (GPTQ | {"desc_act": "yes"}, "desc_act"),
        (GPTQ | {"dynamic": {"+:(": {}}}, "dynamic"),
        (GPTQ | {"dynamic": {"+:a": 3}}, "dynamic"),
        (GPTQ | {"modules_in_block_to_quantize": ["q_proj"]}, "modules_in_block_to_quantize"),
        (AWQ | {"bits": 8}, "bits"),
        ({"quant_method": "bitsandbytes"}, "load_in_4bit"),
        (FOUR | {"load_in_8bit": True}, "load_in_4bit"),
        (FOUR | {"bnb_4bit_quant_type": "nf3"}, "nf3"),
        ({"quant_method": "compressed-tensors"}, "config_groups"),
        (packed(2, "int", group_size=16), "num_bits"),
        (packed(4, "int", strategy="group"), "group_size"),
        (packed(4, "float"), "group_size"),
        (packed(8, "float", strategy="block"), "block_structure"),
        (packed(8, "float", strategy="cell"), "strategy"),
        (packed(8, "float") | {"ignore": ["re:("]}, "ignore"),
        (packed(8, "float") | {"format": "marlin-24"}, "marlin-24"),
        (packed(8, "float") | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparse-24"),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": {"targets": ["Linear"]}}}, "config_groups"),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {"num_bits": 8}}}}, "targets"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    str(bits): {"targets": ["Linear"], "weights": {"num_bits": bits, "group_size": 16}}
                    for bits in (4, 8)
                },
            },
            "config_groups: has two groups",
        ),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "W4A8_AWQ"),
    ],
)
def test_what_is_not_modelled_names_its_key(spec_of, llama, config, word):
    with pytest.raises(InputError, match=word) as caught:
        spec_of(llama | {"quantization_config": config})
    assert caught.value.where.startswith("config.json: quantization_config")
    assert caught.value.right


def test_an_unknown_method_says_what_is_supported(spec_of, llama):
    spec = spec_of(llama | {"quantization_config": {"quant_method": "aqlm"}})
    with pytest.raises(InputError, match="aqlm") as caught:
        build(spec, DECODE)
    for method in ("fp8", "mxfp4", "modelopt", "compressed-tensors", "gptq", "awq", "bitsandbytes"):
        assert method in caught.value.right


@pytest.mark.parametrize("key", ["quantization", "compression_config"])
def test_other_keys_that_say_how_weights_are_stored(spec_of, llama, key):
    assert weights(spec_of(llama | {key: AWQ})) == weights(spec_of(llama | {"quantization_config": AWQ}))
    with pytest.raises(InputError, match=f"config.json: {key}.quant_method"):
        spec_of(llama | {key: {"group_size": 64, "bits": 4}})
