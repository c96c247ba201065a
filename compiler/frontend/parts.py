"""What the parts of a layer share: norms, and the check of sizes."""

from dataclasses import dataclass
from enum import StrEnum

#: Kinds of blocks that are no layers.
EDGES = ("embed", "embed_decoder", "head", "sample")
#: How those of MTP modules begin.
MTP = "mtp_"


class NormKind(StrEnum):
    RMS = "rms"
    LAYER = "layer"  # mean and variance


@dataclass(frozen=True, slots=True)
class Norm:
    """A normalisation over a row, with a scale and perhaps a bias an element.

    per_head: of the norm of a head, whether every head has a scale of its own.
    """

    kind: NormKind = NormKind.RMS
    scale: bool = True
    bias: bool = False
    per_head: bool = False

    def params(self, width: int) -> int:
        return width * (self.scale + self.bias)

    @property
    def flops_per_point(self) -> int:
        """Square, add, multiply by the root; subtracting a mean adds two; scale and bias one each."""
        return 3 + 2 * (self.kind is NormKind.LAYER) + self.scale + self.bias


RMS = Norm()
LAYER_NORM = Norm(NormKind.LAYER, bias=True)


@dataclass(frozen=True, slots=True)
class PerLayer:
    """A narrow embedding of its own for every layer: `width` elements out of a table of `vocab` rows."""

    width: int
    vocab: int

    def __post_init__(self) -> None:
        positive("per-layer embeddings", self.width, self.vocab)

    def params(self, hidden: int) -> int:
        """Of one layer: the gate, the projection, a norm."""
        return 2 * hidden * self.width + RMS.params(hidden)

    def embedding_params(self, hidden: int, layers: int) -> int:
        """The table, the projection of the model's embedding, a norm."""
        return layers * self.width * (self.vocab + hidden) + RMS.params(self.width)


def is_edge(kind: str) -> bool:
    """Whether blocks of that kind are no layers."""
    return kind in EDGES or kind.startswith(MTP)


def positive(what: str, *sizes: int) -> None:
    """ValueError unless every size is at least 1."""
    if min(sizes) < 1:
        raise ValueError(f"{what}: every size must be at least 1: {sizes}")
