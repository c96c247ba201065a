"""Encoders and encoder-decoders through the capture: small instances of the classes, traced once each."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent.evaluate import Measured, evaluate
from agent.presets import PRESETS, preset
from compiler.errors import InputError
from compiler.frontend import Frontend, Model, open_door
from compiler.frontend.capture.codec import from_json, to_json
from compiler.frontend.capture.ir import Captured
from compiler.frontend.oracle import COUNTED, checks
from compiler.ir.graph import Graph, Phase, Role, Workload
from compiler.target import load_target

TEXT = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 101}
TEXT |= {"max_position_embeddings": 48, "type_vocab_size": 3}
SIDES = {"d_model": 64, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4, "vocab_size": 101}
SIDES |= {"decoder_attention_heads": 4, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "pad_token_id": 0}
SIDES |= {"max_position_embeddings": 60}
IMAGE = {key: value for key, value in TEXT.items() if key not in ("vocab_size", "type_vocab_size")}
CONFIGS: dict[str, dict[str, Any]] = {
    "bert": TEXT,
    "roberta": TEXT,
    "albert": TEXT | {"embedding_size": 32},
    "vit": IMAGE | {"image_size": 48, "patch_size": 8, "num_channels": 3},
    "t5": {"d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 3, "num_decoder_layers": 2, "num_heads": 4}
    | {"vocab_size": 101, "relative_attention_num_buckets": 8},
    "bart": SIDES,
    "whisper": SIDES | {"num_mel_bins": 10, "max_source_positions": 50, "max_target_positions": 40},
}
ENCODERS = ("bert", "roberta", "albert", "vit")
#: More kinds of image models, and what their head reads: the first token, a mean of all tokens or of all but the first.
IMAGES: dict[str, dict[str, Any]] = {
    "deit": {},
    "beit": {"use_mean_pooling": False},
    "beit_mean": {"use_absolute_position_embeddings": True},
    "data2vec-vision": {},
    "dinov2": {},
    "dinov2_with_registers": {"num_register_tokens": 3},
    "ijepa": {},
    "vit_msn": {},
}
BOTH = ("t5", "bart", "whisper")


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[str, Model]]:
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("encoders")
    made: dict[str, tuple[str, Model]] = {}

    def find(name: str) -> tuple[str, Model]:
        if name not in made:
            path = folder / name / "config.json"
            path.parent.mkdir()
            path.write_text(json.dumps(CONFIGS[name] | {"model_type": name}))
            made[name] = str(path.parent), open_door(str(path.parent), Frontend.CAPTURE, Path(folder))
        return made[name]

    return find


Opened = Callable[[str], tuple[str, Model]]


def _graph(model: Model, phase: Phase = Phase.PREFILL, batch: int = 2, context: int = 24, sockets: int = 1) -> Graph:
    return model.graph(Workload(phase, batch, context, sockets, "bf16"))


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_flops_and_caches_are_those_of_the_class(name: str, opened: Opened) -> None:
    path, model = opened(name)
    for check in checks(model.graph, path, COUNTED):
        assert check.equal, check
    assert _graph(model).weight_elements == model.params


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("sockets", [1, 8])
def test_every_preset_compiles(name: str, sockets: int, opened: Opened) -> None:
    target = load_target("sn40l")
    for phase in (Phase.PREFILL,) if name in ENCODERS else tuple(Phase):
        graph = _graph(opened(name)[1], phase, sockets=sockets)
        for schedule in PRESETS:
            assert isinstance(evaluate(graph, preset(schedule, graph, target), target), Measured), schedule


@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoder_caches_nothing_and_does_not_decode(name: str, opened: Opened) -> None:
    model = opened(name)[1]
    graph = _graph(model)
    assert graph.kv_nbytes == 0 and model.kv_bytes_per_token == 0
    assert graph.runs[1] == (("encoder_dense",), 3)
    layer = graph.block["encoder_dense"]
    assert "attn.kv_append" not in layer.op
    context = graph.workload.context
    assert [(d.name, d.size) for d in layer.tensor["attn.k"].dims][:2] == [("batch", 2), ("context", context)]
    assert layer.op["attn.scores"].size("tokens") == 2 * context
    with pytest.raises(InputError, match="no decoding"):
        _graph(model, Phase.DECODE)


def test_a_masked_language_head_scores_every_token(opened: Opened) -> None:
    graph = _graph(opened("bert")[1])
    assert graph.block["head"].op["head.lm_head"].size("tokens") == 48
    assert graph.sequence[-1] == "sample"


@pytest.mark.parametrize("context", [24, 4096])
def test_an_image_has_its_own_number_of_tokens(context: int, opened: Opened) -> None:
    model = opened("vit")[1]
    graph = _graph(model, context=context)
    assert graph.workload.context == 37  # 6 x 6 patches and the class token
    patches = graph.block["embed"].op["embed.conv"]
    assert patches.flops == 2 * 2 * 36 * 64 * 3 * 8 * 8  # batch, patches, hidden, channels, kernel
    assert graph.block["encoder_dense"].op["attn.q_proj"].size("tokens") == 2 * 37
    assert graph.sequence[-1] == "head"  # nothing to sample without a vocabulary
    assert graph.block["head"].op["head.classifier"].size("batch") == 2
    assert ("tokens_a_sequence", 37) in [(fact.name, fact.value) for fact in model.facts]


@pytest.mark.parametrize("name", IMAGES)
def test_kinds_of_image_models(name: str, tmp_path: Path) -> None:
    """Tokens put in front (class, distillation, registers) are parameters; a head classifies, and nothing is sampled."""
    image = CONFIGS["vit"] | {"model_type": name.removesuffix("_mean"), "id2label": {n: str(n) for n in range(5)}}
    (tmp_path / "config.json").write_text(json.dumps(image | IMAGES[name]))
    model = open_door(str(tmp_path), Frontend.CAPTURE)
    for check in checks(model.graph, str(tmp_path), COUNTED):
        assert check.equal, check
    graph, target = _graph(model, sockets=8), load_target("sn40l")
    head = graph.block["head"].op["head.classifier"]
    assert graph.sequence[-1] == "head" and (head.size("batch"), head.size("classes")) == (2, 5)
    given = graph.block["embed"].weights
    front = {"deit": 2, "ijepa": 0}.get(name, 1) + IMAGES[name].get("num_register_tokens", 0)
    one = [t.elements for t in given if "token" in t.key]
    assert sum(one) == 64 * front and "mask_token" not in {t.key.rpartition(".")[2] for t in given}
    assert isinstance(evaluate(graph, preset("o3", graph, target), target), Measured)


def test_a_mean_over_patches_is_that_of_each_sequence(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["vit"] | {"model_type": "ijepa"}))
    mean = _graph(open_door(str(tmp_path), Frontend.CAPTURE)).block["head"].op["head.mean"]
    assert (mean.size("batch"), mean.size("tokens"), mean.points) == (2, 1, 2 * 36 * 64)  # no class token


@pytest.mark.parametrize(("name", "layers"), [("t5", (3, 2)), ("bart", (2, 3)), ("whisper", (2, 3))])
def test_both_stacks_are_blocks_of_their_own(name: str, layers: tuple[int, int], opened: Opened) -> None:
    model = opened(name)[1]
    graph = _graph(model)
    encoders, decoders = (
        sum(n for kind, n in graph.repeats.items() if kind.startswith(word)) for word in ("encoder", "cross")
    )
    assert (encoders, decoders) == layers
    source = 50 if name == "whisper" else 24
    for block in graph.blocks:
        if block.kind.startswith("encoder"):
            assert block.op["attn.scores"].size("tokens") == 2 * source
        if block.kind.startswith("cross"):
            assert block.op["attn.scores"].size("tokens") == 2  # the token that starts each output
            assert block.op["cross.k_proj"].size("context_cross") == source
    assert ("decoder_prefill_tokens", 1) in [(fact.name, fact.value) for fact in model.facts]


@pytest.mark.parametrize("name", BOTH)
def test_cross_attention_reads_a_cache_that_does_not_grow(name: str, opened: Opened) -> None:
    graph = _graph(opened(name)[1], Phase.DECODE)
    assert not any(kind.startswith("encoder") for kind in graph.sequence)
    block = next(block for block in graph.blocks if block.kind.startswith("cross"))
    assert not {"cross.k_proj", "cross.v_proj", "cross.kv_append"} & set(block.op)
    cache = block.tensor["cross.k_cache"]
    rows = 50 if name == "whisper" else 24
    assert cache.role is Role.KV_CACHE and [d.size for d in cache.dims] == [2, rows, 4, 16]
    assert block.outputs == ("y", "attn.k_new", "attn.v_new")
    per_layer = 2 * 2 * (24 + rows) * 64 * 2  # keys and values, sequences, rows, width, bytes
    assert graph.kv_nbytes == per_layer * sum(n for kind, n in graph.repeats.items() if kind.startswith("cross"))


def test_a_table_of_distances_is_read_in_every_layer_and_stored_once(opened: Opened) -> None:
    graph = _graph(opened("t5")[1])
    tables = [t for kind in graph.sequence for t in graph.block[kind].weights if "relative_attention_bias" in t.key]
    assert len(tables) == 5 and len({t.key for t in tables}) == 2
    assert len(graph.blocks) == 6  # the first layer of a stack is of the kind of the others
    assert all("{layer}" not in t.key and t.elements == 8 * 4 for t in tables)


@pytest.mark.parametrize("name", ["t5", "vit"])
def test_a_capture_of_two_stacks_survives_json(name: str, opened: Opened) -> None:
    described = opened(name)[1].described
    assert isinstance(described, Captured)
    assert from_json(json.loads(json.dumps(to_json(described)))) == described
