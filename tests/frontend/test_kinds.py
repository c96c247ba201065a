"""Structures that several model types share, each in a module of a few lines: what the capture makes of them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from compiler.errors import InputError
from compiler.frontend.capture.ir import Captured
from compiler.frontend.capture.source import open_module
from compiler.frontend.capture.trace import capture
from compiler.frontend.door import open_door
from compiler.frontend.oracle import Level, checks
from compiler.frontend.read import in_transformers
from compiler.ir.graph import Block, Graph, Pattern, Phase, Role, Workload

FILE = """
import torch
from torch import nn
from torch.nn import functional as F

class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.out = nn.Linear(48, 32), nn.Linear(48, 32), nn.Linear(32, 48)
    def forward(self, x):
        return x + self.out(self.mix(self.a(x), self.b(x)))

class Stacked(Part):  # h = sigmoid(a) h + b
    def mix(self, a, b):
        h, rows = torch.zeros_like(a[:, 0]), []
        for t in range(a.shape[1]):
            h = torch.sigmoid(a[:, t]) * h + b[:, t]
            rows.append(h)
        return torch.stack(rows, 1)

class Filled(Part):  # two states, the result in a tensor that is there
    def mix(self, a, b):
        n, d, out = torch.zeros_like(a[:, 0]), torch.zeros_like(a[:, 0]), torch.zeros_like(a)
        for t in range(a.shape[1]):
            n, d = n + a[:, t] * b[:, t], d + b[:, t]
            out[:, t] = n / d
        return out

class Ahead(Part):  # the loop reads the token after
    def mix(self, a, b):
        h, rows = torch.zeros_like(a[:, 0]), []
        for t in range(a.shape[1]):
            h = h + b[:, min(t + 1, a.shape[1] - 1)]
            rows.append(h)
        return torch.stack(rows, 1)

class Shifted(Part):
    def mix(self, a, b):
        return a * F.pad(b, (0, 0, 1, -1))

class Delayed(Part):
    def mix(self, a, b):
        return a * torch.cat([torch.zeros_like(b[:, :1]), b[:, :-1]], 1)

class Grouped(Part):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(32, 64, 3, groups=4, padding=2)
    def mix(self, a, b):
        gate, up = self.conv(a.mT)[..., :a.shape[1]].mT.chunk(2, -1)
        return gate.relu() * up * b

class Model(nn.Module):
    def __init__(self, parts):
        super().__init__()
        self.embed, self.head, self.layers = nn.Embedding(100, 48), nn.Linear(48, 100), nn.ModuleList(parts)
    def forward(self, input_ids):
        x = self.embed(input_ids)
        for number, layer in enumerate(self.layers):
            x = self.between(layer(x), number)
        return self.head(x)
    def between(self, x, number):
        return x

class Halved(Model):
    def between(self, x, number):
        return x / 2 if number == 1 else x

class Scaled(Part):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale
    def mix(self, a, b):
        return a * b * self.scale

