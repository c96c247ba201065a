"""Arguments and flags of the command line that several commands share: one spelling, one help text each."""

from typing import Annotated, Any, Literal

import typer

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Directory with config.json, a config.json, a model_type (class defaults), or path.py:function.",
    ),
]
ModelOrProgram = Annotated[
    str,
    typer.Argument(metavar="MODEL|PROGRAM.JSON", help="As MODEL elsewhere, or a program that `compile --emit` wrote."),
]
FileA = Annotated[str, typer.Argument(metavar="A", help="A schedule file (text, or .json) or a program file.")]
FileB = Annotated[str, typer.Argument(metavar="B", help="Another one of the same kind.")]
Models = Annotated[list[str], typer.Argument(metavar="MODEL...", help="As MODEL elsewhere; one row each.")]
Levels = Annotated[
    Literal["all", "params", "flops", "cache", "outputs"], typer.Option("--level", help="What is compared.")
]
Sockets = Annotated[int, typer.Option(help="Sockets of the machine.")]
PhaseName = Annotated[
    Literal["decode", "prefill"], typer.Option(help="What one step does: one new token a sequence, or the prompt.")
]
Batch = Annotated[int, typer.Option(help="Sequences processed together.")]
Context = Annotated[
    int | None,
    typer.Option(help="Tokens a sequence: cached ones in decode, prompt tokens in prefill.", show_default="4096"),
]
TargetName = Annotated[
    str, typer.Option("--target", help="Hardware description: a name (see `rdutune targets`) or a .yaml file.")
]
Weights = Annotated[
    Literal["auto", "bf16", "fp8"], typer.Option(help="Storage of the weights; auto: what the config says.")
]
Door = Annotated[
    Literal["auto", "spec", "capture"],
    typer.Option(
        "--frontend", help="How MODEL is read: by a reader of rdutune, by tracing its PyTorch class, or as fits."
    ),
]
ScheduleName = Annotated[
    str, typer.Option("--schedule", metavar="FILE|o0|o1|o3", help="A preset, or a schedule file (text, or .json).")
]
Mtp = Annotated[bool, typer.Option("--mtp", help="Run the model's MTP modules too: one draft a module and step.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Evals = Annotated[int, typer.Option(help="Schedules to evaluate, presets included.")]
Seed = Annotated[int, typer.Option(help="Seed of the search: equal seeds give equal results.")]
Store = Annotated[str, typer.Option(metavar="URL", help="Database of earlier runs, as an SQLAlchemy URL.")]
Out = Annotated[str, typer.Option(metavar="DIR", help="Run folder to write.", show_default="runs/RUN_ID")]
Emit = Annotated[str, typer.Option(metavar="PROGRAM.JSON", help="Write the program to this file.", show_default=False)]
EmitRules = Annotated[
    str,
    typer.Option(
        metavar="RULES.YAML",
        help="Write the sections as operator fusion rules of the vendor's o1 mode.",
        show_default=False,
    ),
]

STORE = "sqlite:///runs/experience.db"


def given(ctx: typer.Context) -> dict[str, Any]:
    """The parameters that the command line names, by their names there."""
    names = {p.name: p.opts[0] for p in ctx.command.params if p.name}
    said = (n for n in names if getattr(ctx.get_parameter_source(n), "name", "") == "COMMANDLINE")
    return {names[n]: ctx.params[n] for n in said}
