"""Make a model call the semantic operators: the functions that replace library kernels, for the time of a trace.

`registered()` puts attention and experts into the public registries of transformers under the name `rdutune`;
`patched(module)` exchanges RMSNorm classes and recurrence kernels and restores them at the end.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

from compiler.frontend.capture.forwards import FORWARDS, position_bias
from compiler.frontend.capture.ir import TRACED_TOKENS
from compiler.frontend.capture.leaves import NAMESPACE, define
from compiler.frontend.capture.norms import is_rms, rms_forward

#: Attention implementations: without any mask, and with the mask that the model's own code reads (sparse indexers).
PLAIN, MASKED = NAMESPACE, f"{NAMESPACE}_masked"

#: Tensors that attention functions are handed and that say nothing beyond the mask.
IGNORED = frozenset({"position_ids", "cu_seq_lens_q", "cu_seq_lens_k", "cache_position", "position_embeddings"})

#: Tensors that become arguments of the attention operator.
USED = frozenset({"s_aux", "sinks", "indices"})

#: Kernels of transformers by their public name (the argument of `use_kernel_func_from_hub_with_fallback`).
DECORATED = re.compile(r"@use_kernel_func_from_hub_with_fallback\(\s*\"(\w+)\"[^)]*\)\s*\ndef (\w+)")


def attention(module: Any, query: Any, key: Any, value: Any, attention_mask: Any = None, **given: Any) -> Any:
    """The attention function of transformers' interface: (b, h, t, d) in, ((b, t, h, dv), no weights) out."""
    import torch

    unknown = sorted(k for k, v in given.items() if isinstance(v, torch.Tensor) and k not in IGNORED | USED)
    mask = attention_mask
    if "position_bias" in unknown and mask is None:
        mask = given["position_bias"]
        unknown.remove("position_bias")
    if unknown:
        raise NotImplementedError(f"attention is given tensors that are not understood: {', '.join(unknown)}")
    scaling = given.get("scaling")
    causal = given.get("is_causal")
    out = torch.ops.rdutune.attention(
        query,
        key,
        value,
        float(query.shape[-1] ** -0.5 if scaling is None else scaling),
        bool(getattr(module, "is_causal", True) if causal is None else causal),
        *_spans(module, given.get("sliding_window")),
        float(given.get("softcap") or 0.0),
        given.get("s_aux") if given.get("sinks") is None else given["sinks"],
        mask,
        given.get("indices"),
    )
    return out, None


def _spans(module: Any, window: int | None) -> tuple[int, int]:
    """Window and chunk in tokens, 0 for none; from the layer type where the mask alone would have said it."""
    config, index = getattr(module, "config", None), getattr(module, "layer_idx", None)
    types = getattr(config, "layer_types", None)
    kind = types[index] if types and isinstance(index, int) and index < len(types) else ""
    if kind == "sliding_attention" and window is None:
        window = getattr(config, "sliding_window", None)
    chunk = getattr(config, "attention_chunk_size", None) if kind == "chunked_attention" else None
    return int(window or 0), int(chunk or 0)


def experts(module: Any, hidden_states: Any, top_k_index: Any, top_k_weights: Any) -> Any:
    """The experts function of transformers' interface: (t, hidden), (t, slots), (t, slots) -> (t, hidden)."""
    import torch

    bias = module.has_bias
    norm = module.post_expert_norm.weight if module.has_post_expert_norm else None
    return torch.ops.rdutune.experts(
        hidden_states,
        top_k_index,
        top_k_weights,
        module.gate_up_proj if module.has_gate else module.up_proj,
        module.down_proj,
        (module.gate_up_proj_bias if module.has_gate else module.up_proj_bias) if bias else None,
        module.down_proj_bias if bias else None,
        norm,
        type(module.act_fn).__name__ if hasattr(module, "act_fn") else "",
        _gate_name(module),
        module.has_gate,
        module.is_transposed,
        not module.is_concatenated,
    )


def _gate_name(module: Any) -> str:
    """The class whose `_apply_gate` differs from activation(gate) * up, with its scalars; "" for the usual one."""
    from transformers.integrations.moe import _default_apply_gate

    if type(module)._apply_gate is _default_apply_gate:
        return ""
    scalars = sorted((k, v) for k, v in vars(module).items() if isinstance(v, float))
    return ",".join([type(module).__name__, *(f"{k}={v:g}" for k, v in scalars)])


