"""The check of `verify --level outputs`: presets, rewrites and random legal schedules give what the class gives."""

from collections.abc import Iterator
from random import Random

from agent.outputs.compare import Bench, bench, history
from agent.outputs.instance import instance
from agent.outputs.scalars import WRITTEN
from agent.outputs.walk import walk
from agent.presets import preset
from compiler.errors import InputError
from compiler.frontend import load_model
from compiler.frontend.oracle import Check, Level
from compiler.frontend.python_file import python_place
from compiler.ir.graph import Graph, Phase
from compiler.ir.schedule import Schedule
from compiler.ir.text import parse_schedule
from compiler.pipeline import compile_schedule
from compiler.program import Program
from compiler.target import Target, load_target
from simulator.functional.numbers import Unmeant

#: Largest difference of a logit, over the largest logit, that rounding in float32 explains.
TOLERANCE = 1e-4
#: Sockets that presets are run on, and random schedules drawn from.
PRESET_SOCKETS, WALK_SOCKETS = (1, 4), (1, 2, 4, 8)
#: Random legal schedules, and their longest walk.
WALKS, LONGEST, SEED = 12, 8, 0


def outputs(model: str) -> Check:
    """Run programs of a small instance of MODEL: how many were run, and how many give the class's logits.

    InputError where MODEL has no reader, no class, or a type whose meaning is not written down.
    """
    spec = load_model(model)
    if spec.model_type not in WRITTEN:
        raise InputError(
            spec.name,
            f"what a {spec.model_type} computes is not written down",
            f"types that are: {', '.join(sorted(WRITTEN))}",
        )
    target = load_target("sn40l")
    try:
        of = bench(instance(model))
        before = history(of, lambda graph: compiled(graph, Schedule(()), target))
        tried = [(of.error(compiled(g, s, target), g, before), s) for g, s in cases(of, target)]
    except Unmeant as error:
        raise InputError(spec.name, str(error), "outputs of this model cannot be compared") from error
    wrong = [(off, schedule) for off, schedule in tried if not off <= TOLERANCE]
    note = f"programs of a small instance; largest difference {max(off for off, _ in tried):.1e} of the largest logit"
    if wrong:
        off, schedule = wrong[0]
        note += f"; {off:.1e} under: {' | '.join(schedule.text.splitlines()[1:]) or 'no action'}"
    return Check(Level.OUTPUTS, len(tried) - len(wrong), len(tried), note)


def is_written(model: str) -> bool:
    """Whether outputs of MODEL can be compared: a config of a type whose meaning is written down."""
    return python_place(model) is None and load_model(model).model_type in WRITTEN


def cases(of: Bench, target: Target) -> Iterator[tuple[Graph, Schedule]]:
    """Both phases: presets on several sockets, each rewrite alone, and random legal schedules."""
    for phase in Phase:
        for sockets in PRESET_SOCKETS:
            graph = of.graph(phase, sockets)
            for name in ("o0", "o1", "o3"):
                yield graph, preset(name, graph, target)
        graph = of.graph(phase, 1)
        for rule in ("merge_qkv", "merge_gate_up", "mla_absorb", "streaming_softmax"):
            schedule = parse_schedule(f"rewrite * {rule}")
            if isinstance(compile_schedule(graph, schedule, target), Program):
                yield graph, schedule
    random = Random(SEED)
    for _ in range(WALKS):
        graph = of.graph(random.choice(tuple(Phase)), random.choice(WALK_SOCKETS))
        yield graph, walk(graph, target, random, random.randint(1, LONGEST))


def compiled(graph: Graph, schedule: Schedule, target: Target) -> Program:
    """The program of a legal schedule. AssertionError, with the diagnostics, if the compiler refuses it."""
    program = compile_schedule(graph, schedule, target)
    assert isinstance(program, Program), [str(d) for d in program]
    return program
