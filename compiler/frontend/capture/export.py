"""`torch.export` of one module, and its program as the data of `ir`."""

import operator
import warnings
from collections.abc import Iterable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from io import StringIO
from pathlib import Path
from typing import Any

from compiler.errors import InputError
from compiler.frontend.capture.failure import RAISED, is_model_code, place_of, reason
from compiler.frontend.capture.ir import Argument, Capture, Node, Ref, Value


@dataclass(slots=True)
class Program:
    """An exported program as data, before it is cut. names: fx node -> value; results: the output values."""

    inputs: list[Value] = field(default_factory=list)
    weights: list[Value] = field(default_factory=list)
    buffers: list[Value] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    results: list[str] = field(default_factory=list)


def export(name: str, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], prefix: str) -> Program:
    """The functional program of `module`; weights are called `prefix` + their name in the module.

    Raises InputError naming the module path and source line of what cannot be exported.
    """
    import torch

    try:
        with torch.no_grad(), warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            # torch.export warns about its own code, and prints a graph where a value decides what comes next
            warnings.simplefilter("ignore")
            exported = torch.export.export(module, args, kwargs, strict=False).run_decompositions({})
    except (InputError, MemoryError):
        raise
    except RAISED as error:
        raise InputError(name, f"cannot be exported: {place_of(error, module)}: {reason(error)}") from error
    return read(name, exported, prefix, "inner" if getattr(module, "wraps", False) else "")


def read(name: str, exported: Any, prefix: str, wrapper: str) -> Program:
    """An ExportedProgram as data; `wrapper`: the name of the module proper inside of what was exported, or ""."""
    program = Program()
    specs = {spec.arg.name: spec for spec in exported.graph_signature.input_specs}
    values: dict[Any, Argument] = {}
    for node in exported.graph.nodes:
        if node.op == "placeholder":
            _placeholder(program, node, specs[node.name], (prefix, wrapper + "."), values)
        elif node.op == "call_function" and node.target is operator.getitem:
            source, index = node.args
            values[node] = Ref(f"{source.name}.{index}")
        elif node.op == "call_function" and node.meta.get("val") is not None:
            made = _node(name, node, values)
            program.nodes.append(replace(made, module=made.module.removeprefix(wrapper).removeprefix(".")))
        elif node.op == "output":
            outputs = zip(exported.graph_signature.output_specs, node.args[0], strict=True)
            leaves = [(spec, _argument(arg, values)) for spec, arg in outputs]
            found = [(spec, leaf.name) for spec, leaf in leaves if isinstance(leaf, Ref)]
            program.results = [value for spec, value in found if spec.kind.name == "USER_OUTPUT"]
            _refuse_kept(name, program, [(spec.target, value) for spec, value in found if spec.target is not None])
        elif node.users:
            raise InputError(name, f"has a part that is no operator: {node.op} {node.target}{_at(node)}")
    return program


def _refuse_kept(name: str, program: Program, written: list[tuple[str, str]]) -> None:
    """InputError where a (tensor of the module, value it gets) holds activations: a state that no step here carries.

    A counter of calls is none.
    """
    depends = {value.name for value in program.inputs}
    for node in program.nodes:
        if depends.intersection(uses(node)):
            depends.update(value.name for value in node.outputs)
    for target, value in written:
        if value in depends:
            maker = next((node for node in program.nodes if value in {made.name for made in node.outputs}), None)
            at = f" ({maker.line})" if maker is not None and maker.line else ""
            what = f"keeps activations in {target.removeprefix('inner.')}{at} from one call to the next"
            raise InputError(name, what, "describe the recurrence as a ModelSpec")


def _placeholder(program: Program, node: Any, spec: Any, names: tuple[str, str], values: dict[Any, Argument]) -> None:
    import torch

    tensor = node.meta.get("val")
    if not isinstance(tensor, torch.Tensor):
        values[node] = getattr(spec.arg, "value", None)
        return
    values[node] = Ref(node.name)
    kind = spec.kind.name
    key = "" if kind == "USER_INPUT" else names[0] + str(spec.target).removeprefix(names[1])
    value = _value(node.name, tensor, key)
    where = {"USER_INPUT": program.inputs, "PARAMETER": program.weights}.get(kind, program.buffers)
    where.append(value)


def _value(name: str, tensor: Any, key: str = "") -> Value:
    return Value(name, tuple(int(size) for size in tensor.shape), _word(tensor.dtype), key)


def _node(name: str, node: Any, values: dict[Any, Argument]) -> Node:
    import torch

    if not isinstance(node.target, torch._ops.OpOverload):
        raise InputError(name, f"has a part that is no operator: {node.target}{_at(node)}")
    result = node.meta["val"]
    if isinstance(result, torch.Tensor):
        outputs: tuple[Value, ...] = (_value(node.name, result),)
    else:
        parts = enumerate(result if isinstance(result, (tuple, list)) else ())
        outputs = tuple(_value(f"{node.name}.{i}", part) for i, part in parts if isinstance(part, torch.Tensor))
    values[node] = Ref(node.name)
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path, owner = stack[-1] if stack else ("", "")
    owner_name = owner if isinstance(owner, str) else owner.__qualname__
    return Node(
        str(node.target).replace("::", "."),
        tuple(_argument(arg, values) for arg in node.args),
        tuple((key, _argument(arg, values)) for key, arg in node.kwargs.items()),
        outputs,
        path,
        owner_name.rpartition(".")[2],
        line_of(node),
    )


def line_of(node: Any) -> str:
    """`file.py:line` of the innermost model code of a node's stack trace, or ""."""
    found = ""
    for text in (node.meta.get("stack_trace") or "").splitlines():
        parts = text.split('"')
        if len(parts) == 3 and parts[0].strip() == "File" and is_model_code(Path(parts[1])):
            found = f"{Path(parts[1]).name}:{parts[2].split(',')[1].split()[1]}"
    return found


def _at(node: Any) -> str:
    line = line_of(node)
    return f" at {line}" if line else ""


def _argument(arg: Any, values: dict[Any, Argument]) -> Argument:
    import torch

    if isinstance(arg, torch.fx.Node):
        return values[arg]
    if isinstance(arg, (list, tuple)):
        return tuple(_argument(item, values) for item in arg)
    if arg is None or isinstance(arg, (bool, int, float, str)):
        return arg
    return _word(arg)


def _word(thing: Any) -> str:
    return str(thing).removeprefix("torch.")


def capture(label: str, program: Program, hidden: int) -> Capture:
    """A program as a Capture whose first input is number `hidden`."""
    inputs = program.inputs
    first = [inputs[hidden]] if inputs else []
    rest = [value for number, value in enumerate(inputs) if number != hidden]
    return Capture(
        label,
        (*first, *rest),
        tuple(program.weights),
        tuple(program.nodes),
        tuple(program.results),
        tuple(program.buffers),
    )


def refs(arguments: Iterable[Any]) -> list[str]:
    """The values that arguments use, in order."""
    out: list[str] = []
    for argument in arguments:
        if isinstance(argument, Ref):
            out.append(argument.name)
        elif isinstance(argument, tuple):
            out.extend(refs(argument))
    return out


def uses(node: Node) -> list[str]:
    """The values a node reads, in order."""
    return refs((*node.args, *(value for _, value in node.kwargs)))
