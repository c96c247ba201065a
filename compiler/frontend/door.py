"""The two doors of import, and what everything behind them needs to know of a model.

spec: a reader of this repository makes a ModelSpec from the config; milliseconds, no torch. capture: the PyTorch class
is traced and lowered; anything the installed transformers has a class for, or a Python file returns. Both give the same
kind of Graph, and tests hold them equal where both apply.
"""

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

from compiler.errors import InputError
from compiler.frontend.alias import NESTED
from compiler.frontend.build import build
from compiler.frontend.capture.ir import Captured
from compiler.frontend.capture.place import find_place
from compiler.frontend.families import described, has_reader, load_model
from compiler.frontend.mtp import mtp_params
from compiler.frontend.parts import START_TOKENS, is_edge
from compiler.frontend.python_file import python_place, run_function
from compiler.frontend.read import in_transformers, read_object
from compiler.frontend.spec import CACHE_ELEMENT_NBYTES, Fact, ModelSpec, Status
from compiler.ir.graph import Block, Graph, Phase, Role, Workload


class Frontend(StrEnum):
    """Which door: auto takes a reader where one knows the type, capture otherwise."""

    AUTO = "auto"
    SPEC = "spec"
    CAPTURE = "capture"


@dataclass(frozen=True)
class Model:
    """A model as it came through a door: sizes, facts, and its graph under a workload."""

    described: ModelSpec | Captured

    @property
    def door(self) -> Frontend:
        return Frontend.SPEC if isinstance(self.described, ModelSpec) else Frontend.CAPTURE

    @property
    def name(self) -> str:
        return self.described.name if isinstance(self.described, ModelSpec) else self.described.model

    @property
    def model_type(self) -> str:
        return self.described.model_type

    def graph(self, workload: Workload) -> Graph:
        """InputError where the storage asked for, or an operator of the trace, is not supported."""
        if isinstance(self.described, ModelSpec):
            return build(self.described, workload)
        if workload.mtp:
            raise InputError("--mtp", f"the class of {self.name} has no MTP modules", "--frontend spec, or no --mtp")
        from compiler.frontend.capture.lower import lower

        return lower(self.described, workload)

    @cached_property
    def facts(self) -> tuple[Fact, ...]:
        if isinstance(self.described, ModelSpec):
            return self.described.facts
        note = "traced from the PyTorch class"
        stacks = (("encoder_layers", self.described.encoders), ("tokens_a_sequence", self.described.fixed))
        known = (*self.described.facts, *((name, value) for name, value in stacks if value))
        if self.described.encoders:
            known = (*known, ("decoder_prefill_tokens", START_TOKENS))
        rows = (Fact(name, _storable(value), "module", note) for name, value in known)
        return (*(fact for fact in rows if fact.value is not None), *self.described.said)

    @property
    def params(self) -> int:
        return self.described.params

    @cached_property
    def active_params(self) -> int:
        """Parameters one token meets: of the routed experts the chosen ones only."""
        if isinstance(self.described, ModelSpec):
            return self.described.active_params
        idle = sum(_idle(b) * self._one.repeats[b.kind] for b in self._one.blocks)
        return self.params - idle

    @cached_property
    def kv_bytes_per_token(self) -> int:
        """Bytes of bf16 cache a token, all layers counted."""
        if isinstance(self.described, ModelSpec):
            return self.described.kv_bytes_per_token
        rows = ((t, self._one.repeats[b.kind]) for b in self._one.blocks for t in b.stored)
        own = ((t, n) for t, n in rows if not t.name.startswith("cross."))  # as long as the encoder's input, not longer
        return sum(CACHE_ELEMENT_NBYTES * t.elements * n for t, n in own if t.role is Role.KV_CACHE)

    @cached_property
    def state_bytes(self) -> int:
        """Bytes of recurrent state a sequence, all layers, however long it is."""
        if isinstance(self.described, ModelSpec):
            return self.described.state_bytes
        rows = ((t, self._one.repeats[b.kind]) for b in self._one.blocks for t in b.stored)
        return sum(t.nbytes * n for t, n in rows if t.role is Role.STATE)

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The block kind of each layer."""
        if isinstance(self.described, ModelSpec):
            return self.described.kinds
        return tuple(kind for kind in self._one.sequence if not is_edge(kind))

    @cached_property
    def hidden(self) -> int | None:
        """Width of the hidden states; None for a module that has no embedding."""
        if isinstance(self.described, ModelSpec):
            return self.described.hidden
        return self._size("hidden")

    @cached_property
    def vocab(self) -> int | None:
        """Rows of the embedding; None for a module that has none."""
        return self.described.vocab if isinstance(self.described, ModelSpec) else self._size("vocab")

    def _size(self, dim: str) -> int | None:
        ops = (op for block in self._one.blocks for op in block.ops)
        return next((d.size for op in ops for d in op.dims if d.name == dim), None)

    @property
    def mtp_modules(self) -> int:
        """MTP modules beside the layers; a trace never has any."""
        return self.described.mtp_modules if isinstance(self.described, ModelSpec) else 0

    @property
    def mtp_params(self) -> int | None:
        """Parameters of the MTP modules, which `params` leaves out; None where a module is not described."""
        return mtp_params(self.described) if isinstance(self.described, ModelSpec) else 0

    @cached_property
    def _one(self) -> Graph:
        """One token after one cached token, on one socket; of what has an encoder, its prefill of one token."""
        phase = Phase.PREFILL if self._encodes else Phase.DECODE
        return self.graph(Workload(phase, 1, 1, 1, "bf16"))

    @cached_property
    def _encodes(self) -> bool:
        """Whether there is an encoder: tokens that attend to later ones are not decoded."""
        if isinstance(self.described, ModelSpec):
            return False
        from compiler.frontend.capture.stages import encodes

        return encodes(self.described)


def _idle(block: Block) -> int:
    """Parameters of routed experts that one token does not meet."""
    out = 0
    for op in block.ops:
        if op.routing is None:
            continue
        idle, of = op.routing.experts - op.routing.top_k, op.routing.experts
        tensors = (block.tensor[name] for name in op.inputs)
        out += sum(t.elements // of * idle for t in tensors if t.role is Role.WEIGHT)
    return out


def _storable(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool) else None


def open_door(model: str, frontend: Frontend = Frontend.AUTO, captures: Path | None = None) -> Model:
    """MODEL through a door. captures: where traces are kept by content.

    Raises InputError for whatever is no model, names a type nobody knows, or cannot be described or traced.
    """
    function = python_place(model)
    if function is not None:
        return _of_function(model, function, frontend, captures)
    if frontend is Frontend.SPEC or (frontend is Frontend.AUTO and has_reader(model)):
        return Model(load_model(model))
    if frontend is Frontend.AUTO and not has_class(model):
        return Model(load_model(model))  # refuses it, naming the nearest types
    from compiler.frontend.capture.trace import capture

    return Model(capture(model, captures))


def _of_function(model: str, place: tuple[Path, str], frontend: Frontend, captures: Path | None) -> Model:
    """What a function returns decides the door; it is run once, and not at all where its capture is stored."""
    from compiler.frontend.capture.cache import stored

    found = stored(captures, model) if captures is not None and frontend is not Frontend.SPEC else None
    if found is not None:
        return Model(found)
    run = run_function(*place)
    if frontend is Frontend.SPEC or (frontend is Frontend.AUTO and isinstance(run.made, ModelSpec)):
        return Model(described(model, run.made))
    from compiler.frontend.capture.trace import capture_run

    return Model(capture_run(model, run, captures))


def has_class(model: str) -> bool:
    """Whether the installed transformers has a class for the type or config.json MODEL names; without importing it.

    InputError where MODEL names neither.
    """
    place = find_place(model)
    if place.kind != "config":
        return in_transformers(place.model_type)
    values = read_object(place.path)
    configs = [values, *(v for v in (values.get(key) for key in NESTED) if isinstance(v, dict))]
    names = [config.get("model_type") for config in configs]
    classes = values.get("architectures")
    named = [*names, *(classes if isinstance(classes, list) else [])]
    return any(isinstance(name, str) and in_transformers(name) for name in named)


def model_summary(model: Model) -> dict[str, Any]:
    """What a model is, for JSON: sizes and the decoder layers by kind, in order of first appearance."""
    layers = [{"kind": kind, "repeat": model.kinds.count(kind)} for kind in dict.fromkeys(model.kinds)]
    return {
        "name": model.name,
        "model_type": model.model_type,
        "frontend": str(model.door),
        "params": model.params,
        "active_params": model.active_params,
        "mtp_modules": model.mtp_modules,
        "mtp_params": model.mtp_params,
        "kv_bytes_per_token": model.kv_bytes_per_token,
        "state_bytes": model.state_bytes,
        "layers": layers,
    }


def inspect_facts(model: Model) -> list[dict[str, Any]]:
    """The facts of a model as rows of JSON: name, value, key, status, note; unknown ones last."""
    order = [Status.READ, Status.ASSUMED, Status.UNKNOWN]
    rows = sorted(model.facts, key=lambda fact: order.index(fact.status))
    return [{"name": f.name, "value": f.value, "key": f.key, "status": str(f.status), "note": f.note} for f in rows]
