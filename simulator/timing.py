"""How long a section takes: its first loop tile stage by stage, then a steady interval for each further tile.

The first tile walks the stages in dataflow order. A stage starts when its producers are done (an element-wise stage
follows them instead). HBM, DDR and links are single servers, so parallel branches share them. Weight streams start
with their stage unless prefetch reserved SRAM for them: then they use HBM while it idles, at most that many bytes
ahead, in order, never across a launch, and never for routed experts, whose addresses the router decides.

Where a section has a place on the grid, a stage pays the hops of its own routes, and takes no less time than the
fullest link or PMU port that it uses, with what may run beside it. Without one it pays a fixed number of hops.

Every second on the critical path is booked to one cause, so the breakdown sums to the latency.
"""

from dataclasses import dataclass

from compiler.program import Section, Stage
from compiler.target import Target
from simulator.report import Cause


@dataclass(slots=True)
class Rates:
    """What a socket sustains, per second."""

    weights: float
    kv: float
    ddr: float
    port: float
    kv_port: float
    mac: float
    vector: float
    link: float
    step_s: float
    latency_s: float
    hbm_latency_s: float
    ddr_latency_s: float
    hop_s: float
    usual_hops_s: float
    grid_link: float
    tile_link: float


def rates_of(target: Target) -> Rates:
    """Sustained rates: peak times the fitted efficiency of HBM for long streams, and for cache rows."""
    return Rates(
        weights=target.hbm_bytes_per_s * target.hbm_efficiency,
        kv=target.hbm_bytes_per_s * target.kv_stream_efficiency,
        ddr=target.ddr_bytes_per_s,
        port=target.port_bytes_per_cycle * target.clock_hz,
        kv_port=target.port_bytes_per_cycle * target.clock_hz * target.kv_stream_efficiency,
        mac=target.lanes * target.pcu_stages * target.clock_hz,
        vector=target.clock_hz,
        link=target.link_bytes_per_s,
        step_s=target.collective_step_s,
        latency_s=target.stage_latency_cycles / target.clock_hz,
        hbm_latency_s=target.hbm_latency_s,
        ddr_latency_s=target.ddr_latency_s,
        hop_s=target.hop_cycles / target.clock_hz,
        usual_hops_s=target.stage_hop_cycles / target.clock_hz,
        grid_link=target.grid_link_bytes_per_cycle * target.clock_hz,
        tile_link=target.tile_link_bytes_per_cycle * target.clock_hz,
    )


@dataclass(slots=True)
class Pass:
    """One pass of a tile through a section: its latency, where it went, and the weights it left prefetched."""

    latency_s: float
    causes: dict[str, float]
    ahead: float
    hidden_s: float


def stage_s(stage: Stage, r: Rates) -> tuple[float, str]:
    """Seconds a stage takes for a tile once its data arrives at full rate, off-chip supply apart; and why."""
    compute = stage.macs / (r.mac * stage.pcus_used) + stage.vector_ops / (r.vector * stage.pcus_used)
    ports = (stage.weight_bytes + stage.ddr_bytes) / (r.port * stage.pcus_used)
    rows = (stage.kv_bytes + stage.kv_ddr_bytes) / (r.kv_port * stage.kv_ports)
    if rows >= compute and rows >= ports and rows > 0:
        return rows, Cause.KV
    if ports >= compute and ports > 0:
        return ports, Cause.WEIGHTS
    return compute, Cause.COMPUTE


def fill_s(section: Section, i: int, r: Rates) -> float:
    """Latency of stage `i` from its first input to its first output: pipeline, PMUs, and the hops of its routes."""
    if section.place is None:
        return r.latency_s
    return max(0.0, r.latency_s - r.usual_hops_s) + section.place.stages[i].hops * r.hop_s


