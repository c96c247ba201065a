"""One key less, or null: the parameters stay, or are those of the class, or the error names the key."""

import copy
from typing import Any

import pytest
from huggingface_hub.errors import StrictDataclassError

from compiler.errors import InputError
from compiler.frontend.families import FAMILIES
from tests.frontend.oracle import parameters
from tests.frontend.small import SMALL

pytest.importorskip("torch")
pytest.importorskip("transformers")

NAMES = [
    "BLOOM-176B",
    "DBRX-132B",
    "Falcon-40B",
    "GLM-4.5",
    "GPT2-large-layout",
    "Gemma-2-9b",
    "Gemma-3-27b-it",
    "Llama-4-Scout-17B-16E-Instruct",
    "Llama-3_3-Nemotron-Super-49B-v1",
    "MiniMax-M2.5",
    "Phi-3.5-MoE-instruct",
]
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers")
#: Nested objects whose keys are tried one by one too.
_NESTED = ("attn_config", "ffn_config")


def shortened(config: dict[str, Any]) -> dict[str, Any]:
    """The language part of a config, with five layers: the classes take long for all of them."""
    config = copy.deepcopy(config.get("text_config", config))
    config.update({k: 5 for k in _LAYERS if k in config})
    for name in ("layer_types", "block_configs"):
        if name in config:
            config[name] = config[name][:5]
    return config


def edits(config: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """(key, config without it or with null in its place), for every key but the type."""
    out = []
    for key in [k for k in config if k not in ("model_type", "quantization_config")]:
        out += [(key, {k: v for k, v in config.items() if k != key}), (key, config | {key: None})]
        for inner in config[key] if key in _NESTED else ():
            rest = {k: v for k, v in config[key].items() if k != inner}
            out += [(inner, config | {key: rest}), (inner, config | {key: rest | {inner: None}})]
    return out


def by_class(config: dict[str, Any]) -> int | None:
    """The parameters the class has, None where there is none of that type or it refuses the config itself.

    The classes refuse most nulls; here null is absent.
    """
    if not FAMILIES[config["model_type"]].config_class:
        return None
    try:
        return parameters(config)
    except (StrictDataclassError, TypeError, ValueError, AttributeError, KeyError) as error:
        assert str(error)
        return None


@pytest.mark.parametrize("name", NAMES)
def test_a_key_deleted_or_null(published, spec_of, name):
    check(spec_of, shortened(published(name)))


@pytest.mark.parametrize("name", SMALL)
def test_a_key_of_a_small_config_deleted_or_null(spec_of, name):
    check(spec_of, SMALL[name])


def check(spec_of, config):
    whole = spec_of(config).params
    for key, changed in edits(config):
        try:
            params = spec_of(changed).params
        except InputError as error:
            assert key in str(error), (key, str(error))
            continue
        if params != whole:
            absent = {k: v for k, v in changed.items() if v is not None}
            assert params == (by_class(changed) or by_class(absent)), key
