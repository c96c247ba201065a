"""What an onboarding says, as JSON. Two documents: `onboard_json` tells of the run, `report_json` of its result only.

`report_json` depends on model, workload, target and versions alone: no dates, paths, run ids or cache counts, so the
same command gives the same bytes.
"""

import json
from dataclasses import asdict
from typing import Any

from agent.evaluate import VERSION, Evaluation, Measured, Rejected, evaluate
from agent.explain import Explanation, explain
from agent.trial import Onboarding, Trial
from agent.words import decimal_bytes, nbytes, percent, seconds
from compiler.diagnostic import Diagnostic
from compiler.frontend import Model, model_summary
from compiler.ir.graph import Graph, Phase, Workload
from compiler.ir.schedule import Schedule
from compiler.program import Program
from compiler.target import Target
from simulator.report import Bound, Report

REPORT_VERSION = 1
Json = dict[str, Any]


def dumps(value: Any) -> str:
    """Indented ASCII JSON with a newline at its end. ValueError for NaN and Infinity: they are never written."""
    return json.dumps(value, indent=2, ensure_ascii=True, allow_nan=False) + "\n"


def onboard_json(onboarding: Onboarding, explanation: Explanation) -> Json:
    """The one object of `onboard --json`."""
    o = onboarding
    return {
        "run_id": o.run_id,
        "model": model_summary(o.model),
        "workload": workload_json(o.graph.workload),
        "target": {"name": o.target.name, "id": o.target.id},
        "presets": {name: preset_json(trial.evaluation) for name, trial in o.presets},
        "best": {"schedule": o.best.schedule.text, "report": o.report.to_json(), "placed": placed_json(o.placed)},
        "bound": bound_json(o.bound),
        "gap": o.report.gap,
        "evaluations": asdict(o.counts),
        "start": {"kind": o.start.kind, "note": o.start.note},
        "explanation": list(explanation.lines),
        "warnings": list(warning_lines(o.model, o.graph, o.target, o.report)),
        "wall_s": o.wall_s,
    }


def report_json(onboarding: Onboarding, explanation: Explanation) -> Json:
    """The content of report.json: the result, and nothing of how or when it was found."""
    o = onboarding
    return {
        "version": REPORT_VERSION,
        "model": model_summary(o.model),
        "workload": workload_json(o.graph.workload),
        "target": {"name": o.target.name, "id": o.target.id},
        "versions": {"evaluation": VERSION},
        "presets": {name: preset_json(trial.evaluation) for name, trial in o.presets},
        "best": {"schedule": o.best.schedule.text, "report": o.report.to_json(), "placed": placed_json(o.placed)},
        "bound": bound_json(o.bound),
        "gap": o.report.gap,
        "explanation": list(explanation.lines),
        "warnings": list(warning_lines(o.model, o.graph, o.target, o.report)),
    }


def workload_json(workload: Workload) -> Json:
    return {**asdict(workload), "phase": str(workload.phase)}


def preset_json(evaluation: Evaluation) -> Json:
    """Key figures of a preset, or why it was refused."""
    if isinstance(evaluation, Rejected):
        return {"rejected": [diagnostic_json(d) for d in evaluation.diagnostics]}
    r = evaluation.report
    return {
        "latency_s": r.latency_s,
        "tokens_per_s_per_user": r.tokens_per_s_per_user,
        "tokens_per_s": r.tokens_per_s,
        "hbm_pct": r.hbm_pct,
        "sections": len(r.sections),
        "launches": r.launches,
        "sram_peak_bytes": r.sram_peak_bytes,
        "gap": r.gap,
        "breakdown_s": dict(r.breakdown_s),
    }


def placed_json(evaluation: Evaluation) -> Json:
    """The whole report of a placed schedule, or why it cannot be placed."""
    if isinstance(evaluation, Rejected):
        return {"rejected": [diagnostic_json(d) for d in evaluation.diagnostics]}
    return evaluation.report.to_json()


def bound_json(bound: Bound) -> Json:
    return asdict(bound)


def diagnostic_json(d: Diagnostic) -> Json:
    return {**asdict(d), "code": str(d.code), "gap": d.gap, "levers": list(d.levers), "text": str(d)}


