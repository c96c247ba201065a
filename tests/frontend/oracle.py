"""The published classes as oracles: models on the meta device, and their parameters under checkpoint names."""

import re
from typing import Any

from compiler.frontend.families import FAMILIES


def causal_model(config: dict[str, Any], device: str = "meta") -> Any:
    """The causal language model the class makes of `config`, without quantisation and remote code."""
    import torch
    import transformers

    config = {key: value for key, value in config.items() if key not in ("quantization_config", "auto_map")}
    model_type = config.pop("model_type")
    with torch.device(device):
        built = transformers.AutoConfig.for_model(model_type, **config)
        options = {"attn_implementation": "eager", "experts_implementation": "eager", "dtype": torch.float32}
        return transformers.AutoModelForCausalLM.from_config(built, **options)


def parameters(config: dict[str, Any]) -> int:
    return sum(p.numel() for p in causal_model(config).parameters())


def class_shapes(config: dict[str, Any]) -> dict[str, int]:
    """Elements of each parameter of the class, by name; what differs by head only is added up."""
    out: dict[str, int] = {}
    for name, p in causal_model(config).named_parameters():
        name = re.sub(r"norms\.\d+\.", "norms.{head}.", name)
        out[name] = out.get(name, 0) + p.numel()
    return out


def graph_shapes(graph: Any, model_type: str) -> dict[str, int]:
    """Elements of each weight of the graph under the names the class loads the checkpoint into."""
    rename = _renaming(model_type)
    out: dict[str, int] = {}
    tied: set[str] = set()
    layer = 0
    for kind in graph.sequence:
        block = graph.block[kind]
        for t in block.weights:
            key = rename(t.key.replace("{layer}", str(layer)).replace("{expert}", "0"))
            if "{layer}" not in t.key:
                if t.key in tied:
                    continue
                tied.add(t.key)
            out[key] = out.get(key, 0) + t.elements
        layer += kind not in ("embed", "head", "sample")
    return out


def _renaming(model_type: str) -> Any:
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping

    names = (model_type, FAMILIES[model_type].architecture)
    transforms = [step for name in names for step in get_checkpoint_conversion_mapping(name) or []]

    def rename(key: str) -> str:
        for transform in transforms:
            key = transform.rename_source_key(key)[0]
        return key

    return rename


def counted_flops(config: dict[str, Any], tokens: int) -> int:
    """FLOPs of the matrix products of a forward pass of one sequence, logits of its last token only."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    torch.manual_seed(0)
    model = causal_model(config, "cpu").eval().requires_grad_(False)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.arange(tokens)[None], logits_to_keep=1, use_cache=False)
    return int(counter.get_total_flops())
