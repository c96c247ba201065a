"""Compiled programs give what the PyTorch class gives, on the same weights: presets, rewrites, random schedules."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.outputs.check import TOLERANCE, WALK_SOCKETS, compiled, outputs
from agent.outputs.scalars import WRITTEN
from agent.outputs.walk import walk
from compiler.errors import InputError
from compiler.frontend import load_model
from compiler.frontend.describe import describe_model
from compiler.ir.graph import Phase
from tests.functional.conftest import CONFIGS, TARGET, Small

Make = Callable[[str], Small]


@pytest.mark.parametrize("name", CONFIGS)
def test_every_program_gives_the_outputs_of_the_class(small: Make, name: str) -> None:
    assert name in WRITTEN
    check = outputs(small(name).path)
    assert check.equal, check.note
    assert check.theirs >= 24


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("llama", "rewrite * merge_qkv\nrewrite * merge_gate_up\nrewrite * streaming_softmax\nfuse * all\ntile * tokens size=3\ntile * context size=4"),
        ("llama", "rewrite * streaming_softmax\nrewrite * split_kv ways=3\nshard * attn kv_heads ways=4\nshard * attn q_group ways=2\ntile * tokens size=1"),
        ("llama", "rewrite * streaming_softmax\nrewrite * split_kv ways=8\nshard * attn.core splits ways=8\nshard * ffn hidden ways=2"),
        ("gemma2", "shard * attn head_dim ways=4"),
        ("gpt_oss", "rewrite * streaming_softmax\nrewrite * split_kv ways=4\nshard * attn.core splits ways=4\nshard * ffn experts ways=8\nshard * attn kv_heads ways=2"),
        ("deepseek_v3", "rewrite * mla_absorb\nrewrite * streaming_softmax\nrewrite * split_kv ways=4\nshard * attn heads ways=2\nshard * attn.core splits ways=4"),
        ("deepseek_v3", "shard * attn kv_lora ways=4\nshard * attn v_dim ways=2\nshard mla_moe ffn experts ways=8\nshard mla_moe ffn shared_ffn ways=8"),
        ("deepseek_v3", "shard mla_dense attn qk_dim ways=8 pad=1"),
        ("mixtral", "rewrite * merge_gate_up\nshard * ffn experts ways=2\nshard * ffn ffn ways=4\nexperts * static regions=2 tile=2"),
        ("qwen3_next", "shard * mixer groups ways=2\nshard gdn_moe ffn shared_ffn ways=8\nshard gdn_moe ffn experts ways=4\nfuse * all\ntile * tokens size=2"),
        ("mamba2", "shard * mixer heads ways=4\nshard * mixer groups ways=2\nfuse * all\ntile * tokens size=5"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("phase", Phase)
def test_schedules_on_eight_sockets(small: Make, name: str, text: str, phase: Phase) -> None:
    of = small(name)
    assert of.error(*of.program(phase, 8, text)) < TOLERANCE


def _random(small: Make, name: str, seed: int) -> None:
    random, of = Random(seed), small(name)
    graph = of.graph(random.choice(tuple(Phase)), random.choice(WALK_SOCKETS))
    schedule = walk(graph, TARGET, random, random.randint(1, 10))
    error = of.error(graph, compiled(graph, schedule, TARGET))
    assert error < TOLERANCE, f"{graph.workload.phase} on {graph.workload.sockets}: {error:.1e}\n{schedule.text}"


@settings(max_examples=60, deadline=None, derandomize=True)
@given(name=st.sampled_from(sorted(CONFIGS)), seed=st.integers(0, 2**32))
def test_random_legal_schedules(small: Make, name: str, seed: int) -> None:
    _random(small, name, seed)


@pytest.mark.slow
@settings(max_examples=1500, deadline=None, derandomize=True)
@given(name=st.sampled_from(sorted(CONFIGS)), seed=st.integers(0, 2**32))
def test_many_random_legal_schedules(small: Make, name: str, seed: int) -> None:
    _random(small, name, seed)


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="falcon computes is not written down"):
        outputs("falcon")
    (tmp_path / "mine.py").write_text(describe_model("llama"))
    with pytest.raises(InputError, match="a Python file has none"):
        outputs(f"{tmp_path / 'mine.py'}:model")


@pytest.mark.parametrize("name", ["qwen3_moe", "mamba2", "helium"])
def test_class_defaults_are_made_small(name: str) -> None:
    """Sizes that a config says twice, or leaves to a rule, agree in the instance."""
    check = outputs(name)
    assert check.equal and check.theirs >= 24, check.note


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(WRITTEN))
def test_every_type_that_is_said_to_be_written_down(name: str) -> None:
    try:
        load_model(name)
    except InputError as error:
        pytest.skip(f"its defaults are no model: {error.what}")
    check = outputs(name)
    assert check.equal, check.note
