"""Example inputs of a Python function: any number of sequences and tokens, told apart from other sizes."""

from pathlib import Path

import pytest

from compiler.errors import InputError
from compiler.frontend import open_door
from compiler.frontend.oracle import named_elements
from compiler.ir.graph import Graph, Phase, Workload

BLOCK = """
import torch
from torch import nn
from torch.nn import functional

class Block(nn.Module):
    def __init__(self, size, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)
    def forward(self, x, mask=None):
        b, t, h = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, h // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        a = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(a.transpose(1, 2).reshape(b, t, h))

class Model(nn.Module):
    def __init__(self, size=64, heads=8):
        super().__init__()
        self.embed = nn.Embedding(100, size)
        self.layers = nn.ModuleList(Block(size, heads) for _ in range(2))
    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return x

class Sound(Model):
    def __init__(self):
        super().__init__()
        self.embed = nn.Conv1d(20, 64, 3, padding=1)
    def forward(self, x):
        x = self.embed(x).transpose(1, 2)
        for layer in self.layers:
            x = layer(x)
        return x

class Places(Model):
    def __init__(self):
        super().__init__()
        self.places = nn.Parameter(torch.zeros(8, 64))
    def forward(self, ids):
        return super().forward(ids) + self.places

class Image(nn.Module):
    def __init__(self, listed):
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 16, stride=16)
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(2)) if listed else nn.Sequential()
        self.head = nn.Linear(64, 10)
    def forward(self, x):
        x = self.stem(x).flatten(2).transpose(1, 2)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)
"""


def graph(folder: Path, returned: str, phase: Phase = Phase.PREFILL, context: int = 32) -> Graph:
    (folder / "mine.py").write_text(f"{BLOCK}\ndef make():\n    return {returned}\n")
    return open_door(f"{folder / 'mine.py'}:make").graph(Workload(phase, 2, context, 1, "bf16"))


def shape(made: Graph) -> list[object]:
    return [(block.kind, block.ops, block.tensors) for block in made.blocks]


@pytest.mark.parametrize("size", ["1, 13", "1, 1", "1, 8", "8, 8", "2, 64", "13, 8", "1, 100"])
def test_a_graph_does_not_depend_on_the_numbers_of_the_example(tmp_path: Path, size: str) -> None:
    made = graph(tmp_path, f"Model(), (torch.zeros({size}, dtype=torch.long),)")
    assert shape(made) == shape(graph(tmp_path, "Model(), (torch.zeros(1, 13, dtype=torch.long),)"))
    assert made.kv_nbytes == 2 * 2 * 2 * 32 * 64 * 2  # layers, keys and values, batch, context, width, bytes


def test_a_list_of_inputs_is_inputs(tmp_path: Path) -> None:
    assert graph(tmp_path, "Model(), [torch.zeros(1, 8, dtype=torch.long)]").kv_nbytes


@pytest.mark.parametrize("returned", ["Block(64, 8), (torch.zeros(4, 8, 64),)", "Sound(), (torch.zeros(4, 20, 8),)"])
def test_the_axis_of_the_tokens_is_the_one_that_may_change(tmp_path: Path, returned: str) -> None:
    made = graph(tmp_path, returned)
    assert made.kv_nbytes
    assert any(dim.name == "tokens" and dim.size == 64 for block in made.blocks for op in block.ops for dim in op.dims)


def test_a_module_for_one_number_of_tokens_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"runs on 8 tokens, and not on 13: the model \(Places\) at mine.py:43"):
        graph(tmp_path, "Places(), (torch.zeros(1, 8, dtype=torch.long),)")


def test_an_image_fixes_the_tokens(tmp_path: Path) -> None:
    made = graph(tmp_path, "Image(True), (torch.zeros(1, 3, 64, 48),)", context=12)
    layers = [op for block in made.blocks if block.kind not in ("embed", "head") for op in block.ops]
    assert all(op.size("tokens") == 2 * 12 for op in layers)


def test_an_image_without_layers_has_no_tokens(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="takes an image and has no list of layers"):
        graph(tmp_path, "Image(False), (torch.zeros(1, 3, 64, 48),)")


@pytest.mark.parametrize("how", ["half()", "bfloat16()", "to(torch.float64)", "to(dtype=torch.bfloat16).eval()"])
def test_a_module_of_another_type_is_the_same_graph(tmp_path: Path, how: str) -> None:
    made = graph(tmp_path, f"Model().{how}, (torch.zeros(1, 8, dtype=torch.long),)")
    assert shape(made) == shape(graph(tmp_path, "Model(), (torch.zeros(1, 8, dtype=torch.long),)"))


FORWARDS = """
class Own(Exception):
    pass

class Made(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(64, 64)
        self.register_buffer("kept", torch.zeros(64))
    def forward(self, x):
        {}
        return self.line(x)

class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Made() for _ in range(2))
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
"""


