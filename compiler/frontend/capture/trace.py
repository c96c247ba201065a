"""Turn a PyTorch model into data: one exported program a distinct layer, and what surrounds the layers.

`capture(model)` is the whole way with a cache; `trace(opened)` is one forward without numbers (see `record`), then one
`torch.export` a distinct layer. Nothing is computed and no weight is allocated: full-size models take seconds.
"""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from compiler.errors import InputError
from compiler.frontend.capture import cache
from compiler.frontend.capture.between import Between, followed
from compiler.frontend.capture.checkpoint import with_checkpoint
from compiler.frontend.capture.example import example
from compiler.frontend.capture.export import capture as as_capture
from compiler.frontend.capture.export import export
from compiler.frontend.capture.failure import quiet
from compiler.frontend.capture.given import is_image, sized
from compiler.frontend.capture.ir import SOURCE_TOKENS, TRACED_TOKENS, Capture, Captured
from compiler.frontend.capture.published import with_published
from compiler.frontend.capture.record import Call, containers, first_names, kinds, owner_names, record, stacks
from compiler.frontend.capture.sides import Sides, carried, hidden_number, repeated, tensors
from compiler.frontend.capture.source import Opened, open_module, returned
from compiler.frontend.capture.surround import cut, stubbed
from compiler.frontend.python_file import Run, python_place, run_function

Feeds = tuple[tuple[str, ...], ...]


def capture(model: str, directory: Path | None = None) -> Captured:
    """The capture of MODEL: from `directory` where it is stored there, else traced and stored."""
    found = cache.stored(directory, model) if directory is not None else None
    function = python_place(model) if found is None else None
    if function is not None:
        return capture_run(model, run_function(*function), directory)
    made = found or _saved(model, trace(open_module(model)), directory)
    return with_checkpoint(made, model)


def capture_run(model: str, run: Run, directory: Path | None = None) -> Captured:
    """The capture of what the function that MODEL names returned; stored in `directory`."""
    return _saved(model, trace(sized(returned(model, run))), directory, run.read)


def _saved(model: str, made: Captured, directory: Path | None, read: tuple[Path, ...] = ()) -> Captured:
    if directory is not None:
        cache.save(directory, cache.capture_key(model), made, read)
    return made


def trace(opened: Opened) -> Captured:
    """The model as data. InputError with module path and source line for what cannot be traced."""
    from compiler.frontend.capture.patches import patched

    wrapper, args, kwargs = runnable(opened)
    found = stacks(opened.module, opened.config)
    with ExitStack() as stack:
        stack.enter_context(quiet())
        stack.enter_context(opened.mode)
        stack.enter_context(patched(opened.module))
        made = _layered(opened, found, (wrapper, args, kwargs)) if found else _whole(opened, wrapper, args, kwargs)
    return with_published(made, opened.module)


def _layered(
    opened: Opened, found: tuple[tuple[str, Any], ...], runnable: tuple[Any, tuple[Any, ...], dict[str, Any]]
) -> Captured:
    wrapper, args, kwargs = runnable
    lists = tuple(layers for _, layers in found)
    places = [(path, number) for path, layers in found for number in range(len(layers))]
    paths = [f"{path}.{number}" for path, number in places]
    layers = [layer for own in lists for layer in own]
    calls = _recorded(opened, lambda: wrapper(*args, **kwargs), layers)
    if not calls:
        raise InputError(opened.name, f"its forward does not call the layers of {found[0][0]}")
    owners = owner_names(opened.module, layers, calls)
    for call in calls:
        call.print += ",".join(_common(layers[call.layer], owners))
    encoders = sum(1 for call in calls if call.layer < len(lists[0])) if len(lists) > 1 else 0
    names = first_names(opened.module)
    with stubbed(lists, calls):
        program = export(opened.name, wrapper, args, kwargs, "")
    program.weights = [replace(value, key=names.get(value.key, value.key)) for value in program.weights]
    parts = cut(opened.name, program, encoders)
    for number, one in parts.follows.items():
        calls[number].print += one.print
    sequence, firsts = kinds(calls)
    distinct = tuple(
        _layer(opened, paths[calls[first].layer], layers[calls[first].layer], calls[first], kind, owners)
        for kind, first in enumerate(firsts)
    )
    starts = (0, encoders)
    fed = tuple(
        _hidden_first(parts.feeds[first], calls[first], None if first in starts else calls[first - 1])
        for first in firsts
    )
    distinct, fed = _followed(distinct, fed, [parts.follows.get(first) for first in firsts])
    numbers = [number for _, number in places]
    distinct, fed = carried((repeated(distinct, calls, sequence, numbers), fed), calls, firsts, numbers)
    sizes = Sides.of(opened, calls, encoders)
    around = (parts.before, sizes.side(distinct, [first < encoders for first in firsts]), parts.after)
    used = [layers[index] for index in dict.fromkeys(call.layer for call in calls)]
    made = _captured(opened, around, sequence, fed, calls, used)
    return sizes.placed(made, parts.middle, encoders)


