"""The check itself: a program that is wrong in one place does not give the class's outputs."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from compiler.ir.graph import Block, Graph, Op, Phase, Tensor
from compiler.ir.mesh import Layout, MeshAxis
from compiler.program import Program
from tests.functional.conftest import Small

Make = Callable[[str], Small]
Change = Callable[[Block], Block]
#: Many times what rounding explains.
WRONG = 1e-2
WALKS = "rewrite * streaming_softmax\nrewrite * split_kv ways=4\n"


def ops(block: Block, change: Callable[[Op], Op | None]) -> Block:
    """`block` with each op changed, or left out."""
    made = [(op, change(op)) for op in block.ops]
    assert any(new is not op for op, new in made), "the mutation changes nothing"
    return replace(block, ops=tuple(new for _, new in made if new is not None))


def with_inputs(name: str, *inputs: str) -> Change:
    return lambda block: ops(block, lambda op: replace(op, inputs=inputs) if op.name == name else op)


def without_input(name: str, gone: str) -> Change:
    kept = lambda op: tuple(i for i in op.inputs if i != gone)  # noqa: E731
    return lambda block: ops(block, lambda op: replace(op, inputs=kept(op)) if op.name == name else op)


def swapped_outputs(name: str) -> Change:
    return lambda block: ops(block, lambda op: replace(op, outputs=op.outputs[::-1]) if op.name == name else op)


def without_collective(name: str) -> Change:
    """Readers take what the exchange would have changed."""

    def change(block: Block) -> Block:
        gone = block.op[name]
        (before,), (after,) = gone.inputs, gone.outputs

        def skip(op: Op) -> Op | None:
            return None if op is gone else replace(op, inputs=tuple(before if i == after else i for i in op.inputs))

        changed = ops(block, skip)
        return replace(changed, outputs=tuple(before if n == after else n for n in block.outputs))

    return change


def moved_share(name: str) -> Change:
    """A weight whose sockets hold each other's slices."""

    def turned(tensor: Tensor) -> Tensor:
        (split,) = tensor.layout.splits
        axis = split.axis
        assert axis.ways == 4
        # the same sizes, but socket 1 has what socket 2 should have
        return replace(tensor, layout=Layout((replace(split, axis=Crossed(axis.ways, axis.stride)),)))

    return lambda block: replace(block, tensors=tuple(turned(t) if t.name == name else t for t in block.tensors))


class Crossed(MeshAxis):
    """A digit whose values 1 and 2 are exchanged."""

    def place(self, socket: int) -> int:
        return {1: 2, 2: 1}.get(place := super().place(socket), place)


def other_experts(block: Block) -> Block:
    """Each socket works with the experts of its neighbour's number on its own weights."""

    def turn(op: Op) -> Op:
        return replace(op, routing=replace(op.routing, stride=2)) if op.routing else op

    return ops(block, turn)


def shorter(name: str, dim: str) -> Change:
    """A norm over one of its dimensions less."""
    return lambda block: ops(
        block, lambda op: replace(op, sequential=tuple(d for d in op.sequential if d != dim)) if op.name == name else op
    )


CASES: dict[str, tuple[str, Phase, int, str, str, Change]] = {
    "the residual is left out": ("llama", Phase.DECODE, 1, "", "gqa_dense", with_inputs("attn.residual", "attn.out", "attn.out")),
    "gate and up change places": ("llama", Phase.DECODE, 1, "rewrite * merge_gate_up", "gqa_dense", swapped_outputs("ffn.gate_up_proj")),
    "keys and values change places": ("llama", Phase.PREFILL, 1, "", "gqa_dense", swapped_outputs("attn.kv_append")),
    "the new row is not read": ("llama", Phase.DECODE, 1, "", "gqa_dense", without_input("attn.values", "attn.v_new")),
    "absorbed scores without the rotary part": ("deepseek_v3", Phase.DECODE, 1, "rewrite * mla_absorb", "mla_moe", with_inputs("attn.scores", "attn.q_latent", "attn.q_latent", "attn.latent_cache", "attn.latent_new")),
    "partial sums are not added": ("llama", Phase.DECODE, 4, "shard * ffn ffn ways=4", "gqa_dense", without_collective("ffn.out.all_reduce")),
    "partial sums of experts are not added": ("mixtral", Phase.PREFILL, 4, "shard * ffn experts ways=4", "gqa_moe", without_collective("ffn.out.all_reduce")),
    "sockets hold each other's slices": ("llama", Phase.DECODE, 4, "shard * ffn ffn ways=4", "gqa_dense", moved_share("w.ffn.up_proj")),
    "experts of another socket": ("mixtral", Phase.DECODE, 4, "shard * ffn experts ways=2", "gqa_moe", other_experts),
    "the queries are not rotated": ("qwen2", Phase.PREFILL, 1, "", "gqa_dense", with_inputs("attn.scores", "attn.q", "attn.k_cache")),
    "sinks are left out": ("gpt_oss", Phase.DECODE, 1, WALKS, "gqa_moe", without_input("attn.core", "w.attn.softmax")),
    "a shared expert is not added": ("qwen3_next", Phase.DECODE, 1, "", "gdn_moe", with_inputs("ffn.add_shared", "ffn.out", "ffn.out")),
    "the strength is the decay": ("qwen3_next", Phase.PREFILL, 1, "", "gdn_moe", with_inputs("mixer.strength", "mixer.decay")),
    "the state is fed with the gate": ("mamba2", Phase.PREFILL, 1, "", "mamba2", with_inputs("mixer.steps", "mixer.z", "mixer.step")),
    "a norm over half of its dimensions": ("mamba2", Phase.DECODE, 1, "", "mamba2", shorter("mixer.out_norm", "heads")),
}  # fmt: skip


@pytest.mark.parametrize("what", CASES)
def test_a_wrong_program_is_caught(small: Make, what: str) -> None:
    name, phase, sockets, text, kind, change = CASES[what]
    of = small(name)
    graph, program = of.program(phase, sockets, text)
    assert of.error(graph, program) < 1e-4
    assert _error(of, graph, changed(program, kind, change)) > WRONG


def changed(program: Program, kind: str, change: Change) -> Program:
    """`program` with one block changed; stages whose op is gone are gone too."""
    blocks = {b.kind: change(b) if b.kind == kind else b for b in program.blocks}
    runs = []
    for run in program.runs:
        stages = [tuple(t for t in s.stages if t.op in blocks[s.block].op) for s in run.sections]
        left = [replace(s, stages=own) for s, own in zip(run.sections, stages, strict=True) if own]
        runs.append(replace(run, sections=tuple(left)))
    return replace(program, runs=tuple(runs), blocks=tuple(blocks.values()))


def _error(of: Small, graph: Graph, program: Program) -> float:
    """Infinite where the program cannot be run at all."""
    try:
        return of.error(graph, program)
    except (KeyError, ValueError, RuntimeError, StopIteration) as failure:
        pytest.fail(f"a wrong program stops with {failure!r}: it should give wrong numbers")


@pytest.mark.parametrize("phase", Phase)
def test_tiles_of_any_size_give_the_same(small: Make, phase: Phase) -> None:
    of = small("llama")
    graph, program = of.program(phase, 1, "fuse * all\ntile * tokens size=1")
    for size in (1, 2, 5, graph.workload.tokens):
        runs = tuple(replace_run(run, tile_tokens=size) for run in program.runs)
        assert of.error(graph, replace(program, runs=runs)) < 1e-4


def replace_run(run: Any, **changes: Any) -> Any:
    return replace(run, sections=tuple(replace(s, **changes) for s in run.sections))
