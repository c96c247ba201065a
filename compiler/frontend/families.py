"""The supported families: what each reads from a config, and the way from MODEL to a ModelSpec.

One row a `model_type`. A row says which facts the family's published code reads and which rules it has for absent keys.
"""

from typing import Final

from compiler.errors import InputError
from compiler.frontend import ffn_facts, mixer_facts
from compiler.frontend.alias import HARMLESS, STRUCTURAL, structural_keys
from compiler.frontend.facts import Facts
from compiler.frontend.families_hybrid import HYBRIDS
from compiler.frontend.family import Family
from compiler.frontend.mixer_facts import Bias, Heads
from compiler.frontend.quant import read_dtype, read_quantisation
from compiler.frontend.read import Source, describe, open_model, unknown_type
from compiler.frontend.spec import Layer, ModelSpec

_ACTIVATIONS = (
    "silu",
    "swish",
    "gelu",
    "gelu_new",
    "gelu_fast",
    "gelu_pytorch_tanh",
    "gelu_python",
    "quick_gelu",
    "relu",
    "relu2",
    "tanh",
    "sigmoid",
    "mish",
)


FAMILIES: Final[dict[str, Family]] = {
    "llama": Family(
        "LlamaForCausalLM",
        "LlamaConfig",
        Heads(mixer_facts.no_windows, kv_rule=True, bias=Bias.STATED),
        ffn_facts.dense_maybe_biased,
    ),
    "mistral": Family("MistralForCausalLM", "MistralConfig", Heads(mixer_facts.same_window), ffn_facts.dense),
    "qwen2": Family(
        "Qwen2ForCausalLM", "Qwen2Config", Heads(mixer_facts.gated_windows, bias=Bias.QKV), ffn_facts.dense
    ),
    "qwen3": Family(
        "Qwen3ForCausalLM",
        "Qwen3Config",
        Heads(mixer_facts.gated_windows, dim_rule=False, bias=Bias.STATED, qk_norm=True),
        ffn_facts.dense,
    ),
    "mixtral": Family("MixtralForCausalLM", "MixtralConfig", Heads(mixer_facts.optional_window), ffn_facts.mixtral),
    "qwen3_moe": Family(
        "Qwen3MoeForCausalLM",
        "Qwen3MoeConfig",
        Heads(mixer_facts.gated_same_window, dim_rule=False, bias=Bias.STATED, qk_norm=True),
        ffn_facts.qwen3_moe,
    ),
    "deepseek_v2": Family("DeepseekV2ForCausalLM", "DeepseekV2Config", mixer_facts.latent, ffn_facts.deepseek_v2),
    "deepseek_v3": Family("DeepseekV3ForCausalLM", "DeepseekV3Config", mixer_facts.latent, ffn_facts.deepseek_v3),
    "kimi_k2": Family("DeepseekV3ForCausalLM", "", mixer_facts.latent, ffn_facts.deepseek_v3),
    "gpt_oss": Family(
        "GptOssForCausalLM",
        "GptOssConfig",
        Heads(mixer_facts.typed_windows, dim_rule=False, bias=Bias.NEEDED, sinks=True),
        ffn_facts.gpt_oss,
    ),
    **HYBRIDS,
}
_CLASSES: Final[dict[str, str]] = {name: family.config_class for name, family in FAMILIES.items()}


def load_model(model: str) -> ModelSpec:
    """Read MODEL: a directory with config.json, a path to one, or a supported `model_type` (its class defaults).

    Raises InputError for whatever cannot be read as one of the supported families, and for every fact that is needed
    and missing, contradictory or absurd. Never uses the network, never executes code the config names.
    """
    return read_spec(open_model(model, _CLASSES))


