"""What a model has besides a stack of decoder layers: stems for images and sounds, heads of an encoder.

Frozen dataclasses to compose; `tokens` are those of a sequence, `params(hidden)` the parameters of a part.
"""

from dataclasses import dataclass

from compiler.frontend.parts import Norm, positive


@dataclass(frozen=True, slots=True)
class Patches:
    """An image cut into patches by a convolution; a class token in front; a learned position each (ViT).

    distilled: one more token behind the class token (DeiT).
    """

    height: int
    width: int
    patch: int
    channels: int
    distilled: bool = False

    def __post_init__(self) -> None:
        positive("patches", self.height, self.width, self.patch, self.channels)
        if self.patch > min(self.height, self.width):
            raise ValueError("patches: larger than the image")

    @property
    def rows(self) -> int:
        """Patches from top to bottom."""
        return self.height // self.patch

    @property
    def columns(self) -> int:
        """Patches from left to right."""
        return self.width // self.patch

    @property
    def tokens(self) -> int:
        """Tokens an image gives: its patches and those in front."""
        return self.rows * self.columns + len(self.front)

    @property
    def front(self) -> tuple[str, ...]:
        """The roles of the tokens in front of the patches, a row of parameters each."""
        return ("embed.class", "embed.distillation")[: 1 + self.distilled]

    def params(self, hidden: int) -> int:
        """The convolution and its bias, the tokens in front, the positions."""
        return hidden * (self.channels * self.patch**2 + 1 + len(self.front) + self.tokens)


@dataclass(frozen=True, slots=True)
class Sound:
    """A spectrogram of `mel` bins through two convolutions over 3 frames, the second in steps of 2 (Whisper).

    tokens: positions of the encoder, each with a row of a table.
    """

    mel: int
    tokens: int

    def __post_init__(self) -> None:
        positive("sound", self.mel, self.tokens)

    def params(self, hidden: int) -> int:
        """Both convolutions with their biases, and the positions."""
        return hidden * (3 * self.mel + 1) + hidden * (3 * hidden + 1) + hidden * self.tokens


Stem = Patches | Sound


@dataclass(frozen=True, slots=True)
class EncoderHead:
    """The head of an encoder without a decoder.

    transform: every token's scores come behind one more projection, an activation and this norm (BERT). classifier:
    scores are those of classes, of the first token of each sequence (ViT).
    """

    transform: Norm | None = None
    classifier: bool = False

    def params(self, hidden: int) -> int:
        """Of the projection and its norm; the scores themselves are counted by the model."""
        return hidden * (hidden + 1) + self.transform.params(hidden) if self.transform else 0
