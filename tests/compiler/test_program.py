"""The file form of a program: read back to the same bytes and figures, and strict about what it is not."""

import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.presets import PRESETS, preset
from compiler.canonical import readable_json
from compiler.errors import InputError
from compiler.ir.actions import ALL, Allocation, Axis, Experts, Tile
from compiler.ir.graph import Graph, Phase
from compiler.pipeline import compile_schedule
from compiler.place import place
from compiler.program import PROGRAM_VERSION, Program
from compiler.program_json import FORMAT, parse_program, print_program
from compiler.target import Target
from simulator.bound import bound_of, bound_of_program
from simulator.estimate import estimate
from simulator.invariants import SimulatorFault

Make = Callable[..., Graph]
KINDS = ("dense", "moe", "mla", "alternating")


def compiled(graph: Graph, target: Target, name: str = "o3", *extra: Any) -> Program:
    program = compile_schedule(graph, preset(name, graph, target).with_actions(*extra), target)
    assert isinstance(program, Program), program
    return program


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize("name", PRESETS)
def test_a_program_reads_back_to_the_same_bytes_and_figures(
    graph: Make, target: Target, kind: str, phase: Phase, name: str
) -> None:
    g = graph(kind, phase=phase, weights="fp8" if kind == "mla" else "bf16")
    program = compiled(g, target, name)
    text = print_program(program)
    again = parse_program(text, "p.json")
    assert print_program(again) == text and text.isascii()
    assert again.id == program.id and again.block.keys() == program.block.keys()
    assert bound_of_program(again, target) == bound_of(g, target)
    assert estimate(again, target, bound_of_program(again, target)) == estimate(program, target, bound_of(g, target))


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_programs_of_other_sizes_read_back(graph: Make, target: Target, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(KINDS))
    sockets, batch = data.draw(st.sampled_from((1, 2, 4, 8))), data.draw(st.integers(1, 9))
    g = graph(kind, sockets=sockets, batch=batch, context=data.draw(st.integers(64, 300)))
    text = print_program(compiled(g, target, data.draw(st.sampled_from(PRESETS))))
    assert print_program(parse_program(text, "p.json")) == text


@pytest.mark.parametrize("kind", KINDS)
def test_a_placed_program_reads_back(graph: Make, target: Target, kind: str) -> None:
    g = graph(kind)
    program = place(compiled(g, target), target)
    assert isinstance(program, Program)
    text = print_program(program)
    again = parse_program(text, "p.json")
    assert print_program(again) == text and again.placed and again.id == program.id
    assert again.sections == program.sections and again.memory == program.memory
    assert estimate(again, target, bound_of_program(again, target)) == estimate(program, target, bound_of(g, target))
    value = json.loads(text)
    section = value["runs"][1]["sections"][0]
    for change, says in (
        (lambda: section["place"]["stages"].pop(), "place.stages"),
        (lambda: section["buffers"][0].update(readers=[99]), "buffers[0]"),
    ):
        change()
        with pytest.raises(InputError) as error:
            parse_program(json.dumps(value), "p.json")
        assert f"p.json.runs[1].sections[0].{says}" in str(error.value)


def test_what_an_executor_needs_is_in_the_program(graph: Make, target: Target) -> None:
    g = graph("moe", phase=Phase.PREFILL, context=256)
    tiles = (Tile(ALL, Axis.TOKENS, 48), Tile(ALL, Axis.CONTEXT, 96), Experts(ALL, Allocation.STATIC, 2, 8))
    program = compiled(g, target, "o0", *tiles)
    sections = [s for s in program.sections if s.block == "gqa_moe"]
    assert {(s.tile_tokens, s.context_rows, s.tiles) for s in sections} == {(48, 96, 6)}
    rows = [(e.op, e.regions, e.rows) for s in sections for e in s.experts]
    assert rows == [(f"ffn.experts_{n}", 2, 8) for n in ("gate", "up", "down")]
    block = program.block["gqa_moe"]
    assert [s.op for section in sections for s in section.stages] == [op.name for op in block.ops]
    assert block.tensor["w.attn.q_proj"].layout.split("kv_heads") is not None  # who holds what
    assert block.tensor["w.attn.q_proj"].key == "model.layers.{layer}.self_attn.q_proj.weight"


