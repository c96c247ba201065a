"""Checkpoint names: the module of each role. What a family does not say is as in llama and DeepSeek."""

from dataclasses import dataclass, replace

#: Role of an op or weight -> its module below the layer.
LAYER = {
    "attn.norm": "input_layernorm",
    "attn.post_norm": "post_attention_layernorm",
    "attn.q_proj": "self_attn.q_proj",
    "attn.k_proj": "self_attn.k_proj",
    "attn.v_proj": "self_attn.v_proj",
    "attn.o_proj": "self_attn.o_proj",
    "attn.gate_proj": "self_attn.q_proj",
    "attn.q_norm": "self_attn.q_norm",
    "attn.k_norm": "self_attn.k_norm",
    "attn.sinks": "self_attn.sinks",
    "attn.q_a_proj": "self_attn.q_a_proj",
    "attn.q_a_norm": "self_attn.q_a_layernorm",
    "attn.q_b_proj": "self_attn.q_b_proj",
    "attn.kv_a_proj": "self_attn.kv_a_proj_with_mqa",
    "attn.kv_a_norm": "self_attn.kv_a_layernorm",
    "attn.kv_b_proj": "self_attn.kv_b_proj",
    "attn.kv_proj": "self_attn.kv_proj",
    "attn.kv_norm": "self_attn.kv_norm",
    "attn.o_a_proj": "self_attn.o_a_proj",
    "attn.comp_kv_proj": "self_attn.compressor.kv_proj",
    "attn.comp_gate_proj": "self_attn.compressor.gate_proj",
    "attn.comp_bias": "self_attn.compressor.position_bias",
    "attn.comp_norm": "self_attn.compressor.kv_norm",
    "attn.index_kv_proj": "self_attn.indexer.kv_proj",
    "attn.index_gate_proj": "self_attn.indexer.gate_proj",
    "attn.index_bias": "self_attn.indexer.position_bias",
    "attn.index_norm": "self_attn.indexer.kv_norm",
    **{f"{part}.hc_{name}": f"{part}_hc.{name}" for part in ("attn", "ffn") for name in ("fn", "base", "scale")},
    "attn.index_q_proj": "self_attn.indexer.wq_b",
    "attn.index_k_proj": "self_attn.indexer.wk",
    "attn.index_k_norm": "self_attn.indexer.k_norm",
    "attn.index_weights_proj": "self_attn.indexer.weights_proj",
    **{f"{part}.sum_norm": f"{part}_layer_norm" for part in ("attn", "cross", "ffn")},
    "cross.norm": "encoder_attn_layer_norm",
    **{f"cross.{name}_proj": f"encoder_attn.{name}_proj" for name in "qkvo"},
    "mixer.norm": "input_layernorm",
    "mixer.post_norm": "post_attention_layernorm",
    **{f"mixer.in_proj_{part}": "mixer.in_proj" for part in ("q", "k", "v", "z", "x", "b", "c", "dt", "beta", "decay")},
    **{f"mixer.conv_{part}": "mixer.conv1d" for part in ("q", "k", "v", "x", "b", "c", "u")},
    **{f"mixer.x_proj_{part}": "mixer.x_proj" for part in ("dt_a", "b", "c")},
    "mixer.in_proj_decay_a": "mixer.f_a_proj",
    "mixer.decay_proj": "mixer.f_b_proj",
    "mixer.in_proj_z_a": "mixer.g_a_proj",
    "mixer.z_proj": "mixer.g_b_proj",
    "mixer.step_proj": "mixer.dt_proj",
    "mixer.dt_a_norm": "mixer.dt_layernorm",
    "mixer.b_norm": "mixer.b_layernorm",
    "mixer.c_norm": "mixer.c_layernorm",
    "mixer.rate": "mixer.A_log",
    "mixer.step_bias": "mixer.dt_bias",
    "mixer.skip": "mixer.D",
    "mixer.out_norm": "mixer.norm",
    "mixer.out_proj": "mixer.out_proj",
    "ffn.norm": "post_attention_layernorm",
    "ffn.post_norm": "post_feedforward_layernorm",
    "ffn.shared_norm": "post_feedforward_layernorm_1",
    "ffn.experts_norm": "pre_feedforward_layernorm_2",
    "ffn.experts_post_norm": "post_feedforward_layernorm_2",
    "ffn.router_scale": "router.scale",
    "ffn.expert_scale": "router.per_expert_scale",
    "altup.norm": "altup.router_norm",
    "altup.router": "altup.modality_router",
    "altup.predict_coefs": "altup.prediction_coefs",
    "altup.correct_coefs": "altup.correction_coefs",
    "altup.scale": "altup.correct_output_scale",
    "laurel.left": "laurel.linear_left",
    "laurel.right": "laurel.linear_right",
    "laurel.norm": "laurel.post_laurel_norm",
    "ple.gate_proj": "per_layer_input_gate",
    "ple.proj": "per_layer_projection",
    "ple.norm": "post_per_layer_input_norm",
    "ffn.gate_proj": "mlp.gate_proj",
    "ffn.up_proj": "mlp.up_proj",
    "ffn.down_proj": "mlp.down_proj",
    "mtp.embed_norm": "enorm",
    "mtp.hidden_norm": "hnorm",
    "mtp.proj": "eh_proj",
    "mtp.norm": "shared_head.norm",
}
#: Role -> module, from the top.
MODEL = {
    "embed": "model.embed_tokens",
    "embed.positions": "model.embed_positions",
    "embed.norm": "model.embed_norm",
    "embed.types": "model.embed_types",
    "embed.patches": "model.patch_embeddings.projection",
    "embed.class": "model.cls_token",
    "embed.distillation": "model.distillation_token",
    "embed.conv_1": "model.conv1",
    "embed.conv_2": "model.conv2",
    "encoder.norm": "model.norm",
    "attn.buckets": "model.layers.0.self_attn.relative_attention_bias.weight",
    "embed.per_layer": "model.embed_tokens_per_layer",
    "embed.per_layer_proj": "model.per_layer_model_projection",
    "embed.per_layer_norm": "model.per_layer_projection_norm",
    "embed.altup_proj": "model.altup_projections.{stream}",
    "head.altup_proj": "model.altup_unembed_projections.{stream}",
    "head.norm": "model.norm",
    **{f"head.hc_{name}": f"model.hc_head.hc_{name}" for name in ("fn", "base", "scale")},
    "head.lm_head": "lm_head",
    "head.transform": "lm_head.dense",
    "head.classifier": "classifier",
}


@dataclass(frozen=True, slots=True)
class Names:
    """Names of a family: the prefix of its layers, and (role, module) pairs where they differ from llama's."""

    layer: str = "model.layers.{layer}."
    modules: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        known = LAYER.keys() | MODEL.keys()
        strange = [role for role, _ in self.modules if role not in known]
        if strange:
            raise ValueError(f"names of unknown roles: {', '.join(strange)}")

    def module(self, role: str) -> str:
        """The full module of `role`, with {layer} for the layer index."""
        own = dict(self.modules).get(role)
        if role in MODEL:
            return own or MODEL[role]
        return self.layer + (own or LAYER[role])

    def of_mtp(self, layer: int) -> "Names":
        """The names of an MTP module, which is the layer of that number and has a norm before the head in it."""
        own = replace(self, layer=self.layer.replace("{layer}", str(layer)))
        return replace(own, modules=(*self.modules, ("head.norm", own.module("mtp.norm"))))


LLAMA = Names()
