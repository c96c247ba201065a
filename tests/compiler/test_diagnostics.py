"""Every code of a refusal: an example that produces it, which is the one that the README shows."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compiler.diagnostic import Code, Diagnostic
from compiler.frontend.quantisation import Quantisation, Rule
from compiler.ir.dtype import Element, Scheme
from compiler.ir.graph import Graph
from compiler.ir.text import parse_schedule
from compiler.pipeline import compile_schedule
from compiler.place import place
from compiler.program import Program
from compiler.target import Target

#: 128 rows and 128 columns of a matrix share a scale, as in DeepSeek-V3's checkpoint.
BLOCKS = Quantisation("fp8", (Rule(Scheme("fp8_block", Element.FP8, scale=32, rows=128, columns=128)),))
README = Path(__file__).parents[2] / "compiler/README.md"
#: Code -> the graph (kind, and what differs from the usual one), the schedule, and numbers of the target that differ.
EXAMPLES: dict[Code, tuple[str, dict[str, Any], str, dict[str, int]]] = {
    Code.UNKNOWN_BLOCK: ("dense", {}, "fuse gqa_dens all", {}),
    Code.UNKNOWN_OP: ("dense", {}, "cut head head.lmhead", {}),
    Code.UNKNOWN_DIM: ("dense", {}, "shard gqa_dense ffn fnn ways=2", {}),
    Code.HOLE: ("dense", {}, "tile gqa_dense context size=?", {}),
    Code.REWRITE_NOT_APPLICABLE: ("dense", {}, "rewrite gqa_dense mla_absorb", {}),
    Code.SHARD_ILLEGAL: ("dense", {}, "shard gqa_dense attn context ways=2", {}),
    Code.SHARD_UNEVEN: ("dense", {"sockets": 16}, "shard gqa_dense attn kv_heads ways=16", {}),
    Code.SHARD_BLOCK_SCALE: ("dense", {"weights": "auto", "quantisation": BLOCKS}, "shard gqa_dense ffn ffn ways=4", {}),
    Code.SHARD_OVER_SOCKETS: ("dense", {}, "shard gqa_dense attn kv_heads ways=4\nshard gqa_dense attn q_group ways=2", {}),
    Code.SHARD_MESH: ("moe", {}, "shard gqa_moe ffn experts ways=4\nshard gqa_moe ffn.experts_down experts ways=2", {}),
    Code.FUSE_ORDER: ("dense", {}, "fuse gqa_dense ffn.act..ffn.norm", {}),
    Code.LOOP_NOT_REPEATED: ("dense", {}, "loop head", {}),
    Code.LOOP_BODY_NOT_ONE_SECTION: ("dense", {}, "loop gqa_dense", {}),
    Code.NOTHING_HERE: ("dense", {}, "place gqa_dense experts ddr", {}),
    Code.EXPERTS_RANGE: ("moe", {}, "experts gqa_moe static regions=3 tile=1", {}),
    Code.PLACE_ILLEGAL: ("dense", {}, "place gqa_dense kv sram", {}),
    Code.SECTION_OVER_PCUS: ("dense", {}, "units gqa_dense ffn.norm pcus=2000", {}),
    Code.SECTION_OVER_SRAM: ("dense", {}, "prefetch gqa_dense nbytes=600MiB", {}),
    Code.HBM_OVER: ("dense", {}, "place * weights hbm\nplace * kv hbm", {"hbm_bytes": 1_000_000}),
    Code.DDR_OVER: ("dense", {}, "place * weights ddr", {"ddr_bytes": 100_000}),
    Code.LINK_OVER_STREAMS: ("dense", {}, "fuse gqa_dense attn.norm..attn.v_proj", {"grid_link_streams": 1}),
}  # fmt: skip


def example(code: Code, graph: Callable[..., Graph], target: Target) -> Diagnostic:
    kind, changes, text, numbers = EXAMPLES[code]
    machine = replace(target, **numbers)
    result = compile_schedule(graph(kind, **changes), parse_schedule(text), machine)
    if code is Code.LINK_OVER_STREAMS and isinstance(result, Program):  # said when a program is placed
        result = place(result, machine)
    assert isinstance(result, tuple), f"{text!r} compiles"
    return next(d for d in result if d.code is code)


@pytest.mark.parametrize("code", EXAMPLES)
def test_the_readme_shows_what_the_compiler_says(code: Code, graph: Callable[..., Graph], target: Target) -> None:
    found = example(code, graph, target)
    rows = dict(re.findall(r"^\| `([A-Z_]+)` \| [^|]+ \| `(.+)` \|$", README.read_text(encoding="utf-8"), re.M))
    assert rows[code].replace("\\|", "|") == str(found)


def test_every_code_has_an_example() -> None:
    assert set(Code) == set(EXAMPLES)
