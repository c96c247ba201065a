"""The families whose layers are not all attention: one row a `model_type`, merged into the table of `families`."""

from typing import Final

from compiler.frontend import ffn_facts, hybrid_ffn_facts, linear_facts
from compiler.frontend.family import Family, Shell, scaled
from compiler.frontend.names import LAYER, Names

Modules = tuple[tuple[str, str], ...]


def _mixer(module: str, **other: str) -> Modules:
    """The roles of a mixer in `module`; `other` names weights of its own by their role."""
    roles = {role: name for role, name in LAYER.items() if name.startswith("mixer.")}
    own = {f"mixer.{role}": name for role, name in other.items()}
    return tuple((role, f"{module}.{own.get(role, name.removeprefix('mixer.'))}") for role, name in roles.items())


_FORWARD: Final[Modules] = (
    ("ffn.gate_proj", "feed_forward.gate_proj"),
    ("ffn.up_proj", "feed_forward.up_proj"),
    ("ffn.down_proj", "feed_forward.down_proj"),
    ("ffn.norm", "pre_ff_layernorm"),
    ("head.norm", "model.final_layernorm"),
)
#: Mamba, Mamba-2 and Nemotron-H: a norm and a mixer, whatever it is, in each layer.
_BACKBONE: Final = Names(
    "backbone.layers.{layer}.",
    (
        *((f"{part}.norm", "norm") for part in ("attn", "mixer", "ffn")),
        *((f"attn.{name}_proj", f"mixer.{name}_proj") for name in "qkvo"),
        ("ffn.gate_proj", "mixer.up_proj"),
        ("ffn.down_proj", "mixer.down_proj"),
        ("embed", "backbone.embeddings"),
        ("head.norm", "backbone.norm_f"),
    ),
)
_DELTA: Final = Names(
    modules=_mixer(
        "linear_attn",
        **{f"in_proj_{part}": "in_proj_qkvz" for part in "qkvz"},
        in_proj_beta="in_proj_ba",
        in_proj_decay="in_proj_ba",
    )
)
#: Qwen3.5 keeps queries, keys and values in one matrix, and each gate in one of its own.
_DELTA_APART: Final = Names(
    "model.language_model.layers.{layer}.",
    (
        *_mixer(
            "linear_attn",
            **{f"in_proj_{part}": "in_proj_qkv" for part in "qkv"},
            in_proj_z="in_proj_z",
            in_proj_beta="in_proj_b",
            in_proj_decay="in_proj_a",
        ),
        ("embed", "model.language_model.embed_tokens"),
        ("head.norm", "model.language_model.norm"),
    ),
)
_KIMI: Final = Names(
    modules=_mixer(
        "self_attn",
        **{f"in_proj_{part}": f"{part}_proj" for part in "qkv"},
        **{f"conv_{part}": f"{part}_conv1d" for part in "qkv"},
        in_proj_beta="b_proj",
        out_norm="o_norm",
        out_proj="o_proj",
    )
)
_LIGHTNING: Final = Names(
    modules=_mixer("self_attn", **{f"in_proj_{part}": "qkv_proj" for part in "qkv"}, in_proj_z="output_gate")
)
_LFM: Final = Names(
    modules=(
        *_mixer("conv", conv_u="conv"),
        *(("attn.norm", "operator_norm"), ("mixer.norm", "operator_norm"), ("ffn.norm", "ffn_norm")),
        *(("attn.q_norm", "self_attn.q_layernorm"), ("attn.k_norm", "self_attn.k_layernorm")),
        ("attn.o_proj", "self_attn.out_proj"),
        *(
            (f"ffn.{role}_proj", f"feed_forward.{name}")
            for role, name in (("gate", "w1"), ("up", "w3"), ("down", "w2"))
        ),
        ("head.norm", "model.embedding_norm"),
    )
)
_GRANITE: Final = Names(
    modules=(
        *_mixer("mamba"),
        *((f"ffn.{role}_proj", "shared_mlp.input_linear") for role in ("gate", "up")),
        ("ffn.down_proj", "shared_mlp.output_linear"),
    )
)
_MAMBA_IN: Final = Names(modules=(*_mixer("mamba"), *_FORWARD))

