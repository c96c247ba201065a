"""The semantic operators of a trace: what a library kernel computes, kept as one node instead of its reference code.

`define` declares them once in the torch library `rdutune`; they have shapes but no numbers. Which code calls them is
decided in `patches`. Schemas (b batch, t tokens, h heads, d head size):

    attention        q (b,h,t,d), k (b,h_kv,s,d), v (b,h_kv,s,dv) -> (b,t,h,dv); window, chunk: tokens, 0 for none;
                     softcap: 0 for none; sinks (h); mask: an additive or boolean tensor the model itself made;
                     indices (b,t,chosen): the keys a sparse indexer chose for each query
    experts          x (t,hidden), index and weights (t,slots), up/down and biases as the checkpoint has them
    gated_delta, kda q,k (b,t,h_k,d), v (b,t,h,dv), decay (b,t,h) or (b,t,h,d), beta (b,t,h) -> (b,t,h,dv)
    linear_attention q,k (b,t,h,d), v (b,t,h,dv), decay: a rate a head -> (b,t,h,dv)             (lightning attention)
    ssm_scan         x (b,t,h,d), dt (b,t,h), A (h), B,C (b,t,groups,state) -> (b,t,h,d)      (Mamba-2)
    selective_scan   x, dt (b,channels,t), A (channels,state), B,C (b,state,t) -> (b,channels,t)   (Mamba-1)
    causal_conv      x (b,channels,t), weight (channels,kernel) -> (b,channels,t)
    rms_norm         x (..., n), weight (n) -> x; offset: added to the weight (Gemma: 1)
    position_bias    table (buckets, heads) -> (1, heads, t, s): what T5 adds to scores, by distance
    layer            stands for a whole layer while what surrounds the layers is exported
"""

from functools import cache
from typing import Any

NAMESPACE = "rdutune"

ATTENTION = (
    "(Tensor q, Tensor k, Tensor v, float scaling, bool causal, int window, int chunk, float softcap, Tensor? sinks, "
    "Tensor? mask, Tensor? indices) -> Tensor"
)
EXPERTS = (
    "(Tensor x, Tensor index, Tensor weights, Tensor up, Tensor down, Tensor? up_bias, Tensor? down_bias, "
    "Tensor? post_norm, str act, str gate, bool gated, bool transposed, bool interleaved) -> Tensor"
)
DELTA = "(Tensor q, Tensor k, Tensor v, Tensor decay, Tensor beta, bool qk_l2norm) -> Tensor"
LINEAR = "(Tensor q, Tensor k, Tensor v, Tensor decay) -> Tensor"
SSM = "(Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? dt_bias, bool softplus) -> Tensor"
SELECTIVE = SSM.replace("Tensor? dt_bias", "Tensor? z, Tensor? dt_bias")
CONV = "(Tensor x, Tensor weight, Tensor? bias, str act) -> Tensor"
RMS = "(Tensor x, Tensor? weight, float eps, float offset) -> Tensor"
BIAS = "(Tensor table, int queries, int keys) -> Tensor"
LAYER = "(Tensor[] inputs, int call, int[] ranks, int[] sizes, ScalarType[] dtypes) -> Tensor[]"


@cache
def define() -> Any:
    """Declare the operators (once a process) and return the library, which must be kept alive. Imports torch."""
    import torch

    library = torch.library.Library(NAMESPACE, "DEF")
    like_x = (("ssm_scan", SSM), ("selective_scan", SELECTIVE), ("causal_conv", CONV), ("rms_norm", RMS))
    for name, schema in like_x:
        _declare(library, name, schema, lambda x, *_: torch.empty_like(x, memory_format=torch.contiguous_format))
    for name in ("gated_delta", "kda"):
        _declare(library, name, DELTA, lambda q, k, v, *_: v.new_empty(v.shape, dtype=q.dtype))
    _declare(library, "linear_attention", LINEAR, lambda q, k, v, *_: v.new_empty(v.shape))
    _declare(library, "experts", EXPERTS, lambda x, *_: torch.empty_like(x, memory_format=torch.contiguous_format))
    _declare(library, "attention", ATTENTION, _attention_shape)
    _declare(library, "position_bias", BIAS, lambda table, t, s: table.new_empty(1, table.shape[1], t, s))
    _declare(library, "layer", LAYER, _layer_shapes)
    return library


def _declare(library: Any, name: str, schema: str, shape: Any) -> None:
    import torch

    library.define(name + schema)
    torch.library.register_fake(f"{NAMESPACE}::{name}", shape, lib=library)


def _attention_shape(q: Any, k: Any, v: Any, *_: Any) -> Any:
    return q.new_empty(q.shape[0], q.shape[2], q.shape[1], v.shape[3])


def _layer_shapes(inputs: Any, call: int, ranks: Any, sizes: Any, dtypes: Any) -> Any:
    out, at = [], 0
    for rank, dtype in zip(ranks, dtypes, strict=True):
        out.append(inputs[0].new_empty(list(sizes[at : at + rank]), dtype=dtype))
        at += rank
    return out
