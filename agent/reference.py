"""Reference listings: the action families and the targets."""

from collections.abc import Callable
from inspect import getdoc
from typing import Any

from rich.console import Console
from rich.text import Text

from agent.summary import hanging, line, table
from agent.words import clean, decimal_bytes, nbytes, seconds
from compiler.ir.actions import FAMILIES
from compiler.ir.text import usage
from compiler.target import Target


def action_rows() -> list[dict[str, str]]:
    """One row a family, in the order in which the compiler applies them."""
    return [
        {
            "family": cls.family,
            "usage": usage(cls).removeprefix("usage: "),
            "what": " ".join((getdoc(cls) or "").split()),
            "rewrite": cls.rewrite,
        }
        for cls in FAMILIES
    ]


def show_actions(out: Console) -> None:
    """Families in order; a number N may be a hole `?` or a range LOW..HIGH."""
    out.print("A schedule is one action a line. BLOCK is a block kind (`rdutune inspect`) or *.")
    out.print("N and BYTES may be holes, ? or LOW..HIGH, where a tuner fills them.")
    for row in action_rows():
        out.print()
        hanging(out, row["usage"], 0, "bold")
        hanging(out, row["what"], 2)
        for part in row["rewrite"].split(" | ") if row["family"] == "rewrite" else [row["rewrite"]]:
            hanging(out, part, 4, "dim")


def target_json(target: Target) -> dict[str, Any]:
    """A target with every number and where it comes from."""
    numbers = {key: {"value": getattr(target, key), origin.kind: origin.text} for key, origin in target.provenance}
    derived = {"sram_bytes": target.sram_bytes, "peak_flops": target.peak_flops}
    return {
        "name": target.name,
        "id": target.id,
        "description": target.description,
        "derived": derived,
        "numbers": numbers,
    }


def show_targets(out: Console, found: list[Target]) -> None:
    for t in found:
        kinds = [origin.kind for _, origin in t.provenance]
        line(out, t.name, t.description, "bold")
        line(out, "", f"{t.peak_flops / 1e12:.0f} BF16 TFLOPS, {t.pcus} PCUs, {nbytes(t.sram_bytes)} SRAM")
        line(out, "", f"HBM {nbytes(t.hbm_bytes)} at {decimal_bytes(t.hbm_bytes_per_s)}/s")
        line(out, "", f"DDR {nbytes(t.ddr_bytes)} at {decimal_bytes(t.ddr_bytes_per_s)}/s")
        line(out, "", f"sockets: {', '.join(map(str, t.socket_counts))} (figures are those of one)")
        line(out, "", ", ".join(f"{kinds.count(k)} numbers {words}" for k, words in KINDS))
        line(out, "", f"`rdutune targets {t.name}` shows where each comes from")


KINDS = (("source", "published"), ("assumed", "assumed"), ("fitted", "fitted"))


def show_target(out: Console, target: Target) -> None:
    """Every number of a target with its provenance; assumed and fitted ones stand out."""
    line(out, "target", f"{target.name}: {target.description}", "bold")
    line(out, "id", target.id)
    out.print()
    grid = table("number", "value", "", "from", left=("number", "", "from"))
    for key, origin in target.provenance:
        style = {"assumed": "cyan", "fitted": "yellow"}.get(origin.kind, "")
        grid.add_row(key, number(key, getattr(target, key)), origin.kind, Text(clean(origin.text)), style=style)
    out.print(grid)


def number(key: str, value: Any) -> str:
    """A number of a target file as a person would write it; the key says its unit."""
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    for suffix, words in _UNITS:
        if key.endswith(suffix):
            return words(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


#: Longest suffix first: a rate ends in `_s` too.
_UNITS: tuple[tuple[str, Callable[[float], str]], ...] = (
    ("bytes_per_s", lambda value: f"{decimal_bytes(value)}/s"),
    ("_hz", lambda value: f"{value / 1e9:g} GHz"),
    ("_bytes", nbytes),
    ("_s", seconds),
)
