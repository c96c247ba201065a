"""The families with experts: one row a `model_type`."""

from dataclasses import replace
from typing import Final

from compiler.frontend import ffn_facts, layouts, mixer_facts, spans, v4_facts
from compiler.frontend.family import Family, Shell, bias_everywhere, clipped, head_bias, scaled
from compiler.frontend.ffn_facts import Routed
from compiler.frontend.mixer_facts import NEEDED, QKV_STATED, STATED, Bias, Dim, Heads, Kv, QkRule, Rotary
from compiler.frontend.parts import LAYER_NORM, Norm, NormKind
from compiler.frontend.spec import QkNorm, Scoring

_HEAD_RMS: Final = QkRule(QkNorm.HEAD)

_LLAMA4: Final = Family(
    "Llama4ForCausalLM",
    "Llama4TextConfig",
    Heads(
        spans.chunked,
        dim=Dim.NEEDED,
        bias=(STATED,),
        qk_norm=QkRule(QkNorm.HEAD, Norm(scale=False), default=True, rotated_only=True),
    ),
    ffn_facts.llama4,
    Shell(names=layouts.LLAMA4),
)

EXPERTS: Final[dict[str, Family]] = {
    "mixtral": Family(
        "MixtralForCausalLM",
        "MixtralConfig",
        Heads(spans.optional_window),
        Routed(layouts.MIXTRAL_EXPERTS),
    ),
    "qwen3_moe": Family(
        "Qwen3MoeForCausalLM",
        "Qwen3MoeConfig",
        Heads(spans.gated_same_window, dim=Dim.NEEDED, bias=(STATED,), qk_norm=_HEAD_RMS),
        ffn_facts.qwen3_moe,
    ),
    "deepseek_v2": Family("DeepseekV2ForCausalLM", "DeepseekV2Config", mixer_facts.latent, ffn_facts.deepseek_v2),
    "deepseek_v3": Family("DeepseekV3ForCausalLM", "DeepseekV3Config", mixer_facts.latent, ffn_facts.deepseek_v3),
    "kimi_k2": Family("DeepseekV3ForCausalLM", "", mixer_facts.latent, ffn_facts.deepseek_v3),
    "deepseek_v4": Family(
        "DeepseekV4ForCausalLM",
        "DeepseekV4Config",
        v4_facts.mixers,
        v4_facts.ffns,
        Shell(names=layouts.DEEPSEEK_V4),
        (v4_facts.streams,),
    ),
    "gpt_oss": Family(
        "GptOssForCausalLM",
        "GptOssConfig",
        Heads(spans.typed_windows, dim=Dim.NEEDED, bias=(NEEDED,), sinks=True),
        ffn_facts.gpt_oss,
    ),
    "phimoe": Family(
        "PhimoeForCausalLM",
        "PhimoeConfig",
        Heads(spans.optional_window, bias=(STATED,)),
        Routed(layouts.MIXTRAL_EXPERTS, scoring=Scoring("sparsemixer", normalise=False), limit=2),
        Shell(LAYER_NORM),
        (head_bias,),
    ),
    "olmoe": Family(
        "OlmoeForCausalLM",
        "OlmoeConfig",
        Heads(spans.no_windows, kv=Kv.RULE, bias=(STATED,), qk_norm=QkRule(QkNorm.FULL, quotient=True)),
        ffn_facts.olmoe,
        adjust=(clipped,),
    ),
    "granitemoe": Family(
        "GraniteMoeForCausalLM",
        "GraniteMoeConfig",
        Heads(spans.no_windows, kv=Kv.RULE, bias=(STATED,)),
        Routed(layouts.GRANITE_EXPERTS),
        adjust=(scaled,),
    ),
    "dbrx": Family(
        "DbrxForCausalLM",
        "DbrxConfig",
        Heads(spans.no_windows, dim=Dim.QUOTIENT),
        Routed(layouts.DBRX_EXPERTS, width="expert_width"),
        Shell(Norm(NormKind.LAYER), names=layouts.DBRX),
        (clipped,),
    ),
    "llama4_text": _LLAMA4,
    "llama4": replace(_LLAMA4, config_class="Llama4Config"),
    "glm4_moe": Family(
        "Glm4MoeForCausalLM",
        "Glm4MoeConfig",
        Heads(
            spans.no_windows,
            bias=(QKV_STATED,),
            qk_norm=QkRule(QkNorm.HEAD, default=False),
            rotary=Rotary(0.5),
        ),
        ffn_facts.glm4_moe,
    ),
    "minimax_m2": Family(
        "MiniMaxM2ForCausalLM",
        "MiniMaxM2Config",
        Heads(spans.no_windows, dim=Dim.NEEDED, qk_norm=QkRule(QkNorm.FULL), rotary=Rotary(1.0, dim=True)),
        Routed(layouts.MIXTRAL_EXPERTS, scoring=Scoring("sigmoid")),
    ),
    "ernie4_5_moe": Family(
        "Ernie4_5_MoeForCausalLM",
        "Ernie4_5_MoeConfig",
        Heads(spans.no_windows, bias=(Bias("qkvo", "use_bias"),)),
        ffn_facts.ernie_moe,
        adjust=(bias_everywhere,),
        tied=True,
    ),
    "hunyuan_v1_moe": Family(
        "HunYuanMoEV1ForCausalLM",
        "HunYuanMoEV1Config",
        Heads(spans.no_windows, kv=Kv.RULE, dim=Dim.NEEDED, bias=(STATED,), qk_norm=_HEAD_RMS),
        ffn_facts.hunyuan,
        Shell(names=layouts.HUNYUAN),
    ),
}
