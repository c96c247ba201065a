"""Checkpoint names: the module of each role. What a family does not say is as in llama and DeepSeek."""

from dataclasses import dataclass

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
    "ffn.norm": "post_attention_layernorm",
    "ffn.post_norm": "post_feedforward_layernorm",
    "ffn.gate_proj": "mlp.gate_proj",
    "ffn.up_proj": "mlp.up_proj",
    "ffn.down_proj": "mlp.down_proj",
}
#: Role -> module, from the top.
MODEL = {
    "embed": "model.embed_tokens",
    "embed.positions": "model.embed_positions",
    "embed.norm": "model.embed_norm",
    "head.norm": "model.norm",
    "head.lm_head": "lm_head",
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


LLAMA = Names()
