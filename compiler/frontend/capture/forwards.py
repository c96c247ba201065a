"""Forwards of classes of transformers that no registry reaches, written with the semantic operators."""

from collections.abc import Callable
from typing import Any


def dbrx_experts(module: Any, x: Any, index: Any, weights: Any) -> Any:
    """`DbrxExperts.forward`: its three weights hold the experts one below the other, (experts * ffn, hidden)."""
    import torch

    mlp = module.mlp
    gate, up, down = (w.view(module.num_experts, -1, module.hidden_size) for w in (mlp.w1, mlp.v1, mlp.w2))
    flat, act = x.reshape(-1, module.hidden_size), type(mlp.activation_fn).__name__
    both = torch.cat((gate, up), dim=1)
    more = (None, None, None, act, "", True, False, False)
    return torch.ops.rdutune.experts(flat, index, weights, both, down.transpose(1, 2), *more).view(x.shape)


def longcat_experts(module: Any, x: Any, index: Any, weights: Any) -> Any:
    """`LongcatFlashExperts.forward`: indices beyond the routed experts are identities (`gate` says from which on)."""
    import torch

    act, gate = type(module.act_fn).__name__, f"identity_from={module.num_routed_experts}"
    more = (None, None, None, act, gate, True, False, False)
    return torch.ops.rdutune.experts(x, index, weights, module.gate_up_proj, module.down_proj, *more)


def llama4_moe(module: Any, hidden_states: Any) -> tuple[Any, Any]:
    """`Llama4TextMoe.forward`, which computes every expert on every token, most of them on zeros.

    Only the chosen ones, on the token scaled by the gate (`gate` says that the input is, not the output).
    """
    import torch

    flat, own = hidden_states.reshape(-1, module.hidden_dim), module.experts
    logits = torch.nn.functional.linear(flat, module.router.weight)
    chosen, index = torch.topk(logits, module.top_k, dim=1)
    scores = torch.sigmoid(chosen.float()).to(flat.dtype)
    more = (None, None, None, type(own.act_fn).__name__, "scaled_input", True, True, False)
    routed = torch.ops.rdutune.experts(flat, index, scores, own.gate_up_proj, own.down_proj, *more)
    return module.shared_expert(flat) + routed, logits


def lightning(
    module: Any, hidden_states: Any, position_embeddings: Any, attention_mask: Any, cache: Any = None, **_: Any
) -> tuple[Any, Any]:
    """`MiniMaxLightningAttention.forward`, which computes its recurrence in blocks: the state is (b,h,d,d)."""
    import torch

    heads, size = module.num_attention_heads, module.head_dim
    qkv = module.act_fn(module.qkv_proj(hidden_states)).reshape(*hidden_states.shape[:2], heads, 3 * size)
    q, k, v = torch.split(qkv, size, dim=3)
    state = v.new_empty((v.shape[0], heads, size, size))
    out = torch.ops.rdutune.linear_attention(q, k, v, module.slope_rate)
    out = module.norm(out.reshape(*hidden_states.shape[:2], heads * size))
    out = module.out_proj(torch.sigmoid(module.output_gate(hidden_states)) * out)
    if cache is not None:
        cache.set_linear_cache(module.layer_idx, state)
    return out, state


def position_bias(module: Any, query_length: Any, key_length: Any, *_: Any, **__: Any) -> Any:
    """`compute_bias` of T5 and its relatives: a row of the table for every distance."""
    import torch

    table = module.relative_attention_bias.weight
    return torch.ops.rdutune.position_bias(table, int(query_length), int(key_length))


#: Classes whose forward is replaced because no registry of transformers reaches it.
FORWARDS: dict[str, Callable[..., Any]] = {
    "Llama4TextMoe": llama4_moe,
    "DbrxExperts": dbrx_experts,
    "MiniMaxLightningAttention": lightning,
    "LongcatFlashExperts": longcat_experts,
}