def network_s(section: Section, i: int, r: Rates) -> float:
    """Least seconds of stage `i` for a loop tile on the links and PMU ports that it uses; 0 without a place."""
    if section.place is None:
        return 0.0
    at = section.place.stages[i]
    return max(at.link_bytes / r.grid_link, at.crossing_bytes / r.tile_link, at.port_bytes / r.port)


def link_s(section: Section, r: Rates) -> float:
    """Seconds of a loop tile on the fullest link of the grid; 0 without a place."""
    if section.place is None:
        return 0.0
    return max(section.place.link_bytes / r.grid_link, section.place.crossing_bytes / r.tile_link)


def first_tile(section: Section, r: Rates, ahead: float, carried: bool) -> Pass:
    """Walk the first tile through `section`; `ahead` bytes of weights are already on chip.

    carried: boundary activations come from and go to the neighbouring iteration on chip.
    """
    stages = section.stages
    finish, first_out = [0.0] * len(stages), [0.0] * len(stages)
    via, booked = [-1] * len(stages), [_NONE] * len(stages)
    hbm = ddr = link = hidden = 0.0
    window = float(section.prefetch_bytes)
    for i, s in enumerate(stages):
        ready, follow, pred = 0.0, 0.0, -1
        for p in s.preds:
            start = first_out[p] if s.streams else finish[p]
            if start > ready:
                ready = start
            if finish[p] > follow or pred < 0:
                follow, pred = finish[p], p
        work, cause = stage_s(s, r)
        supply, supplied = ready, cause
        moved = s.kv_bytes / r.kv + (s.read_bytes + s.write_bytes + (0 if carried else s.carried_bytes)) / r.weights
        streams = s.weight_bytes
        if streams or moved > 0.0:
            if window and ready > hbm:  # HBM idled until this stage was ready: prefetch ran
                ahead = min(window, ahead + (ready - hbm) * r.weights)
            hit = min(ahead, streams) if s.prefetchable and window else 0.0
            ahead -= hit
            hidden += hit / r.weights
            begin = ready if ready > hbm else hbm
            busy = (streams - hit) / r.weights + moved
            hbm = begin + busy
            if busy > 0.0:
                supply, supplied = (
                    hbm + r.hbm_latency_s,
                    (Cause.WEIGHTS if streams - hit >= moved * r.weights else _moved(s)),
                )
        if s.ddr_bytes or s.kv_ddr_bytes:
            begin = ready if ready > ddr else ddr
            ddr = begin + (s.ddr_bytes + s.kv_ddr_bytes) / r.ddr
            if ddr + r.ddr_latency_s > supply:
                supply, supplied = ddr + r.ddr_latency_s, Cause.DDR
        if s.link_steps:
            begin = ready if ready > link else link
            link = begin + s.link_bytes / r.link + s.link_steps * r.step_s
            supply, supplied = link, Cause.COLLECTIVE
        fill = (1 + s.restarts) * (r.latency_s if section.place is None else fill_s(section, i, r))
        end = ready + work
        if supply > end:
            end, cause = supply, supplied
        if section.place is not None and ready + network_s(section, i, r) > end:
            end, cause = ready + network_s(section, i, r), Cause.NETWORK
        if s.streams and follow > end:
            end, cause = follow, Cause.FILL
        first_out[i] = ready + fill if s.emits_early else end + fill
        finish[i] = end + fill
        via[i], booked[i] = pred, (cause, fill)
    one = _book(finish, via, booked, hidden)
    one.ahead = min(window, ahead + max(0.0, one.latency_s - hbm) * r.weights)
    return one


_NONE: tuple[str, float] = (Cause.FILL, 0.0)


def _moved(stage: Stage) -> Cause:
    return Cause.KV if stage.kv_bytes >= stage.read_bytes + stage.write_bytes else Cause.ACTIVATIONS


