"""What a person sees in the terminal. Every word of a model or file goes through `clean`; nothing is read as markup."""

import sys
from collections.abc import Sequence
from textwrap import wrap
from typing import IO, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from agent.evaluate import Evaluation, Measured, Rejected
from agent.explain import Explanation, limits
from agent.report import memory_lines, warning_lines
from agent.trial import Onboarding
from agent.words import bound_words, clean, count, decimal_bytes, nbytes, percent, rate, seconds
from compiler.frontend import Model, model_summary
from compiler.ir.graph import Graph, Phase, Workload
from compiler.ir.text import print_action
from compiler.program import Program
from compiler.target import Target
from compiler.verify_place import cells_of
from simulator.report import Bound, Report

WIDTH = 80
LABEL = 12
MOST_LINES = 9


def console(file: IO[str] | None = None) -> Console:
    """A console that takes text as it is. 80 columns where the width is unknown, never more than 110."""
    out = Console(file=file or sys.stdout, markup=False, highlight=False, emoji=False, soft_wrap=False)
    out.width = min(out.width, 110) if out.is_terminal else WIDTH
    return out


def table(*columns: str, left: Sequence[str] = (), gap: int = 2) -> Table:
    """A plain table: numbers to the right, the columns of `left` to the left, `gap` spaces between."""
    out = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    for name in columns:
        out.add_column(name, justify="left" if name in left else "right", overflow="fold", no_wrap=name not in left)
    return out


def line(out: Console, label: str, text: str, style: str = "") -> None:
    """`label` in its column and `text`, wrapped beside it."""
    parts = wrap(clean(text, 2000), max(20, out.width - LABEL), break_on_hyphens=False) or [""]
    for i, part in enumerate(parts):
        out.print(Text((label if i == 0 else "").ljust(LABEL), style="dim"), Text(part, style=style), sep="")


def hanging(out: Console, text: str, indent: int, style: str = "") -> None:
    """`text` at `indent`, its further lines two columns deeper."""
    first, rest = " " * indent, " " * (indent + 2)
    parts = wrap(clean(text, 2000), out.width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)
    for part in parts:
        out.print(Text(part, style=style))


def show_onboarding(out: Console, o: Onboarding, explanation: Explanation, folder: str) -> None:
    """The summary of an onboarding."""
    model_lines(out, o.model)
    line(out, "workload", workload_words(o.graph, o.target))
    line(out, "start", o.start.note or o.start.kind)
    c = o.counts
    line(
        out,
        "evaluated",
        f"{c.total} schedules in {seconds(o.wall_s)}, {c.rejected} rejected, {c.cached} from the store",
    )
    for text in warning_lines(o.model, o.graph, o.target, o.report):
        line(out, "warning", text, "bold yellow")
    out.print()
    rows = [(name, trial.evaluation) for name, trial in (*o.presets, ("best", o.best))]
    show_evaluations(out, [*rows, ("placed", o.placed)], o.graph.workload, o.bound)
    out.print()
    line(out, "limits", limit_words(o.report))
    line(out, "why", " ".join(explanation.lines[:1]), "bold")
    for text in explanation.lines[1:MOST_LINES]:
        line(out, "", f"- {text}")
    if len(explanation.lines) > MOST_LINES:
        line(out, "", f"- and {len(explanation.lines) - MOST_LINES} smaller effects: report.html lists all")
    out.print()
    out.print(Text(f"from {explanation.base} to best", style="bold"))
    for sign, text in diff_lines(explanation):
        out.print(Text(f"{sign} {clean(text)}", style="green" if sign == "+" else "red"), overflow="fold")
    if not explanation.changes:
        out.print("  (no change)")
    out.print()
    out.print(Text("schedule", style="bold"))
    for action in o.best.schedule.actions:
        out.print(Text(f"  {clean(print_action(action))}"), overflow="fold")
    out.print()
    line(out, "files", folder)


def diff_lines(explanation: Explanation) -> list[tuple[str, str]]:
    """The changes as (- or +, action), each change's old actions before its new ones."""
    return [
        (sign, print_action(action))
        for change in explanation.changes
        for sign, side in (("-", change.gone), ("+", change.new))
        for action in side
    ]


def model_lines(out: Console, model: Model) -> None:
    m = model_summary(model)
    line(out, "model", f"{m['name']} ({m['model_type']})", "bold")
    layers = ", ".join(f"{layer['repeat']} x {layer['kind']}" for layer in m["layers"])
    line(out, "", f"{count(m['params'])} parameters, {count(m['active_params'])} active a token; {layers}")


def workload_words(graph: Graph | Program, target: Target) -> str:
    w = graph.workload
    sequence = "sequence" if w.batch == 1 else "sequences"
    tokens = f"context {w.context:,}" if w.phase is Phase.DECODE else f"prompt of {w.context:,} tokens"
    stored = f"weights {decimal_bytes(graph.weight_nbytes)} ({w.weights}), cache {decimal_bytes(graph.kv_nbytes)}"
    drafts = ", with MTP modules (no draft is counted as a token)" if w.mtp else ""
    return f"{w.phase}, {w.batch:,} {sequence}, {tokens}, {w.sockets} x {target.name}{drafts}; {stored}"


