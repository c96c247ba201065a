"""The families whose feed-forward parts are dense: one row a `model_type`."""

from dataclasses import replace
from typing import Final

from compiler.frontend import ffn_facts, gemma3n_facts, gemma_facts, layouts, mixer_facts, spans
from compiler.frontend.family import (
    Family,
    Parallel,
    Shell,
    clipped,
    falcon,
    learned_positions,
    residual_before_norm,
    root_scaled,
    scaled,
    soft_logits,
    usual_soft_logits,
)
from compiler.frontend.ffn_facts import Plain
from compiler.frontend.mixer_facts import QKV_FIXED, STATED, Bias, Dim, Heads, Kv, QkRule, Rotary
from compiler.frontend.parts import LAYER_NORM, Norm, NormKind
from compiler.frontend.spans import Alternating
from compiler.frontend.spec import QkNorm, Wiring

_SCALED_LAYER_NORM: Final = Norm(NormKind.LAYER)  # no bias
_HEAD_RMS: Final = QkRule(QkNorm.HEAD)

_LLAMA_HEADS: Final = Heads(spans.no_windows, kv=Kv.RULE, bias=(STATED,))
_GPT_HEADS: Final = Heads(spans.no_windows, kv=Kv.ALL, dim=Dim.QUOTIENT)
_GEMMA_HEADS: Final = Heads(spans.no_windows, dim=Dim.NEEDED, bias=(STATED,))
_GLM_BIAS: Final = Bias("qkv", "attention_bias", True)
_GLM_HEADS: Final = Heads(spans.no_windows, dim=Dim.NEEDED, bias=(_GLM_BIAS,), rotary=Rotary(0.5))
_SANDWICH: Final = Shell(post_norm=True, names=layouts.GEMMA2)
#: Norms after the parts only.
_AFTER: Final = Shell(pre_norm=False, post_norm=True)

_GPT: Final[dict[str, Family]] = {
    "gpt2": Family(
        "GPT2LMHeadModel",
        "GPT2Config",
        replace(_GPT_HEADS, bias=(Bias("qkvo"),), rotary=Rotary(no=True)),
        Plain(gated=False, default=True, times=4),
        Shell(LAYER_NORM, names=layouts.GPT2),
        (learned_positions,),
        tied=True,
        activation="gelu_new",
    ),
    "bloom": Family(
        "BloomForCausalLM",
        "BloomConfig",
        replace(_GPT_HEADS, bias=(Bias("qkvo"),), alibi=True),
        Plain(gated=False, default=True, times=4, fixed=True),
        Shell(LAYER_NORM, names=layouts.BLOOM, embed_norm=LAYER_NORM),
        (residual_before_norm,),
        tied=True,
        activation="gelu",
    ),
    "falcon": Family(
        "FalconForCausalLM",
        "FalconConfig",
        replace(_GPT_HEADS, kv=Kv.FALCON, bias=(Bias("qkvo", "bias"),), alibi=None),
        Plain(gated=False, bias="bias", times=4),
        Shell(LAYER_NORM, names=layouts.FALCON),
        (falcon, residual_before_norm),
        tied=True,
        activation="gelu",
    ),
    "gptj": Family(
        "GPTJForCausalLM",
        "GPTJConfig",
        replace(_GPT_HEADS, rotary=Rotary(dim=True)),
        Plain(gated=False, default=True, times=4),
        Shell(LAYER_NORM, wiring=Wiring.PARALLEL, names=layouts.GPTJ, head_bias=True),
        activation="gelu_new",
    ),
    "gpt_neox": Family(
        "GPTNeoXForCausalLM",
        "GPTNeoXConfig",
        replace(_GPT_HEADS, bias=(Bias("qkvo", "attention_bias", True),), rotary=Rotary(0.25)),
        Plain(gated=False, default=True),
        Shell(LAYER_NORM, names=layouts.GPT_NEOX),
        (Parallel(Wiring.PARALLEL_NORMS, True),),
        activation="gelu",
    ),
    "phi": Family(
        "PhiForCausalLM",
        "PhiConfig",
        Heads(
            spans.no_windows,
            kv=Kv.RULE,
            bias=(Bias("qkvo"),),
            qk_norm=QkRule(QkNorm.HEAD, LAYER_NORM, "qk_layernorm", default=False, quotient=True),
            rotary=Rotary(0.5),
        ),
        Plain(gated=False, default=True),
        Shell(LAYER_NORM, wiring=Wiring.PARALLEL, names=layouts.PHI, head_bias=True),
        activation="gelu_new",
    ),
    "starcoder2": Family(
        "Starcoder2ForCausalLM",
        "Starcoder2Config",
        Heads(spans.optional_window, bias=(Bias("qkvo", "use_bias", True),)),
        Plain(gated=False, bias="use_bias", default=True),
        Shell(LAYER_NORM, names=layouts.STARCODER2),
        tied=True,
        activation="gelu_pytorch_tanh",
    ),
    "stablelm": Family(
        "StableLmForCausalLM",
        "StableLmConfig",
        Heads(
            spans.no_windows,
            dim=Dim.QUOTIENT,
            bias=(Bias("qkv", "qkv_bias"),),
            qk_norm=QkRule(QkNorm.HEAD, Norm(NormKind.LAYER, per_head=True), "qk_layernorm", default=False),
            rotary=Rotary(0.25),
        ),
        Plain(),
        Shell(LAYER_NORM, names=layouts.STABLELM),
        (Parallel(Wiring.PARALLEL, False),),
    ),
}

