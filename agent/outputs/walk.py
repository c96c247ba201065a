"""Random legal schedules: a walk over the legal moves of a graph, the same for the same seed."""

from random import Random

from compiler.ir.actions import Action, Cut, Experts, Fuse, Loop, Rewrite, Shard, Tile
from compiler.ir.graph import Graph
from compiler.ir.schedule import Schedule
from compiler.moves import View, legal_moves
from compiler.target import Target

#: Families that change what is executed, and how often each is drawn; the others change only how fast it is.
WEIGHTS: dict[type[Action], int] = {Rewrite: 3, Shard: 3, Fuse: 1, Cut: 1, Loop: 1, Experts: 1, Tile: 2}


def walk(graph: Graph, target: Target, random: Random, moves: int) -> Schedule:
    """A schedule of `moves` legal moves, one after another."""
    schedule = Schedule(())
    for _ in range(moves):
        families: dict[type[Action], list[Action]] = {}
        for move in legal_moves(View(graph, schedule, target)):
            families.setdefault(type(move), []).append(move)
        drawn = [f for f in WEIGHTS if f in families]
        family = random.choices(drawn, [WEIGHTS[f] for f in drawn])[0]
        schedule = schedule.with_actions(random.choice(families[family]))
    return schedule