def show_evaluations(out: Console, rows: Sequence[tuple[str, Evaluation]], w: Workload, bound: Bound) -> None:
    """Presets and best, one row each, the bound below. Refused presets say why."""
    many = w.batch > 1
    grid = table(
        "",
        "latency",
        "tok/s/user",
        *(["tok/s"] if many else []),
        "HBM",
        "launches",
        "sections",
        "SRAM",
        "gap",
        left=("",),
        gap=1 if many else 2,
    )
    refused: list[tuple[str, Rejected]] = []
    over = False
    for name, evaluation in rows:
        if isinstance(evaluation, Rejected):
            refused.append((name, evaluation))
            grid.add_row(name, "refused")
            continue
        r = evaluation.report
        over = over or r.hbm_pct > 100
        cells = [seconds(r.latency_s), rate(r.tokens_per_s_per_user), *([rate(r.tokens_per_s)] if many else [])]
        cells += [
            f"{r.hbm_pct:.1f}%",
            f"{r.launches:,}",
            str(len(r.sections)),
            nbytes(r.sram_peak_bytes),
            f"{r.gap:.2f}",
        ]
        grid.add_row(name, *cells, style="bold" if name == "best" else "")
    grid.add_row("bound", seconds(bound.latency_s), *[""] * (6 + many), style="dim")
    out.print(grid)
    line(
        out,
        "",
        f"HBM: parameter and cache bytes once, of peak. Bound: {bound_words(bound.limiter)}. Gap: latency over bound.",
    )
    if any(name == "placed" for name, _ in rows):
        line(out, "", "Placed: the row above it on the PCU/PMU grid, with its hops and links; nothing else has places.")
    if over:
        line(out, "", "HBM above 100%: it counts all experts and tables, and a step reads the chosen experts and rows.")
    for name, rejected in refused:
        for d in rejected.diagnostics[:3]:
            line(out, name, str(d), "red")


def limit_words(report: Report) -> str:
    causes = ", ".join(f"{cause} {percent(s, report.latency_s)}" for cause, s in limits(report))
    return f"{causes}; HBM moves {report.hbm_read_pct:.1f}% of its peak"


def show_diagnostics(out: Console, diagnostics: Sequence[object], what: str) -> None:
    """Every reason why a schedule does not compile; at most a screen of them."""
    shown = diagnostics[:12]
    out.print(
        Text(
            f"{clean(what)}: does not compile ({len(diagnostics)} {'reason' if len(diagnostics) == 1 else 'reasons'})",
            style="bold red",
        )
    )
    for d in shown:
        hanging(out, clean(d, 900), 2)
    if any(getattr(d, "code", "") == "HOLE" for d in diagnostics):
        out.print("  Holes are filled only in onboard; here every number is needed.")
    if len(diagnostics) > len(shown):
        out.print(f"  and {len(diagnostics) - len(shown)} more: --json lists all")


def show_program(out: Console, program: Program, target: Target) -> None:
    """Sections of a program, what each takes of a socket, and the memory map."""
    line(out, "program", f"{program.id}, {program.launches:,} launches a step ({program.launch})")
    grid = table("section", "runs", "tiles", "stages", "PCUs", "PMUs", "SRAM", left=("section",))
    for run in program.runs:
        for s in run.sections:
            times = f"{run.times} loop" if run.looped else str(run.times)
            cells = [times, f"{s.tiles:,}", str(len(s.stages)), str(s.pcus), str(s.pmus)]
            grid.add_row(clean(s.name), *cells, nbytes(s.sram_bytes))
    out.print()
    out.print(grid)
    out.print()
    show_places(out, program, target)
    m = program.memory
    ddr = f"weights {nbytes(m.ddr_weights)}, cache {nbytes(m.ddr_kv)}"
    hbm = f"weights {nbytes(m.hbm_weights)}, cache {nbytes(m.hbm_kv)}, activations {nbytes(m.hbm_activations)}"
    line(out, "HBM", f"{nbytes(m.hbm_bytes)} of {nbytes(target.hbm_bytes)} a socket: {hbm}")
    line(out, "DDR", f"{nbytes(m.ddr_bytes)} of {nbytes(target.ddr_bytes)} a socket: {ddr}")
    if m.spilled:
        line(out, "", f"{nbytes(m.spilled)} of it because HBM is full", "bold yellow")


def show_places(out: Console, program: Program, target: Target) -> None:
    """How full the grid's links are, by section; nothing of a program without places."""
    grid = table("section", "PMUs used", "worst link", "a loop tile", "cycles", "streams", left=("section",))
    for s in program.sections:
        if s.place is None:
            return
        p = s.place
        used = len(set().union(*(cells_of(b.pmus) for b in p.buffers)))
        inside, between = (
            p.link_bytes / target.grid_link_bytes_per_cycle,
            p.crossing_bytes / target.tile_link_bytes_per_cycle,
        )
        most = p.link_bytes if inside >= between else p.crossing_bytes
        cells = [str(used), p.worst_link, nbytes(most), f"{max(inside, between):,.0f}", str(p.streams)]
        grid.add_row(clean(s.name), *cells)
    out.print(grid)
    out.print()


