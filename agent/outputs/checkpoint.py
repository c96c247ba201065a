"""The weights of a class as its checkpoint has them, and each weight of a graph out of that."""

from dataclasses import dataclass
from math import prod
from tempfile import TemporaryDirectory
from typing import Any

from compiler.frontend.capture.failure import quiet
from compiler.ir.graph import Graph, Tensor
from simulator.functional.named import Named
from simulator.functional.numbers import Unmeant

#: How a checkpoint tensor that holds several weights (or one with its axes in another order) lies: the dimensions that
#: come before the parts, and those behind them. The parts lie between, in the order of the graph's ops.
LAYOUT: dict[tuple[str, str], tuple[str, str]] = {
    ("mamba2", "in_proj.weight"): ("", "hidden"),
    ("mamba2", "in_proj.bias"): ("", ""),
    ("mamba2", "conv1d.weight"): ("", "kernel"),
    ("mamba2", "conv1d.bias"): ("", ""),
    ("phi3", "qkv_proj.weight"): ("", "hidden"),
    ("phi3", "gate_up_proj.weight"): ("", "hidden"),
    ("glm", "gate_up_proj.weight"): ("", "hidden"),
    ("glm4", "gate_up_proj.weight"): ("", "hidden"),
    ("qwen3_next", "in_proj_qkvz.weight"): ("groups", "hidden"),
    ("qwen3_next", "in_proj_ba.weight"): ("groups", "hidden"),
    ("qwen3_next", "conv1d.weight"): ("", "kernel"),
    ("qwen3_next", "q_proj.weight"): ("kv_heads q_group", "hidden"),
    ("gpt_oss", "experts.gate_up_proj"): ("experts hidden ffn", ""),
    ("gpt_oss", "experts.gate_up_proj_bias"): ("experts ffn", ""),
    ("gpt_oss", "experts.down_proj"): ("experts ffn hidden", ""),
}


def published(module: Any) -> dict[str, Any]:
    """The tensors of `module` under the names of published checkpoints, as transformers itself writes them."""
    from pathlib import Path

    from safetensors.torch import load_file
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    with TemporaryDirectory() as folder, quiet():
        module.save_pretrained(folder)
        out: dict[str, Any] = {}
        for path in sorted(Path(folder).glob("*.safetensors")):
            out |= load_file(path)
    if shown:
        logging.enable_progress_bar()
    return out


@dataclass(frozen=True)
class Weights:
    """Weights of a graph by layer, block kind and name."""

    graph: Graph
    tensors: dict[str, Any]

    def weight(self, layer: int, block: str, name: str) -> Named:
        """The whole weight. KeyError if the block has none of that name; Unmeant if the checkpoint has it otherwise."""
        source = self.graph.block[block]
        tensor = source.tensor[name]
        key = tensor.key.replace("{layer}", str(layer))
        sharing = [t for t in source.weights if t.key == tensor.key]
        layout = next(
            (v for (kind, end), v in LAYOUT.items() if kind == self.graph.model_type and key.endswith(end)), None
        )
        dims = tuple(d.name for d in tensor.dims)
        if layout is not None:
            return self._part(self._stored(key), tensor, sharing, layout)
        if len(sharing) > 1:
            raise Unmeant(f"how {key} holds {len(sharing)} weights is not written down")
        if "{expert}" in key:
            rows = [self._stored(key.replace("{expert}", str(e))) for e in range(tensor.dims[0].size)]
            import torch

            return Named(dims, torch.stack(rows).reshape([d.size for d in tensor.dims]))
        stored = self._stored(key)
        if stored.numel() != tensor.elements:
            raise Unmeant(f"{key} has {stored.numel()} elements, {name} {tensor.elements}")
        return Named(dims, stored.reshape([d.size for d in tensor.dims]))

    def _stored(self, key: str) -> Any:
        if key not in self.tensors:
            raise Unmeant(f"the checkpoint of the class has no {key}")
        return self.tensors[key]

    @staticmethod
    def _part(stored: Any, tensor: Tensor, sharing: list[Tensor], layout: tuple[str, str]) -> Named:
        lead, tail = (words.split() for words in layout)
        size = {d.name: d.size for t in sharing for d in t.dims}

        def between(t: Tensor) -> list[Any]:
            return [d for d in t.dims if d.name not in (*lead, *tail)]

        rows = [prod(d.size for d in between(t)) for t in sharing]
        at = [t.name for t in sharing].index(tensor.name)
        flat = stored.reshape(*(size[d] for d in lead), sum(rows), *(size[d] for d in tail))
        part = flat.narrow(len(lead), sum(rows[:at]), rows[at])
        mine = between(tensor)
        value = Named(
            (*lead, *(d.name for d in mine), *tail),
            part.reshape(*(size[d] for d in lead), *(d.size for d in mine), *(size[d] for d in tail)),
        )
        order = tuple(d.name for d in tensor.dims)
        return Named(order, value.over(order))
