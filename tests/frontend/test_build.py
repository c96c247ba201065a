"""The graph: names and order of ops, boundaries, storage types, checkpoint keys."""

import pytest

from compiler.errors import InputError
from compiler.frontend import build, load_model
from compiler.ir.dtype import DType
from compiler.ir.graph import Pattern, Phase, Role, Workload

DECODE = Workload(Phase.DECODE, 2, 64, 1)
PREFILL = Workload(Phase.PREFILL, 2, 64, 1)

GQA = "norm q_proj k_proj v_proj q_rope k_rope kv_append scores softmax values o_proj residual"
GQA_QK = "norm q_proj k_proj v_proj q_norm k_norm q_rope k_rope kv_append scores softmax values o_proj residual"
MLA = (
    "norm q_a_proj q_a_norm q_b_proj q_rope kv_a_proj kv_a_norm k_rope kv_append kv_b_proj scores softmax values o_proj"
)
DENSE = "norm gate_proj up_proj act down_proj residual"
MOE = "norm router topk experts_gate experts_up experts_act experts_down combine residual"
SHARED = (
    "norm shared_gate_proj shared_up_proj shared_act shared_down_proj router topk experts_gate experts_up "
    "experts_act experts_down combine add_shared residual"
)


def weights(spec, workload=DECODE, **changes):
    choice = Workload(workload.phase, workload.batch, workload.context, workload.sockets, **changes)
    graph = build(spec, choice)
    return {t.name: t for block in graph.blocks for t in block.weights}


def ops(attn, ffn):
    return [f"attn.{name}" for name in attn.split()] + [f"ffn.{name}" for name in ffn.split()]


@pytest.mark.parametrize("workload", [DECODE, PREFILL])
@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("Meta-Llama-3.1-8B", "gqa_dense", ops(GQA, DENSE)),
        ("Mistral-7B-v0.1", "swa_dense", ops(GQA, DENSE)),
        ("Qwen3-8B", "gqa_dense", ops(GQA_QK, DENSE)),
        ("Mixtral-8x7B-v0.1", "gqa_moe", ops(GQA, MOE)),
        ("gpt-oss-20b", "swa_moe", ops(GQA, MOE)),
        ("DeepSeek-V3", "mla_dense", ops(MLA + " residual", DENSE)),
        ("DeepSeek-V3", "mla_moe", ops(MLA + " residual", SHARED)),
        ("deepseek-v2-lite", "mla_moe", ops(MLA.replace("q_a_proj q_a_norm q_b_proj", "q_proj") + " residual", SHARED)),
    ],
)
def test_ops_in_order(model_dir, name, kind, expected, workload):
    graph = build(load_model(str(model_dir(name))), workload)
    assert [op.name for op in graph.block[kind].ops] == expected
    assert graph.block[kind].outputs[0] == "y"
    assert graph.block[kind].inputs[-1 if workload is DECODE else 0] == "x" or "x" in graph.block[kind].inputs


def test_boundaries_gqa(spec_of, llama):
    block = build(spec_of(llama), DECODE).block["gqa_dense"]
    assert block.inputs == ("x", "attn.k_cache", "attn.v_cache")
    assert block.outputs == ("y", "attn.k_new", "attn.v_new")
    assert block.op["attn.scores"].inputs == ("attn.q_rot", "attn.k_cache", "attn.k_new")
    shape = {name: [(d.name, d.size) for d in t.dims] for name, t in block.tensor.items()}
    assert shape["attn.k_cache"] == [("batch", 2), ("context", 64), ("kv_heads", 2), ("head_dim", 8)]
    assert shape["attn.k_new"] == [("tokens", 2), ("kv_heads", 2), ("head_dim", 8)]
    assert shape["w.attn.q_proj"] == [("kv_heads", 2), ("q_group", 3), ("head_dim", 8), ("hidden", 48)]
    assert shape["w.attn.o_proj"] == [("hidden", 48), ("kv_heads", 2), ("q_group", 3), ("head_dim", 8)]
    block = build(spec_of(llama), PREFILL).block["gqa_dense"]
    assert block.inputs == ("x",)
    assert block.outputs == ("y", "attn.k_cache", "attn.v_cache")
    assert block.tensor["attn.k_cache"].role is Role.KV_CACHE


