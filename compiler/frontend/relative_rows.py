"""The relatives of the main families: types whose structure other rows have too, one row a `model_type`."""

from dataclasses import replace
from typing import Final

from compiler.frontend import ffn_facts, hybrid_ffn_facts, layouts, mixer_facts, relative_facts, relative_layouts, spans
from compiler.frontend.family import Family, Shell, clipped, learned_positions, root_scaled, scaled, usual_soft_logits
from compiler.frontend.ffn_facts import Plain
from compiler.frontend.mixer_facts import QKV_STATED, STATED, Bias, Dim, Heads, Kv, QkRule, Rotary
from compiler.frontend.parts import LAYER_NORM, Norm, NormKind
from compiler.frontend.spans import Alternating
from compiler.frontend.spec import QkNorm, Wiring

_HEAD_RMS: Final = QkRule(QkNorm.HEAD)
_LLAMA_HEADS: Final = Heads(spans.no_windows, kv=Kv.RULE, bias=(STATED,))
_STATED_HEADS: Final = Heads(spans.no_windows, dim=Dim.NEEDED, bias=(STATED,))
_GPT_HEADS: Final = Heads(spans.no_windows, kv=Kv.ALL, dim=Dim.QUOTIENT)
_UNROTATED: Final = replace(_GPT_HEADS, rotary=Rotary(no=True))
#: Norms after the parts only.
_AFTER: Final = Shell(pre_norm=False, post_norm=True)

_DENSE: Final[dict[str, Family]] = {
    "arcee": Family(
        "ArceeForCausalLM",
        "ArceeConfig",
        _LLAMA_HEADS,
        Plain(gated=False, bias="mlp_bias"),
        Shell(names=relative_layouts.UP_ONLY),
        activation="relu2",
    ),
    "nemotron": Family(
        "NemotronForCausalLM",
        "NemotronConfig",
        Heads(spans.no_windows, bias=(STATED,), rotary=Rotary(0.5)),
        Plain(gated=False, bias="mlp_bias"),
        Shell(LAYER_NORM, names=relative_layouts.UP_ONLY),
        activation="relu2",
    ),
    "jais2": Family(
        "Jais2ForCausalLM",
        "Jais2Config",
        replace(_LLAMA_HEADS, bias=(Bias("qkvo", "attention_bias", True),)),
        Plain(gated=False, bias="mlp_bias", default=True),
        Shell(LAYER_NORM, names=relative_layouts.UP_ONLY),
        activation="relu2",
    ),
    "olmo3": Family(
        "Olmo3ForCausalLM",
        "Olmo3Config",
        replace(_LLAMA_HEADS, spans=Alternating(4), qk_norm=QkRule(QkNorm.FULL)),
        Plain(),
        _AFTER,
    ),
    "helium": Family(
        "HeliumForCausalLM",
        "HeliumConfig",
        Heads(spans.no_windows, dim=Dim.STATED, bias=(QKV_STATED,)),
        Plain(bias="mlp_bias"),
    ),
    "ministral": Family(
        "MinistralForCausalLM", "MinistralConfig", Heads(relative_facts.window_or_types, dim=Dim.NEEDED), Plain()
    ),
    "ministral3": Family(
        "Ministral3ForCausalLM", "Ministral3Config", Heads(spans.optional_window, dim=Dim.NEEDED), Plain()
    ),
    "cwm": Family(
        "CwmForCausalLM",
        "CwmConfig",
        Heads(relative_facts.FirstOf(4), dim=Dim.NEEDED),
        Plain(bias="mlp_bias"),
    ),
    "exaone": Family(
        "LlamaForCausalLM",
        "ExaoneConfig",
        Heads(spans.no_windows, bias=(STATED,)),
        Plain(bias="mlp_bias"),
        Shell(names=relative_layouts.EXAONE),
    ),
    "internlm3": Family(
        "LlamaForCausalLM",
        "InternLM3Config",
        replace(_STATED_HEADS, bias=(Bias("qkvo", "qkv_flag"),)),
        Plain(bias="other_bias"),
        adjust=(relative_facts.same_bias,),
    ),
    "iquestcoder": Family("LlamaForCausalLM", "IQuestCoderConfig", _STATED_HEADS, Plain(bias="mlp_bias")),
    "hyperclovax": Family(
        "HyperCLOVAXForCausalLM",
        "HyperCLOVAXConfig",
        _LLAMA_HEADS,
        Plain(bias="mlp_bias"),
        Shell(names=relative_layouts.HYPERCLOVAX),
        (scaled, relative_facts.optional_post_norm),
    ),
    "vaultgemma": Family(
        "VaultGemmaForCausalLM",
        "VaultGemmaConfig",
        Heads(Alternating(2), dim=Dim.NEEDED, bias=(STATED,), softcap=50.0),
        Plain(),
        Shell(names=layouts.GEMMA2),
        (usual_soft_logits, scaled, root_scaled),
        tied=True,
        activation="gelu_pytorch_tanh",
    ),
    "youtu": Family("YoutuForCausalLM", "YoutuConfig", mixer_facts.latent, Plain(), tied=True),
    "minicpm3": Family(
        "MiniCPM3ForCausalLM",
        "MiniCPM3Config",
        mixer_facts.latent,
        Plain(bias="mlp_bias"),
        adjust=(scaled, relative_facts.narrow_logits),
        tied=True,
    ),
}