_LLAMA: Final[dict[str, Family]] = {
    "llama": Family("LlamaForCausalLM", "LlamaConfig", _LLAMA_HEADS, Plain(bias="mlp_bias")),
    "mistral": Family("MistralForCausalLM", "MistralConfig", Heads(spans.same_window), Plain()),
    "qwen2": Family("Qwen2ForCausalLM", "Qwen2Config", Heads(spans.gated_windows, bias=(QKV_FIXED,)), Plain()),
    "qwen3": Family(
        "Qwen3ForCausalLM",
        "Qwen3Config",
        Heads(spans.gated_windows, dim=Dim.NEEDED, bias=(STATED,), qk_norm=_HEAD_RMS),
        Plain(),
    ),
    "phi3": Family(
        "Phi3ForCausalLM",
        "Phi3Config",
        Heads(spans.optional_window, kv=Kv.RULE, rotary=Rotary(1.0)),
        Plain(),
        Shell(names=layouts.PHI3),
    ),
    "granite": Family("GraniteForCausalLM", "GraniteConfig", _LLAMA_HEADS, Plain(bias="mlp_bias"), adjust=(scaled,)),
    "seed_oss": Family(
        "SeedOssForCausalLM",
        "SeedOssConfig",
        Heads(
            spans.no_windows,
            dim=Dim.NEEDED,
            bias=(Bias("qkv", "attention_bias", True), Bias("o", "attention_out_bias")),
        ),
        Plain(bias="mlp_bias"),
    ),
    "smollm3": Family(
        "SmolLM3ForCausalLM",
        "SmolLM3Config",
        Heads(spans.some_rotated, bias=(STATED,)),
        Plain(bias="mlp_bias"),
        tied=True,
    ),
    "ernie4_5": Family(
        "Ernie4_5ForCausalLM",
        "Ernie4_5Config",
        Heads(spans.no_windows, dim=Dim.NEEDED, bias=(Bias("qkvo", "use_bias"),)),
        Plain(bias="use_bias"),
        tied=True,
    ),
    "hunyuan_v1_dense": Family(
        "HunYuanDenseV1ForCausalLM",
        "HunYuanDenseV1Config",
        Heads(spans.no_windows, kv=Kv.RULE, dim=Dim.NEEDED, bias=(STATED,), qk_norm=_HEAD_RMS),
        Plain(),
        Shell(names=layouts.HUNYUAN),
    ),
    "olmo": Family(
        "OlmoForCausalLM",
        "OlmoConfig",
        _LLAMA_HEADS,
        Plain(),
        Shell(Norm(NormKind.LAYER, scale=False)),
        (clipped,),
    ),
    "olmo2": Family(
        "Olmo2ForCausalLM", "Olmo2Config", replace(_LLAMA_HEADS, qk_norm=QkRule(QkNorm.FULL)), Plain(), _AFTER
    ),
    "exaone4": Family(
        "Exaone4ForCausalLM",
        "Exaone4Config",
        Heads(Alternating(4, full_rotated=False, null_window=True), qk_norm=_HEAD_RMS),
        Plain(),
        _AFTER,
    ),
    "cohere": Family(
        "CohereForCausalLM",
        "CohereConfig",
        replace(_LLAMA_HEADS, qk_norm=QkRule(QkNorm.HEAD, Norm(NormKind.LAYER, per_head=True), default=False)),
        Plain(),
        Shell(_SCALED_LAYER_NORM, wiring=Wiring.PARALLEL),
        (scaled,),
        tied=True,
    ),
    "cohere2": Family(
        "Cohere2ForCausalLM",
        "Cohere2Config",
        Heads(Alternating(4, full_rotated=False), kv=Kv.RULE, dim=Dim.QUOTIENT, bias=(STATED,)),
        Plain(),
        Shell(_SCALED_LAYER_NORM, wiring=Wiring.PARALLEL),
        (scaled,),
        tied=True,
    ),
    "nemotron-nas": Family("DeciLMForCausalLM", "", mixer_facts.deci, ffn_facts.deci),
    "deci": Family("DeciLMForCausalLM", "", mixer_facts.deci, ffn_facts.deci),
}

