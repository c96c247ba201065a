"""One forward of a whole model without numbers: what every layer was called with, and which layers are the same.

Two calls of layers are the same when they dispatch the same operators with the same arguments on the same tensors
(numbered in order of appearance) and own parameters of the same names and shapes. So a window in some layers only
makes another kind of layer without any list of attributes. A factor that depends on the layer's number does not: it is
another number in the same operator, and a graph has no numbers.
"""

import hashlib
from collections import UserDict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from compiler.errors import InputError
from compiler.frontend.capture.failure import RAISED, place_of, reason


@dataclass(slots=True)
class Call:
    """One call of a layer: its number in the list, its arguments flattened, its outputs, its fingerprint.

    reads: the tensors its operators were given, by identity. stored: what the layer put into the containers it was
    given (keys and values shared with later layers), by the
    number of the container and the key.
    """

    layer: int
    leaves: list[Any]
    spec: Any
    outputs: Any = None
    reads: frozenset[int] = frozenset()
    stored: dict[tuple[int, Any], Any] = field(default_factory=dict)
    print: str = ""


@dataclass(slots=True)
class Stream:
    """The operators dispatched inside the current layer, as a hash; tensors are numbered in order of appearance."""

    digest: Any = field(default_factory=lambda: hashlib.blake2b(digest_size=12))
    numbers: dict[int, int] = field(default_factory=dict)
    alive: list[Any] = field(default_factory=list)

    def add(self, what: Any) -> None:
        """Feed an operator's name, its arguments or its results to the hash."""
        import torch
        from torch.utils import _pytree

        for leaf in _pytree.tree_leaves(what):
            if isinstance(leaf, torch.Tensor):
                self.alive.append(leaf)
                number = self.numbers.setdefault(id(leaf), len(self.numbers))
                self.digest.update(f"t{number}{tuple(leaf.shape)}{leaf.dtype};".encode())
            else:
                self.digest.update(("number;" if isinstance(leaf, float) and leaf else f"{leaf};").encode())


def layer_list(module: Any, config: Any) -> tuple[str, Any] | None:
    """Name and ModuleList of the layers: the outermost list with as many modules as the config says, else the largest.

    None when the module has no list of at least two modules with parameters.
    """
    import torch

    found: list[tuple[str, Any]] = []
    for name, part in module.named_modules():
        inside = any(name.startswith(outer + ".") for outer, _ in found)
        if isinstance(part, torch.nn.ModuleList) and not inside and len(part) and _size(part):
            found.append((name, part))
    count = getattr(config, "num_hidden_layers", None)
    named = [item for item in found if len(item[1]) == count]
    return max(named or found, key=lambda item: _size(item[1]), default=None)


def stacks(module: Any, config: Any) -> tuple[tuple[str, Any], ...]:
    """Name and list of the layers of each stack: encoder and decoder where the configuration says so, else of one.

    Nothing where the module has no list of layers.
    """
    import torch

    if not getattr(config, "is_encoder_decoder", False):
        found = layer_list(module, config)
        return () if found is None else (found,)
    lists = [(name, part) for name, part in module.named_modules() if isinstance(part, torch.nn.ModuleList)]
    outer = [item for item in lists if not any(item[0].startswith(name + ".") for name, _ in lists)]
    sides = []
    for side in ("encoder", "decoder"):
        own = [item for item in outer if side in item[0].split(".") and _size(item[1])]
        sides.extend([max(own, key=lambda item: _size(item[1]))] if own else [])
    return tuple(sides) if len(sides) == 2 else ()


def _size(module: Any) -> int:
    return sum(p.numel() for p in module.parameters())


def record(opened: Any, run: Any, layers: Any) -> list[Call]:
    """The calls of `layers` in the order of one forward; of a module listed twice, as calls of its first place.

    InputError naming the place where the model cannot run.
    """
    import torch

    calls: list[Call] = []
    with ExitStack() as stack:
        streams = stack.enter_context(_recording())
        for index, layer in {id(layer): (n, layer) for n, layer in reversed(list(enumerate(layers)))}.values():
            before, after = _hooks(index, calls, streams)
            stack.callback(layer.register_forward_pre_hook(before, with_kwargs=True).remove)
            stack.callback(layer.register_forward_hook(after, with_kwargs=True).remove)
        try:
            with torch.no_grad():
                run()
        except (InputError, MemoryError):
            raise
        except RAISED as error:
            raise InputError(
                opened.name, f"cannot be traced: {place_of(error, opened.module)}: {reason(error)}"
            ) from error
    several = {id(layer) for n, layer in enumerate(layers) if any(layer is other for other in layers[:n])}
    for call in calls:
        own = f"layer {call.layer}" if id(layers[call.layer]) in several else ""  # its weights are stored once
        call.print += _parameters(layers[call.layer]) + own
    return calls


