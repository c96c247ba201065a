"""Whatever is done to a config, the outcome is a ModelSpec that builds, or an InputError; nothing else."""

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.errors import InputError
from compiler.frontend import build, load_model
from compiler.frontend.alias import ALIASES
from compiler.ir.graph import Graph, Phase, Workload

NAMES = [
    "Meta-Llama-3.1-8B",
    "Llama-2-7b-chat-hf",
    "Mistral-7B-v0.1",
    "Qwen2.5-7B",
    "Qwen3-8B",
    "Mixtral-8x7B-v0.1",
    "Qwen3-30B-A3B",
    "Qwen3-235B-A22B-FP8",
    "deepseek-v2-lite",
    "DeepSeek-V2-236B",
    "DeepSeek-V3",
    "Kimi-K2-Instruct",
    "gpt-oss-20b",
    "Qwen3-Next-80B-A3B-Instruct",
    "Nemotron-H-56B-Base-8K",
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
]
#: What a deleted key of these changes is compared with their class in test_deleted.
MORE = [
    "BLOOM-176B",
    "DBRX-132B",
    "Falcon-40B",
    "GLM-4.5",
    "GPT2-large-layout",
    "Gemma-2-9b",
    "Llama-3_3-Nemotron-Super-49B-v1",
    "MiniMax-M2.5",
    "Phi-3.5-MoE-instruct",
]
VALUES = [
    None,
    "x",
    "",
    -1,
    0,
    1,
    2,
    7,
    1.5,
    [],
    ["x"],
    [None],
    [1],
    {},
    {"x": {}},
    True,
    False,
    10**30,
    float("inf"),
    "é\0",
]

#: Keys whose absence has a documented meaning of its own: the rule, and the file where it is another structure.
RULES = {("num_key_value_heads", "Meta-Llama-3.1-8B"), ("q_lora_rank", "null")}


def attempt(spec_of, config):
    """The ModelSpec, or the InputError; a spec must build."""
    try:
        spec = spec_of(config)
    except InputError as error:
        assert error.what
        assert error.right, error
        return error
    try:
        graph = build(spec, Workload(Phase.DECODE, 1, 16, 1))
    except InputError as error:
        return error
    assert isinstance(graph, Graph)
    assert graph.weight_elements == spec.params
    return spec


@pytest.mark.parametrize("name", NAMES + MORE)
def test_any_key_with_any_value(spec_of, published, name):
    config = published(name)
    for key in config:
        for value in VALUES:
            attempt(spec_of, config | {key: value})
    for outer in ("rope_scaling", "quantization_config", "attn_config", "ffn_config"):
        for key in config.get(outer) or {}:
            for value in VALUES:
                attempt(spec_of, config | {outer: config[outer] | {key: value}})


@pytest.mark.parametrize("name", NAMES)
def test_a_key_deleted_or_null_changes_nothing_or_is_named(spec_of, published, name):
    config = published(name)
    params = spec_of(config).params
    for key in config:
        without = {k: v for k, v in config.items() if k != key}
        for changed, how in ((without, name), (config | {key: None}, "null")):
            outcome = attempt(spec_of, changed)
            if isinstance(outcome, InputError):
                assert key in str(outcome), (key, str(outcome))
            elif not {(key, how), (key, name)} & RULES:
                assert outcome.params == params, (key, how)


@pytest.mark.parametrize("name", NAMES + MORE)
def test_integers_are_read_strictly(spec_of, published, name):
    """A needed integer with a value that is none is an error that names the key."""
    config = published(name)
    for fact in ("hidden", "vocab", "layers", "heads"):
        key = next(k for k in ALIASES[fact] if k in config)
        for value in ("x", -1, 0, 1.5, [], {}, True, 10**30):
            with pytest.raises(InputError, match=key):
                spec_of(config | {key: value})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
all_keys = sorted({key for keys in ALIASES.values() for key in keys})


@settings(max_examples=150, deadline=None)
@given(name=st.sampled_from(NAMES + MORE), data=st.data())
def test_several_keys_at_once(spec_of, published, name, data):
    config = copy.deepcopy(published(name))
    changes = data.draw(st.dictionaries(st.sampled_from(sorted({*config, *all_keys})), json_values, max_size=4))
    attempt(spec_of, config | changes)


@settings(max_examples=100, deadline=None)
@given(
    content=st.binary(max_size=64) | st.text(max_size=64).map(str.encode) | json_values.map(lambda v: repr(v).encode())
)
def test_any_bytes_in_a_file(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("fuzz") / "config.json"
    path.write_bytes(content)
    with pytest.raises(InputError):
        load_model(str(path))


@settings(max_examples=100, deadline=None)
@given(model=st.text(max_size=40))
def test_any_model_argument(model):
    with pytest.raises(InputError):
        load_model("zz" + model)
