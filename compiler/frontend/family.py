"""A row of the table of families: what a `model_type` reads from a config."""

from collections.abc import Callable
from dataclasses import dataclass, field

from compiler.frontend.facts import Facts
from compiler.frontend.spec import Ffn, Mixer, Names


def stated_layers(facts: Facts) -> int:
    """As many layers as the config says."""
    return facts.integer("layers")


@dataclass(frozen=True, slots=True)
class Family:
    """How a `model_type` is read. `config_class` is empty where transformers has no class of that type.

    mixers, ffns: those of each layer, None where a layer has only the other. tied: the rule for an absent
    `tie_word_embeddings`. partial: heads are rotated in part, and the mixers' reader reads the share. count: how many
    layers there are.
    """

    architecture: str
    config_class: str
    mixers: Callable[[Facts, int], tuple[Mixer | None, ...]]
    ffns: Callable[[Facts, int], tuple[Ffn | None, ...]]
    names: Names = field(default_factory=Names)
    tied: bool = False
    partial: bool = False
    count: Callable[[Facts], int] = stated_layers
