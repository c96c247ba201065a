"""`verify`: models against their PyTorch classes, one row a model, whatever is wrong with any of them."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from agent.settings import Settings
from compiler.errors import InputError
from compiler.frontend import open_door
from compiler.frontend.oracle import Check, Level, checks

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, slots=True)
class Row:
    """What was compared of one model, or why nothing could be."""

    model: str
    frontend: str
    checks: tuple[Check, ...] = ()
    refused: str = ""

    @property
    def equal(self) -> bool:
        return bool(self.checks) and all(check.equal for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        compared = [{**asdict(c), "level": str(c.level), "equal": c.equal} for c in self.checks]
        return {"model": self.model, "frontend": self.frontend, "checks": compared, "refused": self.refused}


def verification(asked: Sequence[Settings], level: str) -> tuple[Row, ...]:
    """A row for each. A single model that cannot be read is an InputError; of several it is a row that says so."""
    levels = tuple(Level) if level == "all" else (Level(level),)
    rows = []
    for settings in asked:
        try:
            model = open_door(settings.model, settings.frontend, settings.captures)
            compared = checks(model.graph, settings.model, levels)
        except InputError as error:
            if len(asked) == 1:
                raise
            rows.append(Row(settings.model, str(settings.frontend), refused=str(error).splitlines()[0]))
        else:
            rows.append(Row(model.name, str(model.door), compared))
    return tuple(rows)


def show(out: "Console", rows: Sequence[Row]) -> None:
    """A line a model and door, and one a comparison below it; differences in words."""
    from rich.text import Text

    for row in rows:
        name = row.model.rstrip("/").rsplit("/", 1)[-1]
        out.print(Text(f"{name} ({row.frontend})", style="bold"))
        if row.refused:
            out.print(Text(f"  not compared: {row.refused}", style="red"))
        for check in row.checks:
            told = f"  {check.level:<7} {check.ours:>21,}"
            if check.equal:
                out.print(Text(f"{told}  equal" + (f" ({check.note})" if check.note else "")))
            else:
                out.print(
                    Text(f"{told}  differs: {check.theirs:,} in the class; {check.note}".rstrip("; "), style="red")
                )
