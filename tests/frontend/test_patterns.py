"""Layer patterns: every spelling gives the same layers, and what does not say it is refused by name."""

import json
from pathlib import Path

import pytest

from compiler.errors import InputError
from compiler.frontend.patterns import LETTERS, WORDS, Part

CONFIGS = json.loads((Path(__file__).parent / "hybrids.json").read_text())


def labels(spec):
    return [layer.mixer.label if layer.mixer else layer.ffn.label for layer in spec.layers]


@pytest.mark.parametrize(
    ("name", "keys", "expected"),
    [
        ("qwen3_next", {"full_attention_interval": 4}, "gdn gdn gdn gqa"),
        ("qwen3_next", {"full_attention_interval": 1}, "gqa gqa gqa gqa"),
        ("qwen3_next", {"full_attention_interval": 9}, "gdn gdn gdn gdn"),
        (
            "qwen3_next",
            {"full_attention_interval": None, "layer_types": ["full_attention", *["linear_attention"] * 3]},
            "gqa gdn gdn gdn",
        ),
        ("nemotron_h", {"hybrid_override_pattern": "M-E*"}, "mamba2 dense moe gqa"),
        (
            "nemotron_h",
            {"hybrid_override_pattern": None, "layers_block_type": ["mamba", "mlp", "moe", "attention"]},
            "mamba2 dense moe gqa",
        ),
        ("nemotron_h", {"num_hidden_layers": None}, "mamba2 moe gqa dense"),
        ("minimax", {"layer_types": None, "attn_type_list": [0, 0, 1, 0]}, "lightning lightning gqa lightning"),
        ("bamba", {"attn_layer_indices": [3, 0]}, "gqa mamba2 mamba2 gqa"),
        (
            "lfm2",
            {"full_attn_idxs": None, "layer_types": ["conv", "conv", "full_attention", "conv"]},
            "conv conv gqa conv",
        ),
        ("jamba", {"attn_layer_period": 2, "attn_layer_offset": 0}, "gqa mamba gqa mamba"),
        (
            "kimi_linear",
            {"layer_types": None, "linear_attn_config": {"kda_layers": [1, 2, 4], "full_attn_layers": [3]}},
            "kda kda mla kda",
        ),
    ],
)
def test_spellings(spec_of, name, keys, expected):
    assert " ".join(labels(spec_of(CONFIGS[name] | keys))) == expected


@pytest.mark.parametrize(
    ("name", "keys", "named"),
    [
        ("qwen3_next", {"full_attention_interval": None}, "full_attention_interval"),
        ("qwen3_next", {"full_attention_interval": None}, "layer_types"),
        ("qwen3_next", {"layer_types": ["full_attention"] * 4}, "makes layer"),
        ("qwen3_next", {"layer_types": ["sliding_attention"] * 4}, r"layer_types\[0\]"),
        ("nemotron_h", {"hybrid_override_pattern": "ME*"}, "3 entries for 4 layers"),
        ("nemotron_h", {"hybrid_override_pattern": "ME*-M"}, "5 entries for 4 layers"),
        ("nemotron_h", {"hybrid_override_pattern": "MEX-"}, r"hybrid_override_pattern\[2\]"),
        ("nemotron_h", {"hybrid_override_pattern": 7}, "hybrid_override_pattern"),
        ("minimax", {"layer_types": None, "attn_type_list": [0, 1, 2, 0]}, r"attn_type_list\[2\]"),
        ("minimax", {"layer_types": None, "attn_type_list": [0, 1, True, 0]}, r"attn_type_list\[2\]"),
        ("bamba", {"attn_layer_indices": [4]}, "attn_layer_indices"),
        ("bamba", {"attn_layer_indices": [1, 1]}, "attn_layer_indices"),
        ("bamba", {"attn_layer_indices": None}, "attn_layer_indices"),
        ("lfm2_moe", {"layer_types": None}, "layer_types"),
        ("jamba", {"attn_layer_period": 4, "attn_layer_offset": 4}, "attn_layer_offset"),
        ("jamba", {"attn_layer_period": None}, "attn_layer_period"),
        (
            "kimi_linear",
            {"layer_types": None, "linear_attn_config": {"kda_layers": [0, 1, 2], "full_attn_layers": [3]}},
            "kda_layers",
        ),
        (
            "kimi_linear",
            {"layer_types": None, "linear_attn_config": {"kda_layers": [1, 2, 4]}},
            "full_attn_layers",
        ),
    ],
)
def test_refusals(spec_of, name, keys, named):
    with pytest.raises(InputError, match=named):
        spec_of(CONFIGS[name] | keys)


def test_extra_entries_are_the_mtp_modules(spec_of):
    config = CONFIGS["nemotron_h"] | {"hybrid_override_pattern": "ME*-*E", "num_nextn_predict_layers": 2}
    spec = spec_of(config)
    assert labels(spec) == ["mamba2", "moe", "gqa", "dense"]
    assert spec.mtp_modules == 2


def test_tables_name_parts():
    assert set(LETTERS.values()) < set(Part)
    assert all(WORDS[str(part)] is part for part in Part)
