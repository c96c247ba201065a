"""What `inspect` says of a model: its sizes, the work a token takes, and its facts."""

from typing import Any

from agent.report import workload_json
from agent.settings import Settings
from agent.workload import graph_of
from compiler.frontend import Model, inspect_facts, model_summary, open_door
from compiler.target import load_target
from simulator.bound import bound_of


def inspection(settings: Settings) -> tuple[Model, dict[str, Any], dict[str, Any]]:
    """The model of `settings`, figures of its workload, and the JSON document that holds both."""
    model = open_door(settings.model, settings.frontend, settings.captures)
    graph = graph_of(model, settings)
    # The bound's times come from bytes that no schedule avoids; on any target they give the same bytes back.
    target = load_target(settings.target)
    bound, sockets = bound_of(graph, target), graph.workload.sockets
    moved = sockets * (bound.memory_s * (target.hbm_bytes_per_s + target.ddr_bytes_per_s))
    figures = {
        "weight_bytes": graph.weight_nbytes,
        "kv_bytes": graph.kv_nbytes,
        "flops_per_token": graph.flops / graph.workload.tokens,
        "bytes_per_token": round(moved) / graph.workload.tokens,
    }
    workload = {k: v for k, v in workload_json(graph.workload).items() if k != "sockets"}
    document = {"model": model_summary(model), "workload": workload, "work": figures, "facts": inspect_facts(model)}
    return model, figures, document
