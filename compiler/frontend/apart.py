"""Which blocks are stored apart: of each layer, and of embedding and head, the weights that the checkpoint stores
otherwise than their kind. Both doors ask here, so that they split the kinds of layers alike.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from compiler.frontend.quant import Checkpoint, Kept, Matrix, Storage, stored_apart
from compiler.frontend.stored import Lookup, stored_types
from compiler.ir.graph import Block

Apart = frozenset[tuple[str, Kept]]
_Item = TypeVar("_Item", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Made:
    """A block, and those of its weights that may be quantised."""

    block: Block
    matrices: tuple[Matrix, ...]


def stored_otherwise(
    checkpoint: Checkpoint,
    weights: str,
    kept: Storage,
    items: Sequence[tuple[_Item, int]],
    make: Callable[[_Item, Storage], Made],
) -> tuple[Apart, ...]:
    """Of each of `items` (what its block is made of, the number of the layer) the keys stored otherwise than `kept`.

    By the rules of the checkpoint, then, under `auto`, by the headers of its files. InputError where these contradict
    the shapes, or where the experts of a layer are stored in different ways.
    """
    out: list[Apart] = [frozenset()] * len(items)
    if checkpoint.quantisation.patterns:
        first = {item: make(item, kept).matrices for item, _ in dict.fromkeys(items)}
        out = [stored_apart(checkpoint, weights, kept, first[item], number) for item, number in items]
    if checkpoint.stored is None or not checkpoint.stored.tensors or weights != "auto":
        return tuple(out)
    lookup = Lookup((), checkpoint.stored.table)
    pairs = [(item, apart) for (item, _), apart in zip(items, out, strict=True)]
    blocks = {(item, apart): make(item, kept.with_apart(apart)).block for item, apart in dict.fromkeys(pairs)}
    numbers = [number for _, number in items]
    found = [stored_types(lookup, blocks[pair].weights, n) for pair, n in zip(pairs, numbers, strict=True)]
    return tuple(frozenset((dict(apart) | types).items()) for apart, types in zip(out, found, strict=True))