_GEMMA: Final[dict[str, Family]] = {
    "gemma": Family(
        "GemmaForCausalLM",
        "GemmaConfig",
        _GEMMA_HEADS,
        Plain(),
        adjust=(root_scaled,),
        tied=True,
        activation="gelu_pytorch_tanh",
    ),
    "gemma2": Family(
        "Gemma2ForCausalLM",
        "Gemma2Config",
        replace(_GEMMA_HEADS, spans=Alternating(2), softcap=50.0),
        Plain(),
        _SANDWICH,
        (usual_soft_logits, scaled, root_scaled),
        tied=True,
        activation="gelu_pytorch_tanh",
    ),
    "gemma3_text": Family(
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        replace(_GEMMA_HEADS, spans=Alternating(6), softcap=True, qk_norm=_HEAD_RMS),
        Plain(),
        _SANDWICH,
        (soft_logits, scaled, root_scaled),
        tied=True,
        activation="gelu_pytorch_tanh",
    ),
    "gemma4_text": Family(
        "Gemma4ForCausalLM",
        "Gemma4TextConfig",
        gemma_facts.mixers,
        gemma_facts.ffns,
        _SANDWICH,
        (soft_logits, root_scaled, gemma_facts.per_layer),
        tied=True,
        activation="gelu_pytorch_tanh",
    ),
    "gemma3n_text": Family(
        "Gemma3nForCausalLM",
        "Gemma3nTextConfig",
        gemma3n_facts.mixers,
        gemma3n_facts.ffns,
        _SANDWICH,
        (usual_soft_logits, root_scaled, gemma_facts.per_layer, gemma3n_facts.streams),
        tied=True,
        activation="gelu_pytorch_tanh",
    ),
    "glm": Family("GlmForCausalLM", "GlmConfig", _GLM_HEADS, Plain(), Shell(names=layouts.GLM)),
    "glm4": Family("Glm4ForCausalLM", "Glm4Config", _GLM_HEADS, Plain(), Shell(post_norm=True, names=layouts.GLM4)),
}

DENSE: Final[dict[str, Family]] = {
    **_GPT,
    **_LLAMA,
    **_GEMMA,
    # models around a language model, where the language part does not name its own type
    "gemma3": replace(_GEMMA["gemma3_text"], config_class="Gemma3Config"),
    "gemma3n": replace(_GEMMA["gemma3n_text"], config_class="Gemma3nConfig"),
    "gemma4": replace(_GEMMA["gemma4_text"], config_class="Gemma4Config"),
    "mistral3": replace(_LLAMA["mistral"], config_class="Mistral3Config"),
}
