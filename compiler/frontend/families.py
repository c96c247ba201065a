"""The supported families: what each reads from a config, and the way from MODEL to a ModelSpec.

One row a `model_type` (rows.py, moe_rows.py, hybrid_rows.py, relative_rows.py). A row says which facts the published
code of the family reads and which rules it has for absent keys.
"""

from dataclasses import replace
from pathlib import Path
from typing import Final

from compiler.errors import InputError
from compiler.frontend.alias import structural_keys
from compiler.frontend.compared import with_stored
from compiler.frontend.encoder_relatives import ENCODER_RELATIVES
from compiler.frontend.encoder_rows import ENCODERS
from compiler.frontend.facts import Facts
from compiler.frontend.family import Family
from compiler.frontend.harmless import HARMLESS
from compiler.frontend.hybrid_rows import HYBRIDS
from compiler.frontend.moe_rows import EXPERTS
from compiler.frontend.python_file import python_place, run_function
from compiler.frontend.quant import read_dtype, read_quantisation
from compiler.frontend.read import HERE, Source, describe, in_transformers, open_model
from compiler.frontend.relative_rows import RELATIVES
from compiler.frontend.rows import DENSE
from compiler.frontend.spec import Fact, Ffn, Layer, Mixer, ModelSpec
from compiler.frontend.unknown import Classified, classify_with
from compiler.frontend.weights import read_header

_ACTIVATIONS = (
    "silu",
    "swish",
    "gelu",
    "gelu_new",
    "gelu_fast",
    "gelu_pytorch_tanh",
    "gelu_python",
    "quick_gelu",
    "relu",
    "relu2",
    "tanh",
    "sigmoid",
    "mish",
)


FAMILIES: Final[dict[str, Family]] = {**DENSE, **EXPERTS, **HYBRIDS, **RELATIVES, **ENCODERS, **ENCODER_RELATIVES}
_CLASSES: Final[dict[str, str]] = {name: family.config_class for name, family in FAMILIES.items()}


def load_model(model: str) -> ModelSpec:
    """Read MODEL: a directory with config.json, a path to one, a supported `model_type` (its class defaults), or
    `path.py:function`, whose function returns a ModelSpec.

    Raises InputError for whatever cannot be read as one of the supported families, and for every fact that is needed
    and missing, contradictory or absurd. Never uses the network, never executes code the config names.
    """
    place = python_place(model)
    if place is not None:
        return described(model, run_function(*place).made)
    source = open_source(model)
    spec = read_spec(source)
    return with_stored(spec, Path(source.where).parent) if Path(source.where).name == "config.json" else spec


def described(model: str, value: object) -> ModelSpec:
    """What the function of a Python file returned, with the file as its source."""
    if not isinstance(value, ModelSpec):
        raise InputError(model, f"returns a {type(value).__name__}, not a ModelSpec", HERE)
    return replace(value, facts=(*value.facts, Fact("description", model, model, "described in Python")))


def open_source(model: str) -> Source:
    """The configuration MODEL names; InputError where it is a weights file, or no configuration."""
    if model.endswith(".safetensors") and Path(model).is_file():
        read_header(Path(model))
        raise InputError(model, "holds weights, not a config", "give its directory, with a config.json in it")
    return open_model(model, _CLASSES)


def has_reader(model: str) -> bool:
    """Whether MODEL names a type, or a config, that a reader here decides on: of a type in the table, or of one nobody
    knows that names a class in the table. InputError for what is no configuration.
    """
    if model in FAMILIES:
        return True
    path = Path(model)
    if not path.exists():
        return False
    source = open_source(model)
    if Facts(source, "a model").find("model_type") is None:
        return False
    return not is_unknown(source) or bool(_classes_here(source))


def read_spec(source: Source) -> ModelSpec:
    """The ModelSpec a configuration describes."""
    model_type, family = _family(source)
    facts = Facts(source, model_type)
    _check_type(facts, model_type)
    _check_architecture(facts, family)
    layers = family.count(facts)
    mtp_modules = facts.maybe_integer("mtp_modules", low=0) or 0
    parts = _parts(facts, family, layers)
    shell = family.read_shell(facts)
    _numerics(facts, family)
    hidden, vocab = facts.integer("hidden"), family.vocabulary(facts)
    tied, dtype, quantisation = family.read_tied(facts), read_dtype(facts), read_quantisation(facts)
    facts.unread()
    return ModelSpec(
        name=source.name,
        model_type=model_type,
        hidden=hidden,
        vocab=vocab,
        tied=tied,
        layers=tuple(
            Layer(
                mixer,
                ffn,
                shell.norm,
                shell.pre_norm,
                shell.post_norm,
                shell.wiring,
                shell.hyper,
                shell.per_layer,
                shell.sum_norm,
                shell.cross,
                shell.altup,
                shell.laurel,
            )
            for mixer, ffn in parts
        ),
        mtp_modules=mtp_modules,
        dtype=dtype,
        quantisation=quantisation,
        norm=shell.norm if shell.final_norm else None,
        head_bias=shell.head_bias,
        positions=shell.positions,
        types=shell.types,
        stem=shell.stem,
        head=shell.head,
        encoder=shell.encoder,
        embed_norm=shell.embed_norm,
        softcap=shell.softcap,
        names=shell.names,
        facts=facts.all(),
    )


