"""What the ops of a model compute beyond their shapes: the scalars and functions that change nothing about its time.

A program says which elements meet where; a rope table, an epsilon or the activation come from the model, as its
weights do.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from simulator.functional.named import Named


class Unmeant(Exception):
    """An op whose meaning is not written down here: nothing is executed in its place."""


@dataclass(frozen=True, slots=True)
class NormNumbers:
    """Of a norm. offset: added to the scale (Gemma's 1). centred: the mean is subtracted first (a layer norm).

    summed: a row is divided by the root of its sum of squares, not of their mean.
    """

    eps: float
    offset: float = 0.0
    centred: bool = False
    summed: bool = False


@dataclass(frozen=True, slots=True)
class Rope:
    """cos, sin: (positions, rotated elements). paired: element 2i turns with 2i + 1, else i with i + half."""

    cos: Any
    sin: Any
    paired: bool = False


@dataclass(frozen=True, slots=True)
class Gates:
    """How a router's scores become the chosen experts and their gates.

    function: softmax or sigmoid of all scores, or `chosen` (softmax of the chosen ones only). groups: experts come from
    the best `top_groups` of so many groups; pairs: a group counts as its best two, else as its best. correction:
    added to the scores when experts are chosen, (experts).
    """

    top_k: int
    function: str = "softmax"
    normalise: bool = True
    scale: float = 1.0
    groups: int = 1
    top_groups: int = 1
    pairs: bool = False
    correction: Any = None
    epsilon: float = 0.0


@dataclass(frozen=True, slots=True)
class LayerNumbers:
    """Of one layer, or of embedding and head. norms: by op name; an op without an entry is not executed.

    window: tokens that one attends to, itself included; None for all earlier ones. act: of the feed-forward part, of
    (gate, up) or of one tensor. scale: of the embedding. step_limits: the
    least and the largest step of a state space.
    """

    norms: dict[str, NormNumbers] = field(default_factory=dict)
    rope: Rope | None = None
    score_scale: float = 0.0
    softcap: float = 0.0
    window: int | None = None
    act: Callable[..., Any] | None = None
    gates: Gates | None = None
    scale: float = 1.0
    step_limits: tuple[float, float] = (0.0, float("inf"))


class Bindings(Protocol):
    """A model's numbers: its weights by layer and name in the model's own graph, and the scalars of each layer."""

    def weight(self, layer: int, block: str, name: str) -> Named:
        """Weight `name` (as the model's graph calls it) of layer `layer`, whole. KeyError if there is none."""
        ...

    def layer(self, layer: int, block: str) -> LayerNumbers:
        """Scalars of layer `layer`; of embedding and head with their block kind."""
        ...
