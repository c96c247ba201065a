"""Whatever is done to a hybrid config, the outcome is a ModelSpec that builds, or an InputError; nothing else."""

import json
from pathlib import Path

import pytest

from compiler.errors import InputError
from compiler.frontend import build
from compiler.frontend.alias import ALIASES
from compiler.ir.graph import Phase, Workload

CONFIGS = json.loads((Path(__file__).parent / "hybrids.json").read_text())
VALUES = [None, "x", "", "M", -1, 0, 1, 2, 7, 1.5, [], ["x"], [None], [1], [[]], {}, {"x": {}}, True, False, 10**30]
VALUES += [float("inf"), float("nan"), 1e-9, 1e29, "auto", ["full_attention"] * 4, [0, 1, 1, 0], "é\0"]


def attempt(spec_of, config):
    """The spec, which must build as large as it says; or the error, which must say what is right."""
    try:
        spec = spec_of(config)
        graph = build(spec, Workload(Phase.DECODE, 1, 16, 1))
    except InputError as error:
        assert error.what
        assert error.right, error
        return
    assert graph.weight_elements == spec.params
    assert graph.kv_nbytes == spec.state_bytes + 16 * spec.kv_bytes_per_token


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_any_key_with_any_value(spec_of, name):
    for key in CONFIGS[name]:
        for value in VALUES:
            attempt(spec_of, CONFIGS[name] | {key: value})


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_any_fact_of_another_family(spec_of, name):
    """A key that the family does not read is refused or reported, never misread."""
    for keys in ALIASES.values():
        for key in keys:
            for value in (3, True, [1], "x", ["linear_attention"] * 4):
                attempt(spec_of, {key.split(".")[0]: value} | CONFIGS[name])


def test_a_width_that_is_not_that_of_the_mixer_is_refused(spec_of):
    with pytest.raises(InputError, match="intermediate_size: is 8"):
        spec_of(CONFIGS["mamba"] | {"intermediate_size": 8})


def test_the_head_of_nemotron_h_is_never_the_embedding(spec_of):
    config = CONFIGS["nemotron_h"]
    assert spec_of(config | {"tie_word_embeddings": True}).params == spec_of(config).params
