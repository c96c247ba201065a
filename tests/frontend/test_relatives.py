"""Relatives of the main families: both doors give one graph, caches are those of the class, odd configs are refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compiler.errors import InputError
from compiler.frontend import Frontend, build, load_model, open_door
from compiler.frontend.capture.lower import lower
from compiler.frontend.compare import differences
from compiler.frontend.oracle import COUNTED, Level, checks
from compiler.frontend.spec import Dense, LatentAttention, Layer, ModelSpec, SparseIndexer
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
        ("internlm3", {"bias": False}, "bias: .* differs from qkv_bias"),
        ("glm_moe_dsa", {"index_topk_pattern": "FSXS"}, r"index_topk_pattern\[2\]: is"),
        ("glm_moe_dsa", {"indexer_types": ["full"] * 3}, "indexer_types: has 3 entries for 4 layers"),
        ("glm_moe_dsa", {"indexer_types": ["shared"] * 4}, "begins with a layer that shares an indexer"),
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


SHARING = {
    "listed": {"indexer_types": ["full", "shared", "full", "shared"]},
    "letters": {"index_topk_pattern": "FFSS"},
    "scheduled": {"index_topk_freq": 2},
    "late": {"index_topk_freq": 3, "index_skip_topk_offset": 1},
}


@pytest.mark.parametrize("name", SHARING)
def test_layers_share_an_indexer_as_their_class_does(tmp_path: Path, name: str) -> None:
    config = RELATIVES["glm_moe_dsa"] | {"index_topk": 16} | SHARING[name]
    (tmp_path / "config.json").write_text(json.dumps(config))
    spec = load_model(str(tmp_path))
    shared = [layer.mixer.borrows_choice for layer in spec.layers]
    assert any(shared) and not shared[0]
    for result in checks(lambda workload: build(spec, workload), str(tmp_path), COUNTED):
        assert result.equal, result
    for phase in Phase:
        work = Workload(phase, 1, 40, 1, "bf16")
        assert differences(build(spec, work), open_door(str(tmp_path), Frontend.CAPTURE).graph(work)) == ()
    graph = build(spec, Workload(Phase.DECODE, 1, 40, 1))
    for kind, there in zip(graph.sequence[1:-2], shared, strict=True):
        stored = {tensor.name for tensor in graph.block[kind].stored}
        assert ("attn.index_cache" in stored) != there


def test_a_choice_nobody_made_is_refused() -> None:
    index = SparseIndexer(2, 8, 4)
    own = LatentAttention(2, 8, 8, 4, 4, 4, indexer=index, borrows_choice=True)
    with pytest.raises(ValueError, match="no earlier layer has"):
        ModelSpec("m", "m", 16, 9, True, (Layer(own, Dense(8)),))


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [("glm4_moe_lite", "head_dim", 8), ("glm4_moe_lite", "first_k_dense_replace", 2)],
)  # fmt: skip
def test_what_the_class_reads_otherwise_is_refused_by_name(spec_of: Any, name: str, key: str, value: object) -> None:
    hybrids = json.loads((Path(__file__).parent / "hybrids.json").read_text())
    config = {"model_type": name} | (hybrids[name] if name in hybrids else RELATIVES[name]) | {key: value}
    with pytest.raises(InputError, match=key):
        spec_of(config)
