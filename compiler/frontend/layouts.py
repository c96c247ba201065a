"""How the checkpoints of the families name their modules, where that is not as in llama.

Several roles with one module share a tensor: the checkpoint fuses them, and their elements add up. Names are those of
the published checkpoints, which for experts are not always those transformers loads them into.
"""

from dataclasses import replace
from typing import Final

from compiler.frontend.ffns import ExpertNames
from compiler.frontend.names import Names


def named(edges: dict[str, str], layer: dict[str, str], prefix: str) -> Names:
    """Modules of the roles around the layers, and of those in a layer, below `prefix`."""
    return Names(prefix, (*edges.items(), *layer.items()))


def fused(module: str) -> dict[str, str]:
    """Queries, keys and values in one tensor."""
    return {f"attn.{part}_proj": module for part in "qkv"}


GPT_LAYER: Final = "transformer.h.{layer}."
WTE: Final = {"embed": "transformer.wte", "head.norm": "transformer.ln_f"}
_WORDS: Final = {"embed": "transformer.word_embeddings", "head.norm": "transformer.ln_f"}
#: An ffn without a gate has its first projection in the role of the gate.
FOUR_H: Final = {"ffn.gate_proj": "mlp.dense_h_to_4h", "ffn.down_proj": "mlp.dense_4h_to_h"}
_QKV: Final = {**fused("self_attention.query_key_value"), "attn.o_proj": "self_attention.dense"}

LLAMA: Final = Names()
GPT2: Final = named(
    {**WTE, "embed.positions": "transformer.wpe"},
    {
        "attn.norm": "ln_1",
        "ffn.norm": "ln_2",
        **fused("attn.c_attn"),
        "attn.o_proj": "attn.c_proj",
        "ffn.gate_proj": "mlp.c_fc",
        "ffn.down_proj": "mlp.c_proj",
    },
    GPT_LAYER,
)
BLOOM: Final = named({**_WORDS, "embed.norm": "transformer.word_embeddings_layernorm"}, {**_QKV, **FOUR_H}, GPT_LAYER)
FALCON: Final = named(_WORDS, {**_QKV, **FOUR_H}, GPT_LAYER)
#: Falcon with a norm for each of the parallel parts.
FALCON_NORMS: Final = named(_WORDS, {**_QKV, **FOUR_H, "attn.norm": "ln_attn", "ffn.norm": "ln_mlp"}, GPT_LAYER)
GPTJ: Final = named(
    WTE,
    {
        "attn.norm": "ln_1",
        **{f"attn.{part}_proj": f"attn.{part}_proj" for part in "qkv"},
        "attn.o_proj": "attn.out_proj",
        "ffn.gate_proj": "mlp.fc_in",
        "ffn.down_proj": "mlp.fc_out",
    },
    GPT_LAYER,
)
GPT_NEOX: Final = named(
    # the embed_out of the checkpoints is the lm_head of transformers
    {"embed": "gpt_neox.embed_in", "head.norm": "gpt_neox.final_layer_norm", "head.lm_head": "embed_out"},
    {**fused("attention.query_key_value"), "attn.o_proj": "attention.dense", **FOUR_H},
    "gpt_neox.layers.{layer}.",
)
PHI: Final = named(
    {"head.norm": "model.final_layernorm"},
    {
        "attn.o_proj": "self_attn.dense",
        "attn.q_norm": "self_attn.q_layernorm",
        "attn.k_norm": "self_attn.k_layernorm",
        "ffn.gate_proj": "mlp.fc1",
        "ffn.down_proj": "mlp.fc2",
    },
    "model.layers.{layer}.",
)
_PARTS: Final = ("gate", "up", "down")
_GATE_UP: Final = {"ffn.gate_proj": "mlp.gate_up_proj", "ffn.up_proj": "mlp.gate_up_proj"}
PHI3: Final = Names(modules=(*fused("self_attn.qkv_proj").items(), *_GATE_UP.items()))
GLM: Final = Names(modules=tuple(_GATE_UP.items()))
GLM4: Final = Names(
    modules=(
        *_GATE_UP.items(),
        ("attn.post_norm", "post_self_attn_layernorm"),
        ("ffn.norm", "post_attention_layernorm"),
        ("ffn.post_norm", "post_mlp_layernorm"),
    )
)
#: Norms before and after each part.
GEMMA2: Final = Names(modules=(("ffn.norm", "pre_feedforward_layernorm"),))
STARCODER2: Final = Names(modules=(("ffn.gate_proj", "mlp.c_fc"), ("ffn.down_proj", "mlp.c_proj")))
STABLELM: Final = Names(
    modules=(
        ("attn.q_norm", "self_attn.q_layernorm.norms.{head}"),
        ("attn.k_norm", "self_attn.k_layernorm.norms.{head}"),
    )
)
HUNYUAN: Final = Names(
    modules=(("attn.q_norm", "self_attn.query_layernorm"), ("attn.k_norm", "self_attn.key_layernorm"))
)
LLAMA4: Final = Names(modules=tuple((f"ffn.{part}_proj", f"feed_forward.{part}_proj") for part in _PARTS))
DBRX: Final = named(
    {"embed": "transformer.wte", "head.norm": "transformer.norm_f"},
    {
        "attn.norm": "norm_attn_norm.norm_1",
        "ffn.norm": "norm_attn_norm.norm_2",
        **fused("norm_attn_norm.attn.Wqkv"),
        "attn.o_proj": "norm_attn_norm.attn.out_proj",
    },
    "transformer.blocks.{layer}.",
)

