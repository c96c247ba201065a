"""Onboardings of small models made by the real pipeline, without a store: for the tests of what people see."""

import json
from pathlib import Path
from typing import Any

from agent.evaluate import evaluate
from agent.evaluator import Evaluator
from agent.presets import PRESETS, preset
from agent.search import search
from agent.settings import Settings
from agent.trial import Onboarding, Start, Trial
from agent.workload import graph_for
from simulator.bound import bound_of

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 2048,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}


def write_config(folder: Path, name: str = "tiny", **changes: Any) -> Path:
    """A folder called `name` with the config of a small llama."""
    model = folder / name
    model.mkdir(parents=True, exist_ok=True)
    (model / "config.json").write_text(json.dumps(LLAMA | changes), encoding="utf-8")
    return model


def make_onboarding(model: Path | str, **values: Any) -> Onboarding:
    """What `onboard` gives, by presets and search alone."""
    settings = Settings(**({"model": str(model), "evals": 40} | values))
    spec, graph, target = graph_for(settings)
    evaluator = Evaluator(graph, target, settings.evals)
    starts = [(name, preset(name, graph, target)) for name in PRESETS]
    search(evaluator, starts, settings.seed)
    trials = tuple(evaluator.trials)
    presets = tuple((name, _trial(trials, i, starts[i])) for i, name in enumerate(PRESETS))
    best = evaluator.best
    assert best is not None
    return Onboarding(
        settings, "run-0123", spec, graph, target, bound_of(graph, target), presets, best, trials,
        Start("none", "nothing is stored yet"), evaluator.counts, 1.25,
    )  # fmt: skip


def _trial(trials: tuple[Trial, ...], index: int, start: tuple[str, Any]) -> Trial:
    found = next((t for t in trials if t.schedule.id == start[1].id), None)
    assert found is not None, f"{start[0]} ({index}) was not evaluated"
    return found


__all__ = ["LLAMA", "evaluate", "make_onboarding", "write_config"]
