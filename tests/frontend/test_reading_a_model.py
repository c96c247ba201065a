"""The rows of "Reading a model" (shared/cases/README.md), one test a row, in the order of the table.

`ROWS` names each row by the beginning of its input; `test_every_row_has_a_test` reads the table and says which is missing.
Real configs come from the shared folder; where the table describes a kind, it is written out here. What else such a
kind may get wrong is tested where it belongs (test_facts.py, test_patterns.py, test_weights.py, ...).
"""

import json
import re
from pathlib import Path

import pytest

from agent.cli import run
from compiler.diagnostic import Code
from compiler.errors import InputError
from compiler.frontend import build, load_model
from compiler.frontend.alias import spellings
from compiler.frontend.spec import Attention, MoE, Status
from compiler.ir.graph import Phase, Workload
from compiler.ir.text import parse_schedule
from compiler.pipeline import compile_schedule
from compiler.program import Program
from compiler.target import load_target
from tests.frontend.conftest import MODELS
from tests.frontend.small import SMALL

CASES = MODELS.parent / "cases/README.md"
HYBRIDS = json.loads((Path(__file__).parent / "hybrids.json").read_text())

#: Test (without `test_`) -> the beginning of the row's input.
ROWS = {
    "head_dim_by_division": "`hidden_size` 896, 14 heads, no `head_dim`",
    "head_dim_stated": "`hidden_size` 5120, 32 heads, explicit `head_dim` 128",
    "rope_in_every_spelling": "`rope_scaling` spelled with `rope_type`",
    "nested_language_model": "language dims nested in `text_config` or `llm_config`",
    "bare_infinity": "bare `Infinity` in `time_step_limit`",
    "full_attention_interval": "no `layer_types`, only `full_attention_interval: 4`",
    "experts_in_every_spelling": "Mixtral: `num_local_experts` 8",
    "which_layers_are_moe": "`mlp_only_layers`, `decoder_sparse_step` 1 or 2",
    "latent_attention_ignores_kv_heads": "MLA (DeepSeek): `num_key_value_heads` 128",
    "q_lora_null": "`q_lora_rank: null` (V2-Lite)",
    "falcon_kv_heads": "Falcon-40B `num_kv_heads` 8 of 128",
    "block_configs": "`num_key_value_heads` null with per-layer `block_configs`",
    "hybrid_patterns": "hybrid patterns: string `M-*E`, word lists, 0/1 lists",
    "window_switched_off": "`sliding_window` set and `use_sliding_window: false`",
    "gpt_oss_cache": "gpt-oss-120b KV per token, all layers counted",
    "mtp_module_is_no_layer": "`num_nextn_predict_layers: 1` with 61 layers",
    "tied_embeddings": "`tie_word_embeddings: true`",
    "active_parameters": "active parameters of an MoE",
    "auto_map": "`auto_map` to remote code",
    "unknown_model_type": "unknown `model_type`",
    "params_json": "no config.json but `params.json`",
    "lfs_pointer": "a Git-LFS pointer saved as .safetensors",
    "merge_marker": "an index JSON with a leftover merge marker",
    "scale_blocks_cut_by_a_shard": "`weight_block_size` 128 and a shard of 3072/16 = 192",
}
DECODE = Workload(Phase.DECODE, 1, 4096, 1)


