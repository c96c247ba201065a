"""Hand-made values for the tests of the experience store."""

from agent.experience.records import Evaluation, Method, Run, RunStatus, StartKind, Status, Trial
from compiler.canonical import canonical_json
from compiler.diagnostic import Code, Diagnostic
from compiler.ir.dtype import DType
from compiler.ir.graph import Block, Dim, Graph, Op, Pattern, Phase, Role, Routing, Tensor, Workload
from compiler.ir.schedule import Schedule
from compiler.ir.text import parse_schedule
from compiler.target import Target

DIAGNOSTIC = Diagnostic(Code.SECTION_OVER_SRAM, "section dense", "fits SRAM", 612, 520, "bytes", ("cut after up",))


def graph(
    hidden: int = 64, ffn: int = 256, batch: int = 1, context: int = 128, sockets: int = 1, phase: Phase = Phase.DECODE
) -> Graph:
    """Two layers of up and down projections."""
    workload = Workload(phase, batch, context, sockets)
    tokens, h, f = Dim("tokens", workload.tokens), Dim("hidden", hidden), Dim("ffn", ffn)
    tensors = (
        Tensor("x", (tokens, h), DType.BF16, Role.ACTIVATION),
        Tensor("up_w", (h, f), DType.BF16, Role.WEIGHT, "layers.{layer}.up"),
        Tensor("u", (tokens, f), DType.BF16, Role.ACTIVATION),
        Tensor("down_w", (f, h), DType.BF16, Role.WEIGHT, "layers.{layer}.down"),
        Tensor("y", (tokens, h), DType.BF16, Role.ACTIVATION),
    )
    ops = (
        Op("up", Pattern.CONTRACT, (tokens, h, f), ("x", "up_w"), ("u",), ("hidden",), 2),
        Op("down", Pattern.CONTRACT, (tokens, f, h), ("u", "down_w"), ("y",), ("ffn",), 2),
    )
    return Graph("tiny", "tiny", (Block("dense", ops, tensors, ("x",), ("y",)),), ("dense", "dense"), workload)


def moe_graph(experts: int = 8, top_k: int = 2) -> Graph:
    """One layer of a routed contraction."""
    tokens, h, e = Dim("tokens", 1), Dim("hidden", 64), Dim("experts", experts)
    tensors = (
        Tensor("x", (tokens, h), DType.BF16, Role.ACTIVATION),
        Tensor("w", (e, h), DType.BF16, Role.WEIGHT, "experts"),
        Tensor("y", (tokens, h), DType.BF16, Role.ACTIVATION),
    )
    op = Op("expert", Pattern.CONTRACT, (tokens, h), ("x", "w"), ("y",), routing=Routing(experts, top_k))
    block = Block("moe", (op,), tensors, ("x",), ("y",))
    return Graph("tiny-moe", "tiny", (block,), ("moe",), Workload(Phase.DECODE, 1, 128, 1))


def schedule(number: int) -> Schedule:
    return parse_schedule(f"fuse dense all\ntile dense tokens size={number + 1}\n")


def method(target: Target, version: str = "1", fidelity: str = "fast") -> Method:
    return Method(target.id, version, fidelity)


def measured(graph_id: str, number: int, by: Method, latency_s: float) -> Evaluation:
    report = canonical_json({"latency_s": latency_s, "limiter": "hbm", "sections": [{"name": "dense"}]})
    return Evaluation(graph_id, schedule(number), by, Status.MEASURED, latency_s, report)


def rejected(graph_id: str, number: int, by: Method) -> Evaluation:
    return Evaluation.rejected(graph_id, schedule(number), by, [DIAGNOSTIC])


def run_of(evaluations: list[Evaluation], name: str = "run-1", key: str = "key-1") -> tuple[Run, list[Trial]]:
    """A done run whose trials are the evaluations in order, each edited from the one before."""
    best = min((e for e in evaluations if e.latency_s is not None), key=lambda e: e.latency_s or 0.0)
    trials = [Trial(i, e.schedule.id, e.key, i - 1 if i else None, f"edit {i}") for i, e in enumerate(evaluations)]
    run = Run(
        name, key, best.graph_id, best.method, 7, 100, "search", RunStatus.DONE, "2026-01-02T03:04:05Z",
        best.schedule.id, best.latency_s, len(trials), sum(e.latency_s is None for e in evaluations), 0,
        StartKind.NEAR, "graph1-other",
    )  # fmt: skip
    return run, trials
