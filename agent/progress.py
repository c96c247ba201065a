"""The progress bar: evaluations done, best so far and its gap. Quiet unless people watch both streams."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from agent.trial import OnProgress, Progress
from agent.words import seconds


@contextmanager
def progress(quiet: bool = False) -> Iterator[OnProgress]:
    """A function to tell progress to; on a terminal it moves a bar on stderr that is gone at the end."""
    if quiet or not (sys.stdout.isatty() and sys.stderr.isatty()):
        yield lambda told: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("tuning"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[best]}"),
        TimeRemainingColumn(),
    )
    with Bar(
        *columns, console=Console(file=sys.stderr), transient=True, redirect_stdout=False, redirect_stderr=False
    ) as bar:
        task = bar.add_task("tuning", total=None, best="")

        def tell(told: Progress) -> None:
            bar.update(task, completed=told.done, total=told.total, best=best_words(told))

        yield tell


def best_words(told: Progress) -> str:
    """Best so far and how far it is above the bound."""
    if told.best_s is None:
        return "nothing compiles yet"
    return f"best {seconds(told.best_s)}, {told.best_s / told.bound_s:.2f}x bound"
