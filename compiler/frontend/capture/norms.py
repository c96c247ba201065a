"""RMSNorm classes of models as one semantic operator, where their forward is proven to compute it."""

import inspect
from collections.abc import Callable
from copy import copy
from typing import Any

from compiler.frontend.capture.failure import FAILURES


def is_rms(cls: type) -> bool:
    """Whether a class may be the RMSNorm of one tensor (gated ones keep their own nodes)."""
    takes = list(inspect.signature(cls.forward).parameters)  # type: ignore[attr-defined]
    return cls.__name__.endswith(("RMSNorm", "T5LayerNorm")) and len(takes) == 2


def rms_forward(cls: Any, norms: list[Any]) -> Callable[[Any, Any], Any]:
    """A forward that is one operator for modules that are proven to compute it, and the class's own for others."""
    original = cls.forward
    offsets: dict[bool, float | None] = {}
    for norm in norms:
        bare = getattr(norm, "weight", None) is None
        if bare not in offsets:
            offsets[bare] = _offset(norm, original)

    def forward(self: Any, x: Any) -> Any:
        import torch

        weight = getattr(self, "weight", None)
        offset = offsets[weight is None]
        if offset is None or (weight is not None and weight.dim() != 1):
            return original(self, x)
        return torch.ops.rdutune.rms_norm(x, weight, eps_of(self), offset)

    return forward


def _offset(module: Any, forward: Callable[[Any, Any], Any]) -> float | None:
    """What an RMSNorm adds to its weight (0; Gemma's 1), or None if it computes something else.

    Found by running the class's forward on numbers: names do not tell (one called UnweightedRMSNorm returns the
    factor alone).
    """
    import torch
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    weight = getattr(module, "weight", None)
    if [name for name, _ in module.named_parameters()] != ([] if weight is None else ["weight"]):
        return None
    if weight is not None and weight.dim() != 1:
        return None
    size = 8 if weight is None else weight.shape[0]
    with unset_fake_temporarily(), torch.no_grad():
        x = torch.linspace(-1.0, 2.0, 2 * size).view(1, 2, size)
        scale = torch.linspace(0.5, 1.5, size)
        trial = copy(module)
        trial._parameters = {} if weight is None else {"weight": torch.nn.Parameter(scale, requires_grad=False)}
        try:
            out = forward(trial, x)
        except FAILURES:
            return None
        normal = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps_of(module))
        for offset in (0.0,) if weight is None else (0.0, 1.0):
            right = normal if weight is None else normal * (scale + offset)
            if isinstance(out, torch.Tensor) and out.shape == x.shape and torch.allclose(out, right, atol=1e-4):
                return offset
    return None


def eps_of(module: Any) -> float:
    """The epsilon of a norm, whatever its class calls it; 0 where it has none."""
    for name in ("variance_epsilon", "eps", "norm_eps", "epsilon"):
        if isinstance(value := getattr(module, name, None), (int, float)):
            return float(value)
    return 0.0
