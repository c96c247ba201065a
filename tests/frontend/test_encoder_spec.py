"""BERT, ViT, T5, BART and Whisper as ModelSpecs: the class, the capture door, quirks of their configs."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.evaluate import Measured, evaluate
from agent.presets import preset
from compiler.errors import InputError
from compiler.frontend import Frontend, build, load_model, open_door
from compiler.frontend.compare import differences
from compiler.frontend.describe import describe_model
from compiler.frontend.encoder_rows import ENCODERS
from compiler.frontend.oracle import COUNTED, Level, checks
from compiler.frontend.parts import is_edge
from compiler.frontend.spec import Attention, Dense, Encoder, EncoderHead, Layer, ModelSpec, Patches, Sound
from compiler.ir.actions import Rewrite, Rule
from compiler.ir.graph import Graph, Phase, Role, Workload
from compiler.passes.rewrite import rewrite_block
from compiler.target import load_target
from tests.frontend.test_encoder_relatives import class_params
from tests.frontend.test_encoders import CONFIGS

pytest.importorskip("torch")
pytest.importorskip("transformers")

NAMES = sorted(ENCODERS)
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in NAMES},
    "vit_wide": ("vit", {"image_size": [40, 24], "qkv_bias": False, "id2label": {str(n): str(n) for n in range(7)}}),
    "t5_gated": ("t5", {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "t5_alike": ("t5", {"num_decoder_layers": None}),
}


def config(name: str) -> dict[str, Any]:
    base, more = VARIANTS[name]
    values = CONFIGS[base] | more | {"model_type": base}
    return {key: value for key, value in values.items() if value is not None}


@pytest.fixture
def written(tmp_path: Path):
    def write(values: dict[str, Any]) -> str:
        (tmp_path / "config.json").write_text(json.dumps(values))
        return str(tmp_path)

    return write


@pytest.mark.parametrize("name", VARIANTS)
def test_the_class_and_the_other_door(written, name: str) -> None:
    model = written(config(name))
    spec = load_model(model)
    for result in checks(lambda workload: build(spec, workload), model, COUNTED):
        assert result.equal, result
    assert spec.params == build(spec, Workload(Phase.PREFILL, 2, 40, 1)).weight_elements
    traced = open_door(model, Frontend.CAPTURE)
    assert traced.params == spec.params
    for phase in (Phase.PREFILL,) if spec.encodes else Phase:
        work = Workload(phase, 2, 40, 1, "bf16")
        assert differences(build(spec, work), traced.graph(work)) == ()


#: Ops that the class computes as multipliers, which are facts in a ModelSpec.
MULTIPLIERS = ("attn.q_scale", "cross.q_scale")


@pytest.mark.parametrize("name", VARIANTS)
def test_layers_are_those_of_the_other_door_op_for_op(written, name: str) -> None:
    """Names, dimensions and what is read, but for multipliers and how many operations a published gelu has."""

    def forms(graph: Graph) -> dict[str, list[Any]]:
        return {
            block.kind: [
                (op.name, op.pattern, op.dims, op.reduced, op.sequential, op.outputs)
                for op in block.ops
                if op.name not in MULTIPLIERS
            ]
            for block in graph.blocks
            if not is_edge(block.kind)
        }

    model = written(config(name))
    spec, traced = load_model(model), open_door(model, Frontend.CAPTURE)
    for phase in (Phase.PREFILL,) if spec.encodes else Phase:
        work = Workload(phase, 2, 40, 1, "bf16")
        ours, theirs = build(spec, work), traced.graph(work)
        assert ours.sequence == theirs.sequence
        assert forms(ours) == forms(theirs)
        for kind in forms(ours):
            mine, other = ours.block[kind], theirs.block[kind]
            assert (mine.inputs, mine.outputs) == (other.inputs, other.outputs)
            elements = [sorted(t.elements for t in block.weights) for block in (mine, other)]
            assert elements[0] == elements[1]
            if name != "whisper":  # its queries are scaled before the scores read them
                assert [op for op in mine.ops if op.name != "ffn.act"] == [
                    op for op in other.ops if op.name != "ffn.act"
                ]


def test_a_model_without_multipliers_and_tables_of_positions_is_the_same_graph(written) -> None:
    """T5 whose config has a head apart, which its class then does not scale."""
    model = written(config("t5") | {"tie_word_embeddings": False})
    spec, traced = load_model(model), open_door(model, Frontend.CAPTURE)
    for phase in Phase:
        for context in (1, 17, 40):
            work = Workload(phase, 2, context, 1, "bf16")
            assert build(spec, work).id == traced.graph(work).id


@pytest.mark.parametrize("name", NAMES)
def test_by_class_default(name: str) -> None:
    spec = load_model(name)
    (result,) = checks(lambda workload: build(spec, workload), name, (Level.PARAMS,))
    assert (result.equal, result.ours) == (True, spec.params)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_described_model_is_the_same(written, tmp_path: Path, name: str) -> None:
    model = written(config(name))
    (tmp_path / "mine.py").write_text(describe_model(model))
    work = Workload(Phase.PREFILL, 2, 40, 1)
    assert build(load_model(f"{tmp_path}/mine.py:model"), work).id == build(load_model(model), work).id


@pytest.mark.parametrize("name", NAMES)
def test_every_key_is_needed_named_or_harmless(written, name: str) -> None:
    """Deleted or null: the parameters stay, or those of the class come out, or the error names the key."""
    whole = load_model(written(config(name))).params
    for key in config(name):
        if key == "model_type":
            continue
        for values in ({k: v for k, v in config(name).items() if k != key}, config(name) | {key: None}):
            model = written(values)
            try:
                params = load_model(model).params
            except InputError as error:
                assert key in str(error), (key, str(error))
            else:
                assert params == whole or params == class_params(Path(model)), key


@pytest.mark.parametrize("name", NAMES)
def test_presets_shard_cross_attention_and_the_best_is_bounded(written, name: str) -> None:
    spec, target = load_model(written(config(name))), load_target("sn40l")
    for phase in (Phase.PREFILL,) if spec.encodes else Phase:
        graph = build(spec, Workload(phase, 1, 40, 8))
        o3 = preset("o3", graph, target)
        result = evaluate(graph, o3, target)
        assert isinstance(result, Measured) and result.report.latency_s >= result.report.bound.latency_s
        assert ("cross kv_heads" in o3.text) == (spec.encoder is not None)


def test_each_attention_of_a_block_is_split_with_a_reduction_of_its_own(written) -> None:
    """Behind as many tokens as its encoder read, too: the rows of the two are dimensions apart."""
    spec = load_model(written(config("t5")))
    streaming = Rewrite("cross_dense", Rule.STREAMING_SOFTMAX)
    for phase, ways, parts in ((Phase.DECODE, 8, ("attn", "cross")), (Phase.PREFILL, 8, ("cross",))):
        block = next(b for b in build(spec, Workload(phase, 2, 40, 8)).blocks if "cross.scores" in b.op)
        kind = block.kind
        split = (replace(streaming, block=kind), Rewrite(kind, Rule.SPLIT_KV, ways))
        made, refused = rewrite_block(block, split)
        assert not refused
        assert [op.name for op in made.ops if op.name.endswith("kv_reduce")] == [f"{part}.kv_reduce" for part in parts]
        for part in parts:
            core, rows = made.op[f"{part}.core"], {"attn": "context", "cross": "context_cross"}[part]
            assert (core.size("splits"), core.size(rows), core.reduced) == (ways, 40 // ways, (rows,))
            assert made.op[f"{part}.kv_reduce"].outputs == (f"{part}.mixed",)
        for op in made.ops:  # what walks a share of the rows gives a partial result, or rows of its own
            given = [d.name for name in op.outputs for d in made.tensor[name].dims]
            assert "splits" in given or op.size("splits") == 1 or "splits" in op.reduced, op.name


def test_heads_that_do_not_divide_the_sockets_leave_the_rows_to_them(written) -> None:
    """3 heads on 8 sockets: what an encoder gave is walked in 8 parts, and its keys are made so."""
    three = {"d_model": 48, "encoder_attention_heads": 3, "decoder_attention_heads": 3}
    spec, target = load_model(written(config("whisper") | three)), load_target("sn40l")
    for phase in Phase:
        graph = build(spec, Workload(phase, 1, 40, 8))
        o3 = preset("o3", graph, target)
        assert isinstance(evaluate(graph, o3, target), Measured)
        split = re.findall(r"shard cross_dense (cross\S*) splits ways=8", o3.text)
        assert split == ["cross.core", "cross.k_proj", "cross.v_proj"][: 1 if phase is Phase.DECODE else 3]


def test_images_and_sounds_have_their_own_number_of_tokens(written) -> None:
    seen = build(load_model(written(config("vit_wide"))), Workload(Phase.PREFILL, 2, 4096, 1))
    assert (seen.workload.context, seen.workload.tokens) == (5 * 3 + 1, 32)
    heard = build(load_model(written(config("whisper"))), Workload(Phase.PREFILL, 2, 4096, 1))
    assert heard.workload.context == 50
    assert {d.size for t in heard.block["cross_dense"].tensors for d in t.dims if d.name == "context_cross"} == {50}


def test_decoding_an_encoder_is_refused(written) -> None:
    for name in ("bert", "vit"):
        with pytest.raises(InputError, match="no decoding"):
            build(load_model(written(config(name))), Workload(Phase.DECODE, 1, 16, 1))


def test_a_table_of_biases_is_stored_once_a_stack(written) -> None:
    graph = build(load_model(written(config("t5"))), Workload(Phase.PREFILL, 1, 24, 1))
    keys = [t.key for kind in graph.sequence for t in graph.block[kind].weights if "relative" in t.key]
    assert (len(keys), len(set(keys))) == (5, 2)


def test_the_cross_cache_is_that_of_the_source(written) -> None:
    graph = build(load_model(written(config("bart"))), Workload(Phase.DECODE, 3, 24, 1))
    roles = {
        t.name: t.role for t in graph.block["cross_dense"].tensors if t.name.startswith("cross.") and "cache" in t.name
    }
    assert roles == {"cross.k_cache": Role.KV_CACHE, "cross.v_cache": Role.KV_CACHE}
    assert "memory" not in graph.block["cross_dense"].inputs


@pytest.mark.parametrize(
    ("name", "changes", "what"),
    [
        ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ("bert", {"is_decoder": True}, "is_decoder"),
        ("bert", {"tie_word_embeddings": False}, "tie_word_embeddings"),
        ("bert", {"architectures": ["BertModel"]}, "names BertModel"),
        ("vit", {"patch_size": [8, 4]}, "patch_size: is 8 x 4"),
        ("vit", {"image_size": "big"}, "image_size"),
        ("vit", {"id2label": {"0": "a"}, "num_labels": 3}, "num_labels: is 3"),
        ("bart", {"tie_word_embeddings": False}, "tie_word_embeddings: is false"),
        ("t5", {"feed_forward_proj": "gated-swish"}, "feed_forward_proj"),
        ("t5", {"is_encoder_decoder": False}, "is_encoder_decoder"),
        ("whisper", {"encoder_attention_heads": 5}, "d_model: is 64"),
    ],
)
def test_quirks_are_refused_by_name(written, name: str, changes: dict[str, Any], what: str) -> None:
    with pytest.raises(InputError, match=what):
        load_model(written(config(name) | changes))


def test_parts_that_do_not_fit() -> None:
    two, ways = Attention(2, 1, 8), Attention(2, 1, 8, rotary=0, causal=False)
    plain = Layer(two, Dense(8))
    for make in (
        lambda: Attention(2, 1, 8, causal=False, window=4),
        lambda: Layer(two, Dense(8), cross=Attention(4, 1, 8, causal=False)),
        lambda: Layer(two, Dense(8), sum_norm=True),
        lambda: ModelSpec("m", "m", 16, 9, True, (Layer(two, Dense(8), cross=ways),)),
        lambda: ModelSpec("m", "m", 16, 9, True, (Layer(ways, Dense(8)),)),
        lambda: ModelSpec("m", "m", 16, 9, True, (plain,), head=EncoderHead()),
        lambda: ModelSpec("m", "m", 16, 9, True, (plain,), stem=Sound(4, 8)),
        lambda: Patches(8, 8, 16, 3),
    ):
        with pytest.raises(ValueError, match=r"attention|norm|model|patches"):
            make()
    both = Encoder((Layer(ways, Dense(8)),))
    spec = ModelSpec("m", "m", 16, 9, True, (Layer(two, Dense(8), cross=ways),), encoder=both)
    assert spec.params == build(spec, Workload(Phase.PREFILL, 1, 5, 1)).weight_elements


@pytest.mark.parametrize(
    ("name", "changes", "what"),
    [
        ("vit", {"image_size": 3, "patch_size": 8}, "patch_size: is 8, more than the image of 3 x 3"),
        ("t5", {"is_gated_act": True}, "is_gated_act: differs from feed_forward_proj"),
    ],
)
def test_contradictions_are_refused(written, name: str, changes: dict[str, Any], what: str) -> None:
    with pytest.raises(InputError, match=what):
        load_model(written(config(name) | changes))


def test_a_classifier_has_a_head_of_its_own_whatever_the_config_says(written) -> None:
    spec = load_model(written(config("vit") | {"tie_word_embeddings": True}))
    assert spec.params == build(spec, Workload(Phase.PREFILL, 1, 8, 1)).weight_elements
    assert spec.params == load_model(written(config("vit"))).params
