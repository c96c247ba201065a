"""Targets: every number with its provenance; a bad file names the key at fault."""

import pytest
import yaml

from compiler.errors import InputError
from compiler.target import load_target, parse_target


def test_every_number_has_one_provenance() -> None:
    target = load_target("sn40l")
    assert {origin.kind for _, origin in target.provenance} == {"source", "assumed", "fitted"}
    assert all(origin.text for _, origin in target.provenance)
    assert target.peak_flops == pytest.approx(638e12, rel=0.002)
    assert target.sram_bytes == 520 * 2**20


def changed(**values: object) -> str:
    from importlib.resources import files

    raw = yaml.safe_load((files("compiler") / "targets/sn40l.yaml").read_text())
    for key, value in values.items():
        if value is None:
            del raw[key]
        else:
            raw[key] = value
    return yaml.safe_dump(raw)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"pcus": None}, "missing: pcus"),
        ({"pcu": {"value": 1, "source": "x"}}, "did you mean pcus"),
        ({"pcus": 1040}, "no value"),
        ({"pcus": {"value": 1040}}, "exactly one of source, assumed, fitted"),
        ({"pcus": {"value": 1040, "source": "x", "assumed": "y"}}, "exactly one of"),
        ({"pcus": {"value": -1, "source": "x"}}, "not a positive number"),
        ({"pcus": {"value": True, "source": "x"}}, "not a positive number"),
        ({"pcus": {"value": 10.5, "source": "x"}}, "not a whole number"),
        ({"clock_hz": {"value": "fast", "source": "x"}}, "not a number"),
        ({"clock_hz": {"value": float("inf"), "source": "x"}}, "not a positive number"),
        ({"hbm_efficiency": {"value": 1.1, "fitted": "x"}}, "more than 1"),
        ({"socket_counts": {"value": [0], "source": "x"}}, "positive whole numbers"),
        ({"lanes": {"value": 32, "fitted": "x"}}, "4 fitted numbers"),
        ({"name": 7}, "not text"),
    ],
)
def test_bad_targets_name_the_key(values: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match="target mine") as error:
        parse_target(changed(**values), "mine")
    assert says in str(error.value)


@pytest.mark.parametrize("text", ["[1, 2", "- a\n- b", ""])
def test_a_target_that_is_no_mapping(text: str) -> None:
    with pytest.raises(InputError, match="target mine"):
        parse_target(text, "mine")
