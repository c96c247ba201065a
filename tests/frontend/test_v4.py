"""DeepSeek-V4: compressed attention, hyper-connections and hash routing, against its class."""

import json
from pathlib import Path

import pytest

from compiler.errors import InputError
from compiler.frontend import build, load_model
from compiler.frontend.describe import describe_model
from compiler.frontend.oracle import COUNTED, checks
from compiler.frontend.spec import CompressedAttention, Compressor, HyperConnections, SparseIndexer
from compiler.ir.graph import Phase, Role, Workload
from tests.frontend.oracle import class_shapes, graph_shapes
from tests.frontend.test_deleted import check

pytest.importorskip("torch")
pytest.importorskip("transformers")

#: All sizes different; a layer of each kind, and two hashed.
SMALL = {
    "model_type": "deepseek_v4",
    "hidden_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "qk_rope_head_dim": 4,
    "q_lora_rank": 20,
    "o_groups": 3,
    "o_lora_rank": 10,
    "sliding_window": 32,
    "compress_ratios": [0, 4, 128, 4],
    "index_n_heads": 5,
    "index_head_dim": 14,
    "index_topk": 4,
    "moe_intermediate_size": 22,
    "n_routed_experts": 7,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "num_hash_layers": 2,
    "hc_mult": 3,
    "hc_sinkhorn_iters": 5,
    "vocab_size": 100,
    "num_nextn_predict_layers": 0,
    "swiglu_limit": 10.0,
}
WORDS = ["heavily_compressed_attention", "sliding_attention", "compressed_sparse_attention", "sliding_attention"]
VARIANTS = {
    "ratios": {},
    "words": {"compress_ratios": None, "layer_types": WORDS, "compress_rates": None},
    "rates": {"compress_rate_csa": 3, "compress_rate_hca": 6},
    "share": {"qk_rope_head_dim": None, "partial_rotary_factor": 0.5},
    "listed": {"mlp_layer_types": ["moe", "hash_moe", "moe", "moe"], "num_hash_layers": None},
    "tied": {"tie_word_embeddings": True, "hc_mult": 2},
}


def config(name: str) -> dict[str, object]:
    return {key: value for key, value in (SMALL | VARIANTS[name]).items() if value is not None}


@pytest.fixture
def written(tmp_path: Path):
    def write(values: dict[str, object]) -> str:
        (tmp_path / "config.json").write_text(json.dumps(values))
        return str(tmp_path)

    return write


@pytest.mark.parametrize("name", VARIANTS)
def test_parameters_by_name(written, name: str) -> None:
    theirs = {key.removeprefix("model."): size for key, size in class_shapes(config(name)).items()}
    spec = load_model(written(config(name)))
    for phase in Phase:  # at 2 tokens no block is full, at 300 all kinds have rows
        for context in (2, 300):
            graph = build(spec, Workload(phase, 2, context, 1))
            assert graph_shapes(graph, "deepseek_v4") == theirs
    assert spec.params == sum(theirs.values())


@pytest.mark.parametrize("name", VARIANTS)
def test_parameters_flops_and_cache_of_the_class(written, name: str) -> None:
    model = written(config(name))
    spec = load_model(model)
    for result in checks(lambda workload: build(spec, workload), model, COUNTED):
        assert result.equal, result
        assert result.ours > 0


def test_the_published_model(model_dir) -> None:
    """284 billion parameters, 13 active (DeepSeek-V4-Flash, model card)."""
    spec = load_model(str(model_dir("DeepSeek-V4-Flash")))
    assert spec.params == 284_332_230_231
    assert round(spec.active_params / 1e9) == 14  # with embedding and head
    assert [spec.kinds.count(kind) for kind in dict.fromkeys(spec.kinds)] == [2, 1, 20, 20]
    graph = build(spec, Workload(Phase.DECODE, 1, 4096, 1))
    rows = {kind: {d.name: d.size for t in graph.block[kind].tensors for d in t.dims} for kind in graph.sequence}
    assert rows["swa_moe"]["context"] == 128
    assert (rows["hca_moe"]["context"], rows["hca_moe"]["cached"]) == (128 + 32, 32)
    assert (rows["csa_moe_2"]["context"], rows["csa_moe_2"]["cached"]) == (128 + 512, 1024)
    assert graph.weight_nbytes < 160e9  # fp4 experts, fp8 blocks


def test_what_is_cached() -> None:
    sparse = CompressedAttention(4, 16, 8, 10, 2, 6, 4, Compressor(4, overlap=True), SparseIndexer(2, 12, 3))
    assert [sparse.read(context) for context in (3, 4, 11, 20, 4000)] == [3, 5, 12, 13, 13]
    assert sparse.kv_elements_per_token == 16 + (16 + 12) // 4
    # values and gates of 3 tokens in two series, and the first series of the last 4
    assert sparse.state_nbytes == 2 * 2 * (3 * 2 + 4) * (16 + 12)
    heavy = CompressedAttention(4, 16, 8, 10, 2, 6, 4, Compressor(128))
    assert [heavy.read(context) for context in (3, 127, 128, 1000)] == [3, 10, 11, 17]


@pytest.mark.parametrize(("batch", "filled"), [(1, 1), (4, 1), (5, 2), (64, 16)])
def test_as_many_blocks_are_filled_as_the_batch_makes(written, batch: int, filled: int) -> None:
    graph = build(load_model(written(SMALL)), Workload(Phase.DECODE, batch, 40, 1))
    block = next(block for block in graph.blocks if "attn.index_compress" in block.op)
    assert block.op["attn.comp_compress"].size("filled") == filled
    assert block.tensor["attn.comp_state"].role is Role.STATE


def test_a_described_model_is_the_same(written, tmp_path: Path) -> None:
    model = written(config("rates"))
    (tmp_path / "mine.py").write_text(describe_model(model))
    work = Workload(Phase.DECODE, 2, 300, 1)
    assert build(load_model(f"{tmp_path}/mine.py:model"), work).id == build(load_model(model), work).id


def test_a_key_deleted_or_null(spec_of) -> None:
    check(spec_of, SMALL)


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("compress_ratios", [0, 4, 128], "3 entries for 4 layers"),
        ("compress_ratios", [0, 4, 128, 8], r"compress_ratios\[3\]: is 8"),
        ("layer_types", WORDS, "makes layer 0"),
        ("o_groups", 4, "o_groups: is 4"),
        ("n_shared_experts", 2, "one shared expert"),
        ("partial_rotary_factor", 0.5, "partial_rotary_factor: makes 8"),
        ("scoring_func", "softplus", "scoring_func: is"),
        ("mlp_layer_types", ["moe", "hash", "moe", "moe"], r"mlp_layer_types\[1\]"),
    ],
)
def test_quirks_are_refused_by_name(written, key: str, value: object, what: str) -> None:
    with pytest.raises(InputError, match=what):
        load_model(written(SMALL | {key: value}))


def test_parts_that_make_no_sense() -> None:
    for make in (
        lambda: Compressor(1),
        lambda: CompressedAttention(5, 16, 8, 10, 2, 6, 4),
        lambda: CompressedAttention(4, 16, 8, 10, 2, 6, 4, None, SparseIndexer(2, 12, 3)),
        lambda: HyperConnections(0, 3),
    ):
        with pytest.raises(ValueError, match=r"compress|hyper"):
            make()
