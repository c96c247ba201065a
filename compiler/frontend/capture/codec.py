"""A `Captured` as JSON and back: `from_json(to_json(c)) == c` but for its checkpoint. Knows neither torch nor files.

A `Ref` is `{"ref": name}`; an infinite or undefined number, which JSON has no word for, is `{"float": "inf"}`.
"""

import math
from typing import Any

from compiler.frontend.capture.ir import Argument, Capture, Captured, Node, Ref, Value


def to_json(captured: Captured) -> dict[str, Any]:
    """The JSON object of a captured model."""
    return {
        "model": captured.model,
        "model_type": captured.model_type,
        "before": _capture_out(captured.before),
        "layers": [_capture_out(layer) for layer in captured.layers],
        "sequence": list(captured.sequence),
        "after": _capture_out(captured.after),
        "tied": captured.tied,
        "params": captured.params,
        "facts": [[name, _out(value)] for name, value in captured.facts],
        "feeds": [list(feed) for feed in captured.feeds],
        "encoders": captured.encoders,
        "middle": None if captured.middle is None else _capture_out(captured.middle),
        "fixed": captured.fixed,
    }


def from_json(data: dict[str, Any]) -> Captured:
    """The captured model of a JSON object written by `to_json` (KeyError, TypeError or ValueError if it is not one)."""
    return Captured(
        model=data["model"],
        model_type=data["model_type"],
        before=_capture_in(data["before"]),
        layers=tuple(_capture_in(layer) for layer in data["layers"]),
        sequence=tuple(data["sequence"]),
        after=_capture_in(data["after"]),
        tied=data["tied"],
        params=data["params"],
        facts=tuple((name, _in(value)) for name, value in data["facts"]),
        feeds=tuple(tuple(feed) for feed in data["feeds"]),
        encoders=data["encoders"],
        middle=None if data["middle"] is None else _capture_in(data["middle"]),
        fixed=data["fixed"],
    )


def _capture_out(capture: Capture) -> dict[str, Any]:
    return {
        "label": capture.label,
        "inputs": [_value_out(v) for v in capture.inputs],
        "weights": [_value_out(v) for v in capture.weights],
        "buffers": [_value_out(v) for v in capture.buffers],
        "nodes": [_node_out(n) for n in capture.nodes],
        "outputs": list(capture.outputs),
        "tokens": [capture.tokens, capture.memory],
    }


def _capture_in(data: dict[str, Any]) -> Capture:
    return Capture(
        label=data["label"],
        inputs=tuple(_value_in(v) for v in data["inputs"]),
        weights=tuple(_value_in(v) for v in data["weights"]),
        nodes=tuple(_node_in(n) for n in data["nodes"]),
        outputs=tuple(data["outputs"]),
        buffers=tuple(_value_in(v) for v in data["buffers"]),
        tokens=data["tokens"][0],
        memory=data["tokens"][1],
    )


def _value_out(value: Value) -> list[Any]:
    return [value.name, list(value.shape), value.dtype, value.key, list(value.parts)]


def _value_in(data: list[Any]) -> Value:
    name, shape, dtype, key, parts = data
    return Value(name, tuple(shape), dtype, key, tuple(parts))


def _node_out(node: Node) -> list[Any]:
    kwargs = [[name, _out(value)] for name, value in node.kwargs]
    outputs = [_value_out(v) for v in node.outputs]
    return [node.target, [_out(a) for a in node.args], kwargs, outputs, node.module, node.module_class, node.line]


def _node_in(data: list[Any]) -> Node:
    target, args, kwargs, outputs, module, module_class, line = data
    read = tuple((name, _in(value)) for name, value in kwargs)
    values = tuple(_value_in(v) for v in outputs)
    return Node(target, tuple(_in(a) for a in args), read, values, module, module_class, line)


def _out(value: Argument) -> Any:
    if isinstance(value, Ref):
        return {"ref": value.name}
    if isinstance(value, tuple):
        return [_out(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    return value


def _in(value: Any) -> Argument:
    if isinstance(value, dict):
        return Ref(value["ref"]) if "ref" in value else float(value["float"])
    if isinstance(value, list):
        return tuple(_in(item) for item in value)
    plain: Argument = value
    return plain
