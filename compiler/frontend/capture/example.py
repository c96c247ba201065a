"""Example inputs of a transformers model: fake tensors of one sequence, one image or one sound."""

import inspect
from typing import Any

from compiler.errors import InputError


def example(opened: Any, source: int, target: int, whole: bool = True) -> dict[str, Any]:
    """The arguments of the forward of `opened`: `target` tokens; `source` tokens for the encoder before a decoder.

    Images and sounds have the size that the configuration says. whole: layers that only read caches see all tokens too
    (a class asked for the last logits alone drops the others before them). InputError for a model that takes none.
    """
    import torch

    takes = inspect.signature(opened.module.forward).parameters
    config = opened.config
    both = bool(getattr(config, "is_encoder_decoder", False)) and "decoder_input_ids" in takes
    if "input_ids" in takes:
        given = {"input_ids": torch.zeros(1, source if both else target, dtype=torch.long)}
    elif "pixel_values" in takes and config is not None:
        size = config.image_size if isinstance(config.image_size, (list, tuple)) else [config.image_size] * 2
        given = {"pixel_values": torch.zeros(1, config.num_channels, *size, dtype=torch.bfloat16)}
    elif "input_features" in takes and hasattr(config, "num_mel_bins"):
        given = {"input_features": torch.zeros(1, config.num_mel_bins, _frames(opened.module), dtype=torch.bfloat16)}
    else:
        right = "return (module, example_inputs) from the Python function"
        names = ", ".join(takes)
        raise InputError(opened.name, f"takes neither input_ids, pixel_values nor input_features: {names}", right)
    if both:
        given["decoder_input_ids"] = torch.zeros(1, target, dtype=torch.long)
    choices: dict[str, Any] = {"use_cache": False}
    if not (whole and getattr(config, "num_kv_shared_layers", None)):
        choices["logits_to_keep"] = 1
    return given | {key: value for key, value in choices.items() if key in takes}


def _frames(module: Any) -> int:
    """Frames of a sound: as many as the convolutions in front turn into all positions of the encoder."""
    import torch

    frames = int(module.config.max_source_positions)
    for part in module.modules():
        if isinstance(part, torch.nn.Conv1d):
            frames *= part.stride[0]
    return frames
