"""Weights files beside a config: what they say, what contradicts it, and files that are not what they seem."""

import json
from math import prod

import pytest

from compiler.errors import InputError
from compiler.frontend import build, load_model
from compiler.frontend.spec import Status
from compiler.frontend.weights import BITS, StoredTensor, read_header, read_stored
from compiler.ir.dtype import DType
from compiler.ir.graph import Phase, Workload

DECODE = Workload(Phase.DECODE, 1, 64, 1)


def write(path, tensors, cut=0):
    """A safetensors file of (shape, type) without data: the file system gives zeros."""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for key, (shape, dtype) in tensors.items():
        end = at + prod(shape) * BITS[dtype] // 8
        header[key], at = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, end]}, end
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at - cut)


def layer(index, dtype="BF16"):
    at = f"model.layers.{index}."
    return {
        at + "input_layernorm.weight": ((48,), dtype),
        at + "self_attn.q_proj.weight": ((48, 48), dtype),
        at + "self_attn.k_proj.weight": ((16, 48), dtype),
        at + "self_attn.v_proj.weight": ((16, 48), dtype),
        at + "self_attn.o_proj.weight": ((48, 48), dtype),
        at + "post_attention_layernorm.weight": ((48,), dtype),
        at + "mlp.gate_proj.weight": ((80, 48), dtype),
        at + "mlp.up_proj.weight": ((80, 48), dtype),
        at + "mlp.down_proj.weight": ((48, 80), dtype),
    }


def tensors(dtype="BF16"):
    edges = {"model.embed_tokens.weight": ((100, 48), dtype), "lm_head.weight": ((100, 48), dtype)}
    return edges | {"model.norm.weight": ((48,), dtype)} | layer(0, dtype) | layer(1, dtype) | layer(2, dtype)


@pytest.fixture
def folder(tmp_path, llama):
    (tmp_path / "config.json").write_text(json.dumps(llama | {"torch_dtype": "bfloat16"}))
    return tmp_path


def facts(folder):
    return [fact for fact in load_model(str(folder)).facts if fact.name.startswith("weights")]


def test_files_that_agree(folder):
    alone = build(load_model(str(folder)), DECODE)
    write(folder / "model.safetensors", tensors())
    spec = load_model(str(folder))
    assert [(f.name, f.value, f.status) for f in facts(folder)] == [("weights", "30 tensors", Status.READ)]
    assert spec.stored.table["model.norm.weight"] == StoredTensor((48,), "BF16")
    assert build(spec, DECODE).id == alone.id


