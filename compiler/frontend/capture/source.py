"""Get the PyTorch module that MODEL names, at full size and without memory: its tensors are fake.

Promises: never the network, never code named by a config (`auto_map`). A Python file is run only when it is MODEL.
"""

import json
import os
from copy import deepcopy
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from compiler.errors import InputError, nearest
from compiler.frontend.alias import NESTED
from compiler.frontend.capture.failure import FAILURES, quiet, reason
from compiler.frontend.capture.place import find_place
from compiler.frontend.python_file import Run, run_function
from compiler.frontend.read import read_object

#: Keys of a config that say nothing about the module, or that would make transformers load something.
DROPPED = (
    "model_type",
    "architectures",
    "auto_map",
    "quantization_config",
    "compression_config",
    "torch_dtype",
    "dtype",
)


@dataclass(frozen=True, slots=True)
class Opened:
    """A module ready to be traced. mode: the fake mode its tensors belong to; inputs: example inputs, or None.

    config: the transformers configuration, None for a module of a Python file.
    """

    name: str
    model_type: str
    module: Any
    mode: Any
    config: Any = None
    inputs: tuple[Any, ...] | None = None


def open_module(model: str) -> Opened:
    """The module MODEL names (see `place`). InputError for what cannot be opened."""
    place = find_place(model)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if place.kind == "python":
        return returned(model, run_function(place.path, place.function))
    model_type, values = ("", {}) if place.kind == "type" else _read(place.path)
    with quiet():
        config = configuration(place.name, model_type or place.model_type, values)
        return build(place.name, config)


def _read(path: Path) -> tuple[str, dict[str, Any]]:
    """Model type and values of a config.json; of a wrapper around a language model, those of the language model."""
    outer: dict[str, Any] = read_object(path)
    values = next((outer[key] for key in NESTED if isinstance(outer.get(key), dict)), outer)
    known = _mapping()
    named = values.get("model_type") or outer.get("model_type")
    if isinstance(named, str) and named in known:
        return named, values
    classes = outer.get("architectures")
    for architecture in classes if isinstance(classes, list) else []:
        same = [name for name, class_name in _causal_names().items() if class_name == architecture and name in known]
        # several types share a class; the one it is called after comes first
        for model_type in sorted(same, key=lambda name: (not _called(architecture, name), name)):
            return model_type, values
    raise _unknown(f"{path}: model_type", str(named))


def _called(architecture: str, model_type: str) -> bool:
    return architecture.lower().startswith(model_type.replace("_", ""))


def configuration(where: str, model_type: str, values: dict[str, Any]) -> Any:
    """The transformers configuration of a type, with `values` over its class defaults; the language part of it."""
    from huggingface_hub.errors import StrictDataclassError

    known = _mapping()
    if model_type not in known:
        raise _unknown(where, model_type)
    kept = {key: value for key, value in values.items() if key not in DROPPED}
    try:
        config = known[model_type](**kept)
    except (*FAILURES, StrictDataclassError) as error:
        raise InputError(where, f"{model_type} does not accept this configuration: {reason(error)}") from error
    from transformers import AutoModelForCausalLM

    for key in NESTED:
        inner = getattr(config, key, None)
        if inner is not None and type(inner) in AutoModelForCausalLM._model_mapping:
            return inner
    return config


def build(name: str, config: Any) -> Opened:
    """The module of a configuration, in bf16, in evaluation mode, with fake tensors."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from compiler.frontend.capture.patches import PLAIN, registered

    registered()
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    errors = []
    # every way to build the whole model comes before any way to build it without its head
    for auto, attention, how in product(_classes(config), (PLAIN, None), (_built_fake, _built_meta)):
        try:
            module = how(auto, config, attention, mode)
        except FAILURES as error:
            errors.append(reason(error))
            continue
        module.eval()
        _prepare(module, PLAIN)
        return Opened(name, config.model_type, module, mode, config)
    right = "its configuration class may need values that its defaults do not have; give a config.json"
    raise InputError(name, f"cannot be built: {errors[0] if errors else 'no model class for its type'}", right)


def _classes(config: Any) -> list[Any]:
    """The auto classes that have a model for this configuration, the whole model with a language head first.

    A type that is an encoder, or has one, is not made a decoder because it can be used as one.
    """
    import transformers

    names = ["CausalLM", "MaskedLM", "Seq2SeqLM", "SpeechSeq2Seq", "ImageClassification", ""]
    if getattr(config, "is_encoder_decoder", False):
        names = ["Seq2SeqLM", "SpeechSeq2Seq", ""]
    elif getattr(config, "is_decoder", None) is False:
        names.remove("CausalLM")
        names.insert(1, "CausalLM")
    autos = [getattr(transformers, f"AutoModelFor{n}" if n else "AutoModel") for n in names]
    return [auto for auto in autos if type(config) in auto._model_mapping]


def _built_fake(auto: Any, config: Any, attention: str | None, mode: Any) -> Any:
    with mode:
        return _from_config(auto, config, attention)


def _built_meta(auto: Any, config: Any, attention: str | None, mode: Any) -> Any:
    import torch

    with torch.device("meta"):
        module = _from_config(auto, config, attention)
    with mode:
        module.to_empty(device="cpu")
        module.tie_weights()
    return module


def _from_config(auto: Any, config: Any, attention: str | None) -> Any:
    import torch

    more = {} if attention is None else {"attn_implementation": attention}
    config = deepcopy(config)
    config.architectures = config.architectures or []  # of a type with several classes (deit) the first is taken
    # a class that refuses an attention implementation leaves its name in the configuration
    return auto.from_config(config, dtype=torch.bfloat16, trust_remote_code=False, **more)


def _prepare(module: Any, experts: str) -> None:
    """Routed experts become one operator, and no cache object is made (some classes ask only the configuration).

    A class that writes its attention out is told by the mask alone which keys a token reads, so it makes one.
    """
    from compiler.frontend.capture.patches import use_masks, writes_attention

    if writes_attention(module):
        use_masks(module)
    for part in module.modules():
        config = getattr(part, "config", None)
        if config is not None and hasattr(config, "_experts_implementation"):
            config._experts_implementation = experts
        if config is not None and hasattr(config, "use_cache"):
            config.use_cache = False


def returned(model: str, run: Run) -> Opened:
    """What a function returned: a torch.nn.Module, or (module, example inputs)."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from compiler.frontend.capture.patches import registered

    made = run.made
    module, inputs = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(module, torch.nn.Module) or isinstance(module, torch.jit.ScriptModule):
        right = "return a torch.nn.Module or (module, example_inputs)"
        raise InputError(model, f"returned {type(module).__name__}, not a torch.nn.Module of Python code", right)
    registered()
    module.eval()
    mode = run.mode or FakeTensorMode(allow_non_fake_inputs=True)
    given = tuple(inputs) if isinstance(inputs, list | tuple) else None if inputs is None else (inputs,)
    config = getattr(module, "config", None)
    return Opened(find_place(model).name, type(module).__name__, module, mode, config, given)


def _mapping() -> Any:
    from transformers import CONFIG_MAPPING

    return CONFIG_MAPPING


def _causal_names() -> dict[str, str]:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return dict(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def _unknown(where: str, model_type: str) -> InputError:
    hint = nearest(model_type, tuple(_mapping().keys()))
    right = f"{hint} (code named by auto_map is never run)" if hint else "code named by auto_map is never run"
    return InputError(where, f"transformers has no model_type {json.dumps(model_type)}", right)
