"""Seconds of compile with placement and routing for the DeepSeek-V3 decode step on 16 sockets (o3), cold and again.

    python -m benchmarks.place_speed ../shared/models/DeepSeek-V3

`cold` clears every cache of the compiler first; `again` changes one number (PCUs of one op) and compiles and places
with the caches that a session has. The graph and the preset's schedule are made before. CPU seconds, the worst of
`--times`.
"""

import argparse
from collections.abc import Callable
from time import process_time

from agent.presets import preset
from benchmarks.evaluate_speed import clear
from compiler.frontend import build, load_model
from compiler.ir.actions import Units
from compiler.ir.graph import Graph, Phase, Workload
from compiler.ir.schedule import Schedule
from compiler.pipeline import compile_schedule
from compiler.place import place, place_together
from compiler.program import Program
from compiler.target import Target, load_target


def compile_and_place(graph: Graph, schedule: Schedule, target: Target) -> Program:
    """The placed program; it must not be refused."""
    program = compile_schedule(graph, schedule, target)
    result = place(program, target) if isinstance(program, Program) else program
    assert isinstance(result, Program), result
    return result


def worst(times: int, run: Callable[[int], object], before: Callable[[], None] = lambda: None) -> float:
    spent = []
    for n in range(times):
        before()
        begun = process_time()
        run(n)
        spent.append(process_time() - begun)
    return max(spent)


def forget() -> None:
    clear()
    place_together.cache_clear()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--sockets", type=int, default=16)
    parser.add_argument("--times", type=int, default=10)
    asked = parser.parse_args()
    target = load_target("sn40l")
    graph = build(load_model(asked.model), Workload(Phase.DECODE, 1, 4096, asked.sockets, "auto"))
    o3 = preset("o3", graph, target)
    block = max(graph.blocks, key=lambda b: len(b.ops))
    down = next(op.name for op in block.ops if op.name.endswith("o_proj"))
    cold = worst(asked.times, lambda n: compile_and_place(graph, o3, target), forget)
    again = [o3.with_actions(Units(block.kind, down, 40 + n)) for n in range(asked.times)]
    warm = worst(asked.times, lambda n: compile_and_place(graph, again[n], target))
    print(f"cold, compile and place            {cold:8.3f} CPU s (at most 2)")
    print(f"again after one number changed     {warm:8.3f} CPU s (at most 0.1)")


if __name__ == "__main__":
    main()
