"""How the checkpoints of encoders and encoder-decoders name their modules."""

from typing import Final

from compiler.frontend.names import Names


def _each(layer: str, modules: dict[str, str], model: dict[str, str]) -> Names:
    return Names(layer, (*modules.items(), *model.items()))


_LONG: Final = (("q", "query"), ("k", "key"), ("v", "value"))
_BERT_LAYER: Final = {
    **{f"attn.{letter}_proj": f"attention.self.{name}" for letter, name in _LONG},
    "attn.o_proj": "attention.output.dense",
    "attn.sum_norm": "attention.output.LayerNorm",
    "ffn.gate_proj": "intermediate.dense",
    "ffn.down_proj": "output.dense",
    "ffn.sum_norm": "output.LayerNorm",
}
BERT: Final = _each(
    "bert.encoder.layer.{layer}.",
    _BERT_LAYER,
    {
        "embed": "bert.embeddings.word_embeddings",
        "embed.positions": "bert.embeddings.position_embeddings",
        "embed.types": "bert.embeddings.token_type_embeddings",
        "embed.norm": "bert.embeddings.LayerNorm",
        "head.transform": "cls.predictions.transform.dense",
        "head.norm": "cls.predictions.transform.LayerNorm",
        "head.lm_head": "cls.predictions",
    },
)
#: Their head and their model have other names than BERT's.
ROBERTA: Final = _each(
    "roberta.encoder.layer.{layer}.",
    _BERT_LAYER,
    {
        "embed": "roberta.embeddings.word_embeddings",
        "embed.positions": "roberta.embeddings.position_embeddings",
        "embed.types": "roberta.embeddings.token_type_embeddings",
        "embed.norm": "roberta.embeddings.LayerNorm",
        "head.transform": "lm_head.dense",
        "head.norm": "lm_head.layer_norm",
        "head.lm_head": "lm_head",
    },
)
DISTILBERT: Final = _each(
    "distilbert.transformer.layer.{layer}.",
    {
        **{f"attn.{x}_proj": f"attention.{x}_lin" for x in "qkv"},
        "attn.o_proj": "attention.out_lin",
        "attn.sum_norm": "sa_layer_norm",
        "ffn.gate_proj": "ffn.lin1",
        "ffn.down_proj": "ffn.lin2",
        "ffn.sum_norm": "output_layer_norm",
    },
    {
        "embed": "distilbert.embeddings.word_embeddings",
        "embed.positions": "distilbert.embeddings.position_embeddings",
        "embed.norm": "distilbert.embeddings.LayerNorm",
        "head.transform": "vocab_transform",
        "head.norm": "vocab_layer_norm",
        "head.lm_head": "vocab_projector",
    },
)


def _vit(model: str) -> Names:
    return _each(
        f"{model}.encoder.layer.{{layer}}.",
        {
            **{f"attn.{x}_proj": f"attention.attention.{name}" for x, name in _LONG},
            "attn.o_proj": "attention.output.dense",
            "attn.norm": "layernorm_before",
            "ffn.norm": "layernorm_after",
            "ffn.gate_proj": "intermediate.dense",
            "ffn.down_proj": "output.dense",
        },
        {
            "embed.patches": f"{model}.embeddings.patch_embeddings.projection",
            "embed.class": f"{model}.embeddings.cls_token",
            "embed.distillation": f"{model}.embeddings.distillation_token",
            "embed.positions": f"{model}.embeddings.position_embeddings",
            "head.norm": f"{model}.layernorm",
            "head.classifier": "classifier",
        },
    )


VIT: Final = _vit("vit")
DEIT: Final = _vit("deit")


def _t5(stack: str, ffn: int, first: str = "0") -> Names:
    """A stack of T5; its feed-forward part is the sub-layer of that number. first: the layer that stores the biases."""
    part = f"layer.{ffn}"
    return _each(
        f"{stack}.block.{{layer}}.",
        {
            **{f"attn.{letter}_proj": f"layer.0.SelfAttention.{letter}" for letter in "qkvo"},
            **{f"cross.{letter}_proj": f"layer.1.EncDecAttention.{letter}" for letter in "qkvo"},
            "attn.norm": "layer.0.layer_norm",
            "cross.norm": "layer.1.layer_norm",
            "ffn.norm": f"{part}.layer_norm",
            "ffn.gate_proj": f"{part}.DenseReluDense.wi",
            "ffn.up_proj": f"{part}.DenseReluDense.wi_1",
            "ffn.down_proj": f"{part}.DenseReluDense.wo",
        },
        {
            "attn.buckets": f"{stack}.block.{first}.layer.0.SelfAttention.relative_attention_bias.weight",
            "embed": "shared",
            "encoder.norm": f"{stack}.final_layer_norm",
            "head.norm": f"{stack}.final_layer_norm",
        },
    )


T5_ENCODER: Final = _t5("encoder", 1)
T5: Final = _t5("decoder", 2)
UMT5_ENCODER: Final = _t5("encoder", 1, "{layer}")
UMT5: Final = _t5("decoder", 2, "{layer}")


def bart(stack: str, sum_norm: bool, embed: str = "model.shared", head: str = "lm_head") -> Names:
    """A stack of BART or Whisper; the norms stand behind the sums, or before the parts."""
    norm = "sum_norm" if sum_norm else "norm"
    return _each(
        f"model.{stack}.layers.{{layer}}.",
        {
            "attn.o_proj": "self_attn.out_proj",
            "cross.o_proj": "encoder_attn.out_proj",
            f"attn.{norm}": "self_attn_layer_norm",
            f"cross.{norm}": "encoder_attn_layer_norm",
            f"ffn.{norm}": "final_layer_norm",
            "ffn.gate_proj": "fc1",
            "ffn.down_proj": "fc2",
        },
        {
            "embed": embed,
            "embed.positions": f"model.{stack}.embed_positions",
            "embed.norm": f"model.{stack}.layernorm_embedding",
            "embed.conv_1": f"model.{stack}.conv1",
            "embed.conv_2": f"model.{stack}.conv2",
            "encoder.norm": f"model.{stack}.layer_norm",
            "head.norm": f"model.{stack}.layer_norm",
            "head.lm_head": head,
        },
    )


BART_ENCODER: Final = bart("encoder", True)
BART: Final = bart("decoder", True)
WHISPER_ENCODER: Final = bart("encoder", False, "")
WHISPER: Final = bart("decoder", False, "model.decoder.embed_tokens", "proj_out")
