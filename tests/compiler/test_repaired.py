"""Faults that review found, each as the law that its repair keeps."""

from collections.abc import Callable
from importlib.resources import files

import pytest

from compiler.errors import InputError
from compiler.ir.graph import Block, Graph, Phase
from compiler.ir.text import from_json, parse_schedule, to_json
from compiler.lower import lower_block
from compiler.moves import View, hole_values
from compiler.passes.shard import splittable
from compiler.pipeline import compile_schedule
from compiler.program import Program
from compiler.routing import expected_loads
from compiler.target import Target, parse_target

Make = Callable[..., Graph]


def lowered(graph: Graph, text: str, kind: str) -> Block:
    return lower_block(graph.block[kind], parse_schedule(text), graph.workload.sockets)


@pytest.mark.parametrize(
    ("kind", "block", "rewrite"),
    [
        ("dense", "gqa_dense", "merge_qkv"),  # qkv_rows
        ("dense", "gqa_dense", "merge_gate_up"),  # gate_up
        ("moe", "gqa_moe", "merge_gate_up"),
        ("mla", "mla_dense", ""),  # kv_b
    ],
)
def test_a_dimension_that_may_be_split_is_seen_in_the_outputs(graph: Make, kind: str, block: str, rewrite: str) -> None:
    local = lowered(graph(kind), f"rewrite {block} {rewrite}" if rewrite else "", block)
    lost = [
        (op.name, dim)
        for op in local.ops
        for dim in splittable(op)
        for name in op.outputs
        if dim not in op.reduced and dim not in [d.name for d in local.tensor[name].dims]
    ]
    assert not lost


@pytest.mark.parametrize(
    "line",
    ["attn.values head_dim ways=2", "attn.scores kv_heads ways=4", "attn.values kv_heads ways=4"],
)
def test_prefill_caches_split_for_one_reader_only(graph: Make, target: Target, line: str) -> None:
    found = compile_schedule(graph(phase=Phase.PREFILL), parse_schedule(f"shard gqa_dense {line}"), target)
    assert isinstance(found, Program)


@pytest.mark.parametrize(
    "line", ["ffn.combine hidden ways=2\nshard gqa_moe ffn shared_ffn ways=2", "ffn.experts_down hidden ways=2"]
)
def test_partial_sums_that_are_also_split(graph: Make, target: Target, line: str) -> None:
    text = f"shard gqa_moe ffn ffn ways=2\nshard gqa_moe {line}"
    assert isinstance(compile_schedule(graph("moe"), parse_schedule(text), target), Program)


def test_prefill_latent_cache_is_whole_for_its_second_reader(graph: Make) -> None:
    text = "rewrite mla_dense mla_absorb\nshard mla_dense attn latent_dim ways=2"
    block = lowered(graph("mla", phase=Phase.PREFILL), text, "mla_dense")
    read = [name for name in block.op["attn.values"].inputs if name.startswith("attn.latent_cache")]
    assert [block.tensor[name].dims[-1].size for name in read] == [128 + 16]


def test_the_reduction_of_split_kv_is_not_split(graph: Make) -> None:
    text = "rewrite gqa_dense streaming_softmax\nrewrite gqa_dense split_kv ways=4\nshard gqa_dense attn splits ways=2"
    block = lowered(graph(), text, "gqa_dense")
    assert block.op["attn.kv_reduce"].size("splits") == 4


def test_units_of_all_ops(graph: Make, target: Target) -> None:
    program = compile_schedule(graph(), parse_schedule("units gqa_dense * pcus=3"), target)
    assert isinstance(program, Program)
    found = {s.pcus for section in program.sections for s in section.stages if section.block == "gqa_dense"}
    assert found == {3}


@pytest.mark.parametrize(("experts", "top_k"), [(8, 7), (10, 8)])
def test_expected_loads_of_dense_routing(experts: int, top_k: int) -> None:
    assert expected_loads(experts, top_k, 512, 1) == pytest.approx(512 * top_k)


def test_tied_weights_are_part_of_the_identity(graph: Make) -> None:
    assert graph().weight_nbytes != graph(tied=True).weight_nbytes
    assert graph().id != graph(tied=True).id


def test_json_reads_back_what_text_reads() -> None:
    schedule = parse_schedule("prefetch a nbytes=999999999999999KiB")
    assert from_json(to_json(schedule)) == schedule


@pytest.mark.parametrize("line", ["buffer gqa_dense ffn.act depth=?", "shard gqa_dense attn.q_proj q_group ways=?"])
def test_holes_on_a_single_op(graph: Make, target: Target, line: str) -> None:
    schedule = parse_schedule(line)
    ((at, name, hole),) = schedule.holes
    assert hole_values(View(graph(), schedule, target), schedule.actions[at], name, hole)


PCUS = """pcus: {value: 1040, source: "MICRO'24 (arXiv 2405.07518v2), Table II"}"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(PCUS, 'pcus: {value: 1040, source: ""}'),
        pytest.param(PCUS, "pcus: {value: 1040, source: x, source: y}"),
        pytest.param(PCUS, PCUS + "\n" + PCUS),
        pytest.param("{value: 1.6e12,", "{value: 1" + "0" * 400 + ","),
    ],
)
def test_targets_that_must_be_refused(old: str, new: str) -> None:
    text = (files("compiler") / "targets/sn40l.yaml").read_text(encoding="utf-8")
    assert old in text
    with pytest.raises(InputError, match="target mine"):
        parse_target(text.replace(old, new), "mine")


def test_split_dimensions_of_unmerged_ops_are_seen_in_the_outputs(graph: Make) -> None:
    """The law above, for every op that no rewrite merged: it holds but for kv_b."""
    for kind in ("dense", "moe", "mla", "alternating"):
        for block in graph(kind).blocks:
            for op in block.ops:
                seen = [{d.name for d in block.tensor[n].dims} for n in op.outputs]
                lost = [d for d in splittable(op) if d not in op.reduced and any(d not in s for s in seen)]
                assert lost in ([], ["kv_b"]), (op.name, lost)