def test_boundaries_mla(spec_of, deepseek):
    block = build(spec_of(deepseek), DECODE).block["mla_moe"]
    assert block.inputs == ("x", "attn.latent_cache")
    assert block.outputs == ("y", "attn.latent_new")
    assert block.op["attn.kv_b_proj"].inputs == ("attn.latent_cache", "attn.latent_new", "w.attn.kv_b_proj")
    assert [d.name for d in block.op["attn.kv_b_proj"].dims] == ["batch", "context", "heads", "kv_b", "kv_lora"]
    assert [(d.name, d.size) for d in block.tensor["attn.k"].dims][2:] == [("heads", 4), ("qk_dim", 12)]
    block = build(spec_of(deepseek), PREFILL).block["mla_moe"]
    assert block.outputs == ("y", "attn.latent_cache")
    assert block.op["attn.kv_b_proj"].inputs == ("attn.latent", "attn.k_pe", "w.attn.kv_b_proj")
    assert block.op["attn.kv_b_proj"].size("tokens") == 128


def test_op_properties(spec_of, deepseek):
    block = build(spec_of(deepseek), DECODE).block["mla_moe"]
    assert {op.name for op in block.ops if op.linear} == {"ffn.combine", "ffn.add_shared"}
    routed = {op.name for op in block.ops if op.routing}
    assert routed == {"ffn.experts_gate", "ffn.experts_up", "ffn.experts_down"}
    assert block.op["ffn.topk"].pattern is Pattern.SORT
    assert block.op["attn.values"].reduced == block.op["attn.values"].sequential == ("context",)
    assert block.op["attn.o_proj"].reduced == ("heads", "v_dim")
    assert block.op["attn.kv_a_norm"].sequential == ("kv_lora",)
    assert [d.name for d in block.tensor["w.ffn.experts_down"].dims] == ["experts", "hidden", "ffn"]
    assert block.tensor["w.ffn.shared_up_proj"].elements == 48 * 40


def test_embed_head_sample(spec_of, llama):
    graph = build(spec_of(llama), PREFILL)
    embed, head, sample = graph.block["embed"], graph.block["head"], graph.block["sample"]
    assert (embed.inputs, embed.outputs) == (("ids",), ("y",))
    assert (embed.tensor["ids"].dtype, embed.tensor["ids"].role) == (DType.INT32, Role.INPUT)
    assert embed.tensor["y"].dims[0].size == 128
    assert (head.inputs, head.outputs, head.tensor["x"].dims[0].size) == (("x",), ("logits",), 2)
    assert (sample.inputs, sample.outputs) == (("logits",), ("next_ids",))
    assert (sample.tensor["next_ids"].dtype, sample.tensor["next_ids"].role) == (DType.INT32, Role.OUTPUT)


def test_tied_head_shares_the_key(spec_of, llama):
    graph = build(spec_of(llama | {"tie_word_embeddings": True}), DECODE)
    keys = [graph.block[k].weights[-1].key for k in ("embed", "head")]
    assert keys == ["model.embed_tokens.weight"] * 2
    assert graph.weight_elements == spec_of(llama | {"tie_word_embeddings": True}).params


