"""The contract at the centre: evaluate(graph, schedule, target, fidelity) -> Rejected | Measured.

Pure, and cacheable by content. A bad schedule is data (`Rejected`); a bug of ours raises and fails the run.
"""

from dataclasses import dataclass
from enum import StrEnum

from agent.experience import records
from compiler.diagnostic import Diagnostic
from compiler.ir.graph import Graph
from compiler.ir.schedule import Schedule
from compiler.pipeline import COMPILER_VERSION, compile_schedule
from compiler.place import place
from compiler.program import Program
from compiler.target import Target
from simulator.bound import bound_of
from simulator.estimate import SIMULATOR_VERSION, estimate
from simulator.report import Report

#: What an evaluation's figures depend on besides its inputs; part of every key, so old figures are never served.
VERSION = f"compiler{COMPILER_VERSION}+simulator{SIMULATOR_VERSION}"


class Fidelity(StrEnum):
    """How closely a schedule is looked at. What a tuner compares has no places: it counts evaluations by thousands."""

    ESTIMATE = "estimate"
    PLACED = "placed"  # the estimate of the program placed and routed on the grid


@dataclass(frozen=True, slots=True)
class Rejected:
    """The compiler refused the schedule; every reason."""

    diagnostics: tuple[Diagnostic, ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """The simulated step."""

    report: Report


Evaluation = Rejected | Measured


def evaluate(graph: Graph, schedule: Schedule, target: Target, fidelity: Fidelity = Fidelity.ESTIMATE) -> Evaluation:
    """Compile and simulate. Raises only for faults of ours (CompilerFault, SimulatorFault)."""
    program = compile_schedule(graph, schedule, target)
    if fidelity is Fidelity.PLACED and isinstance(program, Program):
        program = place(program, target)
    if not isinstance(program, Program):
        return Rejected(program)
    return Measured(estimate(program, target, bound_of(graph, target)))


def placed_pair(
    graph: Graph, schedule: Schedule, target: Target
) -> tuple[Measured | None, Measured | None, tuple[Diagnostic, ...]]:
    """The step without places and with them, or why it does not compile, or cannot be routed."""
    found = []
    for fidelity in (Fidelity.ESTIMATE, Fidelity.PLACED):
        evaluation = evaluate(graph, schedule, target, fidelity)
        if isinstance(evaluation, Rejected):
            return None, None, evaluation.diagnostics
        found.append(evaluation)
    return found[0], found[1], ()


def method_of(target: Target, fidelity: Fidelity = Fidelity.ESTIMATE) -> records.Method:
    """How figures come about: target, versions and fidelity. Records of another method are never served."""
    return records.Method(target.id, VERSION, fidelity.value)


def evaluation_key(graph: Graph, schedule: Schedule, target: Target, fidelity: Fidelity = Fidelity.ESTIMATE) -> str:
    """Content key of an evaluation: what it is of, and the method its figures depend on."""
    return records.evaluation_key(graph.id, schedule.id, method_of(target, fidelity))
