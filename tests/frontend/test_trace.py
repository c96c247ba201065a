"""PyTorch as a source: node histograms, parameters, kinds of layers, the JSON form, the cache, and what is refused."""

import json
import math
import subprocess
import sys
import time
from collections import Counter
from functools import cache as once
from pathlib import Path

import pytest

from compiler.canonical import canonical_json
from compiler.errors import InputError
from compiler.frontend.capture import cache
from compiler.frontend.capture.codec import from_json, to_json
from compiler.frontend.capture.ir import Captured, Node, Ref
from compiler.frontend.capture.source import open_module
from compiler.frontend.capture.trace import capture, trace

#: One line a distinct layer: the operators of its program, aten. and .default left out. A change of transformers shows here.
GOLDEN = {
    "llama": [
        "add.Tensor 4, cat 2, linear 7, mul.Tensor 5, neg 2, rdutune.attention 1, rdutune.rms_norm 2, silu 1, slice.Tensor 4, transpose.int 3, unsqueeze 2, view 4",
    ],
    "mixtral": [
        "_to_copy 1, add.Tensor 4, cat 2, div.Tensor 1, linear 5, mul.Tensor 4, neg 2, rdutune.attention 1, rdutune.experts 1, rdutune.rms_norm 2, slice.Tensor 4, softmax.int 1, sum.dim_IntList 1, topk 1, transpose.int 3, unsqueeze 2, view 7",
    ],
    "gpt_oss": [
        "add.Tensor 4, cat 2, linear 5, mul.Tensor 8, rdutune.attention 1, rdutune.experts 1, rdutune.rms_norm 2, softmax.int 1, split.Tensor 2, sub.Tensor 2, topk 1, transpose.int 3, unsqueeze 2, view 6",
    ]
    * 2,
    "qwen3_next": [
        "_to_copy 7, _unsafe_view 6, add.Tensor 5, cat 1, clone 6, div.Tensor 1, exp 1, linear 8, mean.dim 1, mul.Tensor 6, neg 1, pow.Tensor_Scalar 1, rdutune.causal_conv 1, rdutune.experts 1, rdutune.gated_delta 1, rdutune.rms_norm 2, rsqrt 1, sigmoid 2, silu 2, softmax.int 1, softplus 1, split_with_sizes 3, squeeze.dim 1, sum.dim_IntList 1, topk 1, transpose.int 2, view 13",
        "_to_copy 1, _unsafe_view 1, add.Tensor 5, cat 4, clone 1, div.Tensor 1, linear 9, mul.Tensor 7, neg 2, rdutune.attention 1, rdutune.experts 1, rdutune.rms_norm 4, sigmoid 2, silu 1, slice.Tensor 8, softmax.int 1, split.Tensor 1, sum.dim_IntList 1, topk 1, transpose.int 3, unsqueeze 2, view 8",
    ],
}

BLOCK = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.RMSNorm(64), nn.Linear(64, 256), nn.Linear(128, 64)
        self.conv = nn.Conv1d(256, 256, 3, padding=1, groups=256)
    def forward(self, x):
        gate, up = self.conv(self.up(self.norm(x)).mT).mT.chunk(2, -1)
        return x + self.down(torch.relu(gate) * up)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(100, 64), nn.Linear(64, 100, bias=False)
        self.layers = nn.ModuleList(Block() for _ in range(3))
    def forward(self, input_ids):
        x = self.embed(input_ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)

class Peeks(Block):
    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else x

class Peeking(Model):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Block(), Peeks()])

class Between(Model):
    def forward(self, input_ids):
        x = self.embed(input_ids)
        early = []
        for layer in self.layers:
            early.append(layer(x))
            x = early[-1] + early[0]
        return self.head(x)

