"""The Python description of an architecture: frozen dataclasses that a person can compose by hand.

A model is an embedding, a sequence of layers (each a mixer and a feed-forward part) and a head. Sizes are whole-model
element counts; parameter counts follow from the description and are held equal to the graph's by tests.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any

from compiler.frontend.altup import AltUp, Laurel
from compiler.frontend.compressed import CompressedAttention, Compressor, HyperConnections
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
from compiler.frontend.parts import LAYER_NORM, RMS, Norm, NormKind, PerLayer, positive
from compiler.frontend.quantisation import Checkpoint, Quantisation, Rule, WeightKind
from compiler.frontend.sparse import SparseIndexer
from compiler.frontend.stacks import EncoderHead, Patches, Sound, Stem
from compiler.frontend.weights import Stored
from compiler.ir.dtype import DType

__all__ = [
    "LAYER_NORM",
    "RMS",
    "AltUp",
    "Attention",
    "Beside",
    "CompressedAttention",
    "Compressor",
    "Dense",
    "Encoder",
    "EncoderHead",
    "ExpertNames",
    "Fact",
    "Ffn",
    "GatedDeltaNet",
    "HyperConnections",
    "KimiDelta",
    "LatentAttention",
    "Laurel",
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
    "Patches",
    "PerLayer",
    "QkNorm",
    "Quantisation",
    "Recurrent",
    "Rule",
    "Scoring",
    "ShortConv",
    "Sound",
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


#: Mixers that keep something of a fixed size a sequence.
_STATEFUL = Recurrent | Beside | CompressedAttention


class Wiring(StrEnum):
    """How mixer and feed-forward part hang together."""

    SERIAL = "serial"  # x + mixer, then that + ffn
    PARALLEL = "parallel"  # x + mixer + ffn, both behind one norm (GPT-J, Falcon-7B)
    PARALLEL_NORMS = "parallel_norms"  # the same, each behind its own norm (GPT-NeoX, Falcon-40B)


@dataclass(frozen=True, slots=True)
class Layer:
    """A mixer and a feed-forward part, each inside a residual connection; None where a layer has only one of them.

    pre_norm, post_norm: a norm before each part, and after it (before it is added). hyper: the residual is several
    streams, which all layers of a model have. per_layer: behind both, an embedding of the layer's own is added.
    sum_norm: a norm behind each sum with the residual, which the next part and the next sum read (BERT). cross: between
    mixer and feed-forward part, attention to an encoder's output.
    altup: the layer works on one of several streams, which all layers of a model have. laurel: a branch beside the
    mixer.
    """

    mixer: Mixer | None
    ffn: Ffn | None
    norm: Norm = RMS
    pre_norm: bool = True
    post_norm: bool = False
    wiring: Wiring = Wiring.SERIAL
    hyper: HyperConnections | None = None
    per_layer: PerLayer | None = None
    sum_norm: bool = False
    cross: Attention | None = None
    altup: AltUp | None = None
    laurel: Laurel | None = None

    def __post_init__(self) -> None:
        if self.mixer is None and self.ffn is None:
            raise ValueError("a layer without mixer and feed-forward part")
        if isinstance(self.mixer, Beside) and self.wiring is not Wiring.SERIAL:
            raise ValueError("two mixers side by side, and the feed-forward part beside them too")

        if self.hyper and self.wiring is not Wiring.SERIAL:
            raise ValueError("hyper-connections around parts that are side by side")
        if self.per_layer and (self.ffn is None or self.hyper):
            raise ValueError("a per-layer embedding without a feed-forward part, or between streams")
        if self.sum_norm and (self.pre_norm or self.post_norm or self.hyper or self.wiring is not Wiring.SERIAL):
            raise ValueError("a norm behind each sum, and other norms, streams, or parts side by side")
        if self.cross and not _like(self.mixer, self.cross):
            raise ValueError("cross attention whose heads are not those of the attention before it")
        if (self.altup or self.laurel) and not self._plain:
            raise ValueError("alternating updates or an augmented residual, and no plain attention and ffn")

    @property
    def _plain(self) -> bool:
        """Whether it is attention behind a norm, then a feed-forward part, and one stream."""
        serial = self.wiring is Wiring.SERIAL and self.pre_norm and not (self.hyper or self.cross)
        return serial and isinstance(self.mixer, Attention) and self.ffn is not None

    @property
    def label(self) -> str:
        names = [part.label for part in (self.mixer, self.ffn) if part is not None]
        return "_".join(["cross", *names[1:]] if self.cross else names)

    @property
    def norms(self) -> int:
        """Norms over the hidden size."""
        parts = (self.mixer is not None) + (self.ffn is not None) + (self.cross is not None)
        before = 1 if self.wiring is Wiring.PARALLEL else parts
        return before * self.pre_norm + parts * (self.post_norm + self.sum_norm)

    def cross_params(self, hidden: int) -> int:
        """Parameters of its cross attention."""
        return self.cross.params(hidden) if self.cross else 0

    def hyper_params(self, hidden: int) -> int:
        """Parameters of the hyper-connections around its parts."""
        parts = (self.mixer is not None) + (self.ffn is not None)
        return parts * self.hyper.params(hidden) if self.hyper else 0


def _like(mixer: Mixer | None, cross: Attention) -> bool:
    """Whether cross attention has the heads of the attention before it, and reads in both directions."""
    sizes = ("kv_heads", "q_group", "head_dim")
    return (
        isinstance(mixer, Attention) and not cross.causal and all(getattr(mixer, n) == getattr(cross, n) for n in sizes)
    )


@dataclass(frozen=True)
class Encoder:
    """The encoder before a decoder, of the same hidden size. Without a stem it reads ids by the decoder's table.

    norm: behind its layers. positions, embed_norm: as in ModelSpec.
    """

    layers: tuple[Layer, ...]
    norm: Norm | None = None
    positions: int = 0
    embed_norm: Norm | None = None
    stem: Stem | None = None
    names: Names = field(default_factory=Names)


@dataclass(frozen=True)
class ModelSpec:
    """A language model, or an encoder. `dtype` is the storage type of what is not quantised.

    norm: before the head. positions: rows of a learned position table, 0 for none; types: rows of a table of segments.
    embed_norm: after the embedding. stem: what makes tokens of an image or a sound, instead of a vocabulary.
    softcap: logits go through a tanh. head: that of an encoder; encoder: one before the layers, which then are a
    decoder's. Where the head classifies, `vocab` is the number of classes.
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
    norm: Norm | None = RMS
    head_bias: bool = False
    positions: int = 0
    types: int = 0
    embed_norm: Norm | None = None
    softcap: bool = False
    stem: Stem | None = None
    head: EncoderHead | None = None
    encoder: Encoder | None = None
    names: Names = field(default_factory=Names)
    facts: tuple[Fact, ...] = ()
    stored: Stored | None = None

    def __post_init__(self) -> None:
        positive("model", self.hidden, self.vocab, len(self.layers), self.mtp_modules + 1)
        if len({layer.hyper for layer in self.layers}) > 1:
            raise ValueError("model: layers with different hyper-connections")
        if len({layer.per_layer for layer in self.layers}) > 1:
            raise ValueError("model: layers with different per-layer embeddings")
        if any(layer.cross for layer in self.layers) and self.encoder is None:
            raise ValueError("model: cross attention, and no encoder")
        if (self.head is not None) != self.encodes or (self.stem and not self.encodes):
            raise ValueError("model: a head of an encoder, or a stem, and layers that are none, or the reverse")
        if len({layer.altup for layer in self.layers}) > 1:
            raise ValueError("model: layers with different alternating updates")
        latents = [layer.mixer for layer in self.layers if isinstance(layer.mixer, LatentAttention)]
        for index, latent in enumerate(latents):
            if latent.borrows_choice and all(m.borrows_choice or m.indexer != latent.indexer for m in latents[:index]):
                raise ValueError("model: a layer borrows the choice of an indexer that no earlier layer has")
        own = [layer.mixer for layer in self.layers if isinstance(layer.mixer, Attention)]
        for index, mixer in enumerate(own):
            if mixer.borrows and not any(earlier.lends(mixer) for earlier in own[:index]):
                raise ValueError("model: a layer borrows a cache that no earlier layer stores")

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

    @property
    def encodes(self) -> bool:
        """Whether tokens attend to later ones: an encoder, which is not decoded."""
        return any(isinstance(layer.mixer, Attention) and not layer.mixer.causal for layer in self.layers)

    def encoding(self, encoder: Encoder) -> "ModelSpec":
        """The encoder as a model of its own, for the parts that they have in common."""
        return replace(
            self,
            layers=encoder.layers,
            norm=encoder.norm,
            positions=encoder.positions,
            embed_norm=encoder.embed_norm,
            stem=encoder.stem,
            head=EncoderHead(),
            encoder=None,
            names=encoder.names,
            stored=None,
        )

    @property
    def hyper(self) -> HyperConnections | None:
        """The hyper-connections of the layers."""
        return self.layers[0].hyper

    @property
    def per_layer(self) -> PerLayer | None:
        """The per-layer embeddings of the layers."""
        return self.layers[0].per_layer

    @property
    def altup(self) -> AltUp | None:
        """The alternating updates of the layers."""
        return self.layers[0].altup

    def _sum(self, ffns: list[int]) -> int:
        total = self._layers_sum(ffns) + (self.norm.params(self.hidden) if self.norm else 0)
        tables = 0 if self.stem else self.vocab  # a head that is the embedding is counted as that
        tables += 0 if self.tied else self.vocab
        total += self.hidden * tables + self.vocab * self.head_bias
        total += self.head.params(self.hidden) if self.head else 0
        if self.encoder is None:
            return total
        side = self.encoding(self.encoder)
        ffns = [layer.ffn.params(self.hidden) for layer in side.layers if layer.ffn]
        return total + side._layers_sum(ffns) + (side.norm.params(self.hidden) if side.norm else 0)

    def _layers_sum(self, ffns: list[int]) -> int:
        """The layers, and what their stack has for itself: stem, positions, norm of the embedding, shared biases."""
        mixers = sum(layer.mixer.params(self.hidden) for layer in self.layers if layer.mixer)
        norms = sum(layer.norm.params(self.hidden) * layer.norms for layer in self.layers)
        edges = self.embed_norm.params(self.hidden) if self.embed_norm else 0
        edges += self.stem.params(self.hidden) if self.stem else 0
        edges += self.hidden * (self.positions + self.types)
        biased = next((m for layer in self.layers if isinstance(m := layer.mixer, Attention) and m.buckets), None)
        edges += biased.bias_params if biased and not biased.own_buckets else 0
        mixers += sum(layer.cross_params(self.hidden) for layer in self.layers)
        edges += self.hyper.head_params(self.hidden) if self.hyper else 0
        norms += sum(layer.hyper_params(self.hidden) for layer in self.layers)
        if self.per_layer:
            edges += self.per_layer.embedding_params(self.hidden, len(self.layers))
            norms += self.per_layer.params(self.hidden) * len(self.layers)
        edges += self.altup.edge_params(self.hidden) if self.altup else 0
        norms += sum(part.params(self.hidden) for layer in self.layers for part in (layer.altup, layer.laurel) if part)
        return edges + norms + mixers + sum(ffns)

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
        return sum(layer.mixer.state_nbytes for layer in self.layers if isinstance(layer.mixer, _STATEFUL))

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