def _followed(
    layers: tuple[Capture, ...], feeds: Feeds, follows: list[Between | None]
) -> tuple[tuple[Capture, ...], Feeds]:
    """Kinds of layers and their feeds, with the work that follows each of them."""
    pairs = list(zip(layers, follows, strict=True))
    done = tuple(layer if one is None else followed(layer, one) for layer, one in pairs)
    more = [() if one is None else tuple(value.name for value in one.given) for one in follows]
    return done, tuple((*feed, *own) for feed, own in zip(feeds, more, strict=True))


def _recorded(opened: Opened, run: Any, layers: Any) -> list[Call]:
    """The calls of the layers; with masks where the model's own code reads one (a sparse indexer does)."""
    from compiler.frontend.capture.patches import use_masks

    try:
        return record(opened, run, layers)
    except InputError as error:
        if not use_masks(opened.module):
            raise
        try:
            return record(opened, run, layers)
        except InputError as again:
            raise InputError(again.where, f"{again.what}; without masks it {error.what}") from error


def _common(layer: Any, owners: dict[int, str]) -> list[str]:
    """Names of the parameters of a layer that other parts have too."""
    return [owners[id(p)] for p in layer.parameters() if id(p) in owners]


def _layer(opened: Opened, path: str, layer: Any, call: Call, kind: int, owners: dict[int, str]) -> Capture:
    from torch.utils import _pytree

    args, kwargs = _pytree.tree_unflatten(call.leaves, call.spec)
    prefix = path.rpartition(".")[0] + ".{layer}."
    module = _storing(layer, call) if call.stored else layer
    program = export(f"{opened.name}: {path}", module, tuple(args), dict(kwargs), prefix)
    keys = {prefix + name: owners[id(p)] for name, p in layer.named_parameters() if id(p) in owners}
    program.weights = [replace(value, key=keys.get(value.key, value.key)) for value in program.weights]
    return as_capture(f"layer{kind}", program, hidden_number(call))


def _storing(layer: Any, call: Call) -> Any:
    """`layer`, with what it stores for later layers among its outputs."""
    import torch

    class Storing(torch.nn.Module):  # type: ignore[misc]
        wraps = True

        def __init__(self) -> None:
            super().__init__()
            self.inner = layer

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            out = self.inner(*args, **kwargs)
            shared = containers(args, kwargs)
            return out, [shared[place][key] for place, key in call.stored]

    return Storing()


def _hidden_first(feed: tuple[str, ...], call: Call, previous: Call | None) -> tuple[str, ...]:
    number = hidden_number(call)
    rest = tuple(value for n, value in enumerate(feed) if n != number)
    return (feed[number] if previous is None else "", *rest)


