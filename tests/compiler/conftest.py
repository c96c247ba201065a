"""Small models as ModelSpec: every size different, so that a wrong dimension shows."""

from collections.abc import Callable
from typing import Any

import pytest

from compiler.frontend import build
from compiler.frontend.spec import Attention, Dense, LatentAttention, Layer, ModelSpec, MoE
from compiler.ir.graph import Graph, Phase, Workload
from compiler.target import Target, load_target

GQA = Attention(kv_heads=4, q_group=2, head_dim=64)
SWA = Attention(kv_heads=4, q_group=2, head_dim=64, window=32)
MLA = LatentAttention(heads=8, q_lora=96, kv_lora=128, nope=32, rope=16, v_dim=48)
DENSE = Dense(768)
EXPERTS = MoE(experts=16, top_k=2, width=192, shared_width=384)
LAYERS = {
    "dense": (Layer(GQA, DENSE),) * 3,
    "moe": (Layer(GQA, EXPERTS),) * 3,
    "mla": (Layer(MLA, DENSE), *(Layer(MLA, EXPERTS),) * 2),
    "alternating": (Layer(SWA, EXPERTS), Layer(GQA, EXPERTS)) * 3,
}


@pytest.fixture(scope="session")
def graph() -> Callable[..., Graph]:
    def make(
        kind: str = "dense",
        sockets: int = 4,
        phase: Phase = Phase.DECODE,
        batch: int = 1,
        context: int = 256,
        **spec: Any,
    ) -> Graph:
        values = {"hidden": 512, "vocab": 1000, "tied": False, "layers": LAYERS[kind], **spec}
        weights = values.pop("weights", "bf16")
        return build(ModelSpec("small", "small", **values), Workload(phase, batch, context, sockets, weights))

    return make


@pytest.fixture(scope="session")
def target() -> Target:
    return load_target("sn40l")