def test_it_is_readable(graph: Make, target: Target) -> None:
    lines = print_program(compiled(graph(), target)).splitlines()
    assert lines[1:3] == [f'  "format": "{FORMAT}",', f'  "version": {PROGRAM_VERSION},']
    assert max(map(len, lines)) <= 120
    assert any('"preds": ["attn.q_rope", "attn.kv_append"]' in text for text in lines)
    assert '          "dims": [["tokens", 1], ["kv_heads", 1], ["q_group", 2], ["head_dim", 64]],' in lines


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({}, "{}"),
        ({"a": [1, {"b": []}]}, '{"a": [1, {"b": []}]}'),
        ({"a": [10, 20], "b": {"c": "d"}}, '{\n  "a": [10, 20],\n  "b": {"c": "d"}\n}'),
        (["é" * 4], '[\n  "\\u00e9\\u00e9\\u00e9\\u00e9"\n]'),
    ],
)
def test_readable_json(value: Any, text: str) -> None:
    assert readable_json(value, 25) == text + "\n"
    assert json.loads(text) == value


SECTION, STAGE = ("runs", 1, "sections", 0), ("runs", 1, "sections", 0, "stages", 3)
BLOCK = ("blocks", 1)
MISSING = object()
#: where, what stands there, the place that is named, and what is said of it.
BAD: list[tuple[tuple[Any, ...], Any, str, str]] = [
    (("version",), 1, "p.json", "version 1; this rdutune reads version 2"),
    (("version",), True, "p.json", "version True"),
    (("format",), "other", "p.json", "not a program"),
    (("extra",), 1, "p.json, key 'extra'", "unknown"),
    (("runs",), MISSING, "p.json", "missing: runs"),
    (("runs",), [], "p.json.runs", "no run"),
    (("runs",), {}, "p.json.runs", "is not a list"),
    (("launch",), "hardwear", "p.json.launch", "did you mean hardware?"),
    (("memory", "hbm_kv"), -1, "p.json.memory.hbm_kv", "out of range"),
    (("memory", "hbm_kv"), 2**70, "p.json.memory.hbm_kv", "out of range"),
    (("memory", "hbm_kv"), float("nan"), "p.json.memory.hbm_kv", "nan is not a whole number"),
    (("workload", "sockets"), 0, "p.json.workload", "at least 1"),
    (("workload", "sockets"), 2, "p.json.blocks[0]", "all on the same sockets"),
    (("runs", 1, "times"), 0, "p.json.runs[1].times", "at least 1"),
    ((*SECTION, "tiles"), 0, "p.json.runs[1].sections[0].tiles", "at least 1"),
    ((*SECTION, "block"), "gqa", "p.json.runs[1].sections[0].block", "blocks: embed, gqa_dense"),
    ((*SECTION, "stages"), None, "p.json.runs[1].sections[0].stages", "not a list"),
    (SECTION, 7, "p.json.runs[1].sections[0]", "7 is not an object"),
    ((*STAGE, "pcus"), 1.5, "p.json.runs[1].sections[0].stages[3].pcus", "1.5 is not a whole number"),
    ((*STAGE, "pcus_used"), 99999, "p.json.runs[1]", "uses 99999"),
    ((*STAGE, "streams"), 1, "p.json.runs[1].sections[0].stages[3].streams", "1 is not true or false"),
    ((*STAGE, "pattern"), "contrakt", "p.json.runs[1].sections[0].stages[3].pattern", "did you mean contract"),
    ((*STAGE, "preds"), ["y"], "p.json.runs[1].sections[0].stages[3].preds", "no stage before this one"),
    ((*SECTION, "stages", -1, "op"), "attn.q", "p.json.runs[1]", "the sections run"),
    ((*STAGE, "depht"), 1, "p.json.runs[1].sections[0].stages[3], key 'depht'", "did you mean depth"),
    ((*BLOCK, "ops", 0, "dims", 0), ["tokens"], "p.json.blocks[1].ops[0].dims[0]", '["name", size]'),
    ((*BLOCK, "ops", 0, "dims", 0), ["a b", 1], "p.json.blocks[1].ops[0].dims[0]", "dimension 'a b'"),
    ((*BLOCK, "ops", 0, "inputs"), ["no"], "p.json.blocks[1]", "reads no before it is produced"),
    ((*BLOCK, "tensors", 0, "dtype"), "bf17", "p.json.blocks[1].tensors[0].dtype", "not a storage type"),
    ((*BLOCK, "tensors", 0, "dtype"), {"label": "a", "element": "bf16", "bits": "1/0"}, "p.json.blocks[1].tensors[0].dtype.bits", "not a fraction"),
    ((*BLOCK, "tensors", 0, "dtype"), {"label": "a", "element": "bf1", "bits": "1"}, "p.json.blocks[1].tensors[0].dtype.element", "one of: fp32"),
    ((*BLOCK, "tensors", 0, "layout"), {"partial": [{"ways": 2, "stride": 1}]}, "p.json.blocks[1]", "x: enters or leaves as"),
    ((*BLOCK, "tensors", 0, "layout"), {"partial": [{"ways": 1, "stride": 1}]}, "p.json.blocks[1].tensors[0].layout.partial[0]", "1 ways"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value", "where", "what"), BAD)
def test_bad_programs_name_the_place(
    graph: Make, target: Target, path: tuple[Any, ...], value: Any, where: str, what: str
) -> None:
    document = compiled(graph(), target).to_json()
    at: Any = document
    for key in path[:-1]:
        at = at[key]
    if value is MISSING:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    with pytest.raises(InputError) as found:
        Program.from_json(document, "p.json")
    assert found.value.where == where and what in str(found.value)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "line 1, column 1"),
        ("[]", "[] is not a program"),
        ("nul", "not JSON"),
        ("[" * 100_000, "not JSON that can be read"),
        ('{"format": 1, "format": 1}', "'format' stands there twice"),
        ("1" * 5000, "not JSON that can be read"),
    ],
)
def test_what_is_no_program_at_all(text: str, what: str) -> None:
    with pytest.raises(InputError) as found:
        parse_program(text, "p.json")
    assert what in str(found.value)


