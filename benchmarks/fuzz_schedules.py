"""Fuzzed schedules on small instances: legal walks, and schedules of any actions at all, compiled and executed.

    python -m benchmarks.fuzz_schedules [--schedules 10000] [--seed 0] --models ../shared/models

Half are walks over legal moves, which must compile; half are actions with random fields, which compile or are refused.
What compiles is run on real numbers and must give what the PyTorch class gives. Exit code 1 for any exception, wrong
output, legal walk that is refused, or refusal without diagnostics.
"""

import argparse
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import process_time

from agent.outputs.anything import anything
from agent.outputs.check import TOLERANCE, WALK_SOCKETS, compiled
from agent.outputs.compare import Bench, bench, history
from agent.outputs.instance import instance
from agent.outputs.walk import walk
from compiler.ir.graph import Phase
from compiler.ir.schedule import Schedule
from compiler.pipeline import compile_schedule
from compiler.program import Program
from compiler.target import load_target
from simulator.functional.machine import Caches

#: Eight architectures of the published configs.
MODELS = (
    "Meta-Llama-3.1-8B",
    "Mixtral-8x7B-v0.1",
    "DeepSeek-V3",
    "gpt-oss-20b",
    "Qwen3-Next-80B-A3B-Instruct",
    "Gemma-2-9b",
    "Qwen3-30B-A3B",
    "GLM-4.5",
)
#: Longest walk, and most actions of a schedule of any kind.
LONGEST, MOST = 10, 5


@dataclass
class Tally:
    """What came of the schedules."""

    executed: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    worst: float = 0.0


def one(of: Bench, before: Caches, random: Random, legal: bool, tally: Tally) -> None:
    """Draw, compile and execute one schedule."""
    target = load_target("sn40l")
    graph = of.graph(random.choice(tuple(Phase)), random.choice(WALK_SOCKETS))
    if legal:
        schedule = walk(graph, target, random, random.randint(1, LONGEST))
    else:
        schedule = anything(graph, random, random.randint(1, MOST))
    where = f"{graph.model_type} {graph.workload.phase} on {graph.workload.sockets}: {schedule.text!r}"
    try:
        result = compile_schedule(graph, schedule, target)
        if not isinstance(result, Program):
            tally.refused.update({str(d.code) for d in result})
            if legal or not result:
                tally.wrong.append(f"refused, {where}")
            return
        error = of.error(result, graph, before)
    except Exception as failure:  # noqa: BLE001  the point of a fuzzer
        tally.wrong.append(f"{type(failure).__name__}: {failure}, {where}")
        return
    tally.executed += 1
    tally.worst = max(tally.worst, error)
    if not error <= TOLERANCE:
        tally.wrong.append(f"off by {error:.1e}, {where}")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--models", type=Path, required=True)
    given = parser.parse_args()
    target, begun, tally = load_target("sn40l"), process_time(), Tally()
    made: list[tuple[Bench, Caches]] = []
    for name in MODELS:
        of = bench(instance(str(given.models / name)))
        made.append((of, history(of, lambda graph: compiled(graph, Schedule(()), target))))
    for number in range(given.schedules):
        of, before = made[number % len(made)]
        one(of, before, Random(given.seed * 2**32 + number), number % 16 < 8, tally)
    print(f"{given.schedules} schedules of {len(made)} architectures, {process_time() - begun:.0f} CPU s")
    print(f"executed {tally.executed}, largest difference {tally.worst:.1e} of the largest logit")
    print(
        f"refused {given.schedules - tally.executed - len(tally.wrong)}, by code: {dict(sorted(tally.refused.items()))}"
    )
    for line in tally.wrong[:20]:
        print(line, file=sys.stderr)
    print(f"wrong or crashed {len(tally.wrong)}")
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
