"""Tensors without memory, for the code of a Python file: modules of them can be converted (`half()`, `to(dtype)`)."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch


def fake_mode() -> Any:
    """A mode whose tensors have shapes and types and no numbers."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=True)


@contextmanager
def faked(mode: Any) -> Iterator[None]:
    """Inside, tensors are fake, and a module of them can be converted to another type.

    torch converts such a module by exchanging each parameter with its converted copy, which it refuses where a weak
    reference knows either, as the mode's own table of fake tensors always does.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    exchange = torch.utils.swap_tensors

    def swap(one: Any, other: Any) -> None:
        if not (isinstance(one, FakeTensor) and isinstance(other, FakeTensor)):
            exchange(one, other)
            return
        for tensor, values in ((one, dict(vars(other))), (other, dict(vars(one)))):
            vars(tensor).clear()
            vars(tensor).update(values)
        torch._C._swap_tensor_impl(one, other)

    with patch.object(torch.utils, "swap_tensors", swap), mode:
        yield
