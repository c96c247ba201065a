"""The scalars and functions of each layer, read from the instance of the class itself."""

import inspect
import sys
from dataclasses import dataclass
from typing import Any

from agent.outputs.checkpoint import Weights
from compiler.frontend.capture.norms import eps_of
from compiler.frontend.ffns import MoE
from compiler.frontend.mixers import Attention, LatentAttention
from compiler.frontend.spec import Layer, ModelSpec
from compiler.ir.graph import Block, Graph, Pattern
from simulator.functional.named import Named
from simulator.functional.numbers import Gates, LayerNumbers, NormNumbers, Rope, Unmeant

#: Types whose layers are written down in full: every scalar is read here, every fused tensor in `checkpoint.LAYOUT`.
_WRITTEN = """
    arcee deepseek_v2 deepseek_v3 dots1 ernie4_5 ernie4_5_moe exaone4 exaone_moe flex_olmo gemma gemma2 gemma3_text glm
    glm4 glm4_moe gpt_oss helium internlm3 iquestcoder jais2 llama mamba2 ministral ministral3 mistral mixtral
    nemotron olmo2 olmo3 olmoe phi phi3 qwen2 qwen2_moe qwen3 qwen3_moe qwen3_next seed_oss smollm3 solar_open
    stablelm starcoder2 vaultgemma
"""
WRITTEN = frozenset(_WRITTEN.split())
#: Inside the unit length of a delta rule's queries and keys (the kernels' constant).
UNIT_EPSILON = 1e-6
UNIT = ("mixer.q_norm", "mixer.k_norm")


