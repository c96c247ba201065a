"""A Llama-3.1-8B layer on 1, 2, 8 and 16 sockets under o3: local sizes, where collectives stand, bytes and steps.

Every figure is by hand. One token of 4096 in bf16 is 8192 bytes; all_reduce over p sockets puts 2 (p-1)/p of them on
the busiest link in 2 steps, all_gather (p-1)/p in 1.
"""

from collections.abc import Callable
from functools import partial

import pytest

from agent.presets import preset
from compiler.frontend.spec import Attention, Dense, Layer
from compiler.ir.actions import Shard
from compiler.ir.graph import Graph
from compiler.ir.mesh import Collective, CollectiveKind, MeshAxis
from compiler.lower import lower_block
from compiler.passes.shard import shard_block
from compiler.pipeline import compile_schedule
from compiler.program import Program
from compiler.target import Target

Make = Callable[..., Graph]
KIND = "gqa_dense"

#: sockets -> {stage: (link bytes, steps)}
COLLECTIVES = {
    1: {},
    2: {
        "y.all_gather": (4096, 1),
        "attn.out.all_reduce": (8192, 2),
        "ffn.out.all_reduce": (8192, 2),
        "logits.all_gather": (128256, 1),
    },
    8: {
        "y.all_gather": (7168, 1),
        "attn.out.all_reduce": (14336, 2),
        "ffn.out.all_reduce": (14336, 2),
        "logits.all_gather": (224448, 1),
    },
    16: {
        "y.all_gather": (7680, 1),
        # two sockets share a KV head: the query rows of its 4 heads (4 x 128 x 2 bytes) come together,
        "attn.q.all_gather": (512, 1),
        # and so do the partial values, maxima and sums of both halves of the context (2 x 4 x 130 x 4 bytes)
        "attn.partial.all_gather": (2080, 1),
        "attn.out.all_reduce": (15360, 2),
        "ffn.out.all_reduce": (15360, 2),
        "logits.all_gather": (240480, 1),
    },
}
#: sockets -> sizes of (q: kv_heads, q_group | core: kv_heads, q_group, splits, context | ffn | vocab, embedding)
SIZES = {
    1: ((8, 4), (8, 4, 1, 4096), 14336, 128256, 4096),
    2: ((4, 4), (4, 4, 1, 4096), 7168, 64128, 2048),
    8: ((1, 4), (1, 4, 1, 4096), 1792, 16032, 512),
    16: ((1, 2), (1, 4, 1, 2048), 896, 8016, 256),
}


def llama(graph: Make, sockets: int) -> Graph:
    layer = Layer(Attention(kv_heads=8, q_group=4, head_dim=128), Dense(14336))
    return graph(sockets=sockets, context=4096, hidden=4096, vocab=128256, layers=(layer,) * 32)


@pytest.mark.parametrize("sockets", COLLECTIVES)
def test_collectives(graph: Make, target: Target, sockets: int) -> None:
    g = llama(graph, sockets)
    program = compile_schedule(g, preset("o3", g, target), target)
    assert isinstance(program, Program), program
    found = {s.op: (s.link_bytes, s.link_steps) for section in program.sections for s in section.stages if s.link_steps}
    assert found == COLLECTIVES[sockets]
    assert all(s.pcus == 0 for section in program.sections for s in section.stages if s.link_steps)


@pytest.mark.parametrize("sockets", SIZES)
def test_local_sizes(graph: Make, target: Target, sockets: int) -> None:
    g = llama(graph, sockets)
    local = partial(lower_block, schedule=preset("o3", g, target), sockets=sockets)
    layer, head, embed = (local(g.block[kind]) for kind in (KIND, "head", "embed"))
    q, core = layer.op["attn.q_proj"], layer.op["attn.core"]
    assert SIZES[sockets] == (
        (q.size("kv_heads"), q.size("q_group")),
        tuple(core.size(n) for n in ("kv_heads", "q_group", "splits", "context")),
        layer.op["ffn.act"].size("ffn"),
        head.op["head.lm_head"].size("vocab"),
        embed.op["embed.gather"].size("hidden"),
    )
    cache = layer.tensor["attn.k_cache"].elements
    assert cache * sockets == g.block[KIND].tensor["attn.k_cache"].elements
    held = sum(t.elements for t in layer.weights if len(t.dims) > 1)
    shared = 1 if sockets <= 8 else 2  # on 16 sockets both sockets of a KV head hold its k and v projections
    split, twice = 4096 * 4096 * 2 + 3 * 4096 * 14336, 2 * 4096 * 1024
    assert held * sockets == split + shared * twice


def test_values_split_one_way_are_gathered_for_readers_that_split_them_another(graph: Make) -> None:
    """q lies on 2 of the 4 heads' splits, its readers on 4: it is put together first, 4 heads x 2 x 64 on a socket."""
    actions = tuple(
        Shard(KIND, part, "kv_heads", ways) for part, ways in (("attn", 4), ("attn.q_proj", 2), ("attn.o_proj", 4))
    )
    block, refusals = shard_block(graph().block[KIND], actions, 4)
    assert not refusals
    assert [op.name for op in block.ops if op.collective] == ["attn.q.all_gather", "attn.out.all_reduce"]
    gather = block.op["attn.q.all_gather"]
    assert gather.collective == Collective(CollectiveKind.ALL_GATHER, (MeshAxis(2, 1),), ("kv_heads",))
    assert block.tensor["attn.q"].elements * 2 == block.tensor["attn.q@all_gather"].elements == 4 * 2 * 64
    assert block.op["attn.q_rope"].size("kv_heads") == 1  # reads its slice of the whole
