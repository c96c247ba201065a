"""Full evaluations (compile + estimate) a second on one core, for the Llama-3.1-8B decode step.

    python -m benchmarks.evaluate_speed [--schedules 2000]

Three mixes of schedules, all different: `numbers` changes units and prefetch only (the tuner's common case: the
passes before map are found cached), `moves` stacks random legal moves of every family, `cold` clears every cache before
each evaluation. Beside them a fixed numpy workload (400 products of 256 x 256 float32 matrices, one thread), so that a
figure can be read on another machine: compare ratios, not seconds. CPU seconds throughout.
"""

import argparse
import os
import random
from collections.abc import Callable
from time import process_time

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np

from agent.evaluate import evaluate
from agent.presets import preset
from compiler.frontend import build
from compiler.frontend.spec import Attention, Dense, Layer, ModelSpec
from compiler.ir.actions import Prefetch, Units
from compiler.ir.graph import Graph, Phase, Workload
from compiler.ir.schedule import Schedule
from compiler.moves import View, legal_moves
from compiler.passes import map as map_pass
from compiler.passes import partition, rewrite, shard, work
from compiler.target import Target, load_target


def llama_8b() -> Graph:
    """Llama-3.1-8B, decode, batch 1, context 4096, 8 sockets."""
    layer = Layer(Attention(kv_heads=8, q_group=4, head_dim=128), Dense(14336))
    spec = ModelSpec("Llama-3.1-8B", "llama", hidden=4096, vocab=128_256, tied=False, layers=(layer,) * 32)
    return build(spec, Workload(Phase.DECODE, 1, 4096, 8, "bf16"))


def numbers(graph: Graph, target: Target, count: int) -> list[Schedule]:
    base = preset("o3", graph, target)
    return [
        base.with_actions(Units("gqa_dense", "ffn.down_proj", 1 + n % 200), Prefetch("gqa_dense", (1 + n // 200) << 20))
        for n in range(count)
    ]


def moves(graph: Graph, target: Target, count: int) -> list[Schedule]:
    rng, out = random.Random(0), {}
    while len(out) < count:
        schedule = preset("o3", graph, target)
        for _ in range(rng.randint(1, 4)):
            schedule = schedule.with_actions(rng.choice(list(legal_moves(View(graph, schedule, target)))))
        out[schedule.id] = schedule
    return list(out.values())


def clear() -> None:
    for cached in (
        map_pass.map_section, map_pass.dataflow, partition.partition_block, rewrite.rewrite_block, shard.shard_block,
        work.block_work,
    ):  # fmt: skip
        cached.cache_clear()


def rate(graph: Graph, target: Target, schedules: list[Schedule], before: Callable[[], None] = lambda: None) -> float:
    clear()
    begun = process_time()
    for schedule in schedules:
        before()
        evaluate(graph, schedule, target)
    return len(schedules) / (process_time() - begun)


def numpy_s() -> float:
    a = np.random.default_rng(0).random((256, 256), dtype=np.float32)
    begun = process_time()
    for _ in range(400):
        a = (a @ a) * np.float32(1 / 128)
    return process_time() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", type=int, default=2000)
    count = parser.parse_args().schedules
    graph, target = llama_8b(), load_target("sn40l")
    print(f"numpy workload          {numpy_s():8.3f} CPU s")
    print(f"numbers                 {rate(graph, target, numbers(graph, target, count)):8.0f} evaluations a CPU s")
    print(f"moves                   {rate(graph, target, moves(graph, target, count)):8.0f} evaluations a CPU s")
    cold = rate(graph, target, numbers(graph, target, max(1, count // 10)), clear)
    print(f"cold                    {cold:8.0f} evaluations a CPU s")


if __name__ == "__main__":
    main()
