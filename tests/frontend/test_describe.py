"""A model as a Python file: the round trip, what the file looks like, files with errors, types nobody knows."""

import json
import re
from pathlib import Path

import pytest

from compiler.errors import InputError
from compiler.frontend import FAMILIES, build, load_model
from compiler.frontend.describe import describe, describe_model
from compiler.frontend.source_text import runs
from compiler.frontend.spec import Attention, Dense, LatentAttention, Layer, ModelSpec, MoE, Quantisation, Rule
from compiler.ir.dtype import NVFP4, DType, Element, Scheme
from compiler.ir.graph import Phase, Workload

MODELS = Path(__file__).parents[3] / "shared/models"
WORKLOADS = [Workload(phase, 2, 300, 1, weights) for phase in Phase for weights in ("auto", "bf16")]


def config_of(name):
    return json.loads((MODELS / name / "config.json").read_text())


def supported(name):
    config = config_of(name)
    inner = next((config[key] for key in ("text_config", "llm_config") if isinstance(config.get(key), dict)), config)
    return inner.get("model_type") in FAMILIES


PUBLISHED = sorted(path.parent.name for path in MODELS.glob("*/config.json")) if MODELS.is_dir() else []


def written(tmp_path, text, name="mine.py"):
    path = tmp_path / name
    path.write_text(text)
    return f"{path}:model"


def same_graphs(one, other):
    assert (one.params, one.active_params, one.kv_bytes_per_token) == (
        other.params,
        other.active_params,
        other.kv_bytes_per_token,
    )
    for workload in WORKLOADS:
        assert build(one, workload).id == build(other, workload).id


@pytest.mark.parametrize("name", [name for name in PUBLISHED if supported(name)])
def test_round_trip_of_every_published_config(tmp_path, name):
    spec = load_model(str(MODELS / name))
    text = describe_model(str(MODELS / name))
    again = load_model(written(tmp_path, text))
    same_graphs(spec, again)
    assert spec.layers == again.layers and spec.quantisation == again.quantisation
    assert text == describe_model(str(MODELS / name))


@pytest.mark.parametrize("name", [name for name in PUBLISHED if not supported(name)])
def test_a_start_for_every_type_nobody_knows(tmp_path, name):
    text = describe_model(str(MODELS / name))
    config = config_of(name)
    compile(text, name, "exec")
    assert "..." not in re.sub(r'"[^"\n]*"|#.*', "", text)
    assert "raise ValueError(" in text and "fill in: " in text
    hidden = next(
        c[k]
        for c in (config.get("text_config", config),)
        for k in ("hidden_size", "n_embd", "d_model", "n_embed")
        if k in c
    )
    assert str(hidden) in text
    with pytest.raises(InputError, match="ValueError: fill in") as caught:
        load_model(written(tmp_path, text))
    assert re.search(r"mine\.py: line \d+$", caught.value.where)


def test_a_description_of_a_description(tmp_path, spec_of, deepseek):
    spec = spec_of(deepseek)
    first = describe(spec)
    again = load_model(written(tmp_path, first))
    same_graphs(spec, load_model(written(tmp_path, describe(again), "again.py")))


def test_the_file_is_as_a_person_would_write_it(model_dir):
    lines = describe_model(str(model_dir("DeepSeek-V3"))).splitlines()
    text = "\n".join(line.strip() for line in lines)
    for expected in (
        "layers=(*(mla_dense,) * 3, *(mla_moe,) * 58),  # num_hidden_layers = 61",
        "kv_lora=512,  # kv_lora_rank",
        "experts=256,  # n_routed_experts",
        "mla_moe = Layer(mixer=mla, ffn=moe)",
        "#   norm_epsilon = 1e-06 (rms_norm_eps)",
    ):
        assert expected in text
    assert "pre_norm" not in text and "window" not in text and "bias=" not in text
    assert len(lines) < 75
    assert "def model() -> ModelSpec:" in lines


def test_assumed_and_unknown_facts_are_said(spec_of, llama):
    text = describe(spec_of(llama | {"novel_gate": {"a": 1}}))
    assert "head_dim=8,  # assumed: hidden_size / num_attention_heads when the key is absent" in text
    assert "#   novel_gate = " in text.split("# unknown:")[1]