def causal_conv(x: Any, weight: Any, bias: Any = None, activation: str | None = None, **_: Any) -> Any:
    """`causal_conv1d_fn`; the state for decoding is the compiler's business."""
    import torch

    return torch.ops.rdutune.causal_conv(x, weight, bias, activation or "")


def gated_delta(q: Any, k: Any, v: Any, g: Any, beta: Any, **given: Any) -> Any:
    """`chunk_gated_delta_rule` and its one-token form: (output, state where it is asked for)."""
    import torch

    norm = bool(given.get("use_qk_l2norm_in_kernel"))
    return torch.ops.rdutune.gated_delta(q, k, v, g, beta, norm), _delta_state(k, v, given)


def kda(q: Any, k: Any, v: Any, g: Any, beta: Any, **given: Any) -> Any:
    """`chunk_kda` and its one-token form: (output, state where it is asked for)."""
    import torch

    norm = bool(given.get("use_qk_l2norm_in_kernel"))
    return torch.ops.rdutune.kda(q, k, v, g, beta, norm), _delta_state(k, v, given)


def _delta_state(k: Any, v: Any, given: dict[str, Any]) -> Any:
    """The state of a delta rule, (b,h,d,dv); its numbers are never read."""
    import torch

    if not given.get("output_final_state"):
        return None
    return v.new_empty((v.shape[0], v.shape[2], k.shape[3], v.shape[3]), dtype=torch.float32)


def ssm_scan(x: Any, dt: Any, A: Any, B: Any, C: Any, **given: Any) -> Any:
    """`mamba_chunk_scan_combined`: the output alone, or with the state, (b,h,d,state)."""
    import torch

    softplus = bool(given.get("dt_softplus"))
    out = torch.ops.rdutune.ssm_scan(x, dt, A, B, C, given.get("D"), given.get("dt_bias"), softplus)
    state = x.new_empty((x.shape[0], *x.shape[2:], B.shape[-1])) if given.get("return_final_states") else None
    return out if state is None else (out, state)


def selective_scan(x: Any, dt: Any, A: Any, B: Any, C: Any, *more: Any, **given: Any) -> Any:
    """`selective_scan_fn` of Mamba-1."""
    import torch

    named = dict(zip(("D", "z", "delta_bias", "delta_softplus"), more, strict=False)) | given
    skip, gate, bias = named.get("D"), named.get("z"), named.get("delta_bias")
    softplus = bool(named.get("delta_softplus"))
    out = torch.ops.rdutune.selective_scan(x, dt, A, B, C, skip, gate, bias, softplus)
    state = x.new_empty((*x.shape[:2], A.shape[-1])) if named.get("return_last_state") else None
    return out if state is None else (out, state)


KERNELS: dict[str, Callable[..., Any]] = {
    "causal_conv1d_fn": causal_conv,
    "chunk_gated_delta_rule": gated_delta,
    "fused_recurrent_gated_delta_rule": gated_delta,
    "chunk_kda": kda,
    "fused_recurrent_kda": kda,
    "mamba_chunk_scan_combined": ssm_scan,
    "selective_scan_fn": selective_scan,
}