def show_report(out: Console, name: str, measured: Measured, w: Workload, unplaced: Measured | None = None) -> None:
    """A simulated step: key figures, where there are some also without places, then sections, slowest first."""
    r = measured.report
    rows = [(name, unplaced), ("placed", measured)] if unplaced else [(name, measured)]
    show_evaluations(out, rows, w, r.bound)
    out.print()
    line(out, "limits", limit_words(r))
    hbm = f"HBM reads {nbytes(r.hbm_read_bytes)}, writes {nbytes(r.hbm_write_bytes)}"
    others = f"DDR reads {nbytes(r.ddr_read_bytes)}; links carry {nbytes(r.link_bytes)}"
    line(out, "traffic", f"{hbm}; {others} (a socket and step)")
    line(out, "hidden", f"{seconds(r.hidden_s)} of weight streaming runs behind other work")
    fullest = max(r.sections, key=lambda s: s.link_share)
    if fullest.link_share:
        line(
            out,
            "grid",
            f"the fullest link moves bytes {percent(fullest.link_share, 1.0)} of the time, in {fullest.name}",
        )
    line(out, "PCUs", f"{100 * r.pcu_utilisation:.2f}% of peak FLOPs; {r.pcus_peak} allocated at most")
    out.print()
    grid = table("section", "runs", "time", "share", "PCUs", "limited by", left=("section",))
    for s in sorted(r.sections, key=lambda s: -s.latency_s)[:20]:
        share = percent(s.latency_s, r.latency_s)
        grid.add_row(clean(s.name), str(s.executions), seconds(s.latency_s), share, str(s.pcus), s.limiter)
    out.print(grid)
    if len(r.sections) > 20:
        out.print(f"and {len(r.sections) - 20} faster sections: --json lists all")


def show_simulation(out: Console, name: str, program: Program, simulated: tuple[Target, Measured]) -> None:
    """A simulated program file: as from its model, but for what only the model knows."""
    target, measured = simulated
    line(out, "program", f"{program.model}, {program.id}", "bold")
    line(out, "workload", workload_words(program, target))
    for text in memory_lines(program, target, measured.report):
        line(out, "warning", text, "bold yellow")
    out.print()
    show_report(out, name, measured, program.workload)


def show_differences(out: Console, kind: str, lines: Sequence[tuple[str, str]]) -> None:
    """What differs: groups, and signed lines below them."""
    for sign, text in lines:
        if not sign:
            out.print(Text(text, style="bold"))
            continue
        style = {"+": "green", "-": "red"}.get(sign, "")
        hanging(out, f"{sign} {text}", 2, style)
    if not lines:
        out.print(f"the {kind} are equal")


def show_facts(out: Console, rows: Sequence[dict[str, Any]]) -> None:
    """Facts of a model with the config keys they came from; unknown ones last."""
    grid = table("fact", "value", "status", "from", left=("fact", "value", "status", "from"))
    for row in rows:
        style = {"unknown": "yellow", "assumed": "cyan"}.get(row["status"], "")
        note = f" ({clean(row['note'], 120)})" if row["note"] else ""
        name, value, key = clean(row["name"], 60), clean(fact_value(row["value"]), 80), clean(row["key"], 60)
        grid.add_row(Text(name), Text(value), row["status"], Text(key + note), style=style)
    out.print(grid)


def fact_value(value: object) -> str:
    """A fact's value as its config spells it."""
    return ", ".join(map(fact_value, value)) if isinstance(value, tuple | list) else _JSON.get(str(value), str(value))


_JSON = {"True": "true", "False": "false", "None": "none"}


def show_inspection(out: Console, model: Model, figures: dict[str, Any], rows: Sequence[dict[str, Any]]) -> None:
    model_lines(out, model)
    widths = f"; hidden {model.hidden:,}, vocabulary {model.vocab:,}" if model.hidden and model.vocab else ""
    line(out, "sizes", f"{model.params:,} parameters, {model.active_params:,} active{widths}")
    if model.mtp_modules:
        some = "MTP module" if model.mtp_modules == 1 else "MTP modules"
        size = "not described" if model.mtp_params is None else f"{model.mtp_params:,} parameters (--mtp runs them)"
        line(out, "", f"{model.mtp_modules} {some} beside them: {size}")
    line(
        out,
        "memory",
        f"weights {decimal_bytes(figures['weight_bytes'])} as stored; cache {model.kv_bytes_per_token:,} bytes a token"
        + (f", state {model.state_bytes:,} bytes a sequence" if model.state_bytes else ""),
    )
    line(
        out,
        "a token",
        f"{count(figures['flops_per_token'])} FLOPs, {decimal_bytes(figures['bytes_per_token'])} read at the least",
    )
    out.print()
    show_facts(out, rows)