def _whole(opened: Opened, wrapper: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Captured:
    """A module without a list of layers: all of it is one layer."""
    if is_image(opened.inputs):
        right = "a ModuleList of layers that work on tokens"
        raise InputError(opened.name, "takes an image and has no list of layers that make tokens of it", right)
    program = export(opened.name, wrapper, args, kwargs, "")
    made = as_capture("layer0", program, 0)
    around = tuple(Capture(label, (), (), (), ()) for label in ("before", "after"))
    feed = ("",) * len(made.inputs)
    return _captured(opened, (around[0], (made,), around[1]), (0,), (feed,), [], [])


def runnable(
    opened: Opened, source: int = SOURCE_TOKENS, target: int = TRACED_TOKENS, whole: bool = True
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """(a module whose only output is the first tensor of the model's, args, kwargs), fake.

    source, target: tokens of the encoder and of the decoder; of a model with one stack, `target` tokens. whole: as in
    `example`.
    """
    import torch

    class Wrapper(torch.nn.Module):  # type: ignore[misc]
        wraps = True

        def __init__(self) -> None:
            super().__init__()
            self.inner = opened.module

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            out = self.inner(*args, **kwargs)
            return _first(opened.name, out)

    with opened.mode:
        if opened.inputs is not None:
            return Wrapper(), opened.inputs, {}
        return Wrapper(), (), example(opened, source, target, whole)


def _first(name: str, out: Any) -> Any:
    """The logits of what a model returned, or its first tensor. InputError where it has none."""
    from torch.utils import _pytree

    values = tensors([getattr(out, "logits", None), *_pytree.tree_leaves(out)])
    if not values:
        raise InputError(name, f"its forward returns {type(out).__name__}, and no tensor in it", "return a tensor")
    return values[0]


def _captured(
    opened: Opened,
    parts: tuple[Capture, tuple[Capture, ...], Capture],
    sequence: tuple[int, ...],
    feeds: tuple[tuple[str, ...], ...],
    calls: list[Call],
    layer_modules: list[Any],
) -> Captured:
    before, layers, after = parts
    module = opened.module
    return Captured(
        model=opened.name,
        model_type=opened.model_type,
        before=before,
        layers=layers,
        sequence=sequence,
        after=after,
        tied=_tied(module),
        params=sum(p.numel() for p in module.parameters()),
        facts=_facts(opened, calls, _unused(module, parts, layer_modules)),
        feeds=feeds,
    )


def _tied(module: Any) -> bool:
    """Whether input and output embedding are one parameter."""
    if not hasattr(module, "get_output_embeddings"):
        return False
    head, embed = module.get_output_embeddings(), module.get_input_embeddings()
    weight = getattr(head, "weight", None)
    return weight is not None and weight is getattr(embed, "weight", None)


def _unused(module: Any, parts: tuple[Capture, tuple[Capture, ...], Capture], layers: list[Any]) -> dict[str, Any]:
    """Parameters that no captured part owns (a vision tower, cross attention without an image), and where they are."""
    named = {w.key for part in (parts[0], *parts[1], parts[2]) for w in part.weights}
    owned = {id(p) for layer in layers for p in layer.parameters()}
    rest = [(name, p) for name, p in module.named_parameters() if name not in named and id(p) not in owned]
    if not rest:
        return {}
    places = dict.fromkeys(".".join(name.split(".")[:3]) for name, _ in rest)
    return {"unused_params": sum(p.numel() for _, p in rest), "unused_modules": tuple(places)}


def _facts(opened: Opened, calls: list[Call], unused: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    facts: dict[str, Any] = {"class": type(opened.module).__name__, "tokens": TRACED_TOKENS}
    for key, names in (("hidden", ("hidden_size", "d_model", "n_embd")), ("vocab", ("vocab_size",))):
        value = next((getattr(opened.config, name) for name in names if hasattr(opened.config, name)), None)
        facts |= {key: value} if isinstance(value, int) else {}
    indices = tuple(call.layer for call in calls)
    if indices != tuple(range(len(indices))):
        facts["layer_index"] = indices
    facts |= {"versions": tuple(cache.versions()), **unused}
    scalars = vars(opened.config).items() if opened.config is not None else ()
    kept = [(k, v) for k, v in scalars if isinstance(v, (bool, int, float, str)) and not k.startswith("_")]
    facts["config"] = tuple(sorted(kept))
    return tuple(sorted(facts.items()))