HYBRIDS: Final[dict[str, Family]] = {
    "deepseek_v32": Family(
        "DeepseekV32ForCausalLM", "DeepseekV32Config", linear_facts.sparse_latent, hybrid_ffn_facts.deepseek_v32
    ),
    "qwen3_next": Family(
        "Qwen3NextForCausalLM",
        "Qwen3NextConfig",
        linear_facts.qwen3_next,
        hybrid_ffn_facts.qwen3_next,
        Shell(names=_DELTA),
    ),
    "qwen3_5_text": Family(
        "Qwen3_5ForCausalLM", "", linear_facts.qwen3_next, ffn_facts.Plain(), Shell(names=_DELTA_APART)
    ),
    "qwen3_5_moe_text": Family(
        "Qwen3_5MoeForCausalLM",
        "",
        linear_facts.qwen3_next,
        hybrid_ffn_facts.qwen3_5_moe,
        Shell(names=_DELTA_APART),
    ),
    "kimi_linear": Family(
        "KimiLinearForCausalLM",
        "KimiLinearConfig",
        linear_facts.kimi_linear,
        hybrid_ffn_facts.kimi_linear,
        Shell(names=_KIMI),
    ),
    "minimax": Family(
        "MiniMaxForCausalLM",
        "MiniMaxConfig",
        linear_facts.minimax,
        hybrid_ffn_facts.minimax,
        Shell(names=_LIGHTNING),
    ),
    "minimax_text_01": Family(
        "MiniMaxText01ForCausalLM",
        "",
        linear_facts.minimax,
        hybrid_ffn_facts.minimax,
        Shell(names=_LIGHTNING),
    ),
    "mamba": Family(
        "MambaForCausalLM", "MambaConfig", linear_facts.mamba, hybrid_ffn_facts.none, Shell(names=_BACKBONE), tied=True
    ),
    "mamba2": Family(
        "Mamba2ForCausalLM", "Mamba2Config", linear_facts.mamba2, hybrid_ffn_facts.none, Shell(names=_BACKBONE)
    ),
    "nemotron_h": Family(
        "NemotronHForCausalLM",
        "NemotronHConfig",
        linear_facts.nemotron_h,
        hybrid_ffn_facts.nemotron_h,
        Shell(names=_BACKBONE),
        fixed_tied=False,
        count=linear_facts.nemotron_layers,
    ),
    "bamba": Family(
        "BambaForCausalLM",
        "BambaConfig",
        linear_facts.bamba,
        ffn_facts.Plain(bias="mlp_bias"),
        Shell(names=_MAMBA_IN),
    ),
    "jamba": Family(
        "JambaForCausalLM", "JambaConfig", linear_facts.jamba, hybrid_ffn_facts.jamba, Shell(names=_MAMBA_IN)
    ),
    "falcon_h1": Family(
        "FalconH1ForCausalLM",
        "FalconH1Config",
        linear_facts.falcon_h1,
        ffn_facts.Plain(bias="mlp_bias"),
        Shell(names=_MAMBA_IN),
        (scaled,),
    ),
    "granitemoehybrid": Family(
        "GraniteMoeHybridForCausalLM",
        "GraniteMoeHybridConfig",
        linear_facts.granite_hybrid,
        hybrid_ffn_facts.granite_hybrid,
        Shell(names=_GRANITE),
        (scaled,),
    ),
    "lfm2": Family(
        "Lfm2ForCausalLM", "Lfm2Config", linear_facts.lfm2, hybrid_ffn_facts.lfm2, Shell(names=_LFM), tied=True
    ),
    "lfm2_moe": Family(
        "Lfm2MoeForCausalLM",
        "Lfm2MoeConfig",
        linear_facts.lfm2,
        hybrid_ffn_facts.lfm2_moe,
        Shell(names=_LFM),
        tied=True,
    ),
}