# --- experts

LLAMA_EXPERTS: Final = ExpertNames()
MIXTRAL_EXPERTS: Final = ExpertNames(
    router="block_sparse_moe.gate",
    gate="block_sparse_moe.experts.{expert}.w1",
    up="block_sparse_moe.experts.{expert}.w3",
    down="block_sparse_moe.experts.{expert}.w2",
)
QWEN_EXPERTS: Final = ExpertNames(shared="mlp.shared_expert")
KIMI_EXPERTS: Final = replace(MIXTRAL_EXPERTS, shared="block_sparse_moe.shared_experts")
NEMOTRON_EXPERTS: Final = ExpertNames(
    router="mixer.gate",
    up="mixer.experts.{expert}.up_proj",
    down="mixer.experts.{expert}.down_proj",
    shared="mixer.shared_experts",
    latent_down="mixer.fc1_latent_proj",
    latent_up="mixer.fc2_latent_proj",
)
LFM_EXPERTS: Final = ExpertNames(
    router="feed_forward.gate",
    gate="feed_forward.experts.{expert}.w1",
    up="feed_forward.experts.{expert}.w3",
    down="feed_forward.experts.{expert}.w2",
)
JAMBA_EXPERTS: Final = ExpertNames(
    router="feed_forward.router",
    gate="feed_forward.experts.{expert}.gate_proj",
    up="feed_forward.experts.{expert}.up_proj",
    down="feed_forward.experts.{expert}.down_proj",
)
#: gpt_oss keeps all experts of a layer, and gate and up interleaved, in one tensor.
GPT_OSS_EXPERTS: Final = ExpertNames(
    router="mlp.router",
    gate="mlp.experts.gate_up_proj",
    up="mlp.experts.gate_up_proj",
    down="mlp.experts.down_proj",
    weight="",
    bias="_bias",
)
#: Granite keeps the experts of a layer in one tensor, and gate and up in one.
GRANITE_EXPERTS: Final = ExpertNames(
    router="block_sparse_moe.router.layer",
    gate="block_sparse_moe.input_linear",
    up="block_sparse_moe.input_linear",
    down="block_sparse_moe.output_linear",
    shared="shared_mlp",
    shared_parts=("input_linear", "input_linear", "output_linear"),
)
DBRX_EXPERTS: Final = ExpertNames(
    router="ffn.router.layer",
    gate="ffn.experts.mlp.w1",
    up="ffn.experts.mlp.v1",
    down="ffn.experts.mlp.w2",
    weight="",
)
LLAMA4_EXPERTS: Final = ExpertNames(
    router="feed_forward.router",
    gate="feed_forward.experts.gate_up_proj",
    up="feed_forward.experts.gate_up_proj",
    down="feed_forward.experts.down_proj",
    shared="feed_forward.shared_expert",
    weight="",
)
HUNYUAN_EXPERTS: Final = ExpertNames(router="mlp.gate.wg", shared="mlp.shared_mlp")
#: DeepSeek-V4 names its parts as its own inference code does.
DEEPSEEK_V4: Final = Names(
    "layers.{layer}.",
    (
        ("attn.norm", "attn_norm"),
        ("ffn.norm", "ffn_norm"),
        ("attn.q_a_proj", "attn.wq_a"),
        ("attn.q_a_norm", "attn.q_norm"),
        ("attn.q_b_proj", "attn.wq_b"),
        ("attn.kv_proj", "attn.wkv"),
        ("attn.kv_norm", "attn.kv_norm"),
        ("attn.o_a_proj", "attn.wo_a"),
        ("attn.o_proj", "attn.wo_b"),
        ("attn.sinks", "attn.attn_sink"),
        *(
            (f"attn.{role}_{name}", f"attn.{module}.{own}")
            for role, module in (("comp", "compressor"), ("index", "indexer.compressor"))
            for name, own in (("kv_proj", "wkv"), ("gate_proj", "wgate"), ("bias", "ape"), ("norm", "norm"))
        ),
        ("attn.index_q_proj", "attn.indexer.wq_b"),
        ("attn.index_weights_proj", "attn.indexer.weights_proj"),
        *((f"{part}.hc_{name}", f"hc_{part}_{name}") for part in ("attn", "ffn") for name in ("fn", "base", "scale")),
        *((f"head.hc_{name}", f"hc_head_{name}") for name in ("fn", "base", "scale")),
        ("embed", "embed"),
        ("head.norm", "norm"),
        ("head.lm_head", "head"),
    ),
)
GEMMA4_EXPERTS: Final = ExpertNames(
    router="router.proj",
    gate="experts.gate_up_proj",
    up="experts.gate_up_proj",
    down="experts.down_proj",
    shared="mlp",
    weight="",
)
V4_EXPERTS: Final = ExpertNames(
    router="ffn.gate",
    gate="ffn.experts.{expert}.w1",
    up="ffn.experts.{expert}.w3",
    down="ffn.experts.{expert}.w2",
    shared="ffn.shared_experts",
    shared_parts=("w1", "w3", "w2"),
)