def one(): return Block(), (torch.zeros(1, 13, 64),)
def number(): return 3
def fails(): raise ValueError("no such size")
"""


@once
def timed(model: str) -> tuple[Captured, float]:
    """The capture of a model at full size, and the processor seconds it took."""
    opened = open_module(model)
    start = time.process_time()
    return trace(opened), time.process_time() - start


def traced(model: str) -> Captured:
    return timed(model)[0]


def of_config(folder: Path, **values: object) -> Captured:
    (folder / "config.json").write_text(json.dumps(values))
    return capture(str(folder))


def calls(captured: Captured, operator: str) -> list[Node]:
    return [n for layer in captured.layers for n in layer.nodes if n.target == f"rdutune.{operator}.default"]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("python") / "mine.py"
    path.write_text(BLOCK)
    return path


def histogram(captured: Captured, layer: int) -> str:
    names = Counter(n.target.removesuffix(".default").removeprefix("aten.") for n in captured.layers[layer].nodes)
    return ", ".join(f"{name} {count}" for name, count in sorted(names.items()))


def owned(captured: Captured) -> int:
    """Parameters of all parts, a tied embedding once."""
    parts = [captured.before, *(captured.layers[kind] for kind in captured.sequence)]
    first = {weight.key for weight in captured.before.weights}
    weights = [w for part in parts for w in part.weights] + [w for w in captured.after.weights if w.key not in first]
    return sum(math.prod(weight.shape) for weight in weights)


@pytest.mark.parametrize("model", GOLDEN)
def test_operators_of_each_distinct_layer(model: str) -> None:
    captured = traced(model)
    assert [histogram(captured, layer) for layer in range(len(captured.layers))] == GOLDEN[model]


@pytest.mark.parametrize(
    ("model", "params"),
    [
        ("llama", 6_738_415_616),
        ("mixtral", 46_702_792_704),
        ("gpt_oss", 116_829_156_672),
        ("deepseek_v3", 671_026_404_352),
    ],
)
def test_parts_own_all_parameters_of_the_class(model: str, params: int) -> None:
    captured = traced(model)
    assert (captured.params, owned(captured)) == (params, params)


def test_deepseek_v3_at_full_size_has_two_kinds_of_layers_in_order() -> None:
    captured, seconds = timed("deepseek_v3")
    assert seconds < 15
    assert captured.sequence == (0, 0, 0, *(1,) * 58)
    ops = [Counter(n.target for n in layer.nodes) for layer in captured.layers]
    assert [c["rdutune.attention.default"] for c in ops] == [1, 1]
    assert [c["rdutune.experts.default"] for c in ops] == [0, 1]
    assert [c["aten.linear.default"] for c in ops] == [8, 9]
    keys = {w.key: w.shape for w in captured.layers[1].weights}
    assert keys["model.layers.{layer}.mlp.experts.gate_up_proj"] == (256, 4096, 7168)
    assert [b.key for b in captured.layers[1].buffers] == ["model.layers.{layer}.mlp.gate.e_score_correction_bias"]


def test_gpt_oss_differs_in_the_window_only() -> None:
    captured = traced("gpt_oss")
    assert captured.sequence == (0, 1) * 18
    assert [(call.args[4], call.args[5]) for call in calls(captured, "attention")] == [(True, 128), (True, 0)]
    experts = calls(captured, "experts")[0]
    assert experts.args[-4:] == ("GptOssExperts,alpha=1.702,limit=7", True, True, True)


def test_nodes_know_where_they_come_from() -> None:
    node = next(n for n in traced("llama").layers[0].nodes if n.target == "aten.linear.default")
    assert (node.module, node.module_class) == ("self_attn.q_proj", "Linear")
    assert node.line.startswith("modeling_llama.py:")


def test_what_surrounds_the_layers() -> None:
    captured = traced("llama")
    assert [w.key for w in captured.before.weights] == ["model.embed_tokens.weight"]
    assert [w.key for w in captured.after.weights] == ["model.norm.weight", "lm_head.weight"]
    assert [n.target for n in captured.after.nodes] == [
        "rdutune.rms_norm.default",
        "aten.slice.Tensor",
        "aten.linear.default",
    ]
    assert captured.after.nodes[-1].outputs[0].shape == (1, 1, 32000)
    layer = captured.layers[0]
    assert layer.inputs[0].shape == (1, 13, 4096)
    assert captured.feeds[0][0] == captured.before.outputs[0]
    assert len(captured.feeds[0]) == len(layer.inputs)


@pytest.mark.parametrize("model", ["llama", "gpt_oss", "qwen3_next"])
def test_json_round_trip(model: str) -> None:
    captured = traced(model)
    assert from_json(json.loads(canonical_json(to_json(captured)))) == captured


def test_infinite_arguments_survive_json() -> None:
    from compiler.frontend.capture.codec import _in, _out

    assert _in(_out((float("-inf"), 1.5, None, True))) == (float("-inf"), 1.5, None, True)


def test_the_second_time_needs_no_torch(tmp_path: Path) -> None:
    key = cache.capture_key("llama")
    assert cache.load(tmp_path, key) is None
    cache.save(tmp_path, key, traced("llama"))
    code = (
        "import sys, pathlib; from compiler.frontend.capture.trace import capture; "
        "c = capture('llama', pathlib.Path(sys.argv[1])); "
        "assert not {'torch', 'transformers'} & set(sys.modules); print(c.params)"
    )
    root = Path(__file__).parents[2]
    out = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=root,
        env={"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (out.stdout, out.stderr) == ("6738415616\n", "")
    start = time.perf_counter()
    assert capture("llama", tmp_path) == traced("llama")
    assert time.perf_counter() - start < 0.5


def test_a_damaged_entry_is_absent(tmp_path: Path) -> None:
    (tmp_path / "cap-x.json").write_text('{"model": 3')
    assert cache.load(tmp_path, "cap-x") is None
    assert not list(tmp_path.iterdir())


def test_the_key_follows_the_content(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"model_type": "llama", "x": Infinity}')
    first = cache.capture_key(str(config))
    assert cache.capture_key(str(tmp_path)) == first
    config.write_text('{"model_type": "llama", "x": 1}')
    assert cache.capture_key(str(config)) != first


def test_transformers_is_as_it_was_after_a_trace() -> None:
    traced("qwen3_next")
    from transformers.models.qwen3_next import modeling_qwen3_next as modeling

    assert modeling.causal_conv1d_fn.__module__ == modeling.__name__
    assert modeling.Qwen3NextRMSNorm.forward.__module__ == modeling.__name__


def test_a_module_of_a_python_file(python: Path) -> None:
    captured = capture(f"{python}:Model")
    assert captured.sequence == (0, 0, 0)
    assert captured.params == owned(captured) == 2 * 6400 + 3 * (64 + 64 * 256 + 256 + 128 * 64 + 64 + 256 * 3 + 256)
    assert captured.layers[0].weights[0].key == "layers.{layer}.norm.weight"
    assert Counter(n.target for n in captured.layers[0].nodes)["rdutune.rms_norm.default"] == 1


def test_a_single_block_is_one_layer(python: Path) -> None:
    captured = capture(f"{python}:one")
    assert (captured.sequence, captured.before.nodes, captured.after.nodes) == ((0,), (), ())
    assert captured.params == owned(captured)


def test_what_depends_on_data_is_refused_with_its_place(python: Path) -> None:
    with pytest.raises(InputError, match=r"layers.1 \(Peeks\) at mine.py:\d+"):
        capture(f"{python}:Peeking")


def test_work_between_layers_is_refused_with_its_place(python: Path) -> None:
    with pytest.raises(InputError, match=r"between two layers: .*mine.py:\d+"):
        capture(f"{python}:Between")


@pytest.mark.parametrize(
    ("suffix", "what"),
    [
        (":number", "not a torch.nn.Module"),
        (":fails", "no such size"),
        (":nubmer", "did you mean number"),
        ("", "no function in it is named"),
        (":a b", "has no function a b"),
    ],
)
def test_python_files_that_give_no_module(python: Path, suffix: str, what: str) -> None:
    with pytest.raises(InputError, match=what):
        capture(f"{python}{suffix}")


def test_unknown_types_name_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"did you mean .*llama"):
        capture("lama")
    (tmp_path / "config.json").write_text('{"model_type": "deepseek_v33", "auto_map": {"AutoConfig": "evil.Config"}}')
    with pytest.raises(InputError, match="deepseek_v3"):
        capture(str(tmp_path))


def test_a_type_transformers_does_not_know_opens_by_its_class(tmp_path: Path) -> None:
    config = {
        "model_type": "mine",
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": 2,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "vocab_size": 64,
        "intermediate_size": 512,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    captured = capture(str(tmp_path))
    assert (captured.model_type, captured.sequence) == ("llama", (0, 0))


def test_a_norm_is_what_it_computes() -> None:
    """Qwen3-Next adds one to the weights of its norms, and its gated norm is none of them."""
    assert {call.args[2:] for call in calls(traced("qwen3_next"), "rms_norm")} == {(1e-06, 1.0)}
    assert {call.args[2:] for call in calls(traced("llama"), "rms_norm")} == {(1e-06, 0.0)}
    assert {n.module_class for n in traced("qwen3_next").layers[0].nodes if n.target == "aten.rsqrt.default"} == {
        "Qwen3NextRMSNormGated"
    }


def test_a_sparse_indexer_chooses_keys(tmp_path: Path) -> None:
    captured = of_config(
        tmp_path,
        model_type="deepseek_v32",
        num_hidden_layers=4,
        n_routed_experts=8,
        n_group=2,
        topk_group=1,
        num_experts_per_tok=2,
    )
    assert captured.sequence == (0, 0, 0, 1)
    for layer in captured.layers:
        made = {value.name: node for node in layer.nodes for value in node.outputs}
        attention = next(n for n in layer.nodes if n.target == "rdutune.attention.default")
        indices = attention.args[10]
        assert isinstance(indices, Ref)
        while made[indices.name].target == "aten._to_copy.default":
            indices = made[indices.name].args[0]
        assert (made[indices.name].target, made[indices.name].module) == ("aten.topk.default", "self_attn.indexer")


def test_experts_outside_the_registry(tmp_path: Path) -> None:
    sizes = {
        "ffn_config": {"ffn_hidden_size": 128, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 256},
        "attn_config": {"kv_n_heads": 2, "rope_theta": 5e5, "clip_qkv": 8},
    }
    captured = of_config(tmp_path, model_type="dbrx", d_model=256, n_heads=4, n_layers=2, vocab_size=64, **sizes)
    assert [call.args[8:] for call in calls(captured, "experts")] == [("SiLUActivation", "", True, False, False)]
    assert captured.params == owned(captured)
