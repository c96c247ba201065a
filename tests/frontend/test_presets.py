"""Every preset compiles for every family, in decode and prefill, on 1 and 8 sockets."""

import pytest

from agent.presets import PRESETS, preset
from compiler.frontend import build
from compiler.ir.graph import Phase, Workload
from compiler.pipeline import compile_schedule
from compiler.program import Program
from compiler.target import load_target
from tests.frontend.small import SMALL


def compiled(spec, phase, sockets, name):
    """The program, or the diagnostics."""
    workload = Workload(phase, 4 if phase is Phase.DECODE else 1, 64, sockets)
    graph, target = build(spec, workload), load_target("sn40l")
    return compile_schedule(graph, preset(name, graph, target), target)


@pytest.mark.parametrize("sockets", [1, 8])
@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize("structure", SMALL)
def test_presets_compile(spec_of, structure, phase, sockets):
    spec = spec_of(SMALL[structure])
    for name in PRESETS:
        result = compiled(spec, phase, sockets, name)
        assert isinstance(result, Program), (name, result[:2])