def test_names_that_would_break_the_file(tmp_path, spec_of, llama):
    spec = spec_of(llama | {"odd\nkey": 'a\\ """ \n raise SystemExit', "_name_or_path": "x"})
    hostile = ModelSpec('a"""\n\\', 'b"\n', spec.hidden, spec.vocab, spec.tied, spec.layers, facts=spec.facts)
    again = load_model(written(tmp_path, describe(hostile)))
    assert (again.name, again.model_type) == (hostile.name, hostile.model_type)


def test_a_spec_composed_by_hand(tmp_path):
    gqa, mla = Attention(2, 3, 8), LatentAttention(4, None, 16, 8, 4, 10)
    layers = (Layer(gqa, Dense(20)), Layer(mla, None), Layer(None, MoE(4, 2, 6, 7)), Layer(gqa, Dense(20))) * 5
    odd = Scheme("int4_g24", Element.INT4, scale=16, columns=24)
    how = Quantisation("mine", (Rule(odd, targets=("re:.*mlp.*",)), Rule(NVFP4)), ("lm_head",))
    spec = ModelSpec("mine", "mine", 48, 100, True, layers, dtype=DType.FP16, quantisation=how)
    again = load_model(written(tmp_path, describe(spec)))
    assert again.layers == spec.layers and again.quantisation == how
    same_graphs(spec, again)


def test_runs():
    assert runs(tuple("aaabbbb")) == [(("a",), 3), (("b",), 4)]
    assert runs(tuple("abababc")) == [(("a", "b"), 3), (("c",), 1)]
    assert runs(tuple("abc")) == [(("a",), 1), (("b",), 1), (("c",), 1)]


# --- MODEL is a Python file

GOOD = """
from compiler.frontend.spec import Attention, Dense, Layer, ModelSpec

def mine():
    return ModelSpec("mine", "mine", 48, 100, True, (Layer(Attention(2, 3, 8), Dense(20)),))

def other():
    return 3

def bad():
    return Attention(2, 3, 8, window=0)

def leaves():
    raise SystemExit(0)
"""


def test_a_function_of_a_file(tmp_path):
    path = tmp_path / "a.py"
    path.write_text(GOOD)
    spec = load_model(f"{path}:mine")
    assert spec.name == "mine"
    assert spec.facts[-1].value == f"{path}:mine"
    assert not list(tmp_path.glob("__pycache__"))


@pytest.mark.parametrize(
    ("text", "function", "where", "what"),
    [
        (GOOD, "other", "a.py:other", "returns a int"),
        (GOOD, "nine", "a.py", "has no function nine"),
        (GOOD, "", "a.py", "no function in it is named"),
        (GOOD, "bad", "a.py: line 11", "ValueError: attention"),
        (GOOD, "leaves", "a.py: line 14", "SystemExit"),
        ("import nowhere_at_all\ndef f(): pass", "f", "a.py: line 1", "ModuleNotFoundError"),
        ("x = 1 +\n", "f", "a.py: line 1", "is not Python"),
        ("def f(a): return a", "f", "a.py", "TypeError"),
        ("def f(): return f()", "f", "a.py: line 1", "RecursionError"),
    ],
)
def test_files_with_errors_name_file_and_line(tmp_path, text, function, where, what):
    path = tmp_path / "a.py"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        load_model(f"{path}:{function}" if function else str(path))
    assert caught.value.where.endswith(where)
    assert what in caught.value.what
    assert caught.value.right


def test_files_that_are_none(tmp_path):
    (tmp_path / "b.py").write_bytes(b"\xff\xfe")
    for model in ("no/such.py:model", str(tmp_path / "b.py") + ":f", "no.py"):
        with pytest.raises(InputError) as caught:
            load_model(model)
        assert caught.value.right


def test_a_config_never_runs_a_file(tmp_path, llama):
    (tmp_path / "config.json").write_text(json.dumps(llama | {"_name_or_path": "evil.py:model"}))
    (tmp_path / "evil.py").write_text("raise SystemExit('executed')")
    assert load_model(str(tmp_path)).hidden == 48


# --- a type nobody knows


def page(tmp_path, config):
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError) as caught:
        load_model(str(tmp_path))
    return caught.value


SMALL = {
    "model_type": "new_type",
    "hidden_size": 64,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "vocab_size": 100,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}


def test_the_page_of_an_unknown_type(tmp_path, llama):
    error = page(tmp_path, llama | {"model_type": "lama2", "num_kv_head": 3, "index_topk": 7, "strange_gate": [1]})
    lines = error.right.splitlines()
    assert "lama2 is not supported" in error.what
    assert "hidden = 48 (hidden_size)" in lines[0]
    assert lines[1].startswith("near: ")
    assert "num_kv_head = 3 (like num_kv_heads)" in lines[1]
    assert lines[2] == "unknown: strange_gate = a list"
    assert lines[3].startswith("layers: no key says which layer is what; as llama reads them (near): gqa_dense x ")
    assert lines[4].startswith("nearest supported type: llama; difference: index_topk is 7")
    assert "rdutune describe MODEL" in lines[5]