def test_a_truncated_file_says_so(graph: Make, target: Target) -> None:
    text = print_program(compiled(graph(), target))
    for end in range(1, len(text) - 2, 997):
        with pytest.raises(InputError, match=r"p\.json, line"):
            parse_program(text[:end], "p.json")


JUNK = st.sampled_from((None, True, -1, 0, 1, 3, 2**63, 0.5, float("inf"), "", "tokens", [], {}, [["tokens", 2]]))


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_a_damaged_program_is_refused_or_still_simulates(graph: Make, target: Target, data: st.DataObject) -> None:
    """Never anything but an InputError; what is read at all has a time, or breaks a law that the simulator names."""
    document = _document(graph, target)
    at: Any = document
    while True:
        keys = list(at) if isinstance(at, dict) else range(len(at))
        key = data.draw(st.sampled_from(list(keys)))
        if not isinstance(at[key], dict | list) or not at[key] or data.draw(st.integers(0, 5)) == 0:
            break
        at = at[key]
    if data.draw(st.booleans()):
        at[key] = data.draw(JUNK)
    else:
        del at[key]
    try:
        program = Program.from_json(document, "p.json")
    except InputError as error:
        assert error.where.startswith("p.json")
        return
    try:
        assert estimate(program, target, bound_of_program(program, target)).latency_s > 0
    except SimulatorFault as fault:
        assert str(fault)


_MADE: list[dict[str, Any]] = []


def _document(graph: Make, target: Target) -> dict[str, Any]:
    if not _MADE:
        _MADE.append(compiled(graph("moe"), target, "o1").to_json())
    return deepcopy(_MADE[0])
