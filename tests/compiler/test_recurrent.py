"""Recurrent mixers through the compiler: presets, states over sockets, what a step moves."""

import json
from pathlib import Path

import pytest

from agent.evaluate import Measured, evaluate
from agent.presets import PRESETS, preset
from compiler.diagnostic import Code
from compiler.frontend import build
from compiler.frontend.families import read_spec
from compiler.frontend.read import Source
from compiler.ir.actions import Shard
from compiler.ir.graph import Phase, Role, Workload, is_cache
from compiler.ir.schedule import Schedule
from compiler.lower import lower_block
from compiler.passes.shard import shard_block, splittable
from compiler.pipeline import compile_schedule
from compiler.program import Program
from compiler.target import load_target

CONFIGS = json.loads((Path(__file__).parents[1] / "frontend/hybrids.json").read_text())
TARGET = load_target("sn40l")


def graph_of(name, phase=Phase.DECODE, batch=4, context=512, sockets=1):
    spec = read_spec(Source("config.json", "test", CONFIGS[name], CONFIGS[name]))
    return build(spec, Workload(phase, batch, context, sockets))


@pytest.mark.parametrize("sockets", [1, 8, 16])
@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_every_preset_compiles_and_no_socket_lacks_a_state(name, phase, sockets):
    graph = graph_of(name, phase, sockets=sockets)
    for mode in PRESETS:
        schedule = preset(mode, graph, TARGET)
        result = evaluate(graph, schedule, TARGET)
        assert isinstance(result, Measured), (mode, result)
        assert result.report.latency_s >= result.report.bound.latency_s
        for block in graph.blocks:
            local = lower_block(block, schedule, sockets)
            for tensor in filter(is_cache, block.tensors):
                assert sockets * local.tensor[tensor.name].nbytes >= tensor.nbytes, (block.kind, tensor.name)


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_a_state_is_read_and_written_once_a_step(name):
    """In decode, however the layers are looped: from memory and back, never carried on chip."""
    graph = graph_of(name)
    states = sum(t.nbytes * graph.repeats[b.kind] for b in graph.blocks for t in b.stored if t.role is Role.STATE)
    for mode in PRESETS:
        program = compile_schedule(graph, preset(mode, graph, TARGET), TARGET)
        assert isinstance(program, Program)
        moved = [
            (run.times * section.tiles * stage.kv_bytes, run.times * section.tiles * stage.write_bytes)
            for run in program.runs
            for section in run.sections
            for stage in section.stages
            if stage.op.startswith(("mixer.scan", "mixer.conv_")) and "act" not in stage.op
        ]
        assert sum(read for read, _ in moved) == states
        assert sum(written for _, written in moved) >= states


@pytest.mark.parametrize("name", ["qwen3_next", "nemotron_h", "jamba", "lfm2"])
def test_a_mixer_over_sockets_meets_once(name):
    """Split by heads (or channels) a mixer exchanges its output; Mamba also what every channel needs of all others."""
    graph = graph_of(name, sockets=2)
    schedule = preset("o0", graph, TARGET)
    for block in graph.blocks:
        if any(op.name.startswith("mixer.") for op in block.ops):
            made = [op.name for op in lower_block(block, schedule, 2).ops if op.collective and "ffn" not in op.name]
            inner = ["mixer.dt_a.all_reduce", "mixer.b.all_reduce", "mixer.c.all_reduce"] if name == "jamba" else []
            assert made == [*inner, "attn.out.all_reduce"]


def test_what_cannot_be_split():
    block = graph_of("nemotron_h", sockets=2).block["mamba2"]
    assert splittable(block.op["mixer.scan"]) == ("groups", "heads", "v_dim")
    assert splittable(block.op["mixer.conv_x"]) == ("groups", "heads", "v_dim")
    assert splittable(block.op["mixer.out_norm"]) == ("groups",)
    for dim in ("kernel", "tokens"):
        _, refusals = shard_block(block, (Shard("mamba2", "mixer", dim, 2),), 2)
        assert [d.code for _, d in refusals] == [Code.SHARD_ILLEGAL]


def test_heads_inside_a_group_gather_before_their_norm():
    block = graph_of("nemotron_h", sockets=2).block["mamba2"]
    local, refusals = shard_block(block, (Shard("mamba2", "mixer", "heads", 2),), 2)
    assert not refusals
    assert [op.name for op in local.ops if op.collective] == ["mixer.gated.all_gather", "attn.out.all_reduce"]


def test_more_state_is_never_faster():
    """Reading and writing states takes time: twice the sequences take at least as long."""
    times = []
    for batch in (1, 4, 16, 64):
        graph = graph_of("mamba2", batch=batch)
        result = evaluate(graph, Schedule(()), TARGET)
        assert isinstance(result, Measured)
        times.append(result.report.latency_s)
    assert times == sorted(times)
