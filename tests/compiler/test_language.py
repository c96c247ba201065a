"""The schedule language: text and JSON read back to the same value, canonical order, errors with place and caret."""

from dataclasses import fields
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compiler.errors import InputError
from compiler.ir.actions import FAMILIES, RANK, Action, Cut, Fuse, Hole, Prefetch, Rewrite, Rule, Tile
from compiler.ir.schedule import Schedule
from compiler.ir.text import from_json, parse_schedule, print_action, to_json, usage

WORDS = st.sampled_from(["gqa_dense", "*", "attn.core", "ffn", "a+b", "x..y", "all"])
SPANS = st.sampled_from(["all", "attn.norm..ffn.act", "x..y"])


def numbers(low: int) -> st.SearchStrategy[int | Hole]:
    value = st.integers(low, 10**14)
    ranges = st.tuples(value, value).map(lambda ends: Hole(min(ends), max(ends)))
    return st.one_of(value, st.just(Hole()), ranges, st.integers(1, 1000).map(lambda n: n * 2**20))


def actions_of(cls: type[Action]) -> st.SearchStrategy[Action]:
    hints = get_type_hints(cls)
    arguments: dict[str, Any] = {}
    for f in fields(cls):
        if f.metadata["keyword"]:
            arguments[f.name] = numbers(f.metadata["low"])
        else:
            hint = hints[f.name]
            arguments[f.name] = SPANS if f.name == "span" else WORDS if hint is str else st.sampled_from(list(hint))
    if cls is Rewrite:  # only split_kv takes ways
        plain = st.builds(Rewrite, block=WORDS, rule=st.sampled_from([r for r in Rule if r is not Rule.SPLIT_KV]))
        return st.one_of(plain, st.builds(Rewrite, **{**arguments, "rule": st.just(Rule.SPLIT_KV)}))
    return st.builds(cls, **arguments)


SCHEDULES = st.lists(st.one_of(*map(actions_of, FAMILIES)), max_size=8).map(lambda a: Schedule(tuple(a)))


@given(SCHEDULES)
def test_text_and_json_read_back(schedule: Schedule) -> None:
    assert parse_schedule(schedule.text) == schedule
    assert from_json(to_json(schedule)) == schedule
    assert parse_schedule(parse_schedule(schedule.text).text).id == schedule.id


@given(SCHEDULES)
def test_canonical_order(schedule: Schedule) -> None:
    ranks = [RANK[type(a)] for a in schedule.actions]
    assert ranks == sorted(ranks)
    assert len({(type(a), a.subject) for a in schedule.actions}) == len(schedule.actions)
    assert Schedule(schedule.actions) == schedule


def test_the_last_action_on_a_subject_wins_and_sections_keep_their_order() -> None:
    text = "tile a tokens size=4\ncut a x\nfuse a all\ntile a context size=8\ncut a y\ntile a tokens size=2\n"
    assert parse_schedule(text).actions == (
        Cut("a", "x"),
        Fuse("a", "all"),
        Cut("a", "y"),
        Tile("a", "context", 8),  # type: ignore[arg-type]
        Tile("a", "tokens", 2),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("number", "printed"),
    [(0, "0"), (1, "1"), (1024, "1KiB"), (3 * 2**20, "3MiB"), (2**31, "2GiB"), (2**20 + 1, "1048577")],
)
def test_bytes_are_printed_in_the_largest_whole_unit(number: int, printed: str) -> None:
    assert print_action(Prefetch("a", number)) == f"prefetch a nbytes={printed}"


@pytest.mark.parametrize(
    ("line", "column", "says"),
    [
        ("fuze a all", 1, "did you mean fuse"),
        ("  shard a attn kv_heads ways=x", 30, "a whole number of at least 1"),
        ("shard a attn kv_heads", 22, "needs ways"),
        ("shard a attn kv_heads ways=0", 28, "at least 1"),
        ("shard a attn kv_heads wys=2", 23, "did you mean ways"),
        ("shard a attn kv_heads ways=2 ways=2", 30, "ways twice"),
        ("fuse a ffn.act", 8, "two ops"),
        ("fuse a ..ffn.act", 8, "two ops"),
        ("units a op pcus", 12, "pcus has no value"),
        ("rewrite a merge_qkv ways=2", 21, "merge_qkv takes no ways"),
        ("shard a ways=2", 9, "expected an op"),
        ("place a weights l2", 17, "one of: sram, hbm, ddr"),
        ("rewrite a merge_qvk", 11, "did you mean merge_qkv"),
        ("tile a tokens size=8..4", 20, "size is 8..4"),
        ("tile a tokens size=1..2..3", 20, "a range LOW..HIGH"),
        ("tile a tokens size=4KiB", 20, "a whole number"),
        ("tile a tokens size=" + "9" * 30, 20, "a whole number"),
        ("prefetch a nbytes=-1", 19, "at least 0"),
        ("loop", 5, "needs block"),
        ("loop a b", 8, "unexpected 'b'"),
        ("experts a dynamic", 11, "one of: static"),
    ],
)
def test_errors_have_line_column_and_caret(line: str, column: int, says: str) -> None:
    with pytest.raises(InputError) as error:
        parse_schedule(f"# a comment\n\n{line}\n", "my.schedule")
    message = str(error.value)
    assert f"my.schedule, line 3, column {column}:" in message
    assert says in message
    shown, caret = message.splitlines()[1:3]
    assert shown.strip() == line.strip() and caret.index("^") - 2 == column - 1


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ([], "schedule"),
        ({"version": 2, "actions": []}, "schedule"),
        ({"version": 1, "actions": [{"family": "fuse", "block": "a", "span": "all"}, 7]}, "actions[1]"),
        ({"version": 1, "actions": [{"family": "fuse", "block": "a"}]}, "actions[0]: fuse needs span"),
        ({"version": 1, "actions": [{"family": "tile", "block": "a", "axis": "tokens", "size": True}]}, "key 'size'"),
        ({"version": 1, "actions": [{"family": "tile", "block": "a b", "axis": "tokens", "size": 1}]}, "key 'block'"),
        ({"version": 1, "actions": [{"family": "tile", "block": "a", "axis": "time", "size": 1}]}, "key 'axis'"),
        (
            {"version": 1, "actions": [{"family": "tile", "block": "a", "axis": "tokens", "sise": 1}]},
            "did you mean size",
        ),
        ({"version": 1, "actions": [{"family": "tile", "block": "a", "axis": "tokens", "size": "4..2"}]}, "key 'size'"),
    ],
)
def test_json_errors_name_the_element(value: Any, where: str) -> None:
    with pytest.raises(InputError) as error:
        from_json(value)
    assert where in str(error.value)


def test_holes_are_found_and_filled_in_order() -> None:
    schedule = parse_schedule("prefetch a nbytes=?\nrewrite a split_kv ways=2..8\nexperts a static regions=? tile=4\n")
    assert [(name, str(hole)) for _, name, hole in schedule.holes] == [
        ("ways", "2..8"),
        ("regions", "?"),
        ("nbytes", "?"),
    ]
    filled = schedule.filled([4, 2, 1024])
    assert not filled.holes
    assert filled.text.splitlines()[1:] == [
        "rewrite a split_kv ways=4", "experts a static regions=2 tile=4", "prefetch a nbytes=1KiB",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="argument"):
        schedule.filled([4])


@pytest.mark.parametrize("cls", FAMILIES)
def test_every_family_documents_itself(cls: type[Action]) -> None:
    assert "->" in cls.rewrite and usage(cls).startswith(f"usage: {cls.family}") and cls.__doc__
