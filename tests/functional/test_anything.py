"""Any schedule at all: it is refused with diagnostics, or its program gives the class's outputs; never an exception."""

from collections.abc import Callable
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.outputs.anything import anything
from agent.outputs.check import TOLERANCE, WALK_SOCKETS
from compiler.diagnostic import Diagnostic
from compiler.ir.graph import Phase
from compiler.ir.text import parse_schedule
from compiler.pipeline import compile_schedule
from compiler.program import Program
from tests.functional.conftest import CONFIGS, TARGET, Small


@settings(max_examples=150, deadline=None, derandomize=True)
@given(name=st.sampled_from(sorted(CONFIGS)), seed=st.integers(0, 2**32))
def test_any_schedule_is_refused_or_right(small: Callable[[str], Small], name: str, seed: int) -> None:
    random, of = Random(seed), small(name)
    graph = of.graph(random.choice(tuple(Phase)), random.choice(WALK_SOCKETS))
    schedule = anything(graph, random, random.randint(1, 4))
    assert parse_schedule(schedule.text) == schedule
    result = compile_schedule(graph, schedule, TARGET)
    if isinstance(result, Program):
        assert of.error(graph, result) < TOLERANCE, schedule.text
    else:
        assert result and all(isinstance(d, Diagnostic) and d.levers for d in result)