@pytest.mark.parametrize(
    ("key", "pattern", "said"),
    [
        ("layer_types", ["full_attention", "hyena"] * 4, "full_attention in 0, 2, 4, 6 of layer_types (known)"),
        ("layer_types", ["full_attention", "hyena"] * 4, "hyena in 1, 3, 5, 7 of layer_types (unknown)"),
        ("layer_types", ["sliding_atention"] * 8, "sliding_atention in 0-7 of layer_types (near sliding_attention)"),
        ("hybrid_override_pattern", "M-M*M-MZ", "Z in 7 of hybrid_override_pattern (unknown)"),
        ("my_new_pattern", ["conv"] * 6 + ["xlstm"] * 2, "xlstm in 6-7 of my_new_pattern (unknown)"),
    ],
)
def test_each_layer_of_an_unknown_type_is_classified(tmp_path, llama, key, pattern, said):
    config = llama | {"model_type": "new_type", "num_hidden_layers": 8, key: pattern}
    line = next(line for line in page(tmp_path, config).right.splitlines() if line.startswith("layers: "))
    assert said in line


def test_a_strange_layer_does_not_hide_the_nearest_type(tmp_path):
    names = ["full_attention", "linear_attention", "linear_attention", "hyena"] * 2
    linear = {"linear_num_value_heads": 4, "linear_num_key_heads": 4, "linear_conv_kernel_dim": 4}
    config = SMALL | linear | {"layer_types": names, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
    right = page(tmp_path, config).right
    assert re.search(r"nearest supported type: qwen3_\w+; difference: layer_types\[3\] is \"hyena\"", right)
    text = describe_model(str(tmp_path))
    assert "hyena in 3, 7 of layer_types (unknown)" in text


def test_the_nearest_type_reads_most_and_is_named_alike(tmp_path, llama, deepseek):
    def nearest(config):
        found = re.search(r"nearest supported type: (\w+)", page(tmp_path, config).right)
        return found[1] if found else ""

    assert nearest(deepseek | {"model_type": "new_type"}) in ("deepseek_v3", "kimi_k2", "deepseek_v2")
    assert (
        nearest(deepseek | {"model_type": "x", "architectures": ["DeepseekV2ForCausalLM"], "strange": 1})
        == "deepseek_v2"
    )
    assert nearest(llama | {"model_type": "llamb"}) == "llama"


def test_a_start_fills_in_what_it_reads(tmp_path, deepseek):
    config = deepseek | {"model_type": "deepseek_v9", "index_topk": 2048, "hash_layers": 3}
    (tmp_path / "config.json").write_text(json.dumps(config))
    text = describe_model(str(tmp_path))
    asks = [line for line in text.splitlines() if "raise ValueError" in line]
    assert len(asks) == 2
    assert "index_topk is 2048" in asks[0] and "hash_layers is 3" in asks[1]
    completed = "\n".join(line for line in text.splitlines() if "raise ValueError" not in line)
    spec = load_model(written(tmp_path, completed))
    assert spec.model_type == "deepseek_v9"
    (tmp_path / "config.json").write_text(json.dumps(deepseek))
    assert spec.params == load_model(str(tmp_path)).params


def test_a_described_model_and_its_weights_can_be_moved_together(tmp_path, llama):
    """The file finds the weights from where it is; nothing in it is an absolute path."""
    import shutil

    from compiler.frontend.weights import INDEX

    old, new = tmp_path / "old", tmp_path / "new"
    (old / "model").mkdir(parents=True)
    (old / "model" / "config.json").write_text(json.dumps(llama))
    (old / "model" / INDEX).write_text(json.dumps({"weight_map": {"lm_head.weight": "a.safetensors"}}))
    first = load_model(str(old / "model"))
    assert first.stored is not None
    text = describe_model(str(old / "model"), old / "mine.py")
    assert "/ 'model'" in text and str(tmp_path) not in text.split("def model")[1]
    (old / "mine.py").write_text(text)
    shutil.move(old, new)
    again = load_model(f"{new / 'mine.py'}:model")
    assert again.stored is not None and again.stored.names == first.stored.names
