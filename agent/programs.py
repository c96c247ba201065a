"""Program files: recognised, read and simulated without a model, its schedule or the compiler's passes."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent.difference import Difference, program_differences, schedule_differences
from agent.evaluate import Measured
from agent.report import memory_lines, workload_json
from agent.workload import read_schedule, read_text
from compiler.errors import InputError
from compiler.ir.schedule import Schedule
from compiler.program import Program
from compiler.program_json import FORMAT, parse_json, program_from_json
from compiler.target import Target, load_target, target_names
from simulator.bound import bound_of_program
from simulator.estimate import estimate
from simulator.invariants import SimulatorFault

MAX_PROGRAM_BYTES = 256 * 2**20
#: How program files begin: those of now, and those of version 1.
_BEGINS = re.compile(rf'\s*\{{\s*("format"\s*:\s*"{FORMAT}"|"version"\s*:\s*1\s*,\s*"graph_id")')


def program_file(name: str) -> Program | None:
    """The program in the file `name`; None where that is no program file. InputError for a damaged or an old one."""
    if not name.endswith(".json") or not Path(name).is_file():
        return None
    return program_in(read_text(name, name, "a program that rdutune compile wrote", MAX_PROGRAM_BYTES), name)


def program_in(text: str, where: str) -> Program | None:
    """The program that `text` is, None for text of another kind. InputError for a damaged program, or an old one."""
    begins = bool(_BEGINS.match(text))
    if not begins and f'"{FORMAT}"' not in text:
        return None
    try:
        value = parse_json(text, where)
    except InputError:
        if begins:
            raise
        return None
    if not begins and not (isinstance(value, dict) and value.get("format") == FORMAT):
        return None
    return program_from_json(value, where)


def target_of(program: Program, name: str, where: str) -> Target:
    """The target called `name`, or where that is empty the one that the program was compiled for."""
    if name:
        target = load_target(name)
    else:
        shipped = (load_target(n) for n in target_names())
        found = next((t for t in shipped if t.id == program.target_id), None)
        if found is None:
            what = f"was compiled for {program.target} ({program.target_id}), which does not ship with rdutune"
            raise InputError(where, what, "--target NAME or FILE.yaml: simulate it there")
        target = found
    if program.workload.sockets not in target.socket_counts:
        counts = ", ".join(map(str, target.socket_counts))
        what = f"runs on {program.workload.sockets} sockets; {target.name} machines are built of {counts}"
        raise InputError(where, what, "compile the model for that many, or give another --target")
    return target


def simulate_file(name: str, program: Program, given: Mapping[str, Any]) -> tuple[Target, Measured]:
    """`simulate` of the program file `name`: the target, and the step on it.

    given: flags of the command line. Schedule, workload and model are the program's, so InputError for those.
    """
    for flag, value in given.items():
        if flag.startswith("--") and flag not in ("--target", "--json"):
            what = f"{name} is a program, which has its own"
            raise InputError(f"{flag} {value}", what, "leave the flag out, or name a model instead of the program")
    target = target_of(program, given.get("--target", ""), name)
    return target, simulate_program(program, target, name)


def simulate_program(program: Program, target: Target, where: str) -> Measured:
    """One step of `program` on `target`. InputError where a changed file, or another target, breaks a law."""
    try:
        return Measured(estimate(program, target, bound_of_program(program, target)))
    except SimulatorFault as fault:
        right = "a program as rdutune compile writes it, on a target that it fits"
        raise InputError(where, f"cannot be so on {target.name}: {fault}", right) from None


def simulation_json(program: Program, target: Target, measured: Measured) -> dict[str, Any]:
    """The one object of `simulate FILE.json --json`: as from the model, but for what only a model knows."""
    ids = {"id": program.id, "graph_id": program.graph_id, "schedule_id": program.schedule_id}
    return {
        "model": {"name": program.model},
        "workload": workload_json(program.workload),
        "program": {**ids, "target_id": program.target_id, "compiler_version": program.compiler_version},
        "report": measured.report.to_json(),
        "warnings": list(memory_lines(program, target, measured.report)),
    }


def compare_files(a: str, b: str) -> tuple[str, tuple[Difference, ...]]:
    """What was compared (schedules or programs), and the differences. InputError for other files, or one of each."""
    one, other = _comparable(a), _comparable(b)
    if isinstance(one, Program) and isinstance(other, Program):
        return "programs", program_differences(one, other)
    if isinstance(one, Schedule) and isinstance(other, Schedule):
        return "schedules", schedule_differences(one, other)
    kinds = ["a program" if isinstance(x, Program) else "a schedule" for x in (one, other)]
    raise InputError(f"{a} and {b}", f"{kinds[0]} and {kinds[1]}", "two schedules, or two programs")


def _comparable(name: str) -> Program | Schedule:
    right = "a schedule file (text, or .json) or a program file; presets are no files"
    text = read_text(name, name, right, MAX_PROGRAM_BYTES)
    return program_in(text, name) or read_schedule(text, name)