_GPT: Final[dict[str, Family]] = {
    "opt": Family(
        "OPTForCausalLM",
        "OPTConfig",
        replace(_UNROTATED, bias=(Bias("qkvo", "enable_bias", True),)),
        Plain(gated=False, bias="enable_bias", default=True),
        Shell(LAYER_NORM, names=relative_layouts.OPT),
        (relative_facts.opt,),
        tied=True,
        activation="relu",
    ),
    "biogpt": Family(
        "BioGptForCausalLM",
        "BioGptConfig",
        replace(_UNROTATED, bias=(Bias("qkvo"),)),
        Plain(gated=False, default=True),
        Shell(LAYER_NORM, names=relative_layouts.BIOGPT),
        (relative_facts.offset_positions,),
        tied=True,
        activation="gelu",
    ),
    "mpt": Family(
        "MptForCausalLM",
        "MptConfig",
        replace(_GPT_HEADS, alibi=True),
        Plain(gated=False, times=4, fixed=True),
        Shell(Norm(NormKind.LAYER), names=relative_layouts.MPT),
        (relative_facts.mpt, clipped),
        tied=True,
        activation="gelu",
    ),
    "codegen": Family(
        "CodeGenForCausalLM",
        "CodeGenConfig",
        replace(_GPT_HEADS, rotary=Rotary(dim=True)),
        Plain(gated=False, default=True, times=4),
        Shell(LAYER_NORM, wiring=Wiring.PARALLEL, names=relative_layouts.CODEGEN, head_bias=True),
        activation="gelu_new",
    ),
    "gpt_neo": Family(
        "GPTNeoForCausalLM",
        "GPTNeoConfig",
        replace(_UNROTATED, spans=relative_facts.local_windows, bias=(Bias("o"),)),
        Plain(gated=False, default=True, times=4),
        Shell(LAYER_NORM, names=relative_layouts.GPT_NEO),
        (learned_positions,),
        tied=True,
        activation="gelu_new",
    ),
    "gpt_bigcode": Family(
        "GPTBigCodeForCausalLM",
        "GPTBigCodeConfig",
        replace(_UNROTATED, kv=Kv.QUERY, bias=(Bias("qkvo"),)),
        Plain(gated=False, default=True, times=4),
        Shell(LAYER_NORM, names=layouts.GPT2),
        (learned_positions,),
        tied=True,
        activation="gelu_pytorch_tanh",
    ),
    "persimmon": Family(
        "PersimmonForCausalLM",
        "PersimmonConfig",
        replace(
            _GPT_HEADS,
            bias=(Bias("qkvo"),),
            qk_norm=QkRule(QkNorm.HEAD, LAYER_NORM, "qk_layernorm", default=True),
            rotary=Rotary(0.5),
        ),
        Plain(gated=False, default=True),
        Shell(LAYER_NORM, names=relative_layouts.PERSIMMON),
        activation="relu2",
    ),
}

_EXPERTS: Final[dict[str, Family]] = {
    "glm4_moe_lite": Family(
        "Glm4MoeLiteForCausalLM", "Glm4MoeLiteConfig", relative_facts.rope_head_latent, relative_facts.glm_lite
    ),
    "glm_moe_dsa": Family(
        "GlmMoeDsaForCausalLM", "GlmMoeDsaConfig", relative_facts.indexed_latent, hybrid_ffn_facts.deepseek_v32
    ),
    "dots1": Family(
        "Dots1ForCausalLM",
        "Dots1Config",
        Heads(relative_facts.late_windows, bias=(STATED,), qk_norm=_HEAD_RMS),
        relative_facts.dots,
    ),
    "solar_open": Family(
        "SolarOpenForCausalLM",
        "SolarOpenConfig",
        Heads(spans.no_windows, dim=Dim.NEEDED, bias=(QKV_STATED,)),
        relative_facts.solar_open,
    ),
    "exaone_moe": Family(
        "ExaoneMoeForCausalLM",
        "ExaoneMoeConfig",
        Heads(Alternating(4, full_rotated=False), qk_norm=_HEAD_RMS),
        hybrid_ffn_facts.deepseek_v32,
    ),
    "granitemoeshared": Family(
        "GraniteMoeSharedForCausalLM",
        "GraniteMoeSharedConfig",
        _LLAMA_HEADS,
        relative_facts.granite_shared,
        adjust=(scaled,),
    ),
    "qwen2_moe": Family(
        "Qwen2MoeForCausalLM",
        "Qwen2MoeConfig",
        Heads(relative_facts.early_windows, bias=(Bias("qkv", "qkv_flag", True),)),
        hybrid_ffn_facts.qwen2_moe,
    ),
    "flex_olmo": Family(
        "FlexOlmoForCausalLM",
        "FlexOlmoConfig",
        replace(_LLAMA_HEADS, qk_norm=QkRule(QkNorm.FULL)),
        ffn_facts.olmoe,
        _AFTER,
    ),
}

RELATIVES: Final[dict[str, Family]] = {**_DENSE, **_GPT, **_EXPERTS}
