"""Numbers and foreign text as words for people. Pure; used by the terminal, the pages and the explanation."""

import re
import unicodedata

from compiler.diagnostic import quantity

_SPACE = re.compile(r"[\t\r\n\v\f]+")
#: Cc control, Cf format (bidirectional overrides), Cs lone surrogates, Zl and Zp line breaks, Co private use.
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp", "Co"})


def clean(text: object, longest: int = 400) -> str:
    """`text` on one line without anything a terminal would obey, cut to `longest` characters."""
    one_line = _SPACE.sub(" ", str(text))
    safe = "".join("\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) in _UNSAFE else c for c in one_line)
    return safe if len(safe) <= longest else safe[: longest - 1] + "…"


def seconds(value: float) -> str:
    """Four significant digits and a unit: 2.194 ms, 31.50 µs."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if abs(value) >= scale * 0.99995:
            return f"{_digits(value / scale)} {unit}"
    return "0 s" if value == 0 else f"{_digits(value / 1e-9)} ns"


def _digits(value: float) -> str:
    whole = len(str(int(abs(value))))
    return f"{value:,.{max(0, 4 - whole)}f}"


def nbytes(value: float) -> str:
    """Bytes in binary units, as diagnostics print them."""
    return quantity(round(value), "bytes")


def decimal_bytes(value: float) -> str:
    """Bytes in decimal units, as capacities of models and machines are published: 1.34 TB."""
    for scale, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(value) >= scale:
            return f"{value / scale:.2f} {unit}"
    return f"{value:.0f} B"


def count(value: float) -> str:
    """A large number: 46.7 billion (exact below a million)."""
    for scale, unit in ((1e15, "quadrillion"), (1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if abs(value) >= scale:
            return f"{value / scale:,.1f} {unit}"
    return f"{value:,.0f}"


def rate(value: float) -> str:
    """A number a second: whole from 1000 on, else four significant digits."""
    return f"{value:,.0f}" if abs(value) >= 1000 else _digits(value)


def bound_words(limiter: str) -> str:
    """What a bound comes from: "memory" is both tiers at once, "ddr" what HBM cannot hold, through DDR alone."""
    return {"memory": "HBM and DDR together", "ddr": "DDR, for what HBM cannot hold", "compute": "arithmetic"}.get(
        limiter, limiter
    )


def percent(part: float, whole: float) -> str:
    """`part` of `whole` with one decimal; "<0.1%" rather than a rounded zero."""
    share = 100 * part / whole if whole else 0.0
    return "<0.1%" if 0 < share < 0.05 else f"{share:.1f}%"
