"""Which kind of layer stands where: the one place in which the spellings of a layer pattern are resolved.

A config says it as a list of words, a string of letters, 0 and 1, an interval, a period and its offset, or indices.
`resolve` reads those that a family's code reads; several must agree, and none at all is an error, never "all alike".
Entries beyond the layers are those of the MTP modules, or a mistake.
"""

from collections.abc import Callable
from enum import StrEnum

from compiler.frontend.alias import spellings
from compiler.frontend.facts import Facts
from compiler.frontend.read import describe


class Part(StrEnum):
    """What a layer is, or its mixer, by the word transformers has for it."""

    FULL = "full_attention"
    SLIDING = "sliding_attention"
    LINEAR = "linear_attention"
    INDEXED = "indexed_attention"
    CONV = "conv"
    MLP = "mlp"
    MOE = "moe"


#: Words for a layer: today's, and older ones that transformers still accepts.
WORDS = {
    **{str(part): part for part in Part},
    "attention": Part.FULL,
    "mamba": Part.LINEAR,
    "short_conv": Part.CONV,
}
#: Letters of `hybrid_override_pattern` (Megatron-LM, hybrid models).
LETTERS = {"M": Part.LINEAR, "*": Part.FULL, "-": Part.MLP, "E": Part.MOE}

Pattern = tuple[Part, ...]
Source = Callable[[Facts, int, tuple[Part, ...]], Pattern | None]


def resolve(
    facts: Facts, layers: int, allowed: tuple[Part, ...], sources: dict[str, Source], silent: Part | None = None
) -> Pattern:
    """The kind of each layer, one of `allowed`. `sources`: the facts that may say it, and how each is read.

    silent: what all layers are in class defaults that say nothing; a config that says nothing is refused.
    """
    found = {fact: made for fact, read in sources.items() if (made := read(facts, layers, allowed)) is not None}
    if not found and silent is not None and facts.source.defaults:
        facts.assume(next(iter(sources)), None, f"all layers are {silent}: the class has no other default")
        return (silent,) * layers
    if not found:
        keys = ", ".join(key for fact in sources for key in spellings(fact))
        raise facts.missing(next(iter(sources)), f"the kind of each layer, as the publisher's config has it: {keys}")
    first, pattern = next(iter(found.items()))
    for fact, other in found.items():
        if other != pattern:
            index = next(n for n, (a, b) in enumerate(zip(pattern, other, strict=True)) if a != b)
            what = f"makes layer {index} {other[index]}, and {first} makes it {pattern[index]}"
            raise facts.error(fact, what, "one pattern: both say which layer is which")
    return pattern


def words(fact: str) -> Source:
    """A list with a word a layer, under `fact`."""

    def read(facts: Facts, layers: int, allowed: tuple[Part, ...]) -> Pattern | None:
        items = facts.items(fact)
        return None if items is None else _entries(facts, fact, items, layers, (WORDS, allowed))

    return read


def letters(facts: Facts, layers: int, allowed: tuple[Part, ...]) -> Pattern | None:
    """hybrid_override_pattern: a letter a layer, M Mamba, * attention, - MLP, E experts."""
    found = facts.find("letters")
    if found is None:
        return None
    if not isinstance(found.value, str):
        raise facts.error("letters", f"is {describe(found.value)}, not a string", f"of {' '.join(LETTERS)}")
    facts.record("letters", found)
    return _entries(facts, "letters", list(found.value), layers, (LETTERS, allowed))


def zero_one(facts: Facts, layers: int, allowed: tuple[Part, ...]) -> Pattern | None:
    """attn_type_list: 1 for full attention, 0 for linear attention."""
    items = facts.items("attention_flags")
    if items is None:
        return None
    bad = next((n for n, item in enumerate(items) if type(item) is not int or item not in (0, 1)), None)
    if bad is not None:
        raise facts.error("attention_flags", f"is {describe(items[bad])}", "0 or 1", f"[{bad}]")
    made = [str(Part.FULL if item else Part.LINEAR) for item in items]
    return _entries(facts, "attention_flags", list(made), layers, (WORDS, allowed))


def interval(facts: Facts, layers: int, allowed: tuple[Part, ...]) -> Pattern | None:
    """full_attention_interval: every so many layers, the last of them is full attention (Qwen3-Next)."""
    every = facts.maybe_integer("full_interval")
    if every is None:
        return None
    return tuple(Part.LINEAR if (index + 1) % every else Part.FULL for index in range(layers))


def indices(other: Part) -> Source:
    """attn_layer_indices, full_attn_idxs: the layers with attention, counted from 0; the others are `other`."""

    def read(facts: Facts, layers: int, allowed: tuple[Part, ...]) -> Pattern | None:
        items = facts.items("attention_layers")
        if items is None:
            return None
        chosen = {item for item in items if type(item) is int and 0 <= item < layers}
        if len(chosen) != len(items):
            right = f"layer indices from 0 to {layers - 1}, each once"
            raise facts.error("attention_layers", f"is {describe(items)} of {len(items)} entries", right)
        return tuple(Part.FULL if index in chosen else other for index in range(layers))

    return read


def period(facts: Facts, layers: int, allowed: tuple[Part, ...]) -> Pattern | None:
    """attn_layer_period and _offset: layer i has attention when i leaves the offset as its rest (Jamba)."""
    chosen = every_nth(facts, layers, "attention_period", "attention_offset")
    return None if chosen is None else tuple(Part.FULL if one else Part.LINEAR for one in chosen)


def every_nth(facts: Facts, layers: int, every: str, offset: str) -> list[bool] | None:
    """Whether each layer leaves the rest `offset` when divided by `every`; None when neither is there."""
    size, rest = facts.maybe_integer(every), facts.maybe_integer(offset, low=0)
    if size is None and rest is None:
        return None
    if size is None or rest is None:
        raise facts.missing(every if size is None else offset)
    if rest >= size:
        raise facts.error(offset, f"is {rest}, with a period of {size}", f"0 to {size - 1}")
    return [index % size == rest for index in range(layers)]


def _entries(
    facts: Facts, fact: str, items: list[object], layers: int, known: tuple[dict[str, Part], tuple[Part, ...]]
) -> Pattern:
    """One part a layer. Entries beyond the layers must be those of the MTP modules."""
    table, allowed = known
    extra = facts.maybe_integer("mtp_modules", low=0) or 0
    if len(items) not in (layers, layers + extra):
        mtp = f" (or {layers + extra} with the MTP modules)" if extra else ""
        raise facts.error(fact, f"has {len(items)} entries for {layers} layers", f"one entry a layer{mtp}")
    for index, item in enumerate(items):
        if not isinstance(item, str) or table.get(item) not in allowed:
            what = f"is {describe(item)}, which {facts.family} as described here has not got"
            right = f"one of {', '.join(word for word, part in table.items() if part in allowed)}"
            raise facts.error(fact, what, right, f"[{index}]")
    return tuple(table[str(item)] for item in items[:layers])
