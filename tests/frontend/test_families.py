"""Every family against its class: parameters, tensors of the checkpoint, FLOPs."""

import pytest

from compiler.frontend import build, load_model
from compiler.frontend.encoder_relatives import ENCODER_RELATIVES
from compiler.frontend.encoder_rows import ENCODERS
from compiler.frontend.families import FAMILIES
from compiler.ir.graph import Pattern, Phase, Workload
from tests.frontend.oracle import class_shapes, counted_flops, graph_shapes, parameters
from tests.frontend.small import SMALL

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TOKENS = 6
#: Contractions that the classes compute element by element.
NO_PRODUCTS = ("ffn.combine", "ffn.shared_scale")


@pytest.mark.parametrize("name", SMALL)
def test_tensors_equal_the_class(spec_of, name):
    config = SMALL[name]
    spec = spec_of(config)
    graph = build(spec, Workload(Phase.DECODE, 1, 4, 1))
    theirs = class_shapes(config)
    assert graph_shapes(graph, config["model_type"]) == theirs
    assert spec.params == graph.weight_elements == sum(theirs.values())


@pytest.mark.parametrize("name", SMALL)
def test_flops_equal_the_class(spec_of, name):
    graph = build(spec_of(SMALL[name]), Workload(Phase.PREFILL, 1, TOKENS, 1))
    ours = sum(
        # what an indexer does to its scores is element-wise, within the op
        (op.flops - (op.points if op.name == "attn.index_scores" else 0)) * graph.repeats[block.kind]
        for block in graph.blocks
        for op in block.ops
        if op.pattern is Pattern.CONTRACT and op.name not in NO_PRODUCTS
    )
    assert ours == counted_flops(SMALL[name], TOKENS)


#: Families whose class cannot be built, or has sizes that make no sense, by default.
SENSELESS = {
    "deepseek_v2": "it does not say how many experts a token has",
    "dbrx": "its attention has no rope_theta",
    "glm4_moe": "96 heads do not divide its hidden size",
    "hunyuan_v1_dense": "it has no head_dim",
    "hunyuan_v1_moe": "it has no head_dim",
    "lfm2_moe": "it has no layer pattern",
    "dots1": "it does not say how many experts it has",
    "ministral": "it has no head_dim",
    "nemotron": "it has no num_key_value_heads",
}
DEFAULTS = [
    name
    for name, family in FAMILIES.items()
    if family.config_class
    and name not in SENSELESS
    and name not in ENCODERS | ENCODER_RELATIVES  # test_encoder_spec.py
]


@pytest.mark.parametrize("model_type", DEFAULTS)
def test_parameters_by_class_default(model_type):
    config = transformers.AutoConfig.for_model(model_type).get_text_config()
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    spec = load_model(model_type)
    assert spec.params == sum(p.numel() for p in model.parameters())


#: Parameters of published configs: recorded from this reader and held equal to the class, not figures of the publishers.
PUBLISHED = {
    "BLOOM-176B": 176_247_271_424,
    "DBRX-132B": 131_596_523_520,
    "Falcon-40B": 41_303_293_952,
    "GLM-4.5": 352_797_814_784,
    "GPT2-large-layout": 774_030_080,
    "Gemma-2-9b": 9_241_705_984,
    "Gemma-3-27b-it": 27_009_346_304,
    "Llama-4-Scout-17B-16E-Instruct": 107_769_861_120,
    "MiniMax-M2.5": 228_689_748_992,
    "Phi-3.5-MoE-instruct": 41_873_153_344,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_of_a_published_config(published, model_dir, name):
    spec = load_model(str(model_dir(name)))
    config = published(name)
    assert spec.params == PUBLISHED[name] == parameters(config.get("text_config", config))
    assert build(spec, Workload(Phase.PREFILL, 1, 8, 1)).weight_elements == spec.params
