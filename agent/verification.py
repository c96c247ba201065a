"""`verify`: models against their PyTorch classes, one row a model, whatever is wrong with any of them.

A model that is read here and that transformers has no class for is a row too, and no difference.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from agent.settings import Settings
from compiler.errors import InputError
from compiler.frontend import open_door
from compiler.frontend.door import Frontend, has_class
from compiler.frontend.oracle import COUNTED, Check, Level, checks
from compiler.frontend.python_file import python_place

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, slots=True)
class Row:
    """What was compared of one model, or why nothing could be. alone: it is read, and has no class to compare with."""

    model: str
    frontend: str
    checks: tuple[Check, ...] = ()
    refused: str = ""
    alone: bool = False

    @property
    def equal(self) -> bool:
        return bool(self.checks) and all(check.equal for check in self.checks)

    @property
    def name(self) -> str:
        return self.model.rstrip("/").rsplit("/", 1)[-1]

    def to_json(self) -> dict[str, Any]:
        compared = [{**asdict(c), "level": str(c.level), "equal": c.equal} for c in self.checks]
        told = {"model": self.model, "frontend": self.frontend, "checks": compared, "refused": self.refused}
        return told | {"alone": self.alone}


def verification(asked: Sequence[Settings], level: str) -> tuple[Row, ...]:
    """A row for each. A single model that cannot be read is an InputError; of several it is a row that says so."""
    levels = COUNTED if level == "all" else tuple(c for c in COUNTED if c == level)
    rows: list[Row] = []
    for settings in asked:
        alone = False
        try:
            model = open_door(settings.model, settings.frontend, settings.captures)
            alone = python_place(settings.model) is None and not has_class(settings.model)
            compared = checks(model.graph, settings.model, levels) + _outputs(settings, level)
        except InputError as error:
            if len(asked) == 1:
                raise
            rows.append(Row(settings.model, str(settings.frontend), (), str(error).splitlines()[0], alone))
        else:
            rows.append(Row(model.name, str(model.door), compared))
    return tuple(rows)


def _outputs(settings: Settings, level: str) -> tuple[Check, ...]:
    """The comparison of outputs where it is asked for; with everything, where the type's meaning is written down."""
    from agent.outputs.check import is_written, outputs

    if level == Level.OUTPUTS:
        if settings.frontend is Frontend.CAPTURE:
            raise InputError("--level outputs", "a traced class is not executed", "--frontend spec")
        return (outputs(settings.model),)
    every = level == "all" and settings.frontend is not Frontend.CAPTURE
    return (outputs(settings.model),) if every and is_written(settings.model) else ()


def show(out: "Console", rows: Sequence[Row]) -> None:
    """A table: a line a model where one level is compared, else one a comparison below it; differences in words."""
    from rich.text import Text

    single = len({check.level for row in rows for check in row.checks}) == 1
    width = max((len(_title(row)) for row in rows), default=0)
    for row in rows:
        if not (single and row.checks):
            out.print(Text(_title(row), style="bold"))
        if row.refused:
            why = "no class" if row.alone else "not compared"
            out.print(Text(f"  {why}: {row.refused}", style="" if row.alone else "red"))
        for check in row.checks:
            lead = _title(row).ljust(width) if single else " "
            told = f"{lead} {check.level:<7}{check.ours:>22,}"
            if check.equal:
                out.print(Text(f"{told}  equal" + (f" ({check.note})" if check.note else "")))
            else:
                out.print(
                    Text(f"{told}  differs: {check.theirs:,} in the class; {check.note}".rstrip("; "), style="red")
                )
    if len(rows) > 1:
        out.print(Text(summary(rows), style="bold"), soft_wrap=True)


def _title(row: Row) -> str:
    return f"{row.name} ({row.frontend})"


def failed(rows: Sequence[Row]) -> bool:
    """Whether anything differs, or could not be compared although there is a class."""
    return not all(row.equal or row.alone for row in rows)


def summary(rows: Sequence[Row]) -> str:
    """How many models are equal to their class, differ, could not be compared, and have no class."""
    equal, differ = sum(row.equal for row in rows), sum(bool(row.checks) and not row.equal for row in rows)
    alone = sum(row.alone for row in rows)
    counts = (
        f"{len(rows)} models: {equal} equal to their class",
        f"{differ} different",
        f"{len(rows) - equal - differ - alone} not compared",
        *([f"{alone} without a class"] if alone else []),
    )
    return ", ".join(counts)
