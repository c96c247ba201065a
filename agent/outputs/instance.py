"""A small random instance of a model's own structure: the same keys, the same layer kinds, small sizes."""

import json
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from compiler.errors import InputError
from compiler.frontend import load_model
from compiler.frontend.alias import ALIASES, spellings
from compiler.frontend.capture.failure import FAILURES, quiet, reason
from compiler.frontend.capture.source import configuration
from compiler.frontend.families import open_source
from compiler.frontend.python_file import python_place
from compiler.frontend.spec import Fact, ModelSpec, Status

#: Sizes of an instance by the name of the fact; unlike each other, so that no two dimensions are confused.
SIZES = {
    "hidden": 64,
    "ffn_width": 72,
    "expert_width": 40,
    "shared_width": 56,
    "vocab": 136,
    "head_dim": 16,
    "q_lora": 28,
    "kv_lora": 32,
    "nope": 20,
    "rope": 8,
    "v_dim": 12,
    "experts": 8,
    "window": 12,
    "delta_key_dim": 8,
    "delta_value_dim": 12,
    "ssm_state": 12,
    "ssm_groups": 2,
    "ssm_expand": 2,
    "ssm_heads": 8,
    "positions": 512,
}
#: At most so many, where a model has more.
MOST = {"top_k": 3, "expert_groups": 4, "top_groups": 2, "first_dense": 1, "shared_experts": 2}
#: Layer patterns written as a word.
PATTERNS = ("hybrid_override_pattern",)
#: Heads: so many keys, each shared by at most so many queries.
KEY_HEADS, SHARING = 4, 2
#: Seed of the weights; their spread keeps activations near 1 through a few layers.
SEED, SPREAD, WIDE = 0, 0.12, 0.3
#: Rates and steps of a recurrence keep what the class gives them: others would not decay.
RATES = ("A_log", "dt_bias", ".D")
#: The one buffer that is a weight of its checkpoint.
CORRECTION = "e_score_correction_bias"


@dataclass(frozen=True, slots=True)
class Instance:
    """The class with random weights, and its description. `folder` has its config.json."""

    spec: ModelSpec
    module: Any
    values: dict[str, Any]


def instance(model: str) -> Instance:
    """A small instance of MODEL. InputError where its class cannot be built small."""
    import torch
    import transformers

    spec = load_model(model)
    values = small_config(spec, _config(model))
    with TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(values), encoding="utf-8")
        small = load_model(folder)
        with quiet():
            plain = {name: value for name, value in values.items() if name != "quantization_config"}
            config = configuration(spec.name, spec.model_type, plain)
    torch.manual_seed(SEED)
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    try:
        with quiet():
            module = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    except FAILURES as error:
        raise InputError(spec.name, f"its class cannot be built small: {reason(error)}") from error
    module.requires_grad_(False)
    with torch.no_grad():
        for name, p in module.named_parameters():
            if not name.endswith(RATES):
                p.normal_(1.0 if p.dim() == 1 and "norm" in name else 0.0, SPREAD if p.dim() > 1 else WIDE)
        for name, p in module.named_buffers():
            if name.endswith(CORRECTION):
                p.normal_(0.0, WIDE)
    return Instance(small, module, values)


def _config(model: str) -> dict[str, Any]:
    """The values of MODEL's config, its language part; those of the class where MODEL is a `model_type`."""
    if python_place(model) is not None:
        raise InputError(
            model, "outputs are compared for a config, and a Python file has none", "a directory, or a type"
        )
    return deepcopy(dict(open_source(model).values))


def small_config(spec: ModelSpec, values: dict[str, Any]) -> dict[str, Any]:
    """The config of an instance: `values` with small sizes, and layers enough for one of each kind."""
    out = deepcopy(values) | {"model_type": spec.model_type}
    out.pop("quantization_config", None)
    facts = {fact.name: fact for fact in spec.facts if _is_size(fact) and _places(out, fact)}
    layers = _layers(spec)
    for name, size in _sizes(facts).items():
        _set(out, facts[name], size)
    if "kv_lora" in facts:  # classes read these beside the parts that they are made of
        rope, heads = SIZES["rope"], out[_places(out, facts["heads"])[0][1]]
        widths = {"head_dim": rope, "qk_head_dim": SIZES["nope"] + rope, "num_key_value_heads": heads}
        out |= {key: width for key, width in widths.items() if out.get(key) is not None}
    elif "heads" in facts and "head_dim" not in facts:
        out["head_dim"] = SIZES["hidden"] // out[_places(out, facts["heads"])[0][1]]
    if "layers" in facts:
        _set(out, facts["layers"], layers)
    for inner in (out, *(v for v in out.values() if isinstance(v, dict))):
        for key, value in inner.items():
            if (isinstance(value, list) and len(value) == len(spec.layers)) or key in PATTERNS:
                inner[key] = value[:layers]
        for token in ("pad", "bos", "eos"):
            if inner is out or f"{token}_token_id" in inner:
                inner[f"{token}_token_id"] = None
    return out


def _layers(spec: ModelSpec) -> int:
    """The fewest layers from the start that have every kind, two at least."""
    kinds = set(spec.layers)
    for count in range(2, len(spec.layers) + 1):
        if set(spec.layers[:count]) == kinds:
            return count
    return len(spec.layers)


def _sizes(facts: dict[str, Fact]) -> dict[str, int]:
    sizes = {name: size for name, size in SIZES.items() if name in facts}
    sizes |= {name: min(most, int(facts[name].value)) for name, most in MOST.items() if name in facts}  # type: ignore[arg-type]
    for keys, heads in (("kv_heads", "heads"), ("delta_key_heads", "delta_heads")):
        if heads in facts:
            many = int(facts[heads].value)  # type: ignore[arg-type]
            few = int(facts[keys].value) if keys in facts else many  # type: ignore[arg-type]
            own = 1 if few == 1 else KEY_HEADS
            sizes[heads] = own * min(SHARING if few > 1 else 4, many // few)
            if keys in facts:
                sizes[keys] = own
    return sizes


def _is_size(fact: Fact) -> bool:
    number = isinstance(fact.value, int) and not isinstance(fact.value, bool)
    return number and fact.status is Status.READ and fact.key != "model_type" and not fact.note.startswith("ignored")


def _places(values: dict[str, Any], fact: Fact) -> list[tuple[dict[str, Any], str]]:
    """Where a config says a fact, under any spelling: objects and their keys."""
    found = []
    for key in spellings(fact.name) if fact.name in ALIASES else ():
        *path, last = key.split(".")
        place: Any = values
        for step in path:
            place = place.get(step) if isinstance(place, dict) else None
        if isinstance(place, dict) and place.get(last) is not None:
            found.append((place, last))
    return found


def _set(values: dict[str, Any], fact: Fact, size: int) -> None:
    for place, key in _places(values, fact):
        place[key] = size
