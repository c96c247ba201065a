"""Steps put together: chains of element-wise operators as one MAP, what makes routes of a router's scores as one SORT.

A group must be convex: no way from one of its steps to another may lead through a step outside it.
"""

from collections.abc import Iterable
from itertools import chain

from compiler.frontend.capture.seen import Call
from compiler.frontend.capture.steps import Flow, Kind, Step
from compiler.frontend.flops import TOPK_FLOPS

#: Where the way back from the routes ends: what computes the router's scores.
_BOUNDARY = (Kind.CONTRACT, Kind.CONV, Kind.NORM, Kind.ATTENTION, Kind.EXPERTS, Kind.RECURRENCE)


def grouped(flow: Flow, results: tuple[str, ...]) -> list[Step]:
    """The steps of `flow` in an order in which each reads what is there; unused ones are left out.

    results: the values the capture gives.
    """
    needed = set(flow.roots(name for name in results if name in flow.seen))
    steps = _live(flow.steps, needed)
    for experts in [step for step in steps if step.kind is Kind.EXPERTS]:
        steps = _routes(flow, steps, experts)
    return _ordered(_parallel(flow, _maps(flow, _live(steps, needed), needed), needed))


def producers(steps: Iterable[Step]) -> dict[str, Step]:
    """The step that gives each value."""
    return {name: step for step in steps for name in step.outputs}


def readers(steps: Iterable[Step]) -> dict[str, list[Step]]:
    """The steps that read each value, in order."""
    out: dict[str, list[Step]] = {}
    for step in steps:
        for name in step.sources:
            out.setdefault(name, []).append(step)
    return out


def _live(steps: list[Step], needed: set[str]) -> list[Step]:
    """The steps whose results somebody reads."""
    wanted, out = set(needed), []
    for step in reversed(steps):
        if wanted.intersection(step.outputs):
            out.append(step)
            wanted.update(step.sources)
    return out[::-1]


def _routes(flow: Flow, steps: list[Step], experts: Step) -> list[Step]:
    """Everything between the router's scores and the routes as one SORT step that gives the routes."""
    made = producers(steps)
    call = experts.call
    routes = flow.roots((call.must(1), call.must(2)))
    inside: list[Step] = []
    edge: dict[str, None] = {}
    todo = list(routes)
    while todo:
        name = todo.pop()
        step = made.get(name)
        if step is None or step.kind in _BOUNDARY:
            edge[name] = None
        elif step not in inside:
            inside.append(step)
            todo.extend(step.sources)
    inside.sort(key=steps.index)
    if not inside:
        return steps
    scores = [name for name in edge if name in made and made[name].kind is Kind.CONTRACT]
    axis = flow.seen[scores[-1]].axes[-1] if scores else flow.seen[next(iter(edge))].axes[-1]
    nodes = [node for step in inside for node in step.nodes]
    outputs = tuple(chain.from_iterable(step.outputs for step in inside))
    weights = tuple(dict.fromkeys(weight for step in inside for weight in step.weights))
    points = (flow.atoms.tokens, *axis)
    sort = Step(Kind.SORT, nodes, tuple(edge), weights, outputs, points, sequential=axis, flops=TOPK_FLOPS)
    at = steps.index(inside[-1])
    return [sort if place == at else step for place, step in enumerate(steps) if step not in inside or place == at]


def _maps(flow: Flow, steps: list[Step], needed: set[str]) -> list[Step]:
    """Merge element-wise steps with the element-wise steps they read, where the group stays convex."""
    made = producers(steps)
    order = {id(step): place for place, step in enumerate(steps)}
    above = [0] * len(steps)  # the steps each depends on, as bits
    for place, step in enumerate(steps):
        for name in step.sources:
            if name in made:
                before = order[id(made[name])]
                above[place] |= above[before] | 1 << before
    group = [1 << place for place in range(len(steps))]
    for place, step in enumerate(steps):
        if step.kind is not Kind.MAP or step.residual:
            continue
        for name in step.sources:
            other = order[id(made[name])] if name in made else place
            if other == place or steps[other].kind is not Kind.MAP or steps[other].residual:
                continue
            if group[place] & 1 << other:
                continue
            merged = group[place] | group[other]
            if _convex(steps, made, order, above, merged):
                for member in _bits(merged):
                    group[member] = merged
    out: list[Step] = []
    done = 0
    for place, step in enumerate(steps):
        if done & 1 << place:
            continue
        done |= group[place]
        members = [steps[i] for i in _bits(group[place])]
        out.append(step if len(members) == 1 and step.kind is not Kind.MAP else _merged(flow, steps, members, needed))
    return out


def _parallel(flow: Flow, steps: list[Step], needed: set[str]) -> list[Step]:
    """Steps whose sum with the stream has several parts: of layers whose mixer and feed-forward part run in parallel.

    A sum that nothing but a sum with the stream reads is put into it; routed experts and a shared one stay their own.
    """
    made, read = producers(steps), readers(steps)
    for last in [step for step in steps if step.residual]:
        for name in last.sources:
            inner = made.get(name)
            if inner is None or name in needed or read[name] != [last] or not _sum(inner):
                continue
            if any(made[other].kind is Kind.EXPERTS for other in inner.sources if other in made):
                continue
            both = _merged(flow, steps, [inner, last], needed)
            return _parallel(flow, [both if step is last else step for step in steps if step is not inner], needed)
    return steps


def _sum(step: Step) -> bool:
    """Whether a step adds tensors and does nothing else."""
    plain = all(Call(node).name == "aten.add" and len(Call(node).refs()) == 2 for node in step.nodes)
    return step.kind is Kind.MAP and plain and not step.weights


def _bits(mask: int) -> list[int]:
    return [place for place in range(mask.bit_length()) if mask >> place & 1]


def _convex(steps: list[Step], made: dict[str, Step], order: dict[int, int], above: list[int], mask: int) -> bool:
    for place in _bits(mask):
        for name in steps[place].sources:
            if name in made:
                before = order[id(made[name])]
                if not mask >> before & 1 and above[before] & mask:
                    return False
    return True


def _merged(flow: Flow, steps: list[Step], members: list[Step], needed: set[str]) -> Step:
    """One MAP step of `members`: the sum of their operations over the points of the largest output."""
    own = set(chain.from_iterable(step.outputs for step in members))
    read = {name for step in steps if step not in members for name in step.sources} | needed
    outputs = tuple(name for step in members for name in step.outputs if name in read)
    points = max((flow.atoms.flat(flow.seen[name].axes) for name in outputs), key=flow.atoms.extent)
    size, work = flow.atoms.extent(points), sum(step.work for step in members)
    return Step(
        Kind.MAP,
        [node for step in members for node in step.nodes],
        tuple(dict.fromkeys(name for step in members for name in step.sources if name not in own)),
        tuple(dict.fromkeys(name for step in members for name in step.weights)),
        outputs,
        points,
        flops=-(-work // size),
        work=work,
        tables=any(step.tables for step in members),
        residual=members[-1].residual,
        reduced=members[0].reduced,
    )


def _ordered(steps: list[Step]) -> list[Step]:
    """A topological order that keeps the given one where it can."""
    made = producers(steps)
    out: list[Step] = []
    placed: set[int] = set()

    def place(step: Step) -> None:
        if id(step) in placed:
            return
        placed.add(id(step))
        for name in step.sources:
            if name in made:
                place(made[name])
        out.append(step)

    for step in steps:
        place(step)
    return out
