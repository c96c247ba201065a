"""Layer patterns: which layer has what. The only place where a pattern in a config becomes one value a layer.

A config says it as a list of words (`layer_types`), a string of letters, a list of 0 and 1, an interval or a period and
its offset, or indices. A list whose length is not the layer count is an InputError, unless the further entries are
those of the MTP modules. `resolve` reads all that a family's code reads: several must agree, and none at all is an
error, never "all alike".
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final

from compiler.frontend.alias import LIMIT, spellings
from compiler.frontend.facts import Facts
from compiler.frontend.read import describe


class Part(StrEnum):
    """What a layer is, or its mixer, by the word transformers has for it."""

    FULL = "full_attention"
    SLIDING = "sliding_attention"
    CHUNKED = "chunked_attention"
    LINEAR = "linear_attention"
    INDEXED = "indexed_attention"
    SPARSE = "compressed_sparse_attention"
    HEAVY = "heavily_compressed_attention"
    CONV = "conv"
    MLP = "mlp"
    MOE = "moe"


#: Words for a layer: today's, and older ones that transformers still accepts.
WORDS: Final[dict[str, Part]] = {
    **{str(part): part for part in Part},
    "attention": Part.FULL,
    "mamba": Part.LINEAR,
    "short_conv": Part.CONV,
}
#: Letters of `hybrid_override_pattern` (Megatron-LM, hybrid models).
LETTERS: Final[dict[str, Part]] = {"M": Part.LINEAR, "*": Part.FULL, "-": Part.MLP, "E": Part.MOE}

Pattern = tuple[Part, ...]


# --- lists and numbers


def words(facts: Facts, fact: str, layers: int, allowed: tuple[Part, ...]) -> Pattern | None:
    """A list with a word a layer under `fact`, None when absent; each must be `allowed`."""
    items = per_layer(facts, fact, layers)
    return None if items is None else _parts(facts, fact, items, WORDS, allowed)


def per_layer(facts: Facts, fact: str, layers: int) -> list[object] | None:
    """A list with one entry a layer, None when absent. Entries beyond the layers must be those of the MTP modules."""
    items = facts.items(fact)
    return None if items is None else _cut(facts, fact, items, layers)


def _cut(facts: Facts, fact: str, items: list[object], layers: int) -> list[object]:
    extra = facts.maybe_integer("mtp_modules", low=0) or 0
    if len(items) not in (layers, layers + extra):
        mtp = f" (or {layers + extra} with the MTP modules)" if extra else ""
        raise facts.error(fact, f"has {len(items)} entries for {layers} layers", f"one entry a layer{mtp}")
    return items[:layers]


def _parts(
    facts: Facts, fact: str, items: list[object], table: Mapping[str, Part], allowed: tuple[Part, ...]
) -> Pattern:
    for index, item in enumerate(items):
        if not isinstance(item, str) or table.get(item) not in allowed:
            what = f"is {describe(item)}, which {facts.family} as described here has not got"
            right = " or ".join(word for word, part in table.items() if part in allowed)
            raise facts.error(fact, what, right, f"[{index}]")
    return tuple(table[str(item)] for item in items)


def bits(facts: Facts, fact: str, layers: int, right: str = "one 0 or 1 a layer") -> tuple[bool, ...] | None:
    """A list of 0 and 1, one a layer; None when absent or empty."""
    if not facts.items(fact):
        return None
    items = per_layer(facts, fact, layers) or []
    bad = next((n for n, item in enumerate(items) if type(item) is not int or item not in (0, 1)), None)
    if bad is not None:
        raise facts.error(fact, f"has the entry {describe(items[bad])}", right, f"[{bad}]")
    return tuple(item == 1 for item in items)


def numbers(facts: Facts, fact: str, layers: int) -> tuple[int, ...] | None:
    """A number for all layers, or a list with one a layer (each at least 1); None when absent."""
    found = facts.find(fact)
    if found is None or not isinstance(found.value, list):
        one = facts.maybe_integer(fact)
        return None if one is None else (one,) * layers
    items = per_layer(facts, fact, layers) or []
    bad = next((item for item in items if type(item) is not int or not 1 <= item <= LIMIT), None)
    if bad is not None or not items:
        raise facts.error(fact, f"has the entry {describe(bad)}", "a number, or one a layer")
    return tuple(item for item in items if isinstance(item, int))


def indices(facts: Facts, fact: str, layers: int) -> frozenset[int] | None:
    """A list of layer indices, counted from 0, each once; None when absent."""
    items = facts.items(fact)
    if items is None:
        return None
    chosen = frozenset(item for item in items if type(item) is int and 0 <= item < layers)
    if len(chosen) != len(items):
        what = f"is {describe(items)} of {len(items)} entries"
        raise facts.error(fact, what, f"layer indices from 0 to {layers - 1}, each once")
    return chosen


def frequency(facts: Facts, fact: str, layers: int) -> tuple[bool, ...]:
    """A number n (layer i when n divides i) or a list of 0 and 1, one a layer; 1 when absent."""
    found = facts.find(fact)
    if found is not None and isinstance(found.value, list):
        chosen = bits(facts, fact, layers, "one 0 or 1 a layer, or a number")
        if chosen is not None:
            return chosen
        raise facts.error(fact, f"has 0 entries for {layers} layers", "one 0 or 1 a layer, or a number")
    every = facts.maybe_integer(fact)
    if every is None:
        every = 1
        facts.assume(fact, 1, "every layer after the dense ones is MoE when the key is absent")
    return tuple(index % every == 0 for index in range(layers))


def last_of(facts: Facts, fact: str, layers: int, default: int | None = None) -> tuple[bool, ...]:
    """The last layer of every n, n being `fact`. default: n when absent (assumed), None where it is needed."""
    every = facts.maybe_integer(fact)
    if every is None:
        if default is None:
            raise facts.missing(fact)
        every = default
        facts.assume(fact, every, f"{facts.family} takes {every} when the key is absent")
    return tuple((index + 1) % every == 0 for index in range(layers))


def every_nth(facts: Facts, layers: int, every: str, offset: str) -> tuple[bool, ...] | None:
    """Whether each layer leaves the rest `offset` when divided by `every`; None when neither is there."""
    size, rest = facts.maybe_integer(every), facts.maybe_integer(offset, low=0)
    if size is None and rest is None:
        return None
    if size is None or rest is None:
        raise facts.missing(every if size is None else offset)
    if rest >= size:
        raise facts.error(offset, f"is {rest}, with a period of {size}", f"0 to {size - 1}")
    return tuple(index % size == rest for index in range(layers))


# --- the part that each layer is, which several facts may say

#: A pattern of the parts a family has, None when the config has not got this one.
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


def listed(fact: str) -> Source:
    """A list with a word a layer, under `fact`."""
    return lambda facts, layers, allowed: words(facts, fact, layers, allowed)


def letters(facts: Facts, layers: int, allowed: tuple[Part, ...]) -> Pattern | None:
    """hybrid_override_pattern: a letter a layer, M Mamba, * attention, - MLP, E experts."""
    found = facts.find("letters")
    if found is None:
        return None
    if not isinstance(found.value, str):
        raise facts.error("letters", f"is {describe(found.value)}, not a string", f"of {' '.join(LETTERS)}")
    facts.record("letters", found)
    return _parts(facts, "letters", _cut(facts, "letters", list(found.value), layers), LETTERS, allowed)


def zero_one(facts: Facts, layers: int, allowed: tuple[Part, ...]) -> Pattern | None:
    """attn_type_list: 1 for full attention, 0 for linear attention."""
    return _either(bits(facts, "attention_flags", layers))


def interval(facts: Facts, layers: int, allowed: tuple[Part, ...]) -> Pattern | None:
    """full_attention_interval: every so many layers, the last of them is full attention (Qwen3-Next)."""
    return _either(last_of(facts, "full_interval", layers)) if facts.maybe_integer("full_interval") else None


def period(facts: Facts, layers: int, allowed: tuple[Part, ...]) -> Pattern | None:
    """attn_layer_period and _offset: layer i has attention when i leaves the offset as its rest (Jamba)."""
    return _either(every_nth(facts, layers, "attention_period", "attention_offset"))


def named(other: Part) -> Source:
    """attn_layer_indices, full_attn_idxs: the layers with attention; the others are `other`."""

    def read(facts: Facts, layers: int, allowed: tuple[Part, ...]) -> Pattern | None:
        chosen = indices(facts, "attention_layers", layers)
        return None if chosen is None else _either(tuple(index in chosen for index in range(layers)), other)

    return read


def _either(full: tuple[bool, ...] | None, other: Part = Part.LINEAR) -> Pattern | None:
    """Full attention where `full` says so, else `other`."""
    return None if full is None else tuple(Part.FULL if one else other for one in full)
