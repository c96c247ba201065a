"""What a config of unknown type says of each layer: known, near or unknown words, by layer.

A layer pattern is a list of words or a string of letters with an entry for every layer, whatever its key is called.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from compiler.frontend.alias import spellings
from compiler.frontend.patterns import LETTERS, WORDS

#: A word at least as like a known one (0 to 1) is near it.
LIKE = 0.7


@dataclass(frozen=True, slots=True)
class LayerWord:
    """One word of a pattern: its key, the layers that have it, and what it is near to ("" where it is known)."""

    key: str
    word: str
    layers: tuple[int, ...]
    known: bool
    near: str = ""

    def __str__(self) -> str:
        standing = "known" if self.known else f"near {self.near}" if self.near else "unknown"
        return f"{self.word} in {_runs(self.layers)} of {self.key} ({standing})"


def layer_words(values: Mapping[str, object]) -> tuple[LayerWord, ...]:
    """Every word of every layer pattern, in order of appearance."""
    counts = {values.get(key) for key in spellings("layers") if type(values.get(key)) is int}
    out = []
    for key, value in values.items():
        entries = entries_of(value)
        if entries is None or len(entries) not in counts:
            continue
        table = LETTERS if isinstance(value, str) else WORDS
        for word in dict.fromkeys(entries):
            close = get_close_matches(word, table, n=1, cutoff=LIKE)
            places = tuple(n for n, entry in enumerate(entries) if entry == word)
            known = word in table
            out.append(LayerWord(key, word, places, known, "" if known or not close else close[0]))
    return tuple(out)


def entries_of(value: object) -> tuple[str, ...] | None:
    """The entries of a list of words or a string of letters; None for anything else."""
    if isinstance(value, str) and value and all(not c.isspace() for c in value):
        return tuple(value)
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return tuple(str(item) for item in value)
    return None


def _runs(numbers: tuple[int, ...]) -> str:
    """Numbers as runs: 0, 4-6."""
    out: list[list[int]] = []
    for n in numbers:
        if out and out[-1][1] == n - 1:
            out[-1][1] = n
        else:
            out.append([n, n])
    shown = [f"{a}" if a == b else f"{a}-{b}" for a, b in out]
    return ", ".join(shown[:8]) + (f" and {len(shown) - 8} more runs" if len(shown) > 8 else "")