def stacked(): return Model([Stacked(), Stacked()])
def filled(): return Model([Filled(), Filled()])
def ahead(): return Model([Ahead(), Ahead()])
def shifted(): return Model([Shifted(), Shifted()])
def delayed(): return Model([Delayed(), Delayed()])
def grouped(): return Model([Grouped(), Grouped()])
def halved(): return Halved([Shifted() for _ in range(4)])
def scaled(): return Model([Scaled(1 / (n + 2)) for n in range(3)])
"""

PREFILL, DECODE = (Workload(phase, 2, 24, 1, "bf16") for phase in (Phase.PREFILL, Phase.DECODE))


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Workload], Graph]:
    file = tmp_path_factory.mktemp("kinds") / "kinds.py"
    file.write_text(FILE)
    made: dict[str, Captured] = {}

    def find(name: str, workload: Workload) -> Graph:
        from compiler.frontend.capture.lower import lower

        if name not in made:
            made[name] = capture(f"{file}:{name}")
        return lower(made[name], workload)

    return find


Find = Callable[[str, Workload], Graph]


def _layer(graph: Graph) -> Block:
    return graph.block[graph.sequence[1]]


@pytest.mark.parametrize(("name", "states", "flops"), [("stacked", 1, 8 + 1 + 1), ("filled", 2, 1 + 1 + 1 + 1)])
def test_a_loop_over_the_tokens_is_one_scan(graph: Find, name: str, states: int, flops: int) -> None:
    """FLOPs an element: an activation 8, every product, sum and quotient 1."""
    for workload in (PREFILL, DECODE):
        block = _layer(graph(name, workload))
        [scan] = [op for op in block.ops if op.pattern is Pattern.SCAN]
        assert (scan.flops_per_point, scan.sequential) == (flops, ("tokens",))
        assert scan.points == workload.tokens * 32
        kept = [t for t in block.stored if t.role is Role.STATE]
        assert [t.elements for t in kept] == [2 * 32] * states


def test_a_loop_that_reads_tokens_by_place_is_refused(graph: Find) -> None:
    with pytest.raises(InputError, match=r"reads one token by its place") as raised:
        graph("ahead", PREFILL)
    assert "kinds.py:" in str(raised.value)


def test_a_shift_keeps_the_token_before(graph: Find) -> None:
    block = _layer(graph("shifted", DECODE))
    assert [(t.name.endswith("_state"), t.elements) for t in block.stored] == [(True, 2 * 32)]
    assert [op.flops for op in block.ops if op.pattern is Pattern.GATHER] == [0]
    with pytest.raises(InputError, match=r"puts tokens of other places beside each other"):
        graph("delayed", DECODE)


def test_a_convolution_over_groups_contracts_its_group(graph: Find) -> None:
    """Each of 64 outputs reads 32 / 4 channels of 3 tokens."""
    [conv] = [op for op in _layer(graph("grouped", PREFILL)).ops if "kernel" in op.reduced]
    assert conv.flops == 2 * PREFILL.tokens * 64 * (32 // 4) * 3


def test_work_between_two_layers_belongs_to_the_one_before(graph: Find) -> None:
    found = graph("halved", PREFILL)
    first, second, third, fourth = found.sequence[1:5]
    assert first == third == fourth != second
    plain, halved = (found.block[kind] for kind in (first, second))
    assert halved.ops[-1].outputs == ("y",) and len(halved.ops) == len(plain.ops) + 1
    assert halved.ops[-1].flops == PREFILL.tokens * 48


def test_layers_that_differ_in_a_number_are_one_kind(graph: Find) -> None:
    assert len(set(graph("scaled", PREFILL).sequence[1:4])) == 1


_CORE = {"hidden_size": 48, "num_hidden_layers": 4, "vocab_size": 101, "num_attention_heads": 4}
CONFIGS: dict[str, dict[str, Any]] = {
    "rwkv": {**_CORE, "num_hidden_layers": 2, "attention_hidden_size": 32, "intermediate_size": 80},
    "recurrent_gemma": {**_CORE, "num_key_value_heads": 1, "lru_width": 64, "intermediate_size": 160, "head_dim": 12},
    "xglm": {"d_model": 48, "num_layers": 2, "attention_heads": 4, "ffn_dim": 80, "vocab_size": 101},
}


#: Elements of what a layer keeps of two sequences of 24 tokens. rwkv, as its class: the token before of both parts,
#: numerator, denominator and maximum; recurrent_gemma: 3 rows of a convolution and the state; xglm: keys and values.
STORED = {"rwkv": [2 * 48] * 2 + [2 * 32] * 3, "recurrent_gemma": [2 * 64 * 3, 2 * 64], "xglm": [2 * 24 * 48] * 2}


@pytest.mark.parametrize("model_type", CONFIGS)
def test_a_small_instance_is_its_class(model_type: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type, **CONFIGS[model_type]}))
    model = open_door(str(tmp_path))
    stored = [t.elements for t in _layer(model.graph(DECODE)).stored]
    assert sorted(stored) == sorted(STORED[model_type])
    for check in checks(model.graph, str(tmp_path), (Level.PARAMS, Level.FLOPS)):
        assert check.equal, check


def test_a_whole_model_is_built_again_in_the_same_process(tmp_path: Path) -> None:
    """hy_v4 moves parts of itself to another type, which fake tensors allow only once."""
    small = {**_CORE, "num_hidden_layers": 2, "intermediate_size": 64, "pad_token_id": 0}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "hy_v4", **small}))
    names = [type(open_module(str(tmp_path)).module).__name__ for _ in range(2)]
    assert names == ["HYV4ForCausalLM"] * 2


def test_types_with_a_hyphen_are_types() -> None:
    assert in_transformers("bert-generation") and not in_transformers("bert-generations")
