"""Relatives of the main families: both doors give one graph, caches are those of the class, odd configs are refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compiler.errors import InputError
from compiler.frontend import build, load_model
from compiler.frontend.capture.lower import lower
from compiler.frontend.compare import differences
from compiler.frontend.oracle import Level, checks
from compiler.ir.graph import Phase, Workload
from tests.frontend.small import RELATIVES

#: Configs whose graphs are equal to the last name; and those whose graphs differ in names of ops and dimensions only.
SAME = ("cwm", "youtu", "glm4_moe_lite", "dots1 late", "exaone_moe")
ALIKE = ("olmo3", "opt", "mpt", "glm_moe_dsa")


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], str]:
    def write(name: str) -> str:
        (tmp_path / "config.json").write_text(json.dumps(RELATIVES[name]))
        return str(tmp_path)

    return write


@pytest.mark.parametrize("name", (*SAME, *ALIKE))
def test_both_doors(written: Callable[[str], str], tmp_path: Path, name: str) -> None:
    pytest.importorskip("transformers")
    from compiler.frontend.capture.trace import capture

    model = written(name)
    spec, captured = load_model(model), capture(model, tmp_path)
    for phase in Phase:
        workload = Workload(phase, 2, 64, 1, "bf16")
        built, made = build(spec, workload), lower(captured, workload)
        assert differences(built, made) == ()
        assert name in ALIKE or built.id == made.id


@pytest.mark.parametrize(
    "name", ("dots1 late", "glm_moe_dsa", "gpt_bigcode", "gpt_neo", "minicpm3", "qwen2_moe windows")
)
def test_caches_are_those_of_the_class(written: Callable[[str], str], name: str) -> None:
    pytest.importorskip("transformers")
    model = written(name)
    spec = load_model(model)
    (found,) = checks(lambda workload: build(spec, workload), model, (Level.CACHE,))
    assert found.equal and found.ours > 0, found


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("helium", {"head_dim": 10}, "head_dim: is 10, but helium takes hidden / heads, which is 8"),
        ("opt", {"word_embed_proj_dim": 24}, "word_embed_proj_dim: is 24: projections between"),
        ("opt", {"do_layer_norm_before": False}, "do_layer_norm_before: is false, which is not modelled"),
        ("mpt", {"no_bias": False}, "no_bias: is false: the class of mpt has not got this"),
        ("mpt", {"expansion_ratio": 3}, "expansion_ratio: is not 4"),
        ("mpt", {"attn_config": {"alibi": False}}, r"attn_config\.alibi: is false"),
        ("mpt", {"attn_config": {"alibi": True, "qk_ln": True}}, r"attn_config\.qk_ln: is true"),
        ("gpt_neo", {"attention_types": [[["global", "far"], 2]]}, r"attention_types\[0\]: is a list"),
        ("gpt_neo", {"attention_types": [[["local"], 3]]}, "attention_types: has 3 entries for 4 layers"),
        ("gpt_neo", {"attention_layers": ["local"] * 4}, "attention_layers: differs from attention_types"),
        ("internlm3", {"bias": False}, "bias: .* differs from attention_bias, qkv_bias"),
        ("glm_moe_dsa", {"index_topk_freq": 4}, "index_topk_freq: is 4: layers that share an indexer"),
        ("glm_moe_dsa", {"index_topk_pattern": "FSSS"}, "index_topk_pattern: is .* layers that share an indexer"),
        ("dots1 late", {"max_window_layers": None}, "add max_window_layers, or layer_types"),
        (
            "qwen2_moe",
            {"layer_types": ["sliding_attention"] * 4},
            "layer_types: has sliding_attention layers, and use_sliding_window is false",
        ),
    ],
)
def test_what_is_not_modelled_is_refused_by_name(
    spec_of: Callable[[Any], Any], name: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        spec_of(RELATIVES[name] | changes)


def test_windows_lie_where_the_class_has_them(spec_of: Callable[[Any], Any]) -> None:
    windows = {
        "cwm": [None, 32, 32, 32],
        "dots1 late": [None, None, None, 32],
        "gpt_neo": [None, 32, None, 32],
        "qwen2_moe windows": [32, None, None, None],
        "exaone_moe": [32, 32, 32, None],
    }
    for name, expected in windows.items():
        assert [layer.mixer.window for layer in spec_of(RELATIVES[name]).layers] == expected, name
