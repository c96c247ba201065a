"""The families that encode: one row a `model_type`."""

from typing import Final

from compiler.frontend import encoder_facts, encoder_layouts
from compiler.frontend.encoder_facts import BART, T5, WHISPER
from compiler.frontend.family import Family, Shell
from compiler.frontend.ffn_facts import Plain
from compiler.frontend.parts import LAYER_NORM

ENCODERS: Final[dict[str, Family]] = {
    "bert": Family(
        "BertForMaskedLM",
        "BertConfig",
        encoder_facts.bert,
        Plain(gated=False, default=True),
        Shell(
            LAYER_NORM,
            pre_norm=False,
            sum_norm=True,
            final_norm=False,
            names=encoder_layouts.BERT,
            head_bias=True,
            embed_norm=LAYER_NORM,
        ),
        (encoder_facts.bert_shell,),
        tied=True,
        activation="gelu",
    ),
    "vit": Family(
        "ViTForImageClassification",
        "ViTConfig",
        encoder_facts.vit,
        Plain(gated=False, default=True),
        Shell(LAYER_NORM, names=encoder_layouts.VIT),
        (encoder_facts.vit_shell,),
        fixed_tied=False,
        activation="gelu",
        vocabulary=encoder_facts.classes,
    ),
    "t5": Family(
        "T5ForConditionalGeneration",
        "T5Config",
        T5.mixers,
        T5.ffns_of,
        Shell(names=encoder_layouts.T5),
        (T5.shell,),
        fixed_tied=True,
        activation="relu",
        count=T5.count,
    ),
    "bart": Family(
        "BartForConditionalGeneration",
        "BartConfig",
        BART.mixers,
        BART.ffns_of,
        Shell(names=encoder_layouts.BART),
        (encoder_facts.bart_shell,),
        tied=True,
        activation="gelu",
        count=BART.count,
    ),
    "whisper": Family(
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        WHISPER.mixers,
        WHISPER.ffns_of,
        Shell(names=encoder_layouts.WHISPER),
        (encoder_facts.whisper_shell,),
        tied=True,
        activation="gelu",
        count=WHISPER.count,
    ),
}
