"""Every preset compiles for every family, in decode and prefill, on 1 and 8 sockets."""

import pytest

from agent.presets import PRESETS, preset
from compiler.frontend import build, load_model
from compiler.ir.graph import Phase, Workload
from compiler.pipeline import compile_schedule
from compiler.program import Program
from compiler.target import load_target
from tests.frontend.small import SMALL

PUBLISHED = (
    "BLOOM-176B",
    "DBRX-132B",
    "Falcon-40B",
    "GLM-4.5",
    "GPT2-large-layout",
    "Gemma-2-9b",
    "Gemma-3-27b-it",
    "Llama-3_3-Nemotron-Super-49B-v1",
    "Llama-4-Scout-17B-16E-Instruct",
    "MiniMax-M2.5",
    "Phi-3.5-MoE-instruct",
)


def compiled(spec, workload, name):
    """The program, or the diagnostics."""
    graph, target = build(spec, workload), load_target("sn40l")
    return compile_schedule(graph, preset(name, graph, target), target)


@pytest.mark.parametrize("sockets", [1, 8])
@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize("structure", SMALL)
def test_presets_compile(spec_of, structure, phase, sockets):
    spec = spec_of(SMALL[structure])
    workload = Workload(phase, 4 if phase is Phase.DECODE else 1, 64, sockets)
    for name in PRESETS:
        result = compiled(spec, workload, name)
        assert isinstance(result, Program), (name, result[:2])


@pytest.mark.parametrize("sockets", [1, 8])
@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize("model", PUBLISHED)
def test_presets_compile_at_full_size(model_dir, model, phase, sockets):
    spec = load_model(str(model_dir(model)))
    workload = Workload(phase, 1, 4096 if phase is Phase.DECODE else 2048, sockets)
    for name in PRESETS:
        result = compiled(spec, workload, name)
        assert isinstance(result, Program), (name, result[:2])


def test_what_does_not_fit_is_no_program(model_dir):
    """The check above can fail: 512 sequences of 65,536 tokens are more than the memory of a socket."""
    spec = load_model(str(model_dir("BLOOM-176B")))
    result = compiled(spec, Workload(Phase.DECODE, 512, 65_536, 1), "o0")
    assert "DDR_OVER" in {str(d.code) for d in result}
