"""The Python description of an architecture: frozen dataclasses that a person can compose by hand.

A model is an embedding, a sequence of layers (each a mixer and a feed-forward part) and a head. Sizes are whole-model
element counts; parameter counts follow from the description and are held equal to the graph's by tests.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

from compiler.ir.dtype import DType

FactValue = str | int | float | bool | None | tuple[Any, ...]

#: Bytes of a cache element: the cache is kept in bf16.
CACHE_ELEMENT_NBYTES = 2


class Status(StrEnum):
    """How a fact is known."""

    READ = "read"  # the config says so
    ASSUMED = "assumed"  # a documented rule, because the config is silent
    UNKNOWN = "unknown"  # the config says something that nobody here understands


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact of a model: its value, the config key it came from, and how it is known."""

    name: str
    value: FactValue
    key: str
    note: str = ""
    status: Status = Status.READ


@dataclass(frozen=True, slots=True)
class Attention:
    """Grouped-query attention (multi-head when `q_group` is 1), over all tokens or over the last `window`."""

    kv_heads: int
    q_group: int
    head_dim: int
    window: int | None = None
    sinks: bool = False
    qk_norm: bool = False
    q_bias: bool = False
    k_bias: bool = False
    v_bias: bool = False
    o_bias: bool = False

    def __post_init__(self) -> None:
        _positive("attention", self.kv_heads, self.q_group, self.head_dim, 1 if self.window is None else self.window)

    @property
    def label(self) -> str:
        return "gqa" if self.window is None else "swa"

    @property
    def kv_elements_per_token(self) -> int:
        """Cache elements a token of one layer: a key and a value for each kv head."""
        return 2 * self.kv_heads * self.head_dim

    def cached_tokens(self, context: int) -> int:
        """Tokens of a sequence of `context` that the cache of one layer holds."""
        return context if self.window is None else min(self.window, context)

    def params(self, hidden: int) -> int:
        q, kv = self.kv_heads * self.q_group * self.head_dim, self.kv_heads * self.head_dim
        biases = q * self.q_bias + kv * (self.k_bias + self.v_bias) + hidden * self.o_bias
        extras = 2 * self.head_dim * self.qk_norm + self.kv_heads * self.q_group * self.sinks
        return hidden * (2 * q + 2 * kv) + biases + extras


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2 report, section 2.1): one compressed cache row a token for all heads.

    `bias` is that of the down projections (query, key-value) and of the output projection.
    """

    heads: int
    q_lora: int | None
    kv_lora: int
    nope: int
    rope: int
    v_dim: int
    bias: bool = False

    def __post_init__(self) -> None:
        ranks = (self.kv_lora, 1 if self.q_lora is None else self.q_lora)
        _positive("latent attention", self.heads, self.nope, self.rope, self.v_dim, *ranks)

    @property
    def label(self) -> str:
        return "mla"

    @property
    def qk_dim(self) -> int:
        return self.nope + self.rope

    @property
    def kv_elements_per_token(self) -> int:
        """Cache elements a token of one layer: the latent and the shared rotary key."""
        return self.kv_lora + self.rope

    def cached_tokens(self, context: int) -> int:
        """Tokens of a sequence of `context` that the cache of one layer holds: all."""
        return context

    def params(self, hidden: int) -> int:
        q = self.heads * self.qk_dim
        query = hidden * q if self.q_lora is None else self.q_lora * (hidden + 1 + q + self.bias)
        kv_a = self.kv_lora + self.rope
        down = hidden * kv_a + self.kv_lora + kv_a * self.bias
        up = self.kv_lora * self.heads * (self.nope + self.v_dim)
        return query + down + up + self.heads * self.v_dim * hidden + hidden * self.bias


@dataclass(frozen=True, slots=True)
class Dense:
    """A feed-forward part all tokens pass through."""

    width: int
    gated: bool = True
    bias: bool = False

    def __post_init__(self) -> None:
        _positive("dense", self.width)

    @property
    def label(self) -> str:
        return "dense"

    def params(self, hidden: int) -> int:
        ups = 2 if self.gated else 1
        return (ups + 1) * hidden * self.width + (ups * self.width + hidden) * self.bias

    def active_params(self, hidden: int) -> int:
        return self.params(hidden)


@dataclass(frozen=True, slots=True)
class Scoring:
    """How a router turns scores into the chosen experts and their gates. Changes no shape."""

    function: str = "softmax"
    groups: int = 1
    top_groups: int = 1
    normalise: bool = True
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """Checkpoint modules of an MoE layer below `model.layers.{layer}.`, with `{expert}` for the expert index.

    `weight` and `bias` are the suffixes of the expert tensors.
    """

    router: str = "mlp.gate"
    gate: str = "mlp.experts.{expert}.gate_proj"
    up: str = "mlp.experts.{expert}.up_proj"
    down: str = "mlp.experts.{expert}.down_proj"
    shared: str = "mlp.shared_experts"
    weight: str = ".weight"
    bias: str = ".bias"


@dataclass(frozen=True, slots=True)
class MoE:
    """Routed experts (`top_k` of `experts` a token) and, where `shared_width` is not 0, a shared one of that width."""

    experts: int
    top_k: int
    width: int
    shared_width: int = 0
    bias: bool = False
    router_bias: bool = False
    scoring: Scoring = field(default_factory=Scoring)
    names: ExpertNames = field(default_factory=ExpertNames)

    def __post_init__(self) -> None:
        _positive("MoE", self.experts, self.top_k, self.width, self.shared_width + 1)
        if self.top_k > self.experts:
            raise ValueError(f"MoE: top-{self.top_k} of {self.experts} experts")

    @property
    def label(self) -> str:
        return "moe"

    def params(self, hidden: int) -> int:
        return self._params(hidden, self.experts)

    def active_params(self, hidden: int) -> int:
        """Parameters one token meets: the chosen experts, the shared expert and the router."""
        return self._params(hidden, self.top_k)

    def _params(self, hidden: int, experts: int) -> int:
        expert = 3 * hidden * self.width + (2 * self.width + hidden) * self.bias
        router = self.experts * (hidden + self.router_bias)
        return experts * expert + router + 3 * hidden * self.shared_width


Mixer = Attention | LatentAttention
Ffn = Dense | MoE


@dataclass(frozen=True, slots=True)
class Layer:
    """A mixer and a feed-forward part, each behind a norm and inside a residual connection."""

    mixer: Mixer
    ffn: Ffn

    @property
    def label(self) -> str:
        return f"{self.mixer.label}_{self.ffn.label}"


@dataclass(frozen=True, slots=True)
class Quantisation:
    """How the publisher's checkpoint stores linear weights. `method` None: as everything else.

    block: elements along both sides of a scale's block, None for one scale a tensor. excluded: modules kept as is.
    """

    method: str | None = None
    block: int | None = None
    excluded: tuple[str, ...] = ()


@dataclass(frozen=True)
class ModelSpec:
    """A decoder-only language model. `dtype` is the storage type of what is not quantised."""

    name: str
    model_type: str
    hidden: int
    vocab: int
    tied: bool
    layers: tuple[Layer, ...]
    mtp_modules: int = 0
    dtype: DType = DType.BF16
    quantisation: Quantisation = field(default_factory=Quantisation)
    facts: tuple[Fact, ...] = ()

    def __post_init__(self) -> None:
        _positive("model", self.hidden, self.vocab, len(self.layers), self.mtp_modules + 1)

    @cached_property
    def params(self) -> int:
        """Parameters: each checkpoint tensor once, MTP modules left out."""
        return self._sum([layer.ffn.params(self.hidden) for layer in self.layers])

    @cached_property
    def active_params(self) -> int:
        """Parameters one token meets: of the routed experts the chosen ones only; embedding and head count in full."""
        return self._sum([layer.ffn.active_params(self.hidden) for layer in self.layers])

    def _sum(self, ffns: list[int]) -> int:
        mixers = sum(layer.mixer.params(self.hidden) for layer in self.layers)
        norms = (2 * len(self.layers) + 1) * self.hidden
        return self.vocab * self.hidden * (1 if self.tied else 2) + norms + mixers + sum(ffns)

    @property
    def kv_elements_per_token_per_layer(self) -> tuple[int, ...]:
        """Cache elements a token, one number a layer."""
        return tuple(layer.mixer.kv_elements_per_token for layer in self.layers)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of bf16 cache a token, all layers counted (also those that keep a window only)."""
        return CACHE_ELEMENT_NBYTES * sum(self.kv_elements_per_token_per_layer)

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The block kind of each layer: layers equal in structure share one."""
        return name_kinds([(layer.label, layer) for layer in self.layers])


def name_kinds(items: Sequence[tuple[str, Hashable]]) -> tuple[str, ...]:
    """A kind for each (label, structure): equal pairs share a kind, a label met again is suffixed _2, _3, ..."""
    names: dict[tuple[str, Hashable], str] = {}
    count: dict[str, int] = {}
    for item in items:
        if item not in names:
            label = item[0]
            count[label] = count.get(label, 0) + 1
            names[item] = label if count[label] == 1 else f"{label}_{count[label]}"
    return tuple(names[item] for item in items)


def inspect_facts(spec: ModelSpec) -> list[dict[str, Any]]:
    """The facts of a model as rows of JSON: name, value, key, status, note; unknown ones last."""
    order = [Status.READ, Status.ASSUMED, Status.UNKNOWN]
    rows = sorted(spec.facts, key=lambda fact: order.index(fact.status))
    return [{"name": f.name, "value": f.value, "key": f.key, "status": str(f.status), "note": f.note} for f in rows]


def model_summary(spec: ModelSpec) -> dict[str, Any]:
    """What a model is, for JSON: sizes and the decoder layers by kind, in order of first appearance."""
    layers = [{"kind": kind, "repeat": spec.kinds.count(kind)} for kind in dict.fromkeys(spec.kinds)]
    return {
        "name": spec.name,
        "model_type": spec.model_type,
        "params": spec.params,
        "active_params": spec.active_params,
        "kv_bytes_per_token": spec.kv_bytes_per_token,
        "layers": layers,
    }


def _positive(what: str, *sizes: int) -> None:
    if min(sizes) < 1:
        raise ValueError(f"{what}: every size must be at least 1: {sizes}")
