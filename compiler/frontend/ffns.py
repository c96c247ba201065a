"""The feed-forward parts a layer can have. Frozen dataclasses that a person can compose by hand.

Every one has `label`, `params(hidden)` and `active_params(hidden)` (what one token meets).
"""

from dataclasses import dataclass, field

from compiler.frontend.parts import positive


@dataclass(frozen=True, slots=True)
class Dense:
    """A feed-forward part all tokens pass through.

    sparsity: the share of the gate's elements that are made zero, the least of a token; they are computed all the same.
    """

    width: int
    gated: bool = True
    bias: bool = False
    sparsity: float = 0.0

    def __post_init__(self) -> None:
        positive("dense", self.width)
        if not 0 <= self.sparsity < 1 or (self.sparsity and not self.gated):
            raise ValueError(f"dense: {self.sparsity:g} of the elements of a gate are zero")

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

    `weight` and `bias` are the suffixes of the expert tensors; `correction` is a tensor.
    """

    router: str = "mlp.gate"
    gate: str = "mlp.experts.{expert}.gate_proj"
    up: str = "mlp.experts.{expert}.up_proj"
    down: str = "mlp.experts.{expert}.down_proj"
    shared: str = "mlp.shared_experts"
    shared_gate: str = "mlp.shared_expert_gate"
    shared_parts: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    latent_down: str = "mlp.fc1_latent_proj"
    latent_up: str = "mlp.fc2_latent_proj"
    weight: str = ".weight"
    bias: str = ".bias"
    correction: str = "mlp.moe_statics.e_score_correction_bias"


@dataclass(frozen=True, slots=True)
class MoE:
    """Routed experts (`top_k` of `experts` a token) and, where `shared_width` is not 0, a shared one of that width.

    correction: a parameter an expert is added to the scores when experts are chosen. hashed: a token's experts are
    those of its id in a fixed table, and the router gives their gates only. apart: the experts and the shared one have
    norms of their own before and behind them, and the router reads the residual, with a scale an element and one an
    expert (Gemma 4).
    gated: experts have gate and up projections, else an up projection only. shared_gate: the shared expert's output is
    multiplied by a sigmoid of the token. latent: the routed experts work on a projection of that width, 0 for none;
    latent_bias is that of the projections down to it and up again.
    """

    experts: int
    top_k: int
    width: int
    shared_width: int = 0
    bias: bool = False
    router_bias: bool = False
    correction: bool = False
    hashed: bool = False
    apart: bool = False
    gated: bool = True
    shared_gate: bool = False
    latent: int = 0
    latent_bias: bool = False
    shared_bias: bool = False
    scoring: Scoring = field(default_factory=Scoring)
    names: ExpertNames = field(default_factory=ExpertNames)

    def __post_init__(self) -> None:
        positive("MoE", self.experts, self.top_k, self.width, self.shared_width + 1, self.latent + 1)
        if self.shared_gate and not self.shared_width:
            raise ValueError("MoE: a gate of the shared expert, and no shared expert")
        if self.hashed and self.correction:
            raise ValueError("MoE: a correction of scores that choose nothing")
        if self.apart and not (self.shared_width and self.gated):
            raise ValueError("MoE: apart from a shared expert that is not there")
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
        rows, ups = self.latent or hidden, 2 if self.gated else 1
        expert = (ups + 1) * rows * self.width + (ups * self.width + rows) * self.bias
        router = self.experts * (hidden + self.router_bias + self.correction)
        latent = self.latent * (2 * hidden + self.latent_bias) + hidden * self.latent_bias if self.latent else 0
        shared = Dense(self.shared_width, self.gated, self.shared_bias).params(hidden) if self.shared_width else 0
        router += (4 * hidden + self.experts) * self.apart
        return experts * expert + router + latent + shared + hidden * self.shared_gate


Ffn = Dense | MoE