def test_shards_and_index(folder):
    parts = [layer(0) | layer(1), {k: v for k, v in tensors().items() if k not in layer(0) | layer(1)}]
    places = {key: f"model-{n}.safetensors" for n, part in enumerate(parts) for key in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    for n, part in enumerate(parts):
        write(folder / f"model-{n}.safetensors", part)
    write(folder / "consolidated.safetensors", {"tok_embeddings.weight": ((100, 48), "BF16")})
    assert [f.value for f in facts(folder)] == ["30 tensors"]
    (folder / "model-0.safetensors").unlink()
    seen = facts(folder)
    assert seen[0].value == "12 tensors"
    assert "names 1 of 2 files that are not there: model-0.safetensors" in seen[1].value
    assert "config" in seen[1].note and seen[1].status is Status.UNKNOWN
    assert len(seen) == 2
    write(folder / "model-0.safetensors", layer(0))
    (problem,) = [f for f in facts(folder) if f.status is Status.UNKNOWN]
    assert "model.layers.1.input_layernorm.weight" in problem.value and "has not got it" in problem.value


def test_types_of_the_files_decide(folder):
    found = tensors("F16") | {"model.layers.1.input_layernorm.weight": ((48,), "F32")}
    write(folder / "model.safetensors", found)
    spec = load_model(str(folder))
    fact = next(f for f in spec.facts if f.name == "weights.types")
    assert fact.note.startswith("30:") and "model.embed_tokens.weight: fp16, config: bf16" in fact.value
    graph = build(spec, DECODE)
    assert graph.sequence == ("embed", "gqa_dense", "gqa_dense_2", "gqa_dense", "head", "sample")
    assert graph.block["gqa_dense_2"].tensor["w.attn.norm"].dtype is DType.FP32
    assert graph.weight_nbytes == 2 * spec.params + 2 * 48
    chosen = build(spec, Workload(Phase.DECODE, 1, 64, 1, weights="bf16"))
    assert chosen.weight_nbytes == 2 * spec.params


def test_missing_and_extra_tensors_by_name(folder):
    found = tensors() | {"model.layers.0.self_attn.q_proj.bias": ((48,), "BF16")}
    del found["model.layers.2.mlp.up_proj.weight"]
    write(folder / "model.safetensors", found | {"model.layers.0.self_attn.rotary_emb.inv_freq": ((4,), "F32")})
    rows = {fact.name: fact for fact in facts(folder)}
    assert rows["weights.missing"].value == ("model.layers.2.mlp.up_proj.weight",)
    assert rows["weights.extra"].value == ("model.layers.0.self_attn.q_proj.bias",)
    assert rows["weights.missing"].status is rows["weights.extra"].status is Status.UNKNOWN


@pytest.mark.parametrize(
    ("key", "shape"),
    [
        ("model.layers.1.mlp.up_proj.weight", (96, 48)),
        ("model.layers.1.mlp.up_proj.weight", (40, 96)),
        ("model.embed_tokens.weight", (128, 48)),
        ("model.norm.weight", (49,)),
    ],
)
def test_a_shape_that_contradicts_the_config_is_refused(folder, key, shape):
    write(folder / "model.safetensors", tensors() | {key: (shape, "BF16")})
    with pytest.raises(InputError, match=str(list(shape)).replace("[", r"\[")) as caught:
        load_model(str(folder))
    assert key in caught.value.where and str(folder) in caught.value.where


def test_tied_embeddings_have_no_head_of_their_own(folder, llama):
    (folder / "config.json").write_text(json.dumps(llama | {"tie_word_embeddings": True}))
    found = tensors()
    del found["lm_head.weight"]
    write(folder / "model.safetensors", found)
    assert [f.name for f in facts(folder)] == ["weights"]


def test_names_inside_a_larger_model(folder, llama):
    (folder / "config.json").write_text(json.dumps({"text_config": llama, "torch_dtype": "bfloat16"}))
    write(folder / "model.safetensors", {f"language_model.{key}": value for key, value in tensors().items()})
    assert [f.name for f in facts(folder)] == ["weights"]


# --- quantised files


def quantised(folder, llama, config, found):
    (folder / "config.json").write_text(json.dumps(llama | {"quantization_config": config}))
    write(folder / "model.safetensors", found)
    return load_model(str(folder))


def matrices(make):
    """The small llama with `make(module, rows, columns)` in place of each matrix of a layer."""
    out = {}
    for key, (shape, dtype) in tensors().items():
        inside = "layers" in key and len(shape) == 2
        out |= make(key.removesuffix(".weight"), *shape) if inside else {key: (shape, dtype)}
    return out


LAYOUTS = {
    "fp8 block": (
        {"quant_method": "fp8", "weight_block_size": [16, 16]},
        lambda m, r, c: {
            f"{m}.weight": ((r, c), "F8_E4M3"),
            f"{m}.weight_scale_inv": ((-(-r // 16), -(-c // 16)), "F32"),
        },
    ),
    "fp8 tensor": (
        {"quant_method": "fp8"},
        lambda m, r, c: {
            f"{m}.weight": ((r, c), "F8_E4M3"), f"{m}.weight_scale": ((), "F32"), f"{m}.input_scale": ((), "F32"),
        },
    ),
    "nvfp4": (
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]},
        lambda m, r, c: {
            f"{m}.weight": ((r, c // 2), "U8"), f"{m}.weight_scale": ((r, c // 16), "F8_E4M3"),
            f"{m}.weight_scale_2": ((), "F32"), f"{m}.input_scale": ((), "F32"),
        },
    ),
    "packed int4": (
        {"quant_method": "compressed-tensors", "ignore": ["lm_head"], "config_groups": {
            "g": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "group_size": 16}}}},
        lambda m, r, c: {
            f"{m}.weight_packed": ((r, c // 8), "I32"), f"{m}.weight_scale": ((r, c // 16), "BF16"),
            f"{m}.weight_shape": ((2,), "I64"),
        },
    ),
    "gptq": (
        {"quant_method": "gptq", "bits": 4, "group_size": 16},
        lambda m, r, c: {
            f"{m}.qweight": ((c // 8, r), "I32"), f"{m}.scales": ((c // 16, r), "F16"),
            f"{m}.qzeros": ((c // 16, r // 8), "I32"), f"{m}.g_idx": ((c,), "I32"),
        },
    ),
    "nf4": (
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
        lambda m, r, c: {
            f"{m}.weight": ((r * c // 2, 1), "U8"), f"{m}.weight.absmax": ((-(-r * c // 64),), "F32"),
            f"{m}.weight.quant_map": ((16,), "F32"), f"{m}.weight.quant_state.bitsandbytes__nf4": ((80,), "U8"),
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_quantised_files_that_agree(folder, llama, layout):
    config, make = LAYOUTS[layout]
    alone = {**llama, "quantization_config": config}
    (folder / "config.json").write_text(json.dumps(alone))
    before = build(load_model(str(folder)), DECODE)
    spec = quantised(folder, llama, config, matrices(make))
    assert [f.name for f in spec.facts if f.name.startswith("weights")] == ["weights"]
    assert build(spec, DECODE).id == before.id


def test_files_quantised_in_another_way_than_the_config_says(folder, llama):
    config, _ = LAYOUTS["fp8 tensor"]
    spec = quantised(folder, llama, config, matrices(LAYOUTS["fp8 block"][1]))
    down = build(spec, DECODE).block["gqa_dense"].tensor["w.ffn.down_proj"]
    assert (down.nbytes, down.dtype.element.label) == (48 * 80 + 4 * 3 * 5, "fp8")
    assert any(f.name == "weights.types" for f in spec.facts)


def test_files_that_are_not_quantised_though_the_config_says_so(folder, llama):
    spec = quantised(folder, llama, LAYOUTS["fp8 tensor"][0], tensors())
    assert {t.dtype for block in build(spec, DECODE).blocks for t in block.weights} == {DType.BF16}


def test_experts_in_their_files(tmp_path, deepseek):
    """Each expert a tensor of its own; one stored otherwise is refused; the router's correction is a buffer."""
    from compiler.frontend.compared import expected
    from compiler.frontend.families import read_spec
    from compiler.frontend.read import Source

    config = deepseek | {"num_nextn_predict_layers": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    spec = read_spec(Source("config.json", "test", config, config))
    found = {item.key: (item.shape, "BF16") for item in expected(spec)}
    assert found["model.layers.3.mlp.experts.7.down_proj.weight"] == ((48, 20), "BF16")
    assert sum(prod(shape) for shape, _ in found.values()) == spec.params
    found["model.layers.2.mlp.gate.e_score_correction_bias"] = ((8,), "F32")
    found["model.layers.4.eh_proj.weight"] = ((48, 96), "BF16")
    write(tmp_path / "model.safetensors", found)
    assert [f.name for f in facts(tmp_path)] == ["weights", "weights.mtp"]
    found["model.layers.2.mlp.experts.5.up_proj.weight"] = ((20, 48), "F32")
    write(tmp_path / "model.safetensors", found)
    with pytest.raises(InputError, match="experts stored as"):
        build(load_model(str(tmp_path)), DECODE)


# --- what is not a weights file


def test_a_pointer_in_place_of_weights(model_dir):
    """Beside a good config it is a fact: the config says all that is needed. Asked for itself, it is refused."""
    folder = model_dir("WizardLM-2-8x22B")
    spec = load_model(str(folder))
    assert spec.params == 140_620_634_112
    pointer, absent = (f for f in spec.facts if f.name == "weights")
    assert pointer.value == "model-00001-of-00059.safetensors is a Git-LFS pointer, not weights"
    assert "names 58 of 59 files" in absent.value
    assert not [f for f in spec.facts if f.name in ("weights.missing", "weights.extra")]  # the index has every name
    with pytest.raises(InputError, match="is a Git-LFS pointer, not weights"):
        load_model(str(folder / "model-00001-of-00059.safetensors"))


def test_a_merge_marker_in_an_index(model_dir, folder):
    bloom = model_dir("BLOOM-176B") / "model.safetensors.index.json"
    with pytest.raises(InputError, match="merge marker") as caught:
        load_model(str(bloom))
    assert caught.value.where == f"{bloom}: line 2"
    (folder / bloom.name).write_bytes(bloom.read_bytes())
    (fact,) = facts(folder)
    assert fact.value == "model.safetensors.index.json: line 2 is a leftover merge marker: ======="


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "cut short: 0 bytes"),
        (b"\x10\0\0", "cut short: 3 bytes"),
        (b"\x10\0\0\0\0\0\0\0{}", "cut short inside its header"),
        (b"\xff" * 8 + b"{}", "no header is so long"),
        (b"\x02\0\0\0\0\0\0\0[]", "a list"),
        (b"\x02\0\0\0\0\0\0\0{]", "not JSON"),
        (b"\x02\0\0\0\0\0\0\0\xff\xff", "not JSON"),
    ],
)
def test_headers_that_are_none(folder, content, what):
    path = folder / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(InputError, match=what):
        read_header(path)
    (fact,) = facts(folder)
    assert what in fact.value and fact.key == "model.safetensors"


@pytest.mark.parametrize(
    ("entry", "what"),
    [
        ({"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}, "F99"),
        ({"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}, "shape"),
        ({"dtype": "F32", "shape": [1], "data_offsets": [0]}, "offsets"),
        ({"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}, "4 bytes for a, whose shape and type take 8"),
        (3, "type null"),
    ],
)
def test_entries_that_make_no_sense(tmp_path, entry, what):
    text = json.dumps({"a": entry}).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    with pytest.raises(InputError, match=what):
        read_header(path)


def test_data_that_is_cut(tmp_path):
    write(tmp_path / "x.safetensors", {"a": ((10,), "F32")}, cut=1)
    with pytest.raises(InputError, match="39 of 40 bytes"):
        read_header(tmp_path / "x.safetensors")


@pytest.mark.parametrize("places", [None, {}, {"a": 3}, {"a": "../x.safetensors"}, {"a": "x.bin"}])
def test_an_index_that_is_none(tmp_path, places):
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    ((place, what),) = read_stored(tmp_path).problems
    assert "weight_map" in place and what


def test_the_data_is_never_read(folder):
    """A terabyte of it."""
    write(folder / "model.safetensors", tensors() | {"model.extra.weight": ((1 << 20, 1 << 18), "F32")})
    assert next(f for f in facts(folder) if f.name == "weights.extra").value == ("model.extra.weight",)


def test_weights_alone_are_no_model(tmp_path):
    write(tmp_path / "model.safetensors", tensors())
    with pytest.raises(InputError, match="holds weights"):
        load_model(str(tmp_path / "model.safetensors"))


def test_an_index_with_a_name_no_file_can_have(folder):
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "x" * 300 + ".safetensors"}}))
    assert "weight_map.a is" in facts(folder)[0].value


def test_tensors_in_the_same_bytes(folder):
    entry = {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}
    text = json.dumps({"a": entry, "b": entry}).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(4))
    with pytest.raises(InputError, match="has a and b in the same bytes"):
        read_header(folder / "model.safetensors")