def read_spec(source: Source) -> ModelSpec:
    """The ModelSpec a configuration describes."""
    model_type, family = _family(source)
    facts = Facts(source, model_type)
    facts.word("model_type", (model_type,), model_type)
    _check_architecture(facts, family)
    layers = family.count(facts)
    mtp_modules = facts.maybe_integer("mtp_modules", low=0) or 0
    mixers, ffns = family.mixers(facts, layers), family.ffns(facts, layers)
    _numerics(facts, family)
    hidden, vocab = facts.integer("hidden"), facts.integer("vocab")
    tied, dtype, quantisation = facts.flag("tied", family.tied), read_dtype(facts), read_quantisation(facts)
    facts.unread()
    return ModelSpec(
        name=source.name,
        model_type=model_type,
        hidden=hidden,
        vocab=vocab,
        tied=tied,
        layers=tuple(Layer(mixer, ffn) for mixer, ffn in zip(mixers, ffns, strict=True)),
        mtp_modules=mtp_modules,
        dtype=dtype,
        quantisation=quantisation,
        names=family.names,
        facts=facts.all(),
    )


def _family(source: Source) -> tuple[str, Family]:
    found = Facts(source, "a model").find("model_type")
    if found is None:
        raise Facts(source, "a model").missing("model_type", f"supported: {', '.join(FAMILIES)}")
    if not isinstance(found.value, str) or not found.value:
        what = f"is {describe(found.value)}, not a name"
        raise InputError(f"{source.where}: {found.key}", what, f"supported: {', '.join(FAMILIES)}")
    if found.value not in FAMILIES:
        strange = [key for key in source.values if key in STRUCTURAL or key not in structural_keys() | HARMLESS]
        what = f"{found.value} is not supported; facts not described here: {', '.join(strange[:12]) or 'none'}"
        raise unknown_type(f"{source.where}: {found.key}", found.value, _CLASSES, what)
    return found.value, FAMILIES[found.value]


def _check_architecture(facts: Facts, family: Family) -> None:
    """Refuse a class that is not the family's causal language model: another head, or another family."""
    names = facts.items("architectures")
    if not names:
        return
    others = {other.architecture for other in FAMILIES.values()} - {family.architecture}
    for name in names:
        if not isinstance(name, str):
            raise facts.error("architectures", f"has the entry {describe(name)}", f"names, as {family.architecture}")
        causal = name.endswith(("ForCausalLM", "LMHeadModel")) or bool(facts.source.prefix)
        if name in others or not causal:
            what = f"names {name}, which is not the {facts.family} language model ({family.architecture})"
            raise facts.error("architectures", what, "a model_type and architectures that agree")
    if family.architecture not in names:
        note = f"read as {family.architecture}, by its model_type"
        facts.assume("architectures", tuple(names), note)


def _numerics(facts: Facts, family: Family) -> None:
    """Facts that change no shape: checked, and kept for whoever computes values."""
    facts.word("activation", _ACTIVATIONS, "silu")
    for fact in ("norm_epsilon", "rope_theta"):
        facts.number(fact)
    facts.maybe_integer("positions")
    for fact in ("rope_scaling", "rope_parameters"):
        table = facts.table(fact)
        if table is not None:
            _check_rope(facts, fact, table, family.partial)
    share = facts.number("rotary_share")
    if share not in (None, 1) and not family.partial:
        raise facts.error("rotary_share", f"is {share:g}: partial rotation is not modelled", "1, or no key")


def _check_rope(facts: Facts, fact: str, table: dict[str, object], partial: bool, at: str = "") -> None:
    """Any keys are accepted; the kind of scaling must be a name, the numbers everybody reads positive numbers."""
    for key, value in table.items():
        place = f"{at}.{key}"
        if isinstance(value, dict):
            _check_rope(facts, fact, value, partial, place)
        elif key in ("type", "rope_type") and not isinstance(value, str | None):
            raise facts.error(fact, f"is {describe(value)}", "the name of a scaling", place)
        elif key in ("factor", "rope_theta", "partial_rotary_factor") and value is not None:
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e30:
                raise facts.error(fact, f"is {describe(value)}", "a positive number", place)
            if key == "partial_rotary_factor" and value != 1 and not partial:
                raise facts.error(fact, f"is {value:g}: partial rotation is not modelled", "1, or no such key", place)
