"""What an operator of the trace is: a view, element-wise (and its cost), a reduction; the figures of the spec builders.
from compiler.frontend.flops import ACTIVATION_FLOPS, SOFTMAX_FLOPS, TOPK_FLOPS

Names are `namespace.name` without the overload. A view moves no data and costs nothing.
"""

from typing import Final

from compiler.frontend.flops import ACTIVATION_FLOPS, SOFTMAX_FLOPS, TOPK_FLOPS
from compiler.frontend.parts import Norm, NormKind


def aten(words: str) -> tuple[str, ...]:
    """The operators of PyTorch of these names."""
    return tuple(f"aten.{word}" for word in words.split())


#: Activations: each counts the same, whichever it is.
ACTIVATIONS: Final = frozenset(
    aten("silu gelu relu relu6 sigmoid tanh mish hardtanh hardswish hardsigmoid leaky_relu elu celu selu softplus erf")
    + aten("log_sigmoid logsigmoid prelu softsign")
)
#: Exponentials and logarithms: 4 operations, as in the activation they are a part of.
_TRANSCENDENTAL = "exp expm1 exp2 log log1p log2 sin cos atan2 acos"
_ONE = (
    "add sub rsub mul multiply div divide subtract pow square sqrt rsqrt reciprocal abs sign clamp clamp_min clamp_max "
    "maximum minimum where masked_fill floor ceil round trunc floor_divide remainder fmod lerp addcmul addcdiv "
    "threshold heaviside eq ne lt le gt ge logical_and logical_or logical_not logical_xor "
    "bitwise_and bitwise_or bitwise_not isnan isinf nan_to_num"
)
#: A change of sign, and what only places data: no operation of its own.
_FREE = "neg fill tril triu roll flip"

#: Operations of each element-wise operator an element of its output.
ELEMENTWISE: Final[dict[str, int]] = {
    **dict.fromkeys(aten(_ONE), 1),
    **dict.fromkeys(aten(_TRANSCENDENTAL), 4),
    **dict.fromkeys(aten(_FREE), 0),
    **dict.fromkeys(sorted(ACTIVATIONS), ACTIVATION_FLOPS),
}

#: Reductions: operations an element of the input, and whether the reduced dimension stays in the output.
REDUCTIONS: Final[dict[str, int]] = {
    "aten.sum": 1,
    "aten.mean": 1,
    "aten.amax": 1,
    "aten.amin": 1,
    "aten.max": 1,
    "aten.min": 1,
    "aten.prod": 1,
    "aten.any": 1,
    "aten.all": 1,
    "aten.argmax": 1,
    "aten.argmin": 1,
    "aten.var": 3,
    "aten.std": 3,
    "aten.norm": 2,
    "aten.linalg_vector_norm": 2,
    "aten.logsumexp": SOFTMAX_FLOPS,
}
#: Of the same shape as their input, along one dimension.
ALONG: Final[dict[str, int]] = {
    "aten.softmax": SOFTMAX_FLOPS,
    "aten._softmax": SOFTMAX_FLOPS,
    "aten.log_softmax": SOFTMAX_FLOPS,
    "aten._log_softmax": SOFTMAX_FLOPS,
}
SCANS: Final = frozenset({"aten.cumsum", "aten.cumprod", "aten.logcumsumexp"})
SORTS: Final[dict[str, int]] = {"aten.topk": TOPK_FLOPS, "aten.sort": TOPK_FLOPS, "aten.argsort": TOPK_FLOPS}
GATHERS: Final = frozenset({"aten.index", "aten.gather", "aten.index_select", "aten.take_along_dim"})
SCATTERS: Final = frozenset(
    f"aten.{name}" for name in ("scatter", "scatter_add", "index_put", "index_add", "scatter_reduce", "index_copy")
)
#: Without scale and bias, which count one each.
_RMS = Norm(scale=False).flops_per_point
_LAYER = Norm(NormKind.LAYER, scale=False).flops_per_point
NORMS: Final[dict[str, int]] = {
    "rdutune.rms_norm": _RMS,
    "aten.rms_norm": _RMS,
    "aten._fused_rms_norm": _RMS,
    "aten.layer_norm": _LAYER,
    "aten.native_layer_norm": _LAYER,
}
#: Tensors whose elements do not depend on those of the tensor whose shape they have.
CREATIONS: Final = frozenset(
    aten("new_empty new_zeros new_ones new_full empty_like zeros_like ones_like full_like new_empty_strided")
)
#: Checks that leave no tensor.
CHECKS: Final = frozenset(aten("_assert_tensor_metadata sym_size _assert_async sym_constrain_range"))
#: Recurrences on queries, keys and values.
DELTAS: Final = frozenset({"rdutune.gated_delta", "rdutune.kda", "rdutune.linear_attention"})
