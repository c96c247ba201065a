"""How the checkpoints of the relatives of the main families name their modules."""

from typing import Final

from compiler.frontend.layouts import FOUR_H, GPT_LAYER, WTE, fused, named
from compiler.frontend.names import Names

#: An ffn without a gate, whose first projection is called as the second of a gated one.
UP_ONLY: Final = Names(modules=(("ffn.gate_proj", "mlp.up_proj"),))
MPT: Final = named(
    {"embed": "transformer.wte", "head.norm": "transformer.norm_f"},
    {
        "attn.norm": "norm_1",
        "ffn.norm": "norm_2",
        **fused("attn.Wqkv"),
        "attn.o_proj": "attn.out_proj",
        "ffn.gate_proj": "ffn.up_proj",
        "ffn.down_proj": "ffn.down_proj",
    },
    "transformer.blocks.{layer}.",
)
CODEGEN: Final = named(
    WTE,
    {
        "attn.norm": "ln_1",
        **fused("attn.qkv_proj"),
        "attn.o_proj": "attn.out_proj",
        "ffn.gate_proj": "mlp.fc_in",
        "ffn.down_proj": "mlp.fc_out",
    },
    GPT_LAYER,
)
GPT_NEO: Final = named(
    {**WTE, "embed.positions": "transformer.wpe"},
    {
        "attn.norm": "ln_1",
        "ffn.norm": "ln_2",
        **{f"attn.{part}_proj": f"attn.attention.{part}_proj" for part in "qkv"},
        "attn.o_proj": "attn.attention.out_proj",
        "ffn.gate_proj": "mlp.c_fc",
        "ffn.down_proj": "mlp.c_proj",
    },
    GPT_LAYER,
)


EXAONE: Final = named(
    WTE,
    {
        "attn.norm": "ln_1",
        "ffn.norm": "ln_2",
        **{f"attn.{part}_proj": f"attn.attention.{part}_proj" for part in "qkv"},
        "attn.o_proj": "attn.attention.out_proj",
        "ffn.gate_proj": "mlp.c_fc_0",
        "ffn.up_proj": "mlp.c_fc_1",
        "ffn.down_proj": "mlp.c_proj",
    },
    GPT_LAYER,
)


def _fairseq(prefix: str, norm: str) -> Names:
    """OPT and BioGPT, under `prefix`; `norm` is the module before the head."""
    layer = {
        "attn.norm": "self_attn_layer_norm",
        "ffn.norm": "final_layer_norm",
        "attn.o_proj": "self_attn.out_proj",
        "ffn.gate_proj": "fc1",
        "ffn.down_proj": "fc2",
    }
    edges = {
        "embed": f"{prefix}embed_tokens",
        "embed.positions": f"{prefix}embed_positions",
        "head.norm": f"{prefix}{norm}",
    }
    return named(edges, layer, f"{prefix}layers.{{layer}}.")


OPT: Final = _fairseq("model.decoder.", "final_layer_norm")
BIOGPT: Final = _fairseq("biogpt.", "layer_norm")
PERSIMMON: Final = named(
    {"head.norm": "model.final_layernorm"},
    {
        **fused("self_attn.query_key_value"),
        "attn.o_proj": "self_attn.dense",
        "attn.q_norm": "self_attn.q_layernorm",
        "attn.k_norm": "self_attn.k_layernorm",
        **FOUR_H,
    },
    "model.layers.{layer}.",
)
HYPERCLOVAX: Final = Names(
    modules=(
        ("attn.post_norm", "post_norm1"),
        ("ffn.norm", "post_attention_layernorm"),
        ("ffn.post_norm", "post_norm2"),
    )
)
