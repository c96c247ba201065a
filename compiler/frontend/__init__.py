"""The front door: MODEL -> Model -> Graph."""

from compiler.frontend.build import build
from compiler.frontend.door import Frontend, Model, inspect_facts, model_summary, open_door
from compiler.frontend.families import FAMILIES, load_model
from compiler.frontend.spec import Fact, ModelSpec, Status

__all__ = [
    "FAMILIES",
    "Fact",
    "Frontend",
    "Model",
    "ModelSpec",
    "Status",
    "build",
    "inspect_facts",
    "load_model",
    "model_summary",
    "open_door",
]
