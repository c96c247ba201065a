"""The command line. Only typer is imported before a command is known: `rdutune --help` answers at once.

Exit codes: 0 done; 1 failed (the schedule does not compile, nothing fits, a fault of ours), or `diff` found something;
2 bad usage or input; 130 interrupted; 141 nobody reads the output any more. With --json, stdout is one JSON object and
nothing else: the result, or the diagnostics when the exit code is 1. Messages go to stderr.
"""

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agent.ending import complain, fault, flushed, unread
from agent.options import (
    STORE,
    AsJson,
    Batch,
    Context,
    Door,
    Emit,
    EmitRules,
    Evals,
    FileA,
    FileB,
    Levels,
    Model,
    ModelOrProgram,
    Models,
    Mtp,
    Out,
    PhaseName,
    ScheduleName,
    Seed,
    Sockets,
    Store,
    TargetName,
    Weights,
    given,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.settings import Settings
    from compiler.diagnostic import Diagnostic
    from compiler.ir.graph import Graph
    from compiler.ir.schedule import Schedule
    from compiler.target import Target

app = typer.Typer(
    name="rdutune",
    help="Finds fast schedules for transformer models on reconfigurable dataflow units.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def root(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of a fault of rdutune.")] = False,
) -> None:
    _Debug.on = debug


class _Debug:
    """Whether a fault shows its traceback; set by the global flag."""

    on = False