@dataclass(frozen=True)
class ModelBindings:
    """Weights and scalars of an instance: what `simulator.functional` needs of a model."""

    spec: ModelSpec
    graph: Graph
    module: Any
    weights: Weights

    def weight(self, layer: int, block: str, name: str) -> Named:
        return self.weights.weight(layer, block, name)

    def layer(self, layer: int, block: str) -> LayerNumbers:
        own = self.graph.block[block]
        if block in ("embed", "head", "sample"):
            cap = float(getattr(self.module.config, "final_logit_softcapping", None) or 0.0)
            return LayerNumbers(norms=self._norms(own, layer), scale=_embed_scale(self.module), softcap=cap)
        part, spec = self._layers()[layer], self.spec.layers[layer]
        attention = _attention(part)
        return LayerNumbers(
            norms=self._norms(own, layer),
            rope=self._rope(spec, layer) if attention is not None else None,
            score_scale=float(getattr(attention, "scaling", 0.0) or 0.0),
            softcap=float(getattr(attention, "attn_logit_softcapping", None) or 0.0),
            window=spec.mixer.window if isinstance(spec.mixer, Attention) else None,
            act=_activation(part, spec),
            gates=_gates(part, spec, self.spec.model_type),
            step_limits=tuple(getattr(self.module.config, "time_step_limit", (0.0, float("inf")))),
        )

    def _layers(self) -> Any:
        inner = self.module
        for name in ("model", "backbone"):
            inner = getattr(inner, name, inner)
        return inner.layers

    def _norms(self, block: Block, layer: int) -> dict[str, NormNumbers]:
        out = {}
        for op in block.ops:
            if op.pattern is not Pattern.REDUCE or not op.name.endswith("norm"):
                continue
            scale = next((i for i in op.inputs if i.startswith("w.")), "")
            if op.name in UNIT:
                out[op.name] = NormNumbers(UNIT_EPSILON, summed=True)
                continue
            role = self.spec.names.module(op.name) if not scale else block.tensor[scale].key.removesuffix(".weight")
            out[op.name] = norm_numbers(self.module.get_submodule(role.replace("{layer}", str(layer))))
        return out

    def _rope(self, spec: Layer, layer: int) -> Rope | None:
        import torch

        table = getattr(getattr(self.module, "model", None), "rotary_emb", None)
        if table is None:
            return None
        places = torch.arange(self.graph.workload.context)[None]
        types = getattr(self.module.config, "layer_types", None)
        kind = (types[layer],) if types and "layer_type" in inspect.signature(table.forward).parameters else ()
        found = table(torch.zeros(1, 1, 1), places, *kind)
        if not isinstance(found, tuple):  # complex numbers, which turn neighbours
            return Rope(found.real[0].repeat_interleave(2, -1), found.imag[0].repeat_interleave(2, -1), True)
        cos, sin = (t[0] for t in found)
        width = _rotated(spec)
        if cos.shape[-1] * 2 == width:
            cos, sin = (torch.cat((t, t), -1) for t in (cos, sin))
        paired = _turns_neighbours(self._layers()[layer].self_attn, self.module.config)
        if paired and torch.equal(cos[:, : width // 2], cos[:, width // 2 :]):
            cos, sin = (t[..., : width // 2].repeat_interleave(2, -1) for t in (cos, sin))
        return Rope(cos, sin, paired)


def norm_numbers(norm: Any) -> NormNumbers:
    """What a norm of the class computes, found by running it on numbers. Unmeant where it is none of those known."""
    import torch

    eps, weight, bias = eps_of(norm), getattr(norm, "weight", None), getattr(norm, "bias", None)
    if "gate" in inspect.signature(norm.forward).parameters:  # the gate is an op of its own
        return NormNumbers(eps)
    x = torch.linspace(-1.0, 2.0, 2 * (8 if weight is None else weight.numel()))
    x = x.view(1, 2, *((-1,) if weight is None else weight.shape))
    with torch.no_grad():
        theirs = norm(x)
    last = list(range(2, x.dim()))
    for centred in (False, True):
        y = x - x.mean(last, keepdim=True) if centred else x
        y = y * torch.rsqrt((y * y).mean(last, keepdim=True) + eps)
        for offset in (0.0, 1.0) if weight is not None else (0.0,):
            ours = y if weight is None else y * (weight + offset)
            ours = ours if bias is None else ours + bias
            if torch.allclose(ours, theirs, atol=1e-5, rtol=1e-4):
                return NormNumbers(eps, offset, centred)
    raise Unmeant(f"what the norm {type(norm).__name__} computes is not written down")


def _turns_neighbours(attention: Any, config: Any) -> bool:
    """Whether rotary embedding turns element 2i with 2i + 1, as the class's own helper does."""
    import torch

    if getattr(config, "rope_interleave", False):
        return True
    rotate = getattr(sys.modules[type(attention).__module__], "rotate_half", None)
    return rotate is not None and rotate(torch.arange(4.0)).tolist() == [-1.0, 0.0, -3.0, 2.0]


def _rotated(spec: Layer) -> int:
    mixer = spec.mixer
    if isinstance(mixer, LatentAttention):
        return mixer.rope
    assert isinstance(mixer, Attention)
    return mixer.head_dim if mixer.rotary is None else mixer.rotary


def _attention(part: Any) -> Any:
    return getattr(part, "self_attn", None)


def _embed_scale(module: Any) -> float:
    table = module.get_input_embeddings()
    return float(getattr(table, "embed_scale", 1.0))


def _activation(part: Any, spec: Layer) -> Any:
    """act(gate, up), or act(x)."""
    mlp = getattr(part, "mlp", None) or getattr(part, "block_sparse_moe", None)
    if mlp is None:
        return None
    experts = getattr(mlp, "experts", None)
    if experts is not None and hasattr(experts, "limit"):  # gpt_oss: both clipped, the gate from one side
        alpha, limit = experts.alpha, experts.limit

        def clipped(gate: Any, up: Any) -> Any:
            import torch

            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
            return (up + 1) * gate * torch.sigmoid(gate * alpha)

        return clipped
    act = next((a for p in (mlp, experts) for a in _activations(p)), None)
    if act is None:
        return None

    def gated(gate: Any, up: Any = None) -> Any:
        return act(gate) if up is None else act(gate) * up

    return gated


def _activations(part: Any) -> Any:
    """The modules of `part` that are activations."""
    from transformers.activations import ACT2CLS

    known = tuple(c if isinstance(c, type) else c[0] for c in ACT2CLS.values())
    return [child for child in part.children() if isinstance(child, known)] if part is not None else []


def _gates(part: Any, spec: Layer, model_type: str) -> Gates | None:
    moe = spec.ffn
    if not isinstance(moe, MoE):
        return None
    if model_type == "gpt_oss":
        return Gates(moe.top_k, "chosen")
    scoring = moe.scoring
    router = getattr(part.mlp, "gate", None) if hasattr(part, "mlp") else None
    correction = getattr(router, "e_score_correction_bias", None)
    return Gates(
        moe.top_k,
        scoring.function,
        scoring.normalise,
        scoring.scale,
        scoring.groups,
        scoring.top_groups,
        pairs=scoring.function == "sigmoid",
        correction=correction,
        epsilon=1e-20 if scoring.function == "sigmoid" else 0.0,
    )
