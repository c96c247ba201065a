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

from compiler.frontend.capture.ir import TRACED_TOKENS
from compiler.frontend.capture.leaves import NAMESPACE, define

#: Attention implementations: without any mask, and with the mask that the model's own code reads (sparse indexers).
PLAIN, MASKED = NAMESPACE, f"{NAMESPACE}_masked"

#: Tensors that attention functions are handed and that say nothing beyond the mask.
IGNORED = frozenset({"position_ids", "cu_seq_lens_q", "cu_seq_lens_k", "cache_position", "position_embeddings"})

#: Tensors that become arguments of the attention operator.
USED = frozenset({"s_aux", "sinks", "indices"})

#: Kernels of transformers by their public name (the argument of `use_kernel_func_from_hub_with_fallback`).
DECORATED = re.compile(r"@use_kernel_func_from_hub_with_fallback\(\s*\"(\w+)\"[^)]*\)\s*\ndef (\w+)")

#: Gemma's RMSNorm multiplies by one plus its weight.
OFFSET = re.compile(r"1(?:\.0)?\s*\+\s*self\.weight|self\.weight(?:\.float\(\))?\s*\+\s*1")


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
    """`chunk_gated_delta_rule` and its one-token form: (output, no state)."""
    import torch

    norm = bool(given.get("use_qk_l2norm_in_kernel"))
    return torch.ops.rdutune.gated_delta(q, k, v, g, beta, norm), None


def kda(q: Any, k: Any, v: Any, g: Any, beta: Any, **given: Any) -> Any:
    """`chunk_kda` and its one-token form: (output, no state)."""
    import torch

    return torch.ops.rdutune.kda(q, k, v, g, beta, bool(given.get("use_qk_l2norm_in_kernel"))), None


def ssm_scan(x: Any, dt: Any, A: Any, B: Any, C: Any, **given: Any) -> Any:
    """`mamba_chunk_scan_combined`: the output alone, or with a state nobody reads."""
    import torch

    softplus = bool(given.get("dt_softplus"))
    out = torch.ops.rdutune.ssm_scan(x, dt, A, B, C, given.get("D"), given.get("dt_bias"), softplus)
    return (out, None) if given.get("return_final_states") else out


def selective_scan(x: Any, dt: Any, A: Any, B: Any, C: Any, *more: Any, **given: Any) -> Any:
    """`selective_scan_fn` of Mamba-1."""
    import torch

    named = dict(zip(("D", "z", "delta_bias", "delta_softplus"), more, strict=False)) | given
    skip, gate, bias = named.get("D"), named.get("z"), named.get("delta_bias")
    softplus = bool(named.get("delta_softplus"))
    out = torch.ops.rdutune.selective_scan(x, dt, A, B, C, skip, gate, bias, softplus)
    return (out, None) if named.get("return_last_state") else out


KERNELS: dict[str, Callable[..., Any]] = {
    "causal_conv1d_fn": causal_conv,
    "chunk_gated_delta_rule": gated_delta,
    "fused_recurrent_gated_delta_rule": gated_delta,
    "chunk_kda": kda,
    "fused_recurrent_kda": kda,
    "mamba_chunk_scan_combined": ssm_scan,
    "selective_scan_fn": selective_scan,
}


def dbrx_experts(module: Any, x: Any, index: Any, weights: Any) -> Any:
    """`DbrxExperts.forward`: its three weights hold the experts one below the other, (experts * ffn, hidden)."""
    import torch

    mlp = module.mlp
    gate, up, down = (w.view(module.num_experts, -1, module.hidden_size) for w in (mlp.w1, mlp.v1, mlp.w2))
    flat, act = x.reshape(-1, module.hidden_size), type(mlp.activation_fn).__name__
    both = torch.cat((gate, up), dim=1)
    more = (None, None, None, act, "", True, False, False)
    return torch.ops.rdutune.experts(flat, index, weights, both, down.transpose(1, 2), *more).view(x.shape)


#: Classes whose forward is replaced because no registry of transformers reaches it.
FORWARDS: dict[str, Callable[..., Any]] = {"DbrxExperts": dbrx_experts}


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


@contextmanager
def patched(module: Any) -> Iterator[None]:
    """RMSNorm classes and recurrence kernels of `module` are semantic operators inside; as they were afterwards.

    Rope tables are those of a short sequence: the update for longer ones only exchanges numbers.
    """
    classes = {type(m) for m in module.modules()}
    with ExitStack() as stack:
        for cls in sorted((c for c in classes if _is_rms(c)), key=lambda c: c.__qualname__):
            stack.enter_context(_exchanged(cls, "forward", _rms_forward(cls)))
        for name in sorted({c.__module__ for c in classes if c.__module__.startswith("transformers.models")}):
            for local, kernel in _kernels(name).items():
                stack.enter_context(_exchanged(sys.modules[name], local, kernel))
        for cls in sorted((c for c in classes if c.__name__ in FORWARDS), key=lambda c: c.__qualname__):
            stack.enter_context(_exchanged(cls, "forward", FORWARDS[cls.__name__]))
        for cls in sorted((c for c in classes if c.__name__.endswith("RotaryEmbedding")), key=lambda c: c.__qualname__):
            stack.enter_context(_exchanged(cls, "forward", inspect.unwrap(cls.forward)))
        for name in sorted({c.__module__ for c in classes}):
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


def _is_rms(cls: type) -> bool:
    """Whether a class is the plain RMSNorm of one tensor (gated ones keep their own nodes)."""
    import torch

    if not cls.__name__.endswith(("RMSNorm", "T5LayerNorm")):
        return False
    if cls is torch.nn.RMSNorm:
        return True
    takes = list(inspect.signature(cls.forward).parameters)  # type: ignore[attr-defined]
    return len(takes) == 2 and "rsqrt" in _source(cls)


def _source(cls: type) -> str:
    """The text of the class and of those it inherits from (`_norm` is often inherited); "" for classes typed in."""
    import torch

    try:
        return "\n".join(inspect.getsource(c) for c in cls.__mro__ if c not in (object, torch.nn.Module))
    except (OSError, TypeError):
        return ""


def _rms_forward(cls: type) -> Callable[[Any, Any], Any]:
    offset = 1.0 if OFFSET.search(_source(cls)) else 0.0

    def forward(self: Any, x: Any) -> Any:
        import torch

        weight = getattr(self, "weight", None)
        return torch.ops.rdutune.rms_norm(x, weight, _eps(self), 0.0 if weight is None else offset)

    return forward


def _eps(module: Any) -> float:
    for name in ("variance_epsilon", "eps", "norm_eps", "epsilon"):
        if isinstance(value := getattr(module, name, None), (int, float)):
            return float(value)
    return 0.0