@app.command()
def onboard(
    model: Model, sockets: Sockets = 8, phase: PhaseName = "decode", batch: Batch = 1, context: Context = None,
    target: TargetName = "sn40l", weights: Weights = "auto", evals: Evals = 300, seed: Seed = 0, store: Store = STORE,
    out: Out = "", frontend: Door = "auto", mtp: Mtp = False, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Find a fast schedule for MODEL, say why, write a run folder."""
    from pathlib import Path

    from agent.onboard import OnboardFailed
    from agent.onboard import onboard as run
    from agent.progress import progress
    from agent.report import dumps, explanation_of, onboard_json
    from agent.runfolder import check_folder, write_run
    from compiler.errors import InputError

    settings = _settings(
        model=model, sockets=sockets, phase=phase, batch=batch, context=context, target=target, weights=weights,
        evals=evals, seed=seed, store=store, out=Path(out) if out else None, frontend=frontend, mtp=mtp,
    )  # fmt: skip
    check_folder(settings.out or Path("runs") / "new")
    try:
        with progress(quiet=as_json) as tell:
            result = run(settings, tell)
    except OnboardFailed as failed:
        raise _refused(failed.diagnostics, f"{model}: no preset", as_json) from None
    folder = settings.out or Path("runs") / result.run_id
    explanation = explanation_of(result)
    unwritten: InputError | None = None
    try:
        write_run(folder, result, explanation)
    except InputError as error:  # the result is shown first: it took minutes
        unwritten = error
    if as_json:
        _print(dumps(onboard_json(result, explanation)))
    else:
        from agent.summary import console, show_onboarding

        show_onboarding(console(), result, explanation, "not written" if unwritten else str(folder))
    if unwritten:
        raise unwritten


@app.command()
def inspect(
    model: Model, phase: PhaseName = "decode", batch: Batch = 1, context: Context = None, weights: Weights = "auto",
    frontend: Door = "auto", mtp: Mtp = False, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Show layers, sizes and work of MODEL, and where facts come from."""
    from agent.inspection import inspection
    from agent.report import dumps
    from compiler.frontend import inspect_facts

    settings = _settings(
        model=model, phase=phase, batch=batch, context=context, weights=weights, frontend=frontend, mtp=mtp
    )
    found, figures, document = inspection(settings)
    if as_json:
        _print(dumps(document))
        return
    from agent.summary import console, show_inspection

    show_inspection(console(), found, figures, inspect_facts(found))


@app.command()
def describe(
    model: Model,
    out: Annotated[str, typer.Option(metavar="FILE", help="Write the file here.", show_default=False)] = "",
) -> None:
    """Write MODEL as a Python file to change and onboard (FILE.py:model)."""
    from pathlib import Path

    from agent.runfolder import write_file
    from compiler.frontend.describe import FUNCTION, describe_model

    text = describe_model(model, Path(out) if out else None)
    if not out:
        _print(text)
        return
    write_file(out, "--out", text)
    sys.stderr.write(f"written: {out}; onboard it as {out}:{FUNCTION}\n")


@app.command("compile")
def compile_command(
    model: Model, schedule: ScheduleName = "o3", emit: Emit = "", sockets: Sockets = 8, phase: PhaseName = "decode",
    batch: Batch = 1, context: Context = None, target: TargetName = "sn40l", weights: Weights = "auto",
    frontend: Door = "auto", mtp: Mtp = False, emit_rules: EmitRules = "", as_json: AsJson = False,
) -> None:  # fmt: skip
    """Compile MODEL: the program, or every reason why not."""
    from agent.report import dumps, workload_json
    from agent.runfolder import write_file
    from compiler.frontend import model_summary
    from compiler.fusion_rules import print_rules
    from compiler.pipeline import compile_schedule
    from compiler.place import place
    from compiler.program import Program
    from compiler.program_json import print_program

    settings = _settings(
        model=model, sockets=sockets, phase=phase, batch=batch, context=context, target=target, weights=weights,
        frontend=frontend, mtp=mtp,
    )  # fmt: skip
    found, graph, machine, steps = _scheduled(settings, schedule)
    program = compile_schedule(graph, steps, machine)
    if isinstance(program, Program):
        program = place(program, machine)
    if not isinstance(program, Program):
        raise _refused(program, f"{found.name} with {schedule}", as_json)
    if emit:
        write_file(emit, "--emit", print_program(program))
    if emit_rules:
        write_file(emit_rules, "--emit-rules", print_rules(program))
    if as_json:
        head = {"model": model_summary(found), "workload": workload_json(graph.workload), "schedule": steps.text}
        _print(dumps({**head, "program_id": program.id, "launches": program.launches, "program": program.to_json()}))
        return
    from agent.summary import console, line, model_lines, show_program, workload_words

    screen = console()
    model_lines(screen, found)
    line(screen, "workload", workload_words(graph, machine))
    line(screen, "schedule", f"{schedule}, {len(steps.actions)} actions, {steps.id}")
    show_program(screen, program, machine)
    for written in filter(None, (emit, emit_rules)):
        line(screen, "written", written)


@app.command()
def simulate(
    ctx: typer.Context, model: ModelOrProgram, schedule: ScheduleName = "o3", sockets: Sockets = 8,
    phase: PhaseName = "decode", batch: Batch = 1, context: Context = None, target: TargetName = "sn40l",
    weights: Weights = "auto", frontend: Door = "auto", mtp: Mtp = False, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Compile and simulate one step of MODEL under a schedule, or a program file as it is."""
    from agent.evaluate import placed_pair
    from agent.programs import program_file, simulate_file, simulation_json
    from agent.report import dumps, warning_lines, workload_json
    from compiler.frontend import model_summary

    program = program_file(model)
    if program is not None:
        machine, result = simulate_file(model, program, given(ctx))
        if as_json:
            _print(dumps(simulation_json(program, machine, result)))
            return
        from agent.summary import console, show_simulation

        show_simulation(console(), os.path.basename(model), program, (machine, result))
        return
    settings = _settings(
        model=model, sockets=sockets, phase=phase, batch=batch, context=context, target=target, weights=weights,
        frontend=frontend, mtp=mtp,
    )  # fmt: skip
    found, graph, machine, steps = _scheduled(settings, schedule)
    unplaced, placed, refused = placed_pair(graph, steps, machine)
    if unplaced is None or placed is None:
        raise _refused(refused, f"{found.name} with {schedule}", as_json)
    warnings = warning_lines(found, graph, machine, placed.report)
    if as_json:
        head = {"model": model_summary(found), "workload": workload_json(graph.workload), "schedule": steps.text}
        figures = {"report": placed.report.to_json(), "unplaced": unplaced.report.to_json()}
        _print(dumps({**head, **figures, "warnings": list(warnings)}))
        return
    from agent.summary import console, line, model_lines, show_report, workload_words

    screen = console()
    model_lines(screen, found)
    line(screen, "workload", workload_words(graph, machine))
    for text in warnings:
        line(screen, "warning", text, "bold yellow")
    screen.print()
    show_report(screen, os.path.basename(schedule), placed, graph.workload, unplaced)


@app.command()
def diff(a: FileA, b: FileB, as_json: AsJson = False) -> None:
    """Show what differs between two schedule files or two program files; exit code 1 where they differ."""
    from agent.difference import difference_lines, differences_json
    from agent.programs import compare_files
    from agent.report import dumps

    kind, found = compare_files(a, b)
    if as_json:
        _print(dumps(differences_json(kind, found)))
    else:
        from agent.summary import console, show_differences

        show_differences(console(), kind, list(difference_lines(found)))
    if found:
        raise typer.Exit(1)


@app.command()
def verify(
    models: Models, level: Levels = "all", frontend: Door = "auto", as_json: AsJson = False,
) -> None:  # fmt: skip
    """Hold MODELs against their PyTorch classes: parameters, FLOPs, cache; exit code 1 where they differ."""
    from agent.report import dumps
    from agent.verification import failed, show, verification

    rows = verification([_settings(model=model, frontend=frontend) for model in models], level)
    if as_json:
        _print(dumps([row.to_json() for row in rows]))
    else:
        from agent.summary import console

        show(console(), rows)
    if failed(rows):
        raise typer.Exit(1)


@app.command()
def actions(as_json: AsJson = False) -> None:
    """List the action families a schedule is made of."""
    from agent.reference import action_rows, show_actions
    from agent.report import dumps
    from agent.summary import console

    if as_json:
        _print(dumps({"actions": action_rows()}))
    else:
        show_actions(console())


@app.command()
def targets(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Show every number of this target, with its source.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """List the targets, or the numbers of one with their sources."""
    from agent.reference import show_target, show_targets, target_json
    from agent.report import dumps
    from agent.summary import console
    from compiler.target import load_target, target_names

    found = [load_target(n) for n in ([name] if name else target_names())]
    if as_json:
        rows = [target_json(t) for t in found]
        _print(dumps(rows[0] if name else {"targets": rows}))
    elif name:
        show_target(console(), found[0])
    else:
        show_targets(console(), found)


def _settings(**values: Any) -> "Settings":
    """Settings of a command; InputError names the flag that is out of bounds."""
    from pathlib import Path

    from pydantic import ValidationError

    from agent.settings import Settings
    from compiler.errors import InputError

    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    try:
        return Settings(**values, captures=Path(home) / "rdutune" / "captures")
    except ValidationError as invalid:
        first = invalid.errors(include_url=False)[0]
        flag = str(first["loc"][0]) if first["loc"] else "settings"
        where = "MODEL" if flag == "model" else f"--{flag} {first['input']}"
        raise InputError(where, first["msg"].replace("Input should be", "is not").strip()) from None


def _scheduled(settings: "Settings", name: str) -> "tuple[Any, Graph, Target, Schedule]":
    from agent.workload import graph_for, schedule_for

    model, graph, target = graph_for(settings)
    return model, graph, target, schedule_for(name, graph, target)


def _refused(diagnostics: "Sequence[Diagnostic]", what: str, as_json: bool) -> typer.Exit:
    """Say why nothing compiles, and the exit to raise."""
    from agent.report import diagnostic_json, dumps
    from agent.summary import console, show_diagnostics

    if as_json:
        _print(dumps({"rejected": [diagnostic_json(d) for d in diagnostics]}))
    else:
        show_diagnostics(console(sys.stderr), diagnostics, what)
    return typer.Exit(1)


def _print(text: str) -> None:
    sys.stdout.write(text)


def main() -> None:
    """Entry point: every way a command ends becomes an exit code and at most one screen."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115  closed by whoever called: nobody reads it
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    sys.exit(run(sys.argv[1:]))


def run(arguments: "Sequence[str]") -> int:
    """Run a command line; the exit code."""
    from compiler.errors import InputError

    try:
        app(args=list(arguments), prog_name="rdutune")
    except InputError as error:
        return complain(f"{error.where}: {error.what}", error.right, 2)
    except KeyboardInterrupt:
        return 130
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):
            return unread()
        return flushed(int(end.code or 0))
    except OSError as error:  # a disk that is full, a file that may not be read: neither ours nor a bad argument
        return complain(str(error), "", 1)
    except Exception as error:  # noqa: BLE001  the job boundary: whatever else arrives here is a fault of ours
        return fault(error, _Debug.on)
    return 0


if __name__ == "__main__":
    main()