def _hooks(index: int, calls: list[Call], streams: list[Stream]) -> tuple[Any, Any]:
    from torch.utils import _pytree

    seen: list[dict[Any, Any]] = []

    def before(module: Any, args: Any, kwargs: Any) -> None:
        seen[:] = [dict(container) for container in containers(args, kwargs)]
        leaves, spec = _pytree.tree_flatten((args, kwargs))
        calls.append(Call(index, leaves, spec))
        streams.append(Stream())
        streams[-1].add([leaf for leaf in leaves if not _is_index(leaf, index)])

    def after(module: Any, args: Any, kwargs: Any, outputs: Any) -> None:
        stream, calls[-1].outputs = streams.pop(), outputs
        calls[-1].stored = _stored(seen, containers(args, kwargs))
        stream.add([outputs, *calls[-1].stored.values()])
        calls[-1].reads = frozenset(stream.numbers)
        calls[-1].print = stream.digest.hexdigest()

    return before, after


def containers(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The dictionaries among the arguments of a layer, in order."""
    return [given for given in (*args, *kwargs.values()) if isinstance(given, (dict, UserDict))]


def _stored(before: list[dict[Any, Any]], after: list[Any]) -> dict[tuple[int, Any], Any]:
    return {
        (number, key): value
        for number, (old, new) in enumerate(zip(before, after, strict=True))
        for key, value in new.items()
        if old.get(key) is not value
    }


def _is_index(leaf: Any, index: int) -> bool:
    """Whether an argument is the layer's own number, which says nothing about what it computes."""
    return isinstance(leaf, int) and not isinstance(leaf, bool) and leaf == index


@contextmanager
def _recording() -> Iterator[list[Stream]]:
    """Operators dispatched inside are added to the last stream of the list, if there is one."""
    from torch.utils._python_dispatch import TorchDispatchMode

    streams: list[Stream] = []

    class Recorder(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            if streams:
                streams[-1].add([str(func), args, kwargs or {}, out])
            return out

    with Recorder():
        yield streams


def _parameters(layer: Any) -> str:
    """Class tree and parameters of a layer, as a hash."""
    tree = [f"{name}:{type(part).__qualname__}" for name, part in layer.named_modules()]
    tensors = [f"{name}:{tuple(p.shape)}:{p.dtype}" for name, p in layer.named_parameters()]
    return hashlib.blake2b("\n".join(tree + tensors).encode(), digest_size=12).hexdigest()


def first_names(module: Any) -> dict[str, str]:
    """For every name of a parameter its first one, which is that of the input embedding where it is also the head."""
    first: dict[int, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        first.setdefault(id(parameter), name)
    return {name: first[id(p)] for name, p in module.named_parameters(remove_duplicate=False)}


def owner_names(module: Any, layers: Any, calls: list[Call]) -> dict[int, str]:
    """By identity: the first name of every parameter that several layers read."""
    readers: dict[int, set[int]] = {}
    for call in calls:
        for parameter in layers[call.layer].parameters():
            if id(parameter) in call.reads:
                readers.setdefault(id(parameter), set()).add(call.layer)
    first: dict[int, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if len(readers.get(id(parameter), ())) > 1:
            first.setdefault(id(parameter), name)
    return first


def kinds(calls: list[Call]) -> tuple[tuple[int, ...], list[int]]:
    """For each call the number of its kind, in order of first occurrence; and for each kind its first call."""
    seen: dict[str, int] = {}
    firsts: list[int] = []
    sequence = []
    for number, call in enumerate(calls):
        if call.print not in seen:
            seen[call.print] = len(firsts)
            firsts.append(number)
        sequence.append(seen[call.print])
    return tuple(sequence), firsts
