"""What configuration keys mean: every spelling of a fact, keys that are harmless, keys that would change structure.

This is the only place where a spelling is written down. A dotted spelling is a path into nested objects.
"""

from typing import Final

#: Fact name -> spellings, the commonest first. Two spellings in one config must agree.
ALIASES: Final[dict[str, tuple[str, ...]]] = {
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "vocab": ("vocab_size", "padded_vocab_size"),
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv", "attn_config.kv_n_heads"),
    "head_dim": ("head_dim",),
    "ffn_width": ("intermediate_size", "ffn_dim", "n_inner"),
    "expert_width": ("moe_intermediate_size", "ffn_config.ffn_hidden_size"),
    "experts": (
        "num_local_experts",
        "num_experts",
        "n_routed_experts",
        "moe_num_experts",
        "ffn_config.moe_num_experts",
    ),
    "top_k": (
        "num_experts_per_tok",
        "experts_per_token",
        "num_experts_per_token",
        "moe_top_k",
        "moe_topk",
        "top_k_experts",
        "ffn_config.moe_top_k",
    ),
    "shared_experts": ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"),
    "first_dense": ("first_k_dense_replace", "num_dense_layers"),
    "moe_frequency": ("moe_layer_freq",),
    "sparse_step": ("decoder_sparse_step",),
    "dense_layers": ("mlp_only_layers",),
    "expert_groups": ("n_group",),
    "top_groups": ("topk_group",),
    "topk_method": ("topk_method",),
    "scoring": ("scoring_func", "score_function"),
    "normalise": ("norm_topk_prob",),
    "routed_scale": ("routed_scaling_factor",),
    "q_lora": ("q_lora_rank",),
    "kv_lora": ("kv_lora_rank",),
    "nope": ("qk_nope_head_dim",),
    "rope": ("qk_rope_head_dim",),
    "v_dim": ("v_head_dim",),
    "qk_dim": ("qk_head_dim",),
    "attention_bias": ("attention_bias", "qkv_bias"),
    "mlp_bias": ("mlp_bias",),
    "layer_types": ("layer_types",),
    "window": ("sliding_window",),
    "use_window": ("use_sliding_window",),
    "window_layers": ("max_window_layers",),
    "tied": ("tie_word_embeddings",),
    "mtp_modules": ("num_nextn_predict_layers", "num_mtp_layers", "num_mtp_modules"),
    "activation": ("hidden_act", "hidden_activation", "activation_function"),
    "activation_limit": ("swiglu_limit",),
    "activation_alpha": ("swiglu_alpha",),
    "norm_epsilon": ("rms_norm_eps", "norm_eps", "layer_norm_epsilon"),
    "positions": ("max_position_embeddings", "n_positions", "max_seq_len"),
    "rope_theta": ("rope_theta", "rotary_emb_base"),
    "rope_scaling": ("rope_scaling",),
    "rope_parameters": ("rope_parameters",),
    "rotary_share": ("partial_rotary_factor", "rotary_pct"),
    "dtype": ("dtype", "torch_dtype"),
    "quantisation": ("quantization_config",),
    "expert_storage": ("expert_dtype",),
    "architectures": ("architectures",),
    "model_type": ("model_type",),
}

#: Keys that no family here reads and that change the structure of a model: refused by name when they say something.
STRUCTURAL: Final[dict[str, str]] = {
    "add_cross_attention": "cross attention",
    "alibi": "ALiBi positions",
    "attention_chunk_size": "chunked attention",
    "attn_logit_softcapping": "soft-capped attention scores",
    "attn_type_list": "a mixer for each layer",
    "block_configs": "a description of each block",
    "compress_ratios": "a compressed cache",
    "cross_attention_layers": "cross attention",
    "final_logit_softcapping": "soft-capped logits",
    "full_attention_interval": "linear attention between full-attention layers",
    "hybrid_override_pattern": "a mixer for each layer",
    "index_head_dim": "a sparse attention indexer",
    "index_n_heads": "a sparse attention indexer",
    "index_topk": "a sparse attention indexer",
    "interleave_moe_layer_step": "interleaved MoE layers",
    "is_encoder_decoder": "an encoder",
    "linear_num_value_heads": "linear attention",
    "moe_layers": "a list of MoE layers",
    "multi_query": "multi-query attention",
    "new_decoder_architecture": "another decoder block",
    "no_rope_layers": "layers without positions",
    "num_kv_shared_layers": "layers that share a cache",
    "parallel_attn": "attention and feed-forward in parallel",
    "query_pre_attn_scalar": "another attention scale",
    "sandwich_norm": "additional norms",
    "shared_expert_intermediate_size": "a gated shared expert",
    "ssm_state_size": "a state-space mixer",
    "use_mrope": "multi-axis positions",
    "use_parallel_residual": "attention and feed-forward in parallel",
    "use_qk_norm": "normalised queries and keys",
    "zero_expert_num": "experts that compute nothing",
}

#: Keys that change neither shapes nor sizes nor the amount of work of inference.
HARMLESS: Final[frozenset[str]] = frozenset(
    {
        "_attn_implementation",
        "_commit_hash",
        "_name_or_path",
        "attention_dropout",
        "attn_implementation",
        "auto_map",
        "aux_loss_alpha",
        "bad_words_ids",
        "begin_suppress_tokens",
        "bos_token_id",
        "chunk_size_feed_forward",
        "cls_token_id",
        "diversity_penalty",
        "do_sample",
        "early_stopping",
        "embd_pdrop",
        "emb_dropout",
        "eos_token_id",
        "ep_size",
        "exponential_decay_length_penalty",
        "finetuning_task",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "hidden_dropout",
        "id2label",
        "initial_context_length",
        "initializer_range",
        "label2id",
        "length_penalty",
        "max_length",
        "mask_token_id",
        "min_length",
        "no_repeat_ngram_size",
        "num_beams",
        "num_return_sequences",
        "original_max_position_embeddings",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "output_scores",
        "pad_token_id",
        "pretraining_tp",
        "problem_type",
        "remove_invalid_values",
        "repetition_penalty",
        "resid_pdrop",
        "return_dict",
        "return_dict_in_generate",
        "rope_interleave",
        "router_aux_loss_coef",
        "router_jitter_noise",
        "sep_token_id",
        "seq_aux",
        "suppress_tokens",
        "task_specific_params",
        "temperature",
        "tf_legacy_loss",
        "tokenizer_class",
        "top_k",
        "top_p",
        "transformers_version",
        "typical_p",
        "unsloth_fixed",
        "unsloth_version",
        "use_bfloat16",
        "use_cache",
    }
)

#: Objects that hold the language model of a larger one, in the order in which they are looked for.
NESTED: Final[tuple[str, ...]] = ("text_config", "llm_config", "language_config")

#: Facts that a config with a nested language model may state at its top level.
OUTER_FACTS: Final[tuple[str, ...]] = ("tied", "dtype", "quantisation", "architectures", "model_type")

#: Largest value of an integer fact that is taken for a real one; anything above is refused as absurd.
LIMITS: Final[dict[str, int]] = {"layers": 10_000, "heads": 65_536, "kv_heads": 65_536, "experts": 65_536}
LIMIT: Final[int] = 1 << 24


def spellings(fact: str) -> tuple[str, ...]:
    """The keys looked for when `fact` is read."""
    return ALIASES[fact]


def structural_keys() -> frozenset[str]:
    """Top-level keys that carry structure in some family: the refused ones, and every spelling of every fact."""
    return frozenset(STRUCTURAL) | {key.split(".")[0] for keys in ALIASES.values() for key in keys}
