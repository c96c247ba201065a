"""Hybrid families against the published classes: parameters by name, states, FLOPs, rules for absent keys."""

import json
from pathlib import Path

import pytest

from compiler.errors import InputError
from compiler.frontend import build, load_model
from compiler.frontend.linear import Recurrent
from compiler.ir.graph import Pattern, Phase, Role, Workload
from tests.frontend import oracle
from tests.frontend.oracle import graph_shapes

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

PUBLISHED = [
    "Qwen3-Next-80B-A3B-Instruct",
    "Nemotron-H-56B-Base-8K",
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "DeepSeek-V3.2",
]
#: Small configs, all sizes different.
CONFIGS = json.loads((Path(__file__).parent / "hybrids.json").read_text())
NAMES = sorted(CONFIGS)
MIXERS = (
    "GatedDeltaNet",
    "DeltaAttention",
    "LightningAttention",
    "MambaMixer",
    "Mamba2Mixer",
    "BambaMixer",
    "FalconH1Mixer",
    "MambaLayer",
    "ShortConv",
)
TOKENS = 6
#: Scans, and products that are none in the classes: element-wise there.
#: The step's projection of Mamba is no call of its module.
NO_PRODUCTS = ("mixer.step_proj", "ffn.combine", "ffn.shared_scale")


def causal_model(config, device="meta"):
    """The class's model; the special tokens of its defaults are beyond a small vocabulary."""
    return oracle.causal_model(config | {f"{name}_token_id": None for name in ("pad", "bos", "eos")}, device)


def sizes(model):
    return {name: p.numel() for name, p in model.named_parameters()}


def graph_sizes(spec):
    """Elements by the name that the class has for them, every layer its own."""
    return graph_shapes(build(spec, Workload(Phase.DECODE, 1, 4, 1)), spec.model_type)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_of_published_configs(model_dir, name):
    spec = load_model(str(model_dir(name)))
    config = json.loads((model_dir(name) / "config.json").read_text())
    theirs = sizes(causal_model(config))
    assert spec.params == sum(theirs.values())
    assert graph_sizes(spec) == theirs


@pytest.mark.parametrize("name", NAMES)
def test_parameters_by_name(spec_of, name):
    theirs = sizes(causal_model(CONFIGS[name]))
    spec = spec_of(CONFIGS[name])
    assert graph_sizes(spec) == theirs
    assert spec.params == sum(theirs.values()) == build(spec, Workload(Phase.PREFILL, 1, 8, 1)).weight_elements


@pytest.mark.parametrize("bias", [True, False])
def test_biases(spec_of, bias):
    for name, keys in {
        "mamba2": ("use_bias", "use_conv_bias"),
        "mamba": ("use_bias", "use_conv_bias"),
        "nemotron_h": ("use_bias", "use_conv_bias", "mlp_bias"),
        "bamba": ("mamba_proj_bias", "mamba_conv_bias", "mlp_bias", "attention_bias"),
        "jamba": ("mamba_proj_bias", "mamba_conv_bias"),
        "lfm2": ("conv_bias",),
    }.items():
        config = CONFIGS[name] | dict.fromkeys(keys, bias)
        assert graph_sizes(spec_of(config)) == sizes(causal_model(config)), name


@pytest.mark.parametrize("name", NAMES)
def test_a_deleted_or_null_key_agrees_with_the_class_or_is_named(spec_of, name):
    """Where a rule fills in for an absent key, the class has the same rule."""
    config = CONFIGS[name]
    for key in [key for key in config if key != "model_type"]:
        for changed in ({k: v for k, v in config.items() if k != key}, config | {key: None}):
            try:
                spec = spec_of(changed)
            except InputError as error:
                assert key in str(error), key
                continue
            if key in changed:  # null is absent here; the classes refuse it, or take it for the default
                changed = {k: v for k, v in changed.items() if k != key}
            assert spec.params == sum(sizes(causal_model(changed)).values()), key


