"""Example inputs that a Python function returned, as those of one sequence of TRACED_TOKENS tokens.

What a person gives has any number of sequences and tokens; a trace tells the tokens by their number, which no other
size has. Which axis the tokens are is not guessed but tried: the module must run with another number of them.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from compiler.errors import InputError
from compiler.frontend.capture.failure import RAISED, place_of, quiet, reason
from compiler.frontend.capture.ir import TRACED_TOKENS
from compiler.frontend.capture.source import Opened

Shape = tuple[int, ...]


def sized(opened: Opened) -> Opened:
    """`opened` with example inputs of one sequence of TRACED_TOKENS tokens; an image keeps its size.

    Unchanged where the module does not run on its example at all, which is told where it is traced.
    InputError for a module that takes no other number of tokens than its example has.
    """
    shapes = _shapes(opened.inputs or ())
    lead = next(iter(shapes), None)
    if lead is None or is_image(opened.inputs):
        return opened
    if _failure(opened, opened.inputs or ()) is not None:
        return opened
    first: tuple[int, BaseException] | None = None
    for axis in _token_axes(_tensor(opened, lead)):
        for wanted in _resized(shapes, lead, axis):
            inputs = _with(opened, wanted)
            error = _failure(opened, inputs)
            if error is None:
                return replace(opened, inputs=inputs)
            first = first or (shapes[lead][axis], error)
    what = "has no axis of tokens"
    if first is not None:
        place = place_of(first[1], opened.module)
        what = f"runs on {first[0]} tokens, and not on {TRACED_TOKENS}: {place}: {reason(first[1])}"
    raise InputError(f"{opened.name}: example inputs", what, "a module that takes any number of tokens a sequence")


def is_image(inputs: tuple[Any, ...] | None) -> bool:
    """Whether the first tensor is (batch, channels, height, width): what fixes the number of tokens."""
    shape = next(iter(_shapes(inputs or ()).values()), ())
    return len(shape) > 3


def _shapes(inputs: tuple[Any, ...]) -> dict[int, Shape]:
    """The shapes of the tensors among the inputs, by their number."""
    import torch

    return {n: tuple(one.shape) for n, one in enumerate(inputs) if isinstance(one, torch.Tensor) and one.dim()}


def _tensor(opened: Opened, number: int) -> Any:
    assert opened.inputs is not None
    return opened.inputs[number]


def _token_axes(lead: Any) -> tuple[int, ...]:
    """Which axes of the first tensor may be the tokens, the likeliest first: ids, (batch, tokens, width), a sound."""
    if not lead.is_floating_point():
        return (lead.dim() - 1,)
    return (1, 2) if lead.dim() == 3 else (0,)


def _resized(shapes: dict[int, Shape], lead: int, axis: int) -> Iterator[dict[int, Shape]]:
    """Shapes to try: tokens wherever an axis has their number; at the same place only; in the first tensor only."""
    batch = shapes[lead][0] if axis else 0
    tokens = shapes[lead][axis]

    def shape(number: int, everywhere: bool, others: bool) -> Shape:
        own = shapes[number]
        out = []
        for place, size in enumerate(own):
            first = place == 0 and len(own) > 1 and size == batch
            same = place == axis if not everywhere or tokens == 1 else True
            counts = (number == lead and place == axis) or (number != lead and others and same and size == tokens)
            out.append(1 if first else TRACED_TOKENS if counts else size)
        return tuple(out)

    tried: list[dict[int, Shape]] = []
    for everywhere, others in ((True, True), (False, True), (False, False)):
        wanted = {number: shape(number, everywhere, others) for number in shapes}
        if wanted not in tried:
            tried.append(wanted)
            yield wanted


def _with(opened: Opened, shapes: dict[int, Shape]) -> tuple[Any, ...]:
    """The inputs, with zeros of another shape where that differs."""
    with opened.mode:
        return tuple(
            one if shapes.get(number, ()) == tuple(getattr(one, "shape", ())) else one.new_zeros(shapes[number])
            for number, one in enumerate(opened.inputs or ())
        )


def _failure(opened: Opened, inputs: tuple[Any, ...]) -> BaseException | None:
    """What stops the module from running on `inputs`."""
    import torch

    with ExitStack() as stack:
        stack.enter_context(quiet())
        stack.enter_context(opened.mode)
        stack.enter_context(torch.no_grad())
        try:
            opened.module(*inputs)
        except (InputError, MemoryError):
            raise
        except RAISED as error:
            return error
    return None