def test_biases_and_sinks_are_inputs_of_their_op(model_dir):
    block = build(load_model(str(model_dir("gpt-oss-20b"))), DECODE).block["gqa_moe"]
    assert block.op["attn.q_proj"].inputs == ("attn.normed", "w.attn.q_proj", "b.attn.q_proj")
    assert block.op["attn.softmax"].inputs == ("attn.scores_out", "w.attn.softmax")
    assert block.op["ffn.experts_gate"].inputs[1:] == ("ffn.routes", "w.ffn.experts_gate", "b.ffn.experts_gate")
    assert block.tensor["b.ffn.experts_down"].elements == 32 * 2880
    keys = {t.name: t.key for t in block.weights}
    assert keys["w.ffn.experts_up"] == "model.layers.{layer}.mlp.experts.gate_up_proj"
    assert keys["b.ffn.experts_up"] == "model.layers.{layer}.mlp.experts.gate_up_proj_bias"
    assert keys["w.attn.softmax"] == "model.layers.{layer}.self_attn.sinks"
    assert keys["b.ffn.router"] == "model.layers.{layer}.mlp.router.bias"


def test_checkpoint_keys(model_dir):
    keys = {n: t.key for n, t in weights(load_model(str(model_dir("Mixtral-8x7B-v0.1")))).items()}
    layer = "model.layers.{layer}."
    assert keys["w.attn.norm"] == layer + "input_layernorm.weight"
    assert keys["w.ffn.norm"] == layer + "post_attention_layernorm.weight"
    assert keys["w.ffn.router"] == layer + "block_sparse_moe.gate.weight"
    assert keys["w.ffn.experts_up"] == layer + "block_sparse_moe.experts.{expert}.w3.weight"
    assert keys["w.head.norm"] == "model.norm.weight"
    assert keys["w.head.lm_head"] == "lm_head.weight"
    keys = {n: t.key for n, t in weights(load_model(str(model_dir("DeepSeek-V3")))).items()}
    assert keys["w.attn.kv_a_proj"] == layer + "self_attn.kv_a_proj_with_mqa.weight"
    assert keys["w.ffn.shared_gate_proj"] == layer + "mlp.shared_experts.gate_proj.weight"


# --- storage


def plain_names(tensors):
    return {n for n, t in tensors.items() if t.dtype is DType.BF16}


def test_auto_follows_an_fp8_checkpoint(model_dir):
    tensors = weights(load_model(str(model_dir("DeepSeek-V3"))))
    kept = {"w.embed.gather", "w.head.norm", "w.head.lm_head", "w.attn.norm", "w.attn.q_a_norm", "w.attn.kv_a_norm"}
    assert plain_names(tensors) == kept | {"w.ffn.norm", "w.ffn.router"}
    assert {t.dtype.label for t in tensors.values()} == {"bf16", "fp8_block"}
    assert tensors["w.ffn.experts_up"].dtype is DType.FP8_BLOCK
    # 576 rows are 4 blocks and a half: 5 scales a column of blocks
    assert tensors["w.attn.kv_a_proj"].nbytes == 576 * 7168 + 4 * 5 * 56


def test_auto_keeps_what_an_mxfp4_checkpoint_keeps(model_dir):
    spec = load_model(str(model_dir("gpt-oss-120b")))
    experts = {n for n, t in weights(spec).items() if t.dtype is DType.MXFP4}
    assert experts == {"w.ffn.experts_gate", "w.ffn.experts_up", "w.ffn.experts_down"}
    graph = build(spec, DECODE)
    matrices = 36 * 128 * 3 * 2880 * 2880
    assert graph.weight_nbytes == matrices * 17 // 32 + 2 * (spec.params - matrices)


