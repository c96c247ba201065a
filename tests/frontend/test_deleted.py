"""One key less, or null: the parameters stay, or are those of the class, or the error names the key."""

import copy
from typing import Any

import pytest
from huggingface_hub.errors import StrictDataclassError

from compiler.errors import InputError
from compiler.frontend.families import FAMILIES
from tests.frontend.conftest import MODELS
from tests.frontend.oracle import parameters
from tests.frontend.small import SMALL

pytest.importorskip("torch")
pytest.importorskip("transformers")

NAMES = sorted(path.parent.name for path in MODELS.glob("*/config.json")) if MODELS.is_dir() else ["no models"]
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers")
#: What has an entry a layer.
_LISTS = ("layer_types", "block_configs", "hybrid_override_pattern", "compress_ratios", "moe_layer_freq")
#: Nested objects whose keys are tried one by one too.
_NESTED = ("attn_config", "ffn_config")


def shortened(config: dict[str, Any]) -> dict[str, Any]:
    """The language part of a config, with five layers: the classes take long for all of them."""
    config = copy.deepcopy(config.get("text_config", config))
    config.update({k: 5 for k in _LAYERS if k in config})
    for name in _LISTS:
        if isinstance(config.get(name), list | str):
            config[name] = config[name][:5]
    if "compress_ratios" in config:  # one entry more is the MTP module's
        config["num_nextn_predict_layers"] = 0
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
    family = FAMILIES[config["model_type"]]
    if not family.config_class:  # a type without a class: that of its architecture
        same = [name for name, f in FAMILIES.items() if f.architecture == family.architecture and f.config_class]
        if not same:
            return None
        config = config | {"model_type": same[0]}
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
