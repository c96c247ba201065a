"""Alternating updates and learned augmented residuals (Gemma 3n): streams around a layer, a narrow branch inside it.

The formulas are those of the papers (AltUp, arXiv 2301.13310, algorithm 1; LAuReL, arXiv 2411.07501, section 2.1) as
the class in transformers computes them.
"""

from dataclasses import dataclass

from compiler.frontend.parts import RMS, positive


@dataclass(frozen=True, slots=True)
class AltUp:
    """A token is several rows; a layer works on one of them, and what it changes there corrects its prediction of all.

    Coefficients come out of a router with an output a stream. scaled: what goes on to the per-layer embedding is
    multiplied by a scale an element.
    """

    streams: int
    scaled: bool = True

    def __post_init__(self) -> None:
        positive("alternating updates", self.streams)
        if self.streams < 2:
            raise ValueError("alternating updates: a single stream has nothing to predict")

    def params(self, hidden: int) -> int:
        """Of one layer: the router and its norm, coefficients that predict and that correct, the scale."""
        router = RMS.params(hidden) + self.streams * hidden
        return router + self.streams**3 + self.streams**2 + hidden * self.scaled

    def edge_params(self, hidden: int) -> int:
        """Projections of the embedding to every other stream, and back before the head."""
        return 2 * (self.streams - 1) * hidden * hidden


@dataclass(frozen=True, slots=True)
class Laurel:
    """A projection to `rank` elements and back, with a norm, beside the mixer; half of the power is its."""

    rank: int

    def __post_init__(self) -> None:
        positive("augmented residual", self.rank)

    def params(self, hidden: int) -> int:
        return 2 * hidden * self.rank + RMS.params(hidden)