def _book(finish: list[float], via: list[int], booked: list[tuple[str, float]], hidden: float) -> Pass:
    """Walk the critical path back from the stage that ends last and book each step to its cause."""
    causes: dict[str, float] = {}
    i = max(range(len(finish)), key=lambda k: finish[k])
    latency = finish[i]
    while i >= 0:
        pred = via[i]
        step = finish[i] - (finish[pred] if pred >= 0 else 0.0)
        cause, fill = booked[i]
        fill = min(fill, step)
        causes[Cause.FILL] = causes.get(Cause.FILL, 0.0) + fill
        causes[cause] = causes.get(cause, 0.0) + step - fill
        i = pred
    return Pass(latency, causes, 0.0, hidden)


def interval(section: Section, r: Rates) -> tuple[float, str, float]:
    """Steady seconds between loop tiles, what sets it, and HBM seconds of it: the slowest stage or shared server.

    A stage drains between tiles, and tiles share no step of a collective: many small tiles are not free. A buffer of
    depth 1 makes a stage and its slowest consumer take turns: the time of both, what they move included.
    """
    slowest, cause = 0.0, str(Cause.FILL)
    total: dict[str, float] = dict.fromkeys(_SERVERS, 0.0)
    spent: list[float] = []
    for i, s in enumerate(section.stages):
        moves = _moves(s, r)
        for why, time in moves.items():
            total[why] += time
        work, why = stage_s(s, r)
        hbm = moves[Cause.WEIGHTS] + moves[Cause.KV] + moves[Cause.ACTIVATIONS]
        supply = max(hbm, moves[Cause.DDR], moves[Cause.COLLECTIVE])
        if supply > work:
            work, why = supply, max(_SERVERS, key=lambda c: moves[c])
        spent.append(work + (1 + s.restarts) * fill_s(section, i, r))
        turn = max((spent[p] for p in s.preds if section.stages[p].depth < 2), default=0.0)
        if spent[-1] + turn > slowest:
            slowest, cause = spent[-1] + turn, why
    hbm = total[Cause.WEIGHTS] + total[Cause.KV] + total[Cause.ACTIVATIONS]
    why = max((Cause.WEIGHTS, Cause.KV, Cause.ACTIVATIONS), key=lambda c: total[c])
    servers = [(hbm, why), (total[Cause.DDR], Cause.DDR), (total[Cause.COLLECTIVE], Cause.COLLECTIVE)]
    if section.place is not None:
        ports = max((at.port_bytes for at in section.place.stages), default=0)
        servers.append((max(link_s(section, r), ports / r.port), Cause.NETWORK))
    for time, name in servers:
        if time > slowest:
            slowest, cause = time, name
    return slowest, cause, hbm


_SERVERS = (Cause.WEIGHTS, Cause.KV, Cause.ACTIVATIONS, Cause.DDR, Cause.COLLECTIVE)


def _moves(s: Stage, r: Rates) -> dict[str, float]:
    """Seconds a stage's bytes of each tile after the first take on HBM (by kind), DDR and links."""
    return {
        Cause.WEIGHTS: 0.0 if s.loads_once else s.weight_bytes / r.weights,
        Cause.KV: s.kv_bytes / r.kv,
        Cause.ACTIVATIONS: (s.read_bytes + s.write_bytes) / r.weights,
        Cause.DDR: (s.kv_ddr_bytes + (0 if s.loads_once else s.ddr_bytes)) / r.ddr,
        Cause.COLLECTIVE: s.link_bytes / r.link + s.link_steps * r.step_s,
    }


def section_pass(section: Section, r: Rates, ahead: float, carried: bool) -> Pass:
    """All tiles of one execution: the first tile, then an interval for each further one."""
    one = first_tile(section, r, ahead, carried)
    if section.tiles == 1:
        return one
    step, cause, hbm = interval(section, r)
    rest = (section.tiles - 1) * step
    one.causes[cause] = one.causes.get(cause, 0.0) + rest
    one.ahead = min(float(section.prefetch_bytes), one.ahead + (section.tiles - 1) * (step - hbm) * r.weights)
    one.latency_s += rest
    return one