@pytest.mark.parametrize("made", ["Made()", "Stack()"])
@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("raise Own('boom')", r"\(Made\) at mine.py:.*Own: boom"),
        ("raise StopIteration", r"\(Made\) at mine.py:.*StopIteration"),
        ("raise SystemExit(3)", r"\(Made\) at mine.py:.*SystemExit: 3"),
        ("1 / 0", r"\(Made\) at mine.py:.*ZeroDivisionError"),
        ("x = x if x.sum() > 0 else x + 1", r"\(Made\) at mine.py:.*ata.*ependent"),
        ("self.kept.mul_(x[0, -1])", r"keeps activations in .*kept \(mine.py:"),
        ("self.kept.copy_(x.sum(1)[0])", r"keeps activations in .*kept \(mine.py:"),
    ],
)
def test_what_a_forward_may_not_do_is_refused_with_its_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], made: str, code: str, words: str
) -> None:
    text = BLOCK + FORWARDS.format(code) + f"\ndef make():\n    return {made}, (torch.zeros(2, 8, 64),)\n"
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(InputError, match=words):
        open_door(f"{tmp_path / 'mine.py'}:make")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("code", ["self.kept += 1", "self.last = x", "x = x * 1"])
@pytest.mark.parametrize("made", ["Made()", "Stack()"])
def test_a_counter_changes_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str], made: str, code: str) -> None:
    text = BLOCK + FORWARDS.format(code) + f"\ndef make():\n    return {made}, (torch.zeros(2, 8, 64),)\n"
    (tmp_path / "mine.py").write_text(text)
    got = open_door(f"{tmp_path / 'mine.py'}:make").graph(Workload(Phase.PREFILL, 2, 32, 1, "bf16"))
    layers = 1 if made == "Made()" else 2
    contracts = [op.flops * got.repeats[b.kind] for b in got.blocks for op in b.ops if op.reduced]
    assert sum(contracts) == layers * 2 * 64 * 64 * 64
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("return None", "returns NoneType, and no tensor"),
        ("return {'a': 1}", "returns dict, and no tensor"),
    ],
)
def test_a_forward_without_a_tensor_is_refused(tmp_path: Path, code: str, words: str) -> None:
    text = BLOCK + FORWARDS.format(code) + "\ndef make():\n    return Made(), (torch.zeros(2, 8, 64),)\n"
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(InputError, match=words):
        open_door(f"{tmp_path / 'mine.py'}:make")


def test_a_dictionary_of_outputs_and_a_script(tmp_path: Path) -> None:
    text = BLOCK + FORWARDS.format("return {'a': self.line(x)}")
    text += "\ndef make():\n    return Made(), (torch.zeros(2, 8, 64),)\n"
    text += "\ndef script():\n    return torch.jit.script(nn.Linear(8, 8)), (torch.zeros(2, 8, 8),)\n"
    (tmp_path / "mine.py").write_text(text)
    assert open_door(f"{tmp_path / 'mine.py'}:make").params == 64 * 65
    with pytest.raises(InputError, match=r"not a torch.nn.Module of Python code"):
        open_door(f"{tmp_path / 'mine.py'}:script")


@pytest.mark.parametrize(("order", "own"), [("a, b, a", 2), ("a, a, a", 1), ("a, b, c, a, b", 3)])
def test_one_module_in_several_places_is_stored_once(tmp_path: Path, order: str, own: int) -> None:
    text = BLOCK + FORWARDS.format("pass")
    text += "\ndef make():\n    model, (a, b, c) = Stack(), (Made(), Made(), Made())\n"
    text += f"    model.layers = nn.ModuleList([{order}])\n    return model, (torch.zeros(2, 8, 64),)\n"
    (tmp_path / "mine.py").write_text(text)
    model = open_door(f"{tmp_path / 'mine.py'}:make")
    got = model.graph(Workload(Phase.PREFILL, 2, 32, 1, "bf16"))
    contracts = [op.flops * got.repeats[b.kind] for b in got.blocks for op in b.ops if op.reduced]
    assert sum(contracts) == len(order.split(",")) * 2 * 64 * 64 * 64
    assert model.params == own * 64 * 65
    assert sum(named_elements(got).values()) == model.params


def test_a_size_that_is_the_number_of_traced_tokens_is_no_fault(tmp_path: Path) -> None:
    """13 queries a key, expanded: heads and tokens have one size."""
    text = """
import torch
from torch import nn

class Made(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.kv, self.o = nn.Linear(64, 208), nn.Linear(64, 16), nn.Linear(208, 64)

    def forward(self, x):
        b, t, _ = x.shape
        q = self.q(x).view(b, t, 26, 8).transpose(1, 2)
        kv = self.kv(x).view(b, t, 2, 8).transpose(1, 2)[:, :, None].expand(b, 2, 13, t, 8).reshape(b, 26, t, 8)
        a = nn.functional.scaled_dot_product_attention(q, kv, kv, is_causal=True)
        return x + self.o(a.transpose(1, 2).reshape(b, t, 208))

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.layers = nn.Embedding(100, 64), nn.ModuleList(Made() for _ in range(2))

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return x

def make():
    return Model(), (torch.zeros(1, 8, dtype=torch.long),)
"""
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(InputError, match="sizes other than 13"):
        open_door(f"{tmp_path / 'mine.py'}:make").graph(Workload(Phase.DECODE, 1, 16, 1))
