"""search: the embedded structure proposer. Legal-action enumeration, then evolution; seeded and deterministic.

1. The starting schedules (presets, and what experience transferred).
2. A sweep: every family of action is tried once on the best schedule, block by block with the slowest first, its
   number left to `fill`; what helps is kept.
3. Evolution: one of the four best lineages takes random legal edits, more at once the longer nothing improved; or two
   lineages are joined.
4. Pruning: edits of the best schedule that its time does not need are taken out again.
"""

import random
from collections.abc import Sequence
from dataclasses import fields, replace

from agent.evaluator import BudgetSpent, Evaluator, rank
from agent.fill import fill
from agent.trial import Trial
from compiler.ir.actions import (
    Action,
    Buffer,
    Cut,
    Experts,
    Fuse,
    Hole,
    Loop,
    Place,
    Prefetch,
    Rewrite,
    Rule,
    SetLaunch,
    Shard,
    Tile,
    Units,
)
from compiler.ir.schedule import Schedule
from compiler.ir.text import print_action
from compiler.moves import INSTANCES, View, legal_moves

BEAM = 4
SWEEP_TRIES = 8
CLOSE_ENOUGH = 1e-3  # stop when the best is within this of the bound
PRUNE_SHARE = 10  # one evaluation in ten is kept for pruning
#: How often evolution draws a family; structure before single numbers, which `units` has very many of.
WEIGHTS: dict[type[Action], int] = {
    Rewrite: 6,
    Shard: 6,
    Fuse: 2,
    Cut: 1,
    Loop: 1,
    Place: 3,
    Experts: 5,
    Tile: 5,
    Units: 8,
    Buffer: 2,
    Prefetch: 5,
    SetLaunch: 0,
}


def search(evaluator: Evaluator, starts: Sequence[tuple[str, Schedule]], seed: int) -> None:
    """Spend the evaluator's budget from `starts` (origin, schedule); trials accumulate in the evaluator."""
    rng = random.Random(seed)
    reserve = evaluator.budget // PRUNE_SHARE
    try:
        for origin, schedule in starts:
            evaluator.run(schedule, origin)
        _sweep(evaluator, reserve)
        _evolve(evaluator, rng, reserve)
        base = {a for _, schedule in starts for a in schedule.actions}
        while _prune(evaluator, base):
            pass
    except BudgetSpent:
        return


def close(evaluator: Evaluator) -> bool:
    """Whether the best schedule is so near the bound that searching on cannot pay."""
    best = evaluator.best
    if best is None or best.latency_s is None:
        return False
    return best.latency_s <= best.report.bound.latency_s * (1 + CLOSE_ENOUGH)


def _sweep(evaluator: Evaluator, reserve: int) -> None:
    best = evaluator.best
    if best is None:
        return
    for template in _templates(evaluator, best):
        if evaluator.left <= reserve or close(evaluator):
            return
        best = evaluator.best or best
        candidate = best.schedule.with_actions(template)
        fill(candidate, evaluator, f"sweep: {print_action(template)}", best, min(SWEEP_TRIES, evaluator.left - reserve))


def _templates(evaluator: Evaluator, best: Trial) -> list[Action]:
    """One action a family and subject, its number a hole: blocks where most time goes first, units last."""
    report = best.report
    spent: dict[str, float] = {}
    for section in report.sections:
        spent[section.block] = spent.get(section.block, 0.0) + section.latency_s
    moves = legal_moves(View(evaluator.graph, best.schedule, evaluator.target))
    templates = dict.fromkeys(_template(m) for m in moves if WEIGHTS[type(m)] and not isinstance(m, Units | Cut))
    families = list(WEIGHTS)

    def order(action: Action) -> tuple[bool, int, float]:
        share = spent.get(getattr(action, "block", ""), 0.0)
        return (share < 0.02 * report.latency_s, families.index(type(action)), -share)

    return sorted(templates, key=order)


def _template(action: Action) -> Action:
    """`action` with its tunable number as a hole (a shard's ways stay: they decide what is legal)."""
    if isinstance(action, Shard):
        return action
    names = [f.name for f in fields(action) if f.metadata["keyword"]]
    if isinstance(action, Rewrite) and action.rule is not Rule.SPLIT_KV:
        return action
    return replace(action, **{n: Hole() for n in names}) if names else action


def _evolve(evaluator: Evaluator, rng: random.Random, reserve: int) -> None:
    stale, idle = 0, 0
    while evaluator.left > reserve and idle < 200 and not close(evaluator):
        parents = _beam(evaluator)
        if not parents:
            return
        parent = parents[min(int(rng.expovariate(0.9)), len(parents) - 1)]
        before = evaluator.best
        if len(parents) > 1 and rng.random() < 0.15:
            child, origin = _join(parent, rng.choice(parents), rng), "join"
        else:
            child, origin = _mutate(evaluator, parent, rng, 1 + min(3, stale // 25))
        if evaluator.seen(child) is not None:
            idle += 1
            continue
        idle = 0
        evaluator.run(child, origin, parent)
        stale = 0 if evaluator.best is not before else stale + 1


def _beam(evaluator: Evaluator) -> list[Trial]:
    """The best trials, at most one a latency: equal times are one lineage."""
    out: list[Trial] = []
    for trial in sorted((t for t in evaluator.trials if t.latency_s is not None), key=rank):
        if not out or trial.latency_s != out[-1].latency_s:
            out.append(trial)
        if len(out) == BEAM:
            break
    return out


def _mutate(evaluator: Evaluator, parent: Trial, rng: random.Random, edits: int) -> tuple[Schedule, str]:
    schedule, said = parent.schedule, []
    for _ in range(edits):
        move = _draw(View(evaluator.graph, schedule, evaluator.target), rng)
        if move is None:
            break
        schedule = schedule.with_actions(move)
        said.append(print_action(move))
    return schedule, "evolve: " + "; ".join(said)


def _draw(view: View, rng: random.Random) -> Action | None:
    """A legal move of a family drawn by weight; None if no family has any."""
    weights = {f: w for f, w in WEIGHTS.items() if w}
    while weights:
        family = rng.choices(list(weights), list(weights.values()))[0]
        moves = tuple(INSTANCES[family](view))
        if moves:
            return rng.choice(moves)
        del weights[family]
    return None


def _join(one: Trial, other: Trial, rng: random.Random) -> Schedule:
    """`one` with each edit that only `other` has, by the toss of a coin."""
    have = set(one.schedule.actions)
    return one.schedule.with_actions(*(a for a in other.schedule.actions if a not in have and rng.random() < 0.5))


def _prune(evaluator: Evaluator, base: set[Action]) -> bool:
    """Take one needless edit (no action of `base`) out of the best schedule; False when every edit is needed."""
    best = evaluator.best
    if best is None:
        return False
    for action in reversed(best.schedule.actions):
        shorter = best.schedule.without(action)
        if action in base or evaluator.seen(shorter) is not None:
            continue
        trial = evaluator.run(shorter, f"prune: {print_action(action)}", best)
        if rank(trial) < rank(best):
            return True
    return False