def test_choices(spec_of, llama, model_dir):
    spec = spec_of(llama | {"torch_dtype": "float16"})
    assert {t.dtype for t in weights(spec).values()} == {DType.FP16}
    assert {t.dtype for t in weights(spec, weights="bf16").values()} == {DType.BF16}
    fp8 = weights(spec, weights="fp8")
    assert plain_names(fp8) == {"w.embed.gather", "w.head.norm", "w.head.lm_head", "w.attn.norm", "w.ffn.norm"}
    assert {t.dtype for t in fp8.values()} == {DType.BF16, DType.FP8}
    v3 = load_model(str(model_dir("DeepSeek-V3")))
    assert weights(v3, weights="fp8")["w.ffn.experts_up"].dtype is DType.FP8_BLOCK
    assert {t.dtype for t in weights(v3, weights="bf16").values()} == {DType.BF16}
    gpt = weights(load_model(str(model_dir("gpt-oss-20b"))), weights="fp8")
    assert gpt["w.attn.q_proj"].dtype is gpt["w.ffn.experts_up"].dtype is DType.FP8
    assert gpt["w.attn.softmax"].dtype is gpt["b.ffn.experts_up"].dtype is DType.BF16
    with pytest.raises(InputError, match="fp7"):
        weights(spec, weights="fp7")


def test_excluded_modules_stay_and_split_the_kind(spec_of, llama):
    config = {
        "quant_method": "fp8",
        "modules_to_not_convert": ["model.layers.1", "o_proj", "model.layers.*.mlp.up_proj"],
    }
    graph = build(spec_of(llama | {"quantization_config": config}), DECODE)
    assert graph.sequence == ("embed", "gqa_dense", "gqa_dense_2", "gqa_dense", "head", "sample")
    dtypes = {n: t.dtype for n, t in graph.block["gqa_dense"].tensor.items() if t.role is Role.WEIGHT}
    assert dtypes["w.attn.o_proj"] is dtypes["w.ffn.up_proj"] is DType.BF16
    assert {dtypes[name].label for name in ("w.attn.q_proj", "w.ffn.down_proj")} == {"fp8_tensor"}
    assert {t.dtype for t in graph.block["gqa_dense_2"].weights} == {DType.BF16}


def test_a_layer_number_is_not_a_prefix_of_another(spec_of, llama):
    config = {"quant_method": "fp8", "modules_to_not_convert": ["model.layers.1"]}
    graph = build(spec_of(llama | {"num_hidden_layers": 12, "quantization_config": config}), DECODE)
    assert [kind == "gqa_dense_2" for kind in graph.sequence[1:13]] == [index == 1 for index in range(12)]


def test_published_exclusions_do_not_split(model_dir):
    graph = build(load_model(str(model_dir("Qwen3-235B-A22B-FP8"))), DECODE)
    assert graph.repeats["gqa_moe"] == 94
    assert graph.block["gqa_moe"].tensor["w.ffn.experts_up"].dtype is DType.FP8_BLOCK


@pytest.mark.parametrize("method", ["aqlm", "hqq", "quanto", "torchao"])
def test_unsupported_quantisation_is_named_under_auto_only(spec_of, llama, method):
    spec = spec_of(llama | {"quantization_config": {"quant_method": method, "bits": 4}})
    assert spec.params == spec_of(llama).params
    with pytest.raises(InputError, match=method):
        build(spec, DECODE)
    assert build(spec, Workload(Phase.DECODE, 1, 1, 1, weights="bf16"))


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ({}, "quant_method"),
        ({"quant_method": None}, "quant_method"),
        ({"quant_method": "fp8", "weight_block_size": [64, 0]}, "weight_block_size"),
        ({"quant_method": "fp8", "weight_block_size": [64]}, "weight_block_size"),
        ({"quant_method": "fp8", "weight_block_size": 128}, "weight_block_size"),
        ({"quant_method": "fp8", "modules_to_not_convert": "lm_head"}, "modules_to_not_convert"),
        ([], "quantization_config"),
        ("fp8", "quantization_config"),
    ],
)
def test_quantisation_that_makes_no_sense(spec_of, llama, config, word):
    with pytest.raises(InputError, match=word):
        spec_of(llama | {"quantization_config": config})


def test_same_spec_same_graph(spec_of, deepseek):
    assert build(spec_of(deepseek), DECODE).id == build(spec_of(dict(reversed(deepseek.items()))), DECODE).id