def test_every_row_has_a_test():
    assert all(f"test_{name}" in globals() for name in ROWS)
    if not CASES.is_file():
        pytest.skip("no table of cases beside the repository")
    section = CASES.read_text(encoding="utf-8").split("## Reading a model")[1].split("\n## ")[0]
    rows = [line[2:] for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == len(ROWS)
    for row, beginning in zip(rows, ROWS.values(), strict=True):
        assert row.startswith(beginning)


@pytest.fixture
def write(tmp_path):
    """A config.json of a dictionary; its folder as MODEL."""

    def config(values):
        (tmp_path / "config.json").write_text(json.dumps(values))
        return str(tmp_path)

    return config


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """What the command line says of a MODEL that it cannot read: exit code 2, no traceback, nothing printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def said(model, *words):
        capsys.readouterr()
        code = run(["inspect", str(model)])
        seen = capsys.readouterr()
        assert (code, seen.out) == (2, ""), seen.err
        assert "Traceback" not in seen.err
        for word in words:
            assert word in seen.err, seen.err
        return seen.err

    return said


def error_of(spec_of, config, *words):
    with pytest.raises(InputError) as caught:
        spec_of(config)
    for word in words:
        assert word in str(caught.value)
    return caught.value


def facts(spec):
    return {fact.name: fact for fact in spec.facts}


# --- heads and rotation


def test_head_dim_by_division(spec_of, published):
    config = published("Qwen2.5-7B") | {"hidden_size": 896, "num_attention_heads": 14, "num_key_value_heads": 2}
    assert "head_dim" not in config
    spec = spec_of(config)
    assert {(m.head_dim, m.kv_heads, m.q_group) for m in (layer.mixer for layer in spec.layers)} == {(64, 2, 7)}
    assert facts(spec)["head_dim"].status is Status.ASSUMED


def test_head_dim_stated(spec_of, published):
    config = published("Mistral-7B-v0.1") | {"hidden_size": 5120, "num_attention_heads": 32, "head_dim": 128}
    spec = spec_of(config)
    assert {layer.mixer.head_dim for layer in spec.layers} == {128}
    (query,) = (t for t in build(spec, DECODE).blocks[1].weights if t.name == "w.attn.q_proj")
    assert query.elements == 32 * 128 * 5120


@pytest.mark.parametrize(
    "keys",
    [
        {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "any": "thing"}},
        {"rope_scaling": {"type": "yarn", "factor": 40, "mscale": 1.0, "beta_fast": 32}},
        {"rope_scaling": None},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
        {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0}, "sliding_attention": {}}},
    ],
)
def test_rope_in_every_spelling(spec_of, llama, model_dir, keys):
    assert build(spec_of(llama | keys), DECODE).id == build(spec_of(llama), DECODE).id
    for name, word in (("Meta-Llama-3.1-8B", "rope_type"), ("DeepSeek-V3", "type")):
        said = json.loads(facts(load_model(str(model_dir(name))))["rope_scaling"].value)
        assert isinstance(said[word], str) and len(said) > 2


@pytest.mark.parametrize("key", ["text_config", "llm_config"])
def test_nested_language_model(write, spec_of, llama, published, key):
    outer = {"model_type": "novel_vl", "vision_config": {"hidden_size": 7}, key: llama}
    spec = load_model(write(outer))
    assert build(spec, DECODE).id == build(spec_of(llama), DECODE).id
    assert facts(spec)["hidden"].key == f"{key}.hidden_size"
    gemma = published("Gemma-3-27b-it")
    assert spec_of(gemma["text_config"]).hidden == gemma["text_config"]["hidden_size"] == 5376


def test_bare_infinity(model_dir, tmp_path, monkeypatch, capsys):
    folder = model_dir("Nemotron-H-56B-Base-8K")
    assert "Infinity" in (folder / "config.json").read_text()
    assert load_model(str(folder)).params > 5 * 10**10

    def strict(word):
        raise AssertionError(f"{word} in a file of ours")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert run(["inspect", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out, parse_constant=strict)["model"]["layers"]
    assert run(["describe", str(folder)]) == 0
    assert not re.search(r"\b(NaN|Infinity|nan|inf)\b", re.sub(r"#.*", "", capsys.readouterr().out))


# --- layers


def test_full_attention_interval(spec_of, published):
    config = published("Qwen3-Next-80B-A3B-Instruct")
    assert "layer_types" not in config and config["full_attention_interval"] == 4
    full = [isinstance(layer.mixer, Attention) for layer in spec_of(config).layers]
    assert full == [(index + 1) % 4 == 0 for index in range(48)]
    del config["full_attention_interval"]
    error_of(spec_of, config, "full_attention_interval", "layer_types")


def test_experts_in_every_spelling(spec_of, published):
    rows = {
        "Mixtral-8x7B-v0.1": ("num_local_experts", (8, 2, 14336)),
        "DeepSeek-V3": ("n_routed_experts", (256, 8, 2048)),
        "DBRX-132B": ("ffn_config.moe_num_experts", (16, 4, 10752)),
        "Qwen3-30B-A3B": ("num_experts", (128, 8, 768)),
    }
    for name, (key, sizes) in rows.items():
        spec = spec_of(published(name))
        assert {(ffn.experts, ffn.top_k, ffn.width) for ffn in moes(spec)} == {sizes}
        assert facts(spec)["experts"].key == key
    config = published("Qwen3-30B-A3B")
    for fact in ("experts", "top_k"):
        used = next(key for key in spellings(fact) if key in config)
        rest = {key: value for key, value in config.items() if key != used}
        others = [key for key in spellings(fact) if "." not in key]
        assert len(others) > 2
        for other in others:
            assert spec_of(rest | {other: config[used]}).layers == spec_of(config).layers
        error_of(spec_of, rest, *others)


def moes(spec):
    return [layer.ffn for layer in spec.layers if isinstance(layer.ffn, MoE)]


QWEN = {"model_type": "qwen3_moe", "moe_intermediate_size": 20, "head_dim": 10, "norm_topk_prob": True}
QWEN = {**SMALL["olmoe"], **QWEN, "decoder_sparse_step": 1, "mlp_only_layers": []}


@pytest.mark.parametrize(
    ("config", "right"),
    [
        (QWEN, "1111"),
        (QWEN | {"mlp_only_layers": [0, 3]}, "0110"),
        (QWEN | {"decoder_sparse_step": 2}, "0101"),
        (QWEN | {"decoder_sparse_step": 2, "mlp_only_layers": [1]}, "0001"),
        ({"first_k_dense_replace": 0}, "1111"),
        ({"first_k_dense_replace": 3}, "0001"),
        ({"first_k_dense_replace": 1, "moe_layer_freq": 2}, "0010"),
        ({"moe_layer_freq": [1, 0, 1, 0], "first_k_dense_replace": 0}, "1010"),
        (SMALL["llama4"] | {"interleave_moe_layer_step": 1}, "1111"),
        (SMALL["llama4"] | {"interleave_moe_layer_step": 2}, "0101"),
    ],
)
def test_which_layers_are_moe(spec_of, deepseek, config, right):
    config = config if "model_type" in config else deepseek | config
    assert "".join(str(int(isinstance(layer.ffn, MoE))) for layer in spec_of(config).layers) == right


def test_latent_attention_ignores_kv_heads(spec_of, published):
    config = published("DeepSeek-V3")
    assert config["num_key_value_heads"] == 128
    spec = spec_of(config)
    assert set(spec.kv_elements_per_token_per_layer) == {512 + 64} == {576}
    assert build(spec_of(config | {"num_key_value_heads": 4}), DECODE).id == build(spec, DECODE).id


def test_q_lora_null(model_dir):
    spec = load_model(str(model_dir("deepseek-v2-lite")))
    assert {layer.mixer.q_lora for layer in spec.layers} == {None}
    block = build(spec, DECODE).blocks[1]
    assert "attn.q_proj" in block.op and not {"attn.q_a_proj", "attn.q_b_proj", "attn.q_a_norm"} & set(block.op)


def test_falcon_kv_heads(spec_of, published):
    config = published("Falcon-40B")
    assert {(m.kv_heads, m.q_group) for m in (layer.mixer for layer in spec_of(config).layers)} == {(8, 16)}
    assert {layer.mixer.kv_heads for layer in spec_of(SMALL["falcon 7b"]).layers} == {1}  # multi_query
    for key in ("multi_query", "new_decoder_architecture"):
        error_of(spec_of, {k: v for k, v in config.items() if k != key}, key)


def test_block_configs(spec_of, published):
    config = published("Llama-3_3-Nemotron-Super-49B-v1")
    assert config["num_key_value_heads"] is None
    spec = spec_of(config)
    present = [layer.mixer for layer in spec.layers if layer.mixer]
    assert (len(spec.layers), len(present), len(spec.layers) - len(present)) == (80, 49, 31)
    assert spec.params == 49_867_145_216
    groups = [b["attention"]["n_heads_in_group"] for b in config["block_configs"] if not b["attention"]["no_op"]]
    assert [mixer.q_group for mixer in present] == groups
    assert len({layer.ffn.width for layer in spec.layers}) > 3


def test_hybrid_patterns(spec_of):
    config = HYBRIDS["nemotron_h"]
    words = {"hybrid_override_pattern": None, "layers_block_type": ["mamba", "mlp", "attention", "moe"]}
    letters = {"hybrid_override_pattern": "M-*E", "layers_block_type": None}
    assert spec_of(config | words).layers == spec_of(config | letters).layers
    zeros = HYBRIDS["minimax"] | {"layer_types": None, "attn_type_list": [0, 0, 1, 0]}
    named = ["linear_attention", "linear_attention", "full_attention", "linear_attention"]
    assert spec_of(zeros).layers == spec_of(HYBRIDS["minimax"] | {"layer_types": named}).layers
    error_of(spec_of, config | {"hybrid_override_pattern": "M-*"}, "hybrid_override_pattern", "3 entries for 4 layers")
    error_of(spec_of, zeros | {"attn_type_list": [0, 1, 0]}, "attn_type_list", "3 entries for 4 layers")
    longer = config | {"hybrid_override_pattern": "M-*E*E"}
    error_of(spec_of, longer, "hybrid_override_pattern", "6 entries for 4 layers")
    assert spec_of(longer | {"num_nextn_predict_layers": 2}).layers == spec_of(config | letters).layers


def test_window_switched_off(spec_of, published):
    config = published("Qwen2.5-7B")
    assert config["sliding_window"] == 131072 and config["use_sliding_window"] is False
    assert {layer.mixer.window for layer in spec_of(config).layers} == {None}
    on = config | {"use_sliding_window": True, "max_window_layers": 0, "sliding_window": 4096}
    assert {layer.mixer.window for layer in spec_of(on).layers} == {4096}


# --- sizes


def test_gpt_oss_cache(model_dir):
    spec = load_model(str(model_dir("gpt-oss-120b")))
    assert spec.kv_bytes_per_token == 36 * 2 * 8 * 64 * 2 == 73_728
    row = 2 * 8 * 64 * 2
    for context in (100, 128, 5000):
        graph = build(spec, Workload(Phase.DECODE, 1, context, 1))
        assert graph.kv_nbytes == row * (18 * min(128, context) + 18 * context)


def test_mtp_module_is_no_layer(model_dir):
    spec = load_model(str(model_dir("DeepSeek-R1")))
    assert (len(spec.layers), spec.mtp_modules, facts(spec)["mtp_modules"].key) == (61, 1, "num_nextn_predict_layers")
    off, on = (build(spec, Workload(Phase.DECODE, 1, 64, 1, mtp=mtp)) for mtp in (False, True))
    assert off.weight_elements == spec.params == 671_026_404_352
    assert on.weight_elements > off.weight_elements
    layer = [kind for kind in on.sequence if kind.startswith("mla")]
    assert (len(layer), layer[61]) == (62, "mla_moe")


def test_tied_embeddings(spec_of, llama):
    tied, untied = (spec_of(llama | {"tie_word_embeddings": flag}) for flag in (True, False))
    assert untied.params - tied.params == 100 * 48
    assert (build(tied, DECODE).weight_elements, build(untied, DECODE).weight_elements) == (tied.params, untied.params)


def test_active_parameters(model_dir):
    spec = load_model(str(model_dir("DeepSeek-V3")))
    expert = 3 * 7168 * 2048
    assert {(ffn.top_k, ffn.shared_width) for ffn in moes(spec)} == {(8, 2048)}
    assert spec.params - spec.active_params == 58 * (256 - 8) * expert


# --- what is no model, or none that is known


def test_auto_map(write, tmp_path, llama, refused):
    marker = tmp_path / "executed"
    (tmp_path / "modeling_novel.py").write_text(f"open({str(marker)!r}, 'w')\nclass Novel:\n    pass\n")
    remote = dict.fromkeys(("AutoConfig", "AutoModel", "AutoModelForCausalLM"), "modeling_novel.Novel")
    known = load_model(write(llama | {"auto_map": remote}))
    assert build(known, DECODE).weight_elements == known.params
    refused(
        write(llama | {"auto_map": remote, "model_type": "novel"}),
        "novel",
        "nearest supported type: ",
        "auto_map, is never run",
    )
    assert run(["inspect", str(tmp_path), "--frontend", "capture"]) == 2
    assert not marker.exists()


def test_unknown_model_type(write, llama, refused):
    config = llama | {"model_type": "llamb", "strange_gate": 3}
    said = refused(write(config), "llamb is not supported", "nearest supported type: llama")
    assert "unknown: strange_gate = 3" in said
    assert "rdutune describe" in said and len(said.splitlines()) < 12


def test_params_json(tmp_path, refused):
    (tmp_path / "params.json").write_text('{"dim": 4096, "n_layers": 32}')
    refused(tmp_path, "params.json", "was found", "config.json", "is needed")


def test_lfs_pointer(model_dir, refused):
    folder = model_dir("WizardLM-2-8x22B")
    pointer = folder / "model-00001-of-00059.safetensors"
    assert pointer.stat().st_size == 135
    refused(pointer, f"{pointer}: is a Git-LFS pointer, not weights")
    found = [fact for fact in load_model(str(folder)).facts if fact.name == "weights"]
    assert f"{pointer.name} is a Git-LFS pointer, not weights" in [fact.value for fact in found]


def test_merge_marker(model_dir, refused):
    index = model_dir("BLOOM-176B") / "model.safetensors.index.json"
    refused(index, f"{index}: line 2", "leftover merge marker", "=======")
    found = {fact.name: fact for fact in load_model(str(index.parent)).facts}["weights"]
    assert found.value == "model.safetensors.index.json: line 2 is a leftover merge marker: ======="


@pytest.mark.parametrize(("width", "sockets", "local"), [(3072, 16, 192), (18432, 32, 576)])
def test_scale_blocks_cut_by_a_shard(spec_of, llama, width, sockets, local):
    how = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    wide = llama | {"intermediate_size": width, "hidden_size": 1024, "num_attention_heads": 8}
    graph = build(spec_of(wide | {"quantization_config": how}), Workload(Phase.DECODE, 1, 64, sockets))
    schedule, target = parse_schedule(f"shard gqa_dense ffn ffn ways={sockets}"), load_target("sn40l")
    found = compile_schedule(graph, schedule, target)
    assert isinstance(found, tuple) and {d.code for d in found} == {Code.SHARD_BLOCK_SCALE}
    (columns,) = [d for d in found if f"a shard of {width}/{sockets} = {local} columns" in d.rule]
    assert "cuts fp8_block blocks of 128" in columns.rule
    assert {"fewer sockets", "pad=128"} <= set(columns.levers)
    padded = parse_schedule(f"{schedule.text.strip()} pad=128")
    assert isinstance(compile_schedule(graph, padded, target), Program)
