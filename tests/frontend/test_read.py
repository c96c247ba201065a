"""The doors: directories, files, model types; and everything that is not a configuration."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from compiler.errors import InputError
from compiler.frontend import Frontend, load_model, open_door


def refused(model: object) -> InputError:
    with pytest.raises(InputError) as caught:
        load_model(str(model))
    return caught.value


def test_directory_and_file_are_the_same(tmp_path, llama):
    folder = tmp_path / "small"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(llama))
    spec = load_model(str(folder))
    assert spec.name == "small"
    assert spec == load_model(str(folder / "config.json"))


def test_a_file_by_another_name(tmp_path, llama):
    (tmp_path / "mine.json").write_text(json.dumps(llama))
    assert load_model(str(tmp_path / "mine.json")).name == "mine"


def test_params_json_says_which_was_found_and_which_is_needed(tmp_path):
    (tmp_path / "params.json").write_text("{}")
    error = refused(tmp_path)
    assert "params.json" in error.what
    assert "config.json" in error.right


def test_empty_directory(tmp_path):
    assert "empty" in refused(tmp_path).right


@pytest.mark.parametrize(
    ("text", "place", "what"),
    [
        ('{"model_type": "llama",\n  "hidden_size": }', "line 2, column 18", "not JSON"),
        ("", "line 1, column 1", "not JSON"),
        ("[1, 2]", "", "a list, not an object"),
        ("null", "", "null, not an object"),
        ("3", "", "3, not an object"),
        ('{"a": 1, "a": 2}', "a", "twice"),
        ('{\n"a": 1,\n<<<<<<< HEAD\n"b": 2}', "line 3", "merge marker"),
        ("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "", "Git-LFS pointer"),
        ('{"a": ' + "[" * 100_000 + "}", "", "nested too deeply"),
        ('{"rope_scaling": ' + '{"a": ' * 900 + "1" + "}" * 901, "", "nested too deeply"),
        ('{"a": ' + "9" * 5_000 + "}", "", "too long a number"),
    ],
)
def test_what_is_not_a_config(tmp_path, text, place, what):
    path = tmp_path / "config.json"
    path.write_text(text)
    error = refused(path)
    assert str(path) in error.where
    assert place in error.where
    assert what in error.what


def test_bytes_that_are_not_text(tmp_path):
    (tmp_path / "config.json").write_bytes(b'{"a": "\xff"}')
    assert "byte 7" in refused(tmp_path).where


def test_byte_order_mark_infinity_and_nan_are_read(tmp_path, llama):
    text = json.dumps(llama | {"time_step_limit": [0.0, float("inf")], "odd": float("nan")})
    (tmp_path / "config.json").write_text("\ufeff" + text)
    facts = {fact.name: fact.value for fact in load_model(str(tmp_path)).facts}
    assert facts["time_step_limit"] == (0.0, "inf")
    assert facts["odd"] == "nan"


@pytest.mark.parametrize(
    "model", ["", " ", "no/such/dir", "missing.json", "x" * 5_000, "a\0b", "../..x/", "me.py:spec"]
)
def test_what_is_not_there(model):
    assert refused(model).right


def test_devices_are_not_read():
    assert "neither a regular file" in refused("/dev/zero").what


def test_misspelt_type_names_the_nearest():
    error = refused("lama")
    assert "llama" in error.right
    assert "README" in error.right


def test_type_known_elsewhere_says_so():
    pytest.importorskip("transformers")
    assert "transformers knows it" in refused("zamba2").right


def test_unknown_type_in_a_config(tmp_path, llama):
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps(llama | {"model_type": "lama2", "strange_gate": 3, "architectures": ["LlamaForCausalLM"]})
    )
    error = refused(path)
    assert "lama2" in error.what
    assert "strange_gate" in error.what
    assert "llama" in error.right


@pytest.mark.parametrize("model_type", [None, 3, "", [], "x"])
def test_model_type_that_is_none(tmp_path, llama, model_type):
    (tmp_path / "config.json").write_text(json.dumps(llama | {"model_type": model_type}))
    assert "llama" in refused(tmp_path).right


def test_auto_map_is_never_executed(tmp_path, llama):
    (tmp_path / "evil.py").write_text("raise SystemExit('executed')")
    (tmp_path / "config.json").write_text(json.dumps(llama | {"auto_map": {"AutoConfig": "evil.Config"}}))
    assert load_model(str(tmp_path)).hidden == 48


def test_nested_language_model(tmp_path, llama):
    for key in ("text_config", "llm_config"):
        config = {"model_type": "llava", "architectures": ["LlavaForConditionalGeneration"], "vision_config": {"a": 1}}
        (tmp_path / "config.json").write_text(json.dumps(config | {key: llama, "dtype": "float16"}))
        spec = load_model(str(tmp_path))
        keys = {fact.name: (fact.key, fact.status) for fact in spec.facts}
        assert (spec.model_type, spec.hidden) == ("llama", 48)
        assert keys["hidden"] == (f"{key}.hidden_size", "read")
        assert keys["dtype"] == ("dtype", "read")
        assert keys["vision_config"] == ("vision_config", "unknown")
    (tmp_path / "config.json").write_text(json.dumps({"text_config": 3, "model_type": "llama"}))
    assert "text_config" in refused(tmp_path).where


def test_reading_a_file_imports_neither_torch_nor_transformers(tmp_path, llama):
    (tmp_path / "config.json").write_text(json.dumps(llama))
    code = (
        "import sys; from compiler.frontend import load_model; load_model(sys.argv[1]);"
        "print([m for m in ('torch', 'transformers', 'numpy') if m in sys.modules])"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_class_defaults():
    pytest.importorskip("transformers")
    spec = load_model("llama")
    assert (spec.name, spec.hidden, len(spec.layers), spec.vocab) == ("llama", 4096, 32, 32_000)
    assert spec.params == 6_738_415_616  # LLaMA 7B
    hidden = next(fact for fact in spec.facts if fact.name == "hidden")
    assert (hidden.key, hidden.note, hidden.status) == ("LlamaConfig default", "hidden_size", "read")
    assert load_model("deepseek_v3").params == 671_026_404_352
    assert load_model("gpt_oss").params == 116_829_156_672
    assert load_model("qwen3_moe").layers[0].mixer.head_dim == 64  # its class has no head_dim: 2048 / 32
    for model_type in ("mistral", "qwen2", "qwen3", "mixtral"):
        assert load_model(model_type).params > 0
    assert "num_experts_per_tok" in refused("deepseek_v2").what  # null in the class
    assert "config.json" in refused("kimi_k2").right


@pytest.mark.parametrize("value", [[], {}, ["llama"], 3, True])
def test_a_type_that_is_no_name_is_refused_at_the_door(tmp_path, llama, value):
    (tmp_path / "config.json").write_text(json.dumps(llama | {"model_type": value}))
    with pytest.raises(InputError, match="model_type"):
        open_door(str(tmp_path))


def test_a_type_nobody_knows_with_an_unknown_key_is_not_its_class(tmp_path, llama):
    """It is not taken for what `architectures` names: the key may be what makes the type new."""
    mine = llama | {"model_type": "lama2", "architectures": ["LlamaForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(mine))
    assert open_door(str(tmp_path)).door is Frontend.SPEC
    (tmp_path / "config.json").write_text(json.dumps(mine | {"strange_gate": 3}))
    with pytest.raises(InputError, match="strange_gate"):
        open_door(str(tmp_path))