def base_of(onboarding: Onboarding) -> tuple[str, Trial]:
    """The preset that the best schedule is compared with: o3, or the fastest that compiles, or the best itself."""
    measured = {name: t for name, t in onboarding.presets if t.latency_s is not None}
    if "o3" in measured:
        return "o3", measured["o3"]
    fastest = min(measured.items(), key=lambda item: item[1].latency_s or 0.0, default=None)
    return fastest or ("best", onboarding.best)


def explanation_of(onboarding: Onboarding) -> Explanation:
    """Why the best schedule is as fast as it is. Evaluations that the run made are not made again."""
    known = {t.schedule.id: t.evaluation for t in onboarding.trials}

    def look_up(schedule: Schedule) -> Evaluation:
        return known.get(schedule.id) or evaluate(onboarding.graph, schedule, onboarding.target)

    name, base = base_of(onboarding)
    assert isinstance(base.evaluation, Measured)
    best = onboarding.best.schedule
    return explain((name, base.schedule, base.evaluation.report), (best, onboarding.report), look_up)


def warning_lines(model: Model, graph: Graph, target: Target, report: Report) -> tuple[str, ...]:
    """What the reader of the figures must know: a context the model was not made for, a model that HBM cannot hold."""
    # a decoder behind sounds has a table of its own; prefill asks for the tokens of the sound
    names = ("positions", "target_positions") if graph.workload.phase is Phase.DECODE else ("positions",)
    positions = next((fact for fact in model.facts if fact.name in names), None)
    lines = memory_lines(graph, target, report)
    context = graph.workload.context
    if positions is None or not isinstance(positions.value, int) or context <= positions.value:
        return lines
    return (
        f"The context of {context:,} tokens is longer than the {positions.value:,} positions of the model "
        f"({positions.key}): the figures say how long it would take, not that the model would make sense.",
        *lines,
    )


def memory_lines(graph: Graph | Program, target: Target, report: Report) -> tuple[str, ...]:
    """What does not fit HBM, what that costs and what would help; empty where everything fits."""
    if not report.memory_ddr_bytes:
        return ()
    sockets = graph.workload.sockets
    held = report.memory_hbm_bytes + report.memory_ddr_bytes
    share = percent(report.spill_s, report.latency_s)
    cost = f"DDR takes {seconds(report.spill_s)} of {seconds(report.latency_s)} a step ({share})."
    if not report.memory_spilled_bytes:
        return (f"{nbytes(report.memory_ddr_bytes)} a socket are placed in DDR by the schedule. {cost}",)
    weights, cache = decimal_bytes(graph.weight_nbytes), decimal_bytes(graph.kv_nbytes)
    return (
        f"Does not fit HBM: {weights} of weights and {cache} of cache, "
        f"{decimal_bytes(sockets * target.hbm_bytes)} of HBM on {sockets} {'socket' if sockets == 1 else 'sockets'}. "
        f"A socket needs {nbytes(held)} and its HBM holds {nbytes(target.hbm_bytes)}, so "
        f"{nbytes(report.memory_spilled_bytes)} a socket are kept in DDR (what a step moves least of first).",
        cost,
        *(f"Levers: {' | '.join(levers)}" for levers in [memory_levers(graph, target, held)] if levers),
    )


def memory_levers(graph: Graph | Program, target: Target, held: int) -> tuple[str, ...]:
    """What makes a model smaller or the machine larger, where that is still possible. held: bytes a socket keeps."""
    w, out = graph.workload, []
    stored = graph.weight_nbytes + graph.kv_nbytes
    more = [c for c in target.socket_counts if c > w.sockets]
    fits = [c for c in more if c * target.hbm_bytes >= stored]
    if fits:
        out.append(f"--sockets {fits[0]}")
    elif more:
        out.append(f"--sockets {more[-1]} (more of it fits, not all)")
    if w.weights != "fp8" and graph.weight_nbytes > 1.1 * graph.weight_elements:
        out.append("--weights fp8 (weights take about half)")
    if graph.kv_nbytes > stored // 10:
        out.append("a smaller --context or --batch")
    if w.sockets * held > 1.02 * stored:
        out.append("shard what every socket now holds whole")
    return tuple(out)
