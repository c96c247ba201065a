"""The scalars and functions of each layer, read from the instance of the class itself."""

from dataclasses import dataclass
from typing import Any

from compiler.frontend.capture.norms import _eps, _offset
from compiler.frontend.ffns import MoE
from compiler.frontend.mixers import Attention, LatentAttention
from compiler.frontend.spec import Layer, ModelSpec, NormKind
from compiler.ir.graph import Block, Graph, Pattern
from simulator.functional.named import Named
from simulator.functional.numbers import Gates, LayerNumbers, NormNumbers, Rope, Unmeant

from agent.outputs.checkpoint import Weights

#: Inside the unit length of a delta rule's queries and keys (the kernels' constant).
UNIT_EPSILON = 1e-6


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
        for name in ("model", "backbone", "transformer"):
            inner = getattr(inner, name, inner)
        return inner.layers

    def _norms(self, block: Block, layer: int) -> dict[str, NormNumbers]:
        out = {}
        for op in block.ops:
            if op.pattern is not Pattern.REDUCE or not op.name.endswith("norm"):
                continue
            scale = next((i for i in op.inputs if i.startswith("w.")), "")
            if not scale:
                out[op.name] = NormNumbers(UNIT_EPSILON, summed=op.name in ("mixer.q_norm", "mixer.k_norm"))
                continue
            key = block.tensor[scale].key.replace("{layer}", str(layer)).removesuffix(".weight")
            norm = self.module.get_submodule(key)
            centred = self.spec.layers[0].norm.kind is NormKind.LAYER and any(i.startswith("b.") for i in op.inputs)
            offset = 0.0 if centred else _offset(norm, type(norm).forward)
            out[op.name] = NormNumbers(_eps(norm), offset or 0.0, centred)
        return out

    def _rope(self, spec: Layer, layer: int) -> Rope | None:
        import torch

        inner = getattr(self.module, "model", None)
        table = getattr(inner, "rotary_emb", None)
        if table is None:
            return None
        places = torch.arange(self.graph.workload.context)[None]
        cos, sin = table(torch.zeros(1, 1, 1), places)
        paired = isinstance(spec.mixer, LatentAttention) and bool(getattr(self.module.config, "rope_interleave", False))
        if paired:
            half = cos.shape[-1] // 2
            cos, sin = (t[..., :half].repeat_interleave(2, -1) for t in (cos, sin))
        elif cos.shape[-1] * 2 == _rotated(spec):
            cos, sin = (torch.cat((t, t), -1) for t in (cos, sin))
        return Rope(cos[0], sin[0], paired)


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
    if hasattr(experts, "limit"):  # gpt_oss: both clipped, the gate from one side
        alpha, limit = experts.alpha, experts.limit

        def clipped(gate: Any, up: Any) -> Any:
            import torch

            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
            return (up + 1) * gate * torch.sigmoid(gate * alpha)

        return clipped
    act = getattr(mlp, "act_fn", None) or getattr(experts, "act_fn", None)
    if act is None:
        return None

    def gated(gate: Any, up: Any = None) -> Any:
        return act(gate) if up is None else act(gate) * up

    return gated


def _gates(part: Any, spec: Layer, model_type: str) -> Gates | None:
    moe = spec.ffn
    if not isinstance(moe, MoE):
        return None
    if model_type == "gpt_oss":
        return Gates(moe.top_k, "chosen")
    scoring = moe.scoring
    router = getattr(part.mlp, "gate", None)
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
