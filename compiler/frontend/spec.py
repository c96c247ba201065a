"""The Python description of an architecture: frozen dataclasses that a person can compose by hand.

A model is an embedding, a sequence of layers (each a mixer and a feed-forward part) and a head. Sizes are whole-model
element counts; parameter counts follow from the description and are held equal to the graph's by tests.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

from compiler.frontend.ffns import Dense, ExpertNames, Ffn, MoE, Scoring
from compiler.frontend.linear import (
    GatedDeltaNet,
    KimiDelta,
    LightningAttention,
    LinearMixer,
    Mamba2,
    MambaOne,
    Recurrent,
    ShortConv,
)
from compiler.frontend.mixers import Attention, Beside, LatentAttention, Mixer, QkNorm
from compiler.frontend.names import Names
from compiler.frontend.parts import LAYER_NORM, RMS, Norm, NormKind, positive
from compiler.frontend.quantisation import Checkpoint, Quantisation, Rule, WeightKind
from compiler.frontend.sparse import SparseIndexer
from compiler.frontend.weights import Stored
from compiler.ir.dtype import DType

__all__ = [
    "LAYER_NORM",
    "RMS",
    "Attention",
    "Beside",
    "Dense",
    "ExpertNames",
    "Fact",
    "Ffn",
    "GatedDeltaNet",
    "KimiDelta",
    "LatentAttention",
    "Layer",
    "LightningAttention",
    "LinearMixer",
    "Mamba2",
    "MambaOne",
    "Mixer",
    "MoE",
    "ModelSpec",
    "Names",
    "Norm",
    "NormKind",
    "QkNorm",
    "Quantisation",
    "Recurrent",
    "Rule",
    "Scoring",
    "ShortConv",
    "SparseIndexer",
    "Status",
    "WeightKind",
    "Wiring",
]  # fmt: skip

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


class Wiring(StrEnum):
    """How mixer and feed-forward part hang together."""

    SERIAL = "serial"  # x + mixer, then that + ffn
    PARALLEL = "parallel"  # x + mixer + ffn, both behind one norm (GPT-J, Falcon-7B)
    PARALLEL_NORMS = "parallel_norms"  # the same, each behind its own norm (GPT-NeoX, Falcon-40B)


@dataclass(frozen=True, slots=True)
class Layer:
    """A mixer and a feed-forward part, each inside a residual connection; None where a layer has only one of them.

    pre_norm, post_norm: a norm before each part, and after it (before it is added).
    """

    mixer: Mixer | None
    ffn: Ffn | None
    norm: Norm = RMS
    pre_norm: bool = True
    post_norm: bool = False
    wiring: Wiring = Wiring.SERIAL

    def __post_init__(self) -> None:
        if self.mixer is None and self.ffn is None:
            raise ValueError("a layer without mixer and feed-forward part")
        if isinstance(self.mixer, Beside) and self.wiring is not Wiring.SERIAL:
            raise ValueError("two mixers side by side, and the feed-forward part beside them too")

    @property
    def label(self) -> str:
        return "_".join(part.label for part in (self.mixer, self.ffn) if part is not None)

    @property
    def norms(self) -> int:
        """Norms over the hidden size."""
        parts = (self.mixer is not None) + (self.ffn is not None)
        before = 1 if self.wiring is Wiring.PARALLEL else parts
        return before * self.pre_norm + parts * self.post_norm


@dataclass(frozen=True)
class ModelSpec:
    """A decoder-only language model. `dtype` is the storage type of what is not quantised.

    norm: before the head. positions: rows of a learned position table, 0 for none. embed_norm: after the embedding.
    softcap: logits go through a tanh.
    stored: what the weights files beside the config hold.
    """

    name: str
    model_type: str
    hidden: int
    vocab: int
    tied: bool
    layers: tuple[Layer, ...]
    mtp_modules: int = 0
    dtype: DType = DType.BF16
    quantisation: Quantisation = field(default_factory=Quantisation)
    norm: Norm = RMS
    head_bias: bool = False
    positions: int = 0
    embed_norm: Norm | None = None
    softcap: bool = False
    names: Names = field(default_factory=Names)
    facts: tuple[Fact, ...] = ()
    stored: Stored | None = None

    def __post_init__(self) -> None:
        positive("model", self.hidden, self.vocab, len(self.layers), self.mtp_modules + 1)

    @property
    def checkpoint(self) -> Checkpoint:
        """How its weights are stored."""
        return Checkpoint(self.name, self.dtype, self.quantisation, self.stored)

    @cached_property
    def params(self) -> int:
        """Parameters: each checkpoint tensor once, MTP modules left out."""
        return self._sum([layer.ffn.params(self.hidden) for layer in self.layers if layer.ffn])

    @cached_property
    def active_params(self) -> int:
        """Parameters one token meets: of the routed experts the chosen ones only; embedding and head count in full."""
        return self._sum([layer.ffn.active_params(self.hidden) for layer in self.layers if layer.ffn])

    def _sum(self, ffns: list[int]) -> int:
        mixers = sum(layer.mixer.params(self.hidden) for layer in self.layers if layer.mixer)
        norms = sum(layer.norm.params(self.hidden) * layer.norms for layer in self.layers)
        edges = self.norm.params(self.hidden) + (self.embed_norm.params(self.hidden) if self.embed_norm else 0)
        tables = self.hidden * (self.vocab * (1 if self.tied else 2) + self.positions)
        return tables + self.vocab * self.head_bias + edges + norms + mixers + sum(ffns)

    @property
    def kv_elements_per_token_per_layer(self) -> tuple[int, ...]:
        """Cache elements a token, one number a layer."""
        return tuple(layer.mixer.kv_elements_per_token if layer.mixer else 0 for layer in self.layers)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of bf16 cache a token, all layers counted (also those that keep a window only)."""
        return CACHE_ELEMENT_NBYTES * sum(self.kv_elements_per_token_per_layer)

    @property
    def state_bytes(self) -> int:
        """Bytes of recurrent state a sequence, all layers, however long it is."""
        return sum(layer.mixer.state_nbytes for layer in self.layers if isinstance(layer.mixer, Recurrent | Beside))

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