@cache
def registered() -> None:
    """Put attention and experts into transformers' registries (once a process). Imports torch and transformers."""
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    define()
    for name in (PLAIN, MASKED):
        ALL_ATTENTION_FUNCTIONS.register(name, attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(MASKED, eager_mask)
    ALL_EXPERTS_FUNCTIONS.register(PLAIN, experts)
    _register_sharing()


def _register_sharing() -> None:
    """Let a layer be exported that is handed the keys and values that other layers have put into a dictionary."""
    from torch.utils import _pytree
    from transformers.cache_utils import KVSharingDict

    if KVSharingDict in _pytree.SUPPORTED_NODES:
        return
    _pytree.register_pytree_node(
        KVSharingDict,
        lambda shared: (list(shared.values()), list(shared)),
        lambda values, keys: KVSharingDict(dict(zip(keys, values, strict=True))),
        serialized_type_name="transformers.KVSharingDict",
        flatten_with_keys_fn=lambda shared: ([(_pytree.MappingKey(k), v) for k, v in shared.items()], list(shared)),
    )


def use_masks(module: Any) -> bool:
    """Make a model that runs without masks build them; whether there was anything to change."""
    changed = False
    for part in module.modules():
        config = getattr(part, "config", None)
        if config is not None and getattr(config, "_attn_implementation", None) == PLAIN:
            config._attn_implementation = MASKED
            changed = True
    return changed


def writes_attention(module: Any) -> bool:
    """Whether the file of a class of transformers has attention of its own, which no registry reaches."""
    text = _text(type(module).__module__)
    return bool(text) and "ALL_ATTENTION_FUNCTIONS" not in text


@contextmanager
def patched(module: Any) -> Iterator[None]:
    """RMSNorm classes and recurrence kernels of `module` are semantic operators inside; as they were afterwards.

    Rope tables are those of a short sequence: the update for longer ones only exchanges numbers.
    """
    classes = {type(m) for m in module.modules()}
    with ExitStack() as stack:
        norms = [part for part in module.modules() if is_rms(type(part))]
        for cls in sorted({type(part) for part in norms}, key=lambda c: c.__qualname__):
            forward = rms_forward(cls, [part for part in norms if type(part) is cls])
            stack.enter_context(_exchanged(cls, "forward", forward))
        for name in sorted({c.__module__ for c in classes if c.__module__.startswith("transformers.models")}):
            for local, kernel in _kernels(name).items():
                stack.enter_context(_exchanged(sys.modules[name], local, kernel))
        for cls in sorted((c for c in classes if c.__name__ in FORWARDS), key=lambda c: c.__qualname__):
            stack.enter_context(_exchanged(cls, "forward", FORWARDS[cls.__name__]))
        for cls in sorted((c for c in classes if _is_biased(c)), key=lambda c: c.__qualname__):
            stack.enter_context(_exchanged(cls, "compute_bias", position_bias))
        ropes = (
            c for c in classes if c.__name__.endswith("RotaryEmbedding") and c.__module__.startswith("transformers.")
        )
        for cls in sorted(ropes, key=lambda c: c.__qualname__):
            stack.enter_context(_exchanged(cls, "forward", inspect.unwrap(cls.forward)))
        for name in sorted({c.__module__ for c in classes}):
            if writes_attention(module) and hasattr(sys.modules[name], "create_bidirectional_mask"):
                # a mask that hides nothing would be taken for one that hides later tokens
                stack.enter_context(_exchanged(sys.modules[name], "create_bidirectional_mask", lambda **_: None))
            if "torch.max(position_ids)" in _text(name):
                stack.enter_context(_exchanged(sys.modules[name], "torch", _ShortPositions()))
        yield


class _ShortPositions:
    """torch, but the largest of the positions is known: rope tables ask whether the sequence is a long one."""

    def __getattr__(self, name: str) -> Any:
        import torch

        return getattr(torch, name)

    def max(self, values: Any, *more: Any, **given: Any) -> Any:
        """torch.max; of integers alone, the last traced position."""
        import torch

        if more or given or values.is_floating_point():
            return torch.max(values, *more, **given)
        return TRACED_TOKENS - 1

    def where(self, condition: Any, *values: Any) -> Any:
        """torch.where; of a condition that is known, the value it chooses."""
        import torch

        if isinstance(condition, bool):
            return values[0] if condition else values[1]
        return torch.where(condition, *values)


@contextmanager
def _exchanged(owner: Any, name: str, function: Any) -> Iterator[None]:
    """`owner.name` is `function` inside; afterwards it is what it was, inherited or its own."""
    own = name in vars(owner)
    before = vars(owner).get(name)
    setattr(owner, name, function)
    try:
        yield
    finally:
        if own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)


@cache
def _kernels(module: str) -> dict[str, Callable[..., Any]]:
    """The functions of a modeling file that stand for a kernel, and what replaces them."""
    return {local: KERNELS[public] for public, local in DECORATED.findall(_text(module)) if public in KERNELS}


@cache
def _text(module: str) -> str:
    """The source of an imported module of transformers; "" for any other."""
    return inspect.getsource(sys.modules[module]) if module.startswith("transformers.") else ""


def _is_biased(cls: type) -> bool:
    """Whether a class of transformers makes a relative position bias out of a table of distances."""
    return cls.__module__.startswith("transformers.") and hasattr(cls, "compute_bias")
