"""The front door: MODEL -> ModelSpec -> Graph."""

from compiler.frontend.build import build
from compiler.frontend.families import FAMILIES, load_model
from compiler.frontend.spec import Fact, ModelSpec, Status, inspect_facts, model_summary

__all__ = ["FAMILIES", "Fact", "ModelSpec", "Status", "build", "inspect_facts", "load_model", "model_summary"]
