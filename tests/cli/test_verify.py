"""`rdutune verify` and `--frontend`: rows, exit codes, and that both doors tell the same."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from onboardings import write_config

pytest.importorskip("torch")
pytest.importorskip("transformers")
Run = Callable[..., Any]
NOVEL = Path(__file__).parents[1] / "frontend/novel_module.py"


def test_both_doors_equal_the_class(rdutune: Run, tiny: Path) -> None:
    for frontend in ("spec", "capture"):
        ended = rdutune("verify", tiny, "--frontend", frontend, "--json")
        assert ended.code == 0, ended.err
        [row] = ended.json
        assert (row["model"], row["frontend"], row["refused"]) == ("tiny", frontend, "")
        levels = ["params", "flops", "cache", *(["outputs"] if frontend == "spec" else [])]
        assert [(c["level"], c["equal"]) for c in row["checks"]] == [(level, True) for level in levels]


def test_a_difference_is_named_by_layer_and_fails(
    rdutune: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A description with one layer less than the class."""
    from compiler.frontend import door, oracle

    model = write_config(tmp_path, "short")
    shorter = write_config(tmp_path, "shorter", num_hidden_layers=3)
    monkeypatch.setattr("agent.verification.open_door", lambda *a: door.open_door(str(shorter)))
    ended = rdutune("verify", model, "--level", "params")
    assert ended.code == 1 and "layer 3: 0 here" in " ".join(ended.out.split())
    assert oracle.Check(oracle.Level.PARAMS, 1, 2).equal is False


def test_of_several_models_one_that_cannot_be_read_is_a_row(rdutune: Run, tiny: Path) -> None:
    ended = rdutune("verify", tiny, "no_such_type", "--level", "params", "--json")
    assert ended.code == 1
    assert [bool(row["refused"]) for row in ended.json] == [False, True]
    assert rdutune("verify", "no_such_type").code == 2
    assert (
        "2 models: 1 equal to their class, 0 different, 1 not compared"
        in rdutune("verify", tiny, "no_such_type", "--level", "params").out
    )


def test_a_model_that_transformers_has_no_class_for_is_no_difference(rdutune: Run, tiny: Path, tmp_path: Path) -> None:
    config = json.loads((tiny / "config.json").read_text(encoding="utf-8"))
    names = ("hidden_size", "num_attention_heads", "num_hidden_layers", "vocab_size")
    block = {"attention": {"n_heads_in_group": 2, "no_op": False}, "ffn": {"ffn_mult": 2.0, "no_op": False}}
    deci = {"model_type": "nemotron-nas", "architectures": ["DeciLMForCausalLM"], "tie_word_embeddings": False}
    deci |= {name: config[name] for name in names} | {"block_configs": [block] * config["num_hidden_layers"]}
    (tmp_path / "config.json").write_text(json.dumps(deci), encoding="utf-8")
    ended = rdutune("verify", tiny, tmp_path, "--level", "params")
    assert ended.code == 0, ended.out
    assert "no class: " in ended.out and 'transformers has no model_type "nemotron-nas"' in " ".join(ended.out.split())
    assert "2 models: 1 equal to their class, 0 different, 0 not compared, 1 without a class" in ended.out


def test_a_module_of_a_python_file_is_onboarded(rdutune: Run) -> None:
    ended = rdutune(
        "onboard", f"{NOVEL}:make", "--evals", 20, "--sockets", 2, "--phase", "prefill", "--context", 64, "--json"
    )
    assert ended.code == 0, ended.err
    said = ended.json
    assert said["model"]["frontend"] == "capture" and said["gap"] >= 1
    assert said["best"]["report"]["latency_s"] <= said["presets"]["o3"]["latency_s"]
    again = rdutune("inspect", f"{NOVEL}:make", "--json").json
    assert again["model"]["params"] == said["model"]["params"]


MODULE = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.gate = nn.RMSNorm(64), nn.Linear(64, 96)
        self.up, self.down = nn.Linear(64, 96), nn.Linear(96, 64)

    def forward(self, x):
        y = self.norm(x)
        return x + self.down(torch.relu(self.gate(y)) * self.up(y))

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.layers = nn.Embedding(100, 64), nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(64, 100)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)

def make():
    return Model(), (torch.zeros(2, 8, dtype=torch.long),)
"""


def test_a_module_of_a_python_file(rdutune: Run, tmp_path: Path) -> None:
    """Whatever its argument is called, and however many tokens its example has."""
    (tmp_path / "mine.py").write_text(MODULE)
    ended = rdutune("verify", f"{tmp_path / 'mine.py'}:make", "--json")
    assert ended.code == 0, ended.err
    [row] = ended.json
    assert [(c["level"], c["equal"]) for c in row["checks"]] == [("params", True), ("flops", True)]
    assert rdutune("verify", f"{tmp_path / 'mine.py'}:make", "--level", "cache").code == 2
