"""The relatives of the families that encode: types whose structure BERT, ViT, T5 or BART have too."""

from dataclasses import replace
from typing import Final

from compiler.frontend import encoder_facts, encoder_layouts
from compiler.frontend.encoder_facts import BART, T5, Sides
from compiler.frontend.encoder_rows import ENCODERS
from compiler.frontend.facts import Facts
from compiler.frontend.family import Family, Shell
from compiler.frontend.names import Names

_BERT: Final = ENCODERS["bert"]
_VIT: Final = ENCODERS["vit"]
_T5: Final = ENCODERS["t5"]


def _roberta(architecture: str, config_class: str) -> Family:
    shell = replace(_BERT.shell, names=encoder_layouts.ROBERTA)
    return replace(_BERT, architecture=architecture, config_class=config_class, shell=shell)


def _t5(architecture: str, config_class: str, sides: Sides, names: Names, default: str) -> Family:
    return Family(
        architecture,
        config_class,
        sides.mixers,
        sides.ffns_of,
        Shell(names=names),
        (sides.shell,),
        fixed_tied=True,
        activation=default,
        count=sides.count,
    )


def _bart(
    architecture: str, config_class: str, positions: int | None, normed: bool, before: bool, activation: str = "gelu"
) -> Family:
    """positions: rows before the first of the table, None without a table. normed: a norm behind the embedding.

    before: norms stand before the parts and behind each stack, not behind the sums.
    """
    sides = replace(BART, names=encoder_layouts.bart("encoder", not before), sum_norm=not before, final_norm=before)

    def shell(facts: Facts, shell: Shell) -> Shell:
        return encoder_facts.bart_like(sides, facts, shell, positions, normed)

    return Family(
        architecture,
        config_class,
        sides.mixers,
        sides.ffns_of,
        Shell(names=encoder_layouts.bart("decoder", not before)),
        (shell,),
        tied=True,
        activation=activation,
        count=sides.count,
    )


_GATED_T5: Final = replace(T5, silent_ffn="gated-gelu")
_UMT5: Final = replace(_GATED_T5, names=encoder_layouts.UMT5_ENCODER, own_buckets=True)

ENCODER_RELATIVES: Final[dict[str, Family]] = {
    "roberta": _roberta("RobertaForMaskedLM", "RobertaConfig"),
    "xlm-roberta": _roberta("XLMRobertaForMaskedLM", "XLMRobertaConfig"),
    "camembert": _roberta("CamembertForMaskedLM", "CamembertConfig"),
    "distilbert": replace(
        _BERT,
        architecture="DistilBertForMaskedLM",
        config_class="DistilBertConfig",
        mixers=encoder_facts.distilbert,
        shell=replace(_BERT.shell, names=encoder_layouts.DISTILBERT),
        adjust=(encoder_facts.distilbert_shell,),
    ),
    "vit_msn": replace(_VIT, architecture="ViTMSNForImageClassification", config_class="ViTMSNConfig"),
    "deit": replace(
        _VIT,
        architecture="DeiTForImageClassification",
        config_class="DeiTConfig",
        shell=replace(_VIT.shell, names=encoder_layouts.DEIT),
        adjust=(encoder_facts.deit_shell,),
    ),
    "mt5": _t5("MT5ForConditionalGeneration", "MT5Config", _GATED_T5, _T5.shell.names, "gelu_new"),
    "umt5": _t5("UMT5ForConditionalGeneration", "UMT5Config", _UMT5, encoder_layouts.UMT5, "gelu_new"),
    "mbart": _bart("MBartForConditionalGeneration", "MBartConfig", 2, normed=True, before=True),
    "pegasus": _bart("PegasusForConditionalGeneration", "PegasusConfig", 0, normed=False, before=True),
    "blenderbot": _bart("BlenderbotForConditionalGeneration", "BlenderbotConfig", 0, normed=False, before=True),
    "blenderbot-small": _bart(
        "BlenderbotSmallForConditionalGeneration", "BlenderbotSmallConfig", 0, normed=True, before=False
    ),
    "marian": _bart("MarianMTModel", "MarianConfig", 0, normed=False, before=False),
    "m2m_100": _bart(
        "M2M100ForConditionalGeneration", "M2M100Config", None, normed=False, before=True, activation="relu"
    ),
}