@pytest.mark.parametrize("name", [name for name in NAMES if name != "minimax"])
def test_states_are_those_of_the_class(spec_of, name):
    """Elements of states in a cache of the class. It keeps `kernel` rows of a convolution, the last of them unread."""
    spec = spec_of(CONFIGS[name])
    model = causal_model(CONFIGS[name], "cpu").eval()
    cache = transformers.DynamicCache(config=model.config)
    with torch.no_grad():
        key = "cache"
        model(torch.arange(TOKENS)[None], use_cache=True, **{key: cache})
    for layer, kept in zip(spec.layers, cache.layers, strict=False):
        linear = getattr(layer.mixer, "linear", layer.mixer)
        if isinstance(linear, Recurrent):
            states = [t for t in _values(kept.recurrent_states) if t is not None]
            assert linear.state_elements == sum(t.numel() for t in states)
            rows = [t for t in _values(kept.conv_states) if t is not None]
            assert linear.conv_elements == sum(t.numel() // t.shape[-1] * (t.shape[-1] - 1) for t in rows)
        if layer.mixer is not None and layer.mixer.kv_elements_per_token:
            rows = [kept.keys, kept.values, getattr(kept, "indexer_keys", None)]
            kept_elements = sum(t.numel() for t in rows if t is not None)
            assert layer.mixer.kv_elements_per_token * TOKENS == kept_elements


def test_state_of_lightning_attention(spec_of):
    """The class keeps it beside the layers of its cache."""
    config = CONFIGS["minimax"]
    model = causal_model(config, "cpu").eval()
    with torch.no_grad():
        out = model(torch.arange(TOKENS)[None], use_cache=True)
    cache = out.cache if hasattr(out, "cache") else out.past_key_values
    states = [state.numel() for state in cache.linear_cache if not isinstance(state, list)]
    spec = spec_of(config)
    assert states == [layer.mixer.state_elements for layer in spec.layers if isinstance(layer.mixer, Recurrent)]


def _values(states):
    return list(states.values()) if isinstance(states, dict) else list(states)


def contracts(spec, phase=Phase.PREFILL):
    """FLOPs of the projections and of attention, and those of the convolutions."""
    graph = build(spec, Workload(phase, 1, TOKENS, 1))
    plain = conv = 0
    for block in graph.blocks:
        for op in block.ops:
            if op.pattern is Pattern.CONTRACT and op.name not in NO_PRODUCTS:
                rectified = op.points if op.name == "attn.index_scores" else 0  # element-wise, within the op
                total = (op.flops - rectified) * graph.repeats[block.kind]
                conv, plain = (conv + total, plain) if op.size("kernel") > 1 else (conv, plain + total)
    return plain, conv


@pytest.mark.parametrize("name", NAMES)
def test_flops_of_the_contractions(spec_of, name):
    """Projections, experts and attention as torch counts them, and the convolutions, which torch counts on rows padded
    by kernel - 1. What a mixer multiplies outside its projections is its recurrence, in another order (chunks).
    """
    from torch.utils.flop_counter import FlopCounterMode

    torch.manual_seed(0)
    model = causal_model(CONFIGS[name], "cpu").eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.arange(TOKENS)[None], logits_to_keep=1, use_cache=False)
    counts = {module.split(".", 1)[-1]: products for module, products in counter.get_flop_counts().items()}
    linear, conv = counted(counts, "Global")
    kernels = []
    for module, part in model.named_modules():
        if type(part).__name__.endswith(MIXERS):
            mine = counted(counts, module)[0]
            linear -= mine - sum(counted(counts, f"{module}.{child}")[0] for child, _ in part.named_children())
            kernels += [c.kernel_size[0] for c in part.children() if isinstance(c, torch.nn.Conv1d)]
    plain, ours = contracts(spec_of(CONFIGS[name]))
    assert plain == linear
    assert ours == sum(conv // len(kernels) * TOKENS // (TOKENS + kernel - 1) for kernel in kernels)


def counted(counts, module):
    """FLOPs under a module: of products, of convolutions."""
    found = counts.get(module, {})
    conv = sum(n for op, n in found.items() if "conv" in str(op))
    return sum(found.values()) - conv, conv


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("phase", list(Phase))
def test_states_of_the_graph(spec_of, name, phase):
    """Decode reads every state and gives its successor; prefill gives it; the bytes are those of the spec."""
    spec = spec_of(CONFIGS[name])
    graph = build(spec, Workload(phase, 3, TOKENS, 1))
    assert graph.kv_nbytes == 3 * (spec.state_bytes + TOKENS * spec.kv_bytes_per_token)
    for block in graph.blocks:
        read = {t.name for t in block.tensors if t.role is Role.STATE and t.name in block.inputs}
        made = {t.name for t in block.tensors if t.role is Role.STATE and t.name in block.outputs}
        assert read == ({name.removesuffix("_new") for name in made} if phase is Phase.DECODE else set())
