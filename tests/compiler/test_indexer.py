"""Sparse attention through the compiler: which rows a step reads, and where they are kept."""

import pytest

from agent.evaluate import Measured, evaluate
from agent.presets import preset
from compiler.frontend import build
from compiler.frontend.spec import Dense, LatentAttention, Layer, ModelSpec, SparseIndexer
from compiler.ir.graph import Phase, Workload, is_cache
from compiler.lower import lower_block
from compiler.pipeline import compile_schedule
from compiler.program import Program
from compiler.target import load_target

TARGET = load_target("sn40l")
TOP_K, LATENT, INDEX = 256, 80, 32


def graph_of(context, phase=Phase.DECODE, batch=2, sockets=1):
    indexer = SparseIndexer(heads=16, dim=INDEX, top_k=TOP_K)
    mixer = LatentAttention(heads=16, q_lora=96, kv_lora=64, nope=32, rope=16, v_dim=32, indexer=indexer)
    spec = ModelSpec("sparse", "sparse", 256, 1024, False, (Layer(mixer, Dense(512)),) * 3)
    return build(spec, Workload(phase, batch, context, sockets))


def stages(graph, mode="o0"):
    program = compile_schedule(graph, preset(mode, graph, TARGET), TARGET)
    assert isinstance(program, Program)
    return {stage.op: stage for run in program.runs for section in run.sections for stage in section.stages}


@pytest.mark.parametrize("context", [TOP_K, 1024, 8192])
def test_attention_reads_the_selected_rows_and_the_indexer_all_keys(context):
    made, sequences, nbytes = stages(graph_of(context)), 2, 2
    assert made["attn.select"].kv_bytes == sequences * TOP_K * LATENT * nbytes
    assert made["attn.index_scores"].kv_bytes == sequences * context * INDEX * nbytes


@pytest.mark.parametrize("phase", list(Phase))
def test_attention_does_not_grow_with_the_context(phase):
    """A token's scores are over `top_k` rows however many there are; below that over all of them."""
    sizes = [
        graph_of(context, phase).block["dsa_dense"].op["attn.scores"].size("context")
        for context in (TOP_K // 2, TOP_K, 4 * TOP_K)
    ]
    assert sizes == [TOP_K // 2, TOP_K, TOP_K]


@pytest.mark.parametrize("context", [20, 64, 4096])
@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize("sockets", [8, 16])
def test_no_socket_lacks_a_row(context, phase, sockets):
    graph = graph_of(context, phase, sockets=sockets)
    for mode in ("o0", "o3"):
        schedule = preset(mode, graph, TARGET)
        result = evaluate(graph, schedule, TARGET)
        assert isinstance(result, Measured), result
        assert result.report.latency_s >= result.report.bound.latency_s
        local = lower_block(graph.block["dsa_dense"], schedule, sockets)
        for tensor in filter(is_cache, graph.block["dsa_dense"].tensors):
            assert sockets * local.tensor[tensor.name].nbytes >= tensor.nbytes


def test_long_contexts_are_split_over_sockets():
    graph = graph_of(1 << 20, batch=64, sockets=8)
    local = lower_block(graph.block["dsa_dense"], preset("o3", graph, TARGET), 8)
    for tensor in graph.block["dsa_dense"].stored:
        assert 8 * local.tensor[tensor.name].nbytes == tensor.nbytes


def test_an_indexer_needs_the_latent_of_the_query():
    with pytest.raises(ValueError, match="no latent"):
        LatentAttention(heads=4, q_lora=None, kv_lora=8, nope=4, rope=4, v_dim=4, indexer=SparseIndexer(2, 4, 8))