def _check_type(facts: Facts, model_type: str) -> None:
    found = facts.find("model_type")
    if found is not None and found.value != model_type:
        note = f"{describe(found.value)} has no class of its own: read as {model_type}, by its architectures"
        facts.assume("model_type", model_type, note)
    else:
        facts.word("model_type", (model_type,), model_type)


def _parts(facts: Facts, family: Family, layers: int) -> list[tuple[Mixer | None, Ffn | None]]:
    """Mixer and feed-forward part of each layer; InputError for a layer with neither."""
    parts = list(zip(family.mixers(facts, layers), family.ffns(facts, layers), strict=True))
    for index, (mixer, ffn) in enumerate(parts):
        if mixer is None and ffn is None:
            what = f"layer {index} has neither attention nor a feed-forward part"
            raise facts.error("block_configs", what, "at least one of them", f"[{index}]")
    return parts


def _family(source: Source) -> tuple[str, Family]:
    found = Facts(source, "a model").find("model_type")
    if found is None:
        raise Facts(source, "a model").missing("model_type", f"supported: {', '.join(FAMILIES)}")
    if not isinstance(found.value, str) or not found.value:
        what = f"is {describe(found.value)}, not a name"
        raise InputError(f"{source.where}: {found.key}", what, f"supported: {', '.join(FAMILIES)}")
    if found.value not in FAMILIES:
        by_class = _by_architecture(source)
        if by_class:
            return by_class, FAMILIES[by_class]
        raise classified(source).error(FAMILIES, in_transformers(found.value))
    return found.value, FAMILIES[found.value]


def is_unknown(source: Source) -> bool:
    """Whether the config names a type that no family here reads."""
    found = Facts(source, "a model").find("model_type")
    return found is not None and isinstance(found.value, str) and bool(found.value) and found.value not in FAMILIES


def classified(source: Source) -> Classified:
    """The facts of a config of unknown type, and the nearest family."""
    found = Facts(source, "a model").find("model_type")
    types = {name: family.architecture for name, family in FAMILIES.items()}
    return classify_with(source, str(found.value if found else ""), types, read_spec)


def _classes_here(source: Source) -> tuple[str, ...]:
    """The types in the table whose class `architectures` names, where transformers has no such type itself."""
    facts = Facts(source, "a model")
    model_type, names = facts.find("model_type"), facts.items("architectures") or []
    if model_type is None or len(names) != 1 or in_transformers(str(model_type.value)):
        return ()
    return tuple(name for name, family in FAMILIES.items() if family.architecture == names[0])


def _by_architecture(source: Source) -> str:
    """The supported type whose class `architectures` names, "" where there is none or the type has a class of its own.

    For types that are a supported one under another name (as kimi_k2 was). A type transformers knows is not: its class
    may differ, whatever a config claims; nor is one with a key that nobody here knows.
    """
    known = structural_keys() | HARMLESS
    if any(key not in known for key in source.values):
        return ""
    return next(iter(_classes_here(source)), "")


def _check_architecture(facts: Facts, family: Family) -> None:
    """Refuse a class that is not the family's causal language model: another head, or another family."""
    names = facts.items("architectures")
    if not names:
        return
    others = {other.architecture for other in FAMILIES.values()} - {family.architecture}
    for name in names:
        if not isinstance(name, str):
            raise facts.error("architectures", f"has the entry {describe(name)}", f"names, as {family.architecture}")
        causal = name.endswith(("ForCausalLM", "LMHeadModel")) or bool(facts.source.prefix)
        if name != family.architecture and (name in others or not causal):
            what = f"names {name}, which is not the {facts.family} language model ({family.architecture})"
            raise facts.error("architectures", what, "a model_type and architectures that agree")
    if family.architecture not in names:
        note = f"read as {family.architecture}, by its model_type"
        facts.assume("architectures", tuple(names), note)


def _numerics(facts: Facts, family: Family) -> None:
    """Facts that change no shape: checked, and kept for whoever computes values."""
    facts.word("activation", _ACTIVATIONS, family.activation)
    for fact in ("norm_epsilon", "rope_theta"):
        facts.number(fact)
    facts.maybe_integer("positions")
    for fact in ("rope_scaling", "rope_parameters"):
        table = facts.table(fact)
        if table is not None:
            _check_rope(facts, fact, table)


def _check_rope(facts: Facts, fact: str, table: dict[str, object], at: str = "") -> None:
    """Any keys are accepted; the kind of scaling must be a name, the numbers everybody reads positive numbers."""
    for key, value in table.items():
        place = f"{at}.{key}"
        if isinstance(value, dict):
            _check_rope(facts, fact, value, place)
        elif key in ("type", "rope_type") and not isinstance(value, str | None):
            raise facts.error(fact, f"is {describe(value)}", "the name of a scaling", place)
        elif key in ("factor", "rope_theta", "partial_rotary_factor") and value is not None:
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e30:
                raise facts.error(fact, f"is {describe(value)}", "a positive number", place)
            known = (1, facts.value("rotary_share"))
            if key == "partial_rotary_factor" and value not in known and (fact, at) != ("rope_parameters", ""):
                what = f"is {value:g}: partial rotation stated here is not modelled"
                raise facts.error(fact, what, "1, or rope_parameters.partial_rotary_factor", place)
