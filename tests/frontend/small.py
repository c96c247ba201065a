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

_LATENT: Config = {
    "num_key_value_heads": 6,
    "head_dim": 4,
    "q_lora_rank": 20,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 10,
}
_OPT: Config = {**_CORE, "ffn_dim": 80, "word_embed_proj_dim": 48, "max_position_embeddings": 64}
_MPT: Config = {
    "d_model": 48,
    "n_heads": 6,
    "n_layers": 4,
    "max_seq_len": 64,
    "vocab_size": 100,
    "expansion_ratio": 4,
    "attn_config": {"alibi": True, "clip_qkv": None, "qk_ln": False},
    "no_bias": True,
}
_GPT_NEO: Config = {
    "hidden_size": 48,
    "num_layers": 4,
    "num_heads": 6,
    "vocab_size": 100,
    "max_position_embeddings": 64,
    **_IDS,
    "attention_types": [[["global", "local"], 2]],
    "window_size": 32,
}
_DOTS: Config = {"n_routed_experts": 8, "n_shared_experts": 2, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
_EXAONE_MOE: Config = {
    "num_experts": 8,
    "num_shared_experts": 2,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
    "sliding_window": 32,
    "first_k_dense_replace": 1,
}
_INDEXED: Config = {**_LATENT, "index_n_heads": 3, "index_head_dim": 8, "index_topk": 16}

#: Types that are like others.
RELATIVES: dict[str, Config] = {
    "arcee": _llama("arcee"),
    "arcee biased": _llama("arcee", mlp_bias=True, attention_bias=True, head_dim=10),
    "nemotron": _llama("nemotron"),
    "nemotron biased": _llama("nemotron", mlp_bias=True, attention_bias=True, head_dim=10, partial_rotary_factor=0.4),
    "jais2": _llama("jais2"),
    "jais2 plain": _llama("jais2", attention_bias=False, mlp_bias=False),
    "olmo3": _llama("olmo3", sliding_window=32),
    "olmo3 listed": _llama("olmo3", **_TYPES, attention_bias=True),
    "helium": _llama("helium", head_dim=8),
    "helium biased": _llama("helium", head_dim=8, attention_bias=True, mlp_bias=True),
    "ministral": _llama("ministral", head_dim=10, sliding_window=32, rope_theta=1e4),
    "ministral listed": _llama("ministral", **_TYPES, head_dim=10, rope_theta=1e4),
    "ministral3": _llama("ministral3", head_dim=10),
    "cwm": _llama("cwm", head_dim=10, sliding_window=32),
    "cwm listed": _llama("cwm", head_dim=10, **_TYPES, mlp_bias=True),
    "exaone": _llama("exaone"),
    "internlm3": _llama("internlm3", head_dim=10, qkv_bias=True, bias=True),
    "iquestcoder": _llama("iquestcoder", head_dim=10, mlp_bias=True),
    "hyperclovax": _llama("hyperclovax", residual_multiplier=0.5),
    "hyperclovax plain": _llama("hyperclovax", use_post_norm=False, attention_bias=True, mlp_bias=True),
    "vaultgemma": _llama("vaultgemma", head_dim=10, **_TYPES, attn_logit_softcapping=50.0),
    "youtu": _llama("youtu", **_LATENT),
    "youtu plain": _llama("youtu", **_LATENT | {"q_lora_rank": None}),
    "youtu biased": _llama("youtu", **_LATENT, attention_bias=True, tie_word_embeddings=False),
    "minicpm3": _llama("minicpm3", **_LATENT, scale_emb=12, scale_depth=1.4, dim_model_base=16),
    "opt": {"model_type": "opt", **_OPT},
    "opt plain": {"model_type": "opt", **_OPT, "enable_bias": False, "tie_word_embeddings": False},
    "biogpt": {"model_type": "biogpt", **_CORE, **_WIDE, "max_position_embeddings": 64},
    "mpt": {"model_type": "mpt", **_MPT},
    "codegen": {"model_type": "codegen", **_OLD, "rotary_dim": 4},
    "gpt_neo": {"model_type": "gpt_neo", **_GPT_NEO},
    "gpt_neo wide": {"model_type": "gpt_neo", **_GPT_NEO, "intermediate_size": 80, "attention_types": [[["local"], 4]]},
    "gpt_bigcode": {"model_type": "gpt_bigcode", **_OLD, "multi_query": True},
    "gpt_bigcode heads": {"model_type": "gpt_bigcode", **_OLD, "multi_query": False, "n_inner": 80},
    "persimmon": {"model_type": "persimmon", **_CORE, **_WIDE},
    "persimmon plain": {"model_type": "persimmon", **_CORE, **_WIDE, "qk_layernorm": False},
    "glm4_moe_lite": _llama("glm4_moe_lite", **_LATENT, **_GLM_MOE),
    "glm4_moe_lite listed": _llama(
        "glm4_moe_lite", **_LATENT, **_GLM_MOE, mlp_layer_types=["dense", "sparse"] * 2, attention_bias=True
    ),
    "glm_moe_dsa": _llama("glm_moe_dsa", **_INDEXED, **_GLM_MOE, mlp_layer_types=["dense"] + ["sparse"] * 3),
    "dots1": _llama("dots1", **_DOTS, first_k_dense_replace=1, sliding_window=None),
    "dots1 late": _llama("dots1", **_DOTS, first_k_dense_replace=2, sliding_window=32, max_window_layers=3),
    "dots1 listed": _llama("dots1", **_DOTS, **_TYPES, first_k_dense_replace=0, head_dim=10, attention_bias=True),
    "solar_open": _llama("solar_open", head_dim=10, **_DOTS),
    "exaone_moe": _llama("exaone_moe", **_EXAONE_MOE),
    "exaone_moe listed": _llama("exaone_moe", **_EXAONE_MOE | _TYPES, mlp_layer_types=["dense", "sparse"] * 2),
    "granitemoeshared": _experts("granitemoeshared", shared_intermediate_size=28),
    "granitemoeshared alone": _experts("granitemoeshared", shared_intermediate_size=0, attention_bias=True),
    "qwen2_moe": _llama(
        "qwen2_moe",
        num_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=20,
        decoder_sparse_step=2,
        shared_expert_intermediate_size=28,
    ),
    "qwen2_moe windows": _llama(
        "qwen2_moe",
        num_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=20,
        decoder_sparse_step=1,
        shared_expert_intermediate_size=28,
        mlp_only_layers=[1],
        qkv_bias=False,
        use_sliding_window=True,
        sliding_window=32,
        max_window_layers=2,
    ),
    "flex_olmo": _llama("flex_olmo", num_experts=4, num_experts_per_tok=2, attention_bias=True),
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
    **RELATIVES,
}
