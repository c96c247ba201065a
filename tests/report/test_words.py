"""Numbers and foreign text as words: a table of both."""

import pytest

from agent.reference import number
from agent.words import bound_words, clean, count, decimal_bytes, percent, rate, seconds


@pytest.mark.parametrize(
    ("value", "words"),
    [(2.19439e-3, "2.194 ms"), (3.15e-5, "31.50 µs"), (12.0, "12.00 s"), (0.99999, "1.000 s"), (0.0, "0 s"),
     (2e-9, "2.000 ns"), (3600.0, "3,600 s"), (-4.756e-4, "-475.6 µs")],
)  # fmt: skip
def test_seconds(value: float, words: str) -> None:
    assert seconds(value) == words


def test_numbers() -> None:
    assert count(46_702_792_704) == "46.7 billion" and count(999_999) == "999,999"
    assert decimal_bytes(1_342_052_808_704) == "1.34 TB" and decimal_bytes(12) == "12 B"
    assert rate(455.7) == "455.7" and rate(12345.6) == "12,346"
    assert percent(1, 4) == "25.0%" and percent(1, 10_000) == "<0.1%" and percent(0, 5) == "0.0%"


@pytest.mark.parametrize(
    ("raw", "safe"),
    [("a\nb\tc", "a b c"), ("\x1b[31mred", "\ufffd[31mred"), ("x\u202ey", "x\ufffdy"), ("\udc80", "\ufffd"),
     ("a" * 500, "a" * 399 + "…"), ("模型", "模型")],
)  # fmt: skip
def test_clean(raw: str, safe: str) -> None:
    assert clean(raw) == safe


def test_the_bound_says_which_memory() -> None:
    assert bound_words("memory") == "HBM and DDR together"
    assert bound_words("ddr").startswith("DDR,") and bound_words("compute") == "arithmetic"


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [("hbm_bytes_per_s", 1.6e12, "1.60 TB/s"), ("hbm_bytes", 2**36, "64.0 GiB"), ("step_s", 2e-7, "200.0 ns"),
     ("clock_hz", 1.6e9, "1.6 GHz"), ("pcus", 1040, "1,040"), ("socket_counts", (1, 2), "1, 2"), ("share", 0.8, "0.8")],
)  # fmt: skip
def test_numbers_of_a_target_have_units(key: str, value: object, words: str) -> None:
    assert number(key, value) == words
