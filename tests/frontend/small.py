"""A small instance of every structure that the readers know, all sizes different."""

from typing import Any

Config = dict[str, Any]

_IDS: Config = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_CORE: Config = {"hidden_size": 48, "num_hidden_layers": 4, "num_attention_heads": 6, "vocab_size": 100, **_IDS}
_KV: Config = {"num_key_value_heads": 2}
_WIDE: Config = {"intermediate_size": 80}
_OLD: Config = {"n_embd": 48, "n_layer": 4, "n_head": 6, "n_positions": 64, "vocab_size": 100, **_IDS}
_FALCON: Config = {**_CORE, "alibi": False, "bias": False, "multi_query": True, "parallel_attn": True}
_TYPES: Config = {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 32}


def _llama(model_type: str, **others: Any) -> Config:
    return {"model_type": model_type, **_CORE, **_KV, **_WIDE, **others}


def _experts(model_type: str, **others: Any) -> Config:
    return _llama(model_type, num_local_experts=4, num_experts_per_tok=2, **others)


_GLM_MOE: Config = {
    "moe_intermediate_size": 20,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
_ERNIE_MOE: Config = {
    "moe_intermediate_size": 20,
    "moe_num_experts": 8,
    "moe_num_shared_experts": 2,
    "moe_k": 2,
    "moe_layer_start_index": 1,
    "moe_layer_end_index": 2,
    "moe_layer_interval": 1,
}
_DBRX: Config = {
    "d_model": 48,
    "n_heads": 6,
    "n_layers": 4,
    "vocab_size": 100,
    "max_seq_len": 64,
    "attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 10000.0},
    "ffn_config": {"ffn_hidden_size": 20, "moe_num_experts": 4, "moe_top_k": 2},
}
#: llama4 computes all experts for all tokens: with all of them chosen, its FLOPs are those of routed ones.
_LLAMA4: Config = {
    "num_local_experts": 3,
    "num_experts_per_tok": 3,
    "intermediate_size_mlp": 36,
    "attention_chunk_size": 16,
    "head_dim": 10,
}

SMALL: dict[str, Config] = {
    "gpt2": {"model_type": "gpt2", **_OLD},
    "gpt2 wide": {"model_type": "gpt2", **_OLD, "n_inner": 80, "tie_word_embeddings": False},
    "bloom": {"model_type": "bloom", **_CORE},
    "falcon 7b": {"model_type": "falcon", **_FALCON, "new_decoder_architecture": False},
    "falcon 40b": {"model_type": "falcon", **_FALCON, "new_decoder_architecture": True, "num_kv_heads": 2},
    "falcon 11b": {
        "model_type": "falcon",
        **_FALCON,
        "new_decoder_architecture": True,
        "num_kv_heads": 3,
        "num_ln_in_parallel_attn": 1,
        "ffn_hidden_size": 80,
    },
    "falcon rw": {
        "model_type": "falcon",
        **_FALCON,
        "new_decoder_architecture": False,
        "multi_query": False,
        "parallel_attn": False,
        "alibi": True,
        "bias": True,
    },
    "gptj": {"model_type": "gptj", **_OLD, "rotary_dim": 4},
    "gpt_neox": {"model_type": "gpt_neox", **_CORE, **_WIDE},
    "gpt_neox serial": {
        "model_type": "gpt_neox",
        **_CORE,
        **_WIDE,
        "use_parallel_residual": False,
        "attention_bias": False,
        "rotary_pct": 0.5,
    },
    "phi": _llama("phi"),
    "phi norms": _llama("phi", qk_layernorm=True, partial_rotary_factor=0.25),
    "phi3": _llama("phi3"),
    "phimoe": _experts("phimoe", attention_bias=True, lm_head_bias=True),
    "gemma": _llama("gemma", head_dim=10),
    "gemma2": _llama("gemma2", head_dim=10, **_TYPES, attn_logit_softcapping=50.0, final_logit_softcapping=30.0),
    "gemma3": _llama("gemma3_text", head_dim=10, sliding_window=32, sliding_window_pattern=2),
    "olmo": _llama("olmo", clip_qkv=8.0),
    "olmo2": _llama("olmo2", attention_bias=True),
    "olmoe": _llama("olmoe", num_experts=4, num_experts_per_tok=2),
    "starcoder2": _llama("starcoder2"),
    "starcoder2 plain": _llama("starcoder2", use_bias=False, sliding_window=32),
    "cohere": _llama("cohere"),
    "cohere norms": _llama("cohere", use_qk_norm=True, attention_bias=True),
    "cohere2": _llama("cohere2", **_TYPES),
    "granite": _llama("granite", mlp_bias=True, attention_bias=True, residual_multiplier=0.22),
    "granitemoe": _experts("granitemoe"),
    "stablelm": _llama("stablelm", use_qkv_bias=True),
    "stablelm parallel": _llama("stablelm", use_parallel_residual=True, qk_layernorm=True),
    "dbrx": {"model_type": "dbrx", **_DBRX},
    "llama4": _llama("llama4_text", **_LLAMA4, interleave_moe_layer_step=1),
    "llama4 interleaved": _llama("llama4_text", **_LLAMA4, interleave_moe_layer_step=2, no_rope_layers=[1, 0, 1, 0]),
    "llama4 listed": _llama("llama4_text", **_LLAMA4, moe_layers=[0, 3], use_qk_norm=False),
    "glm": _llama("glm", head_dim=10, attention_bias=True),
    "glm4": _llama("glm4", head_dim=10, attention_bias=True),
    "glm4_moe": _llama("glm4_moe", head_dim=10, **_GLM_MOE, use_qk_norm=True, attention_bias=True),
    "glm4_moe plain": _llama("glm4_moe", **_GLM_MOE),
    "minimax_m2": _experts("minimax_m2", head_dim=10, rotary_dim=4),
    "ernie4_5": _llama("ernie4_5", head_dim=10, use_bias=True),
    "ernie4_5_moe": _llama("ernie4_5_moe", **_ERNIE_MOE),
    "ernie4_5_moe biased": _llama("ernie4_5_moe", **_ERNIE_MOE, use_bias=True, tie_word_embeddings=False),
    "hunyuan_v1_dense": _llama("hunyuan_v1_dense", head_dim=10),
    "hunyuan_v1_moe": _llama("hunyuan_v1_moe", head_dim=10, num_experts=4, moe_topk=2),
    "mistral": _llama("mistral", sliding_window=None),
    "seed_oss": _llama("seed_oss", head_dim=10, mlp_bias=True, attention_out_bias=True),
    "smollm3": _llama("smollm3", no_rope_layer_interval=2),
    "exaone4": _llama("exaone4", **_TYPES),
    "exaone4 full": _llama("exaone4", sliding_window=None, layer_types=["full_attention"] * 4),
}
