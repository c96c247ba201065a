"""One hardware description. Every number of a target file carries its source, or says that it is assumed or fitted."""

from dataclasses import dataclass, fields
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

from compiler.canonical import identity
from compiler.errors import InputError, nearest

MAX_FITTED = 3


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a number comes from: `kind` is source, assumed or fitted; `text` says which or why."""

    kind: str
    text: str


@dataclass(frozen=True)
class Target:
    """A reconfigurable dataflow unit. Per socket; bytes, seconds and cycles as the field names say."""

    name: str
    description: str
    pcus: int
    pmus: int
    pmu_bytes: int
    hbm_bytes: int
    hbm_bytes_per_s: float
    ddr_bytes: int
    ddr_bytes_per_s: float
    lanes: int
    pcu_stages: int
    clock_hz: float
    port_bytes_per_cycle: int
    stage_latency_cycles: int
    min_reduction: int
    hbm_latency_s: float
    ddr_latency_s: float
    link_bytes_per_s: float
    launch_hardware_s: float
    launch_software_s: float
    hbm_efficiency: float
    kv_stream_efficiency: float
    collective_step_s: float
    tile_columns: int
    tile_rows: int
    tiles_across: int
    tiles_down: int
    grid_link_bytes_per_cycle: int
    tile_link_bytes_per_cycle: int
    grid_link_streams: int
    hop_cycles: int
    stage_hop_cycles: int
    pmu_banks: int
    socket_counts: tuple[int, ...]
    provenance: tuple[tuple[str, Provenance], ...] = ()

    @cached_property
    def sram_bytes(self) -> int:
        return self.pmus * self.pmu_bytes

    @cached_property
    def bank_bytes(self) -> int:
        return self.pmu_bytes // self.pmu_banks

    @cached_property
    def peak_flops(self) -> float:
        """BF16 FLOP/s of a socket: pcus x lanes x stages multiply-accumulates a cycle."""
        return self.pcus * self.lanes * self.pcu_stages * 2 * self.clock_hz

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Once: a target is part of most cache keys."""
        return hash(self.id)

    @cached_property
    def id(self) -> str:
        """Identity of the numbers; provenance and description are not part of it."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("description", "provenance")}
        return identity("target1", values)


_TEXT = ("name", "description")
_INTEGER = {f.name for f in fields(Target) if f.type in (int, "int")}
_NUMBERS = tuple(f.name for f in fields(Target) if f.name not in (*_TEXT, "provenance"))
_FRACTIONS = ("hbm_efficiency", "kv_stream_efficiency")


def target_names() -> tuple[str, ...]:
    """Names of the targets that ship with rdutune."""
    folder = files("compiler") / "targets"
    return tuple(sorted(p.name.removesuffix(".yaml") for p in folder.iterdir() if p.name.endswith(".yaml")))


def load_target(name: str) -> Target:
    """The target called `name`, or the target file at that path. InputError names the key that is wrong."""
    if name.endswith((".yaml", ".yml")):
        path = Path(name)
        if not path.is_file():
            raise InputError(f"target {name}", "no such file", f"targets that ship: {', '.join(target_names())}")
        return parse_target(path.read_text(encoding="utf-8", errors="replace"), name)
    if name not in target_names():
        raise InputError(
            f"target {name!r}",
            f"unknown; {nearest(name, target_names())}".rstrip("; "),
            f"targets that ship: {', '.join(target_names())}; or give the path of a .yaml file",
        )
    return parse_target((files("compiler") / "targets" / f"{name}.yaml").read_text(encoding="utf-8"), name)


def parse_target(text: str, where: str) -> Target:
    """Read a target file's text. Every key is required, none is unknown, each number has one provenance."""
    import yaml

    try:
        raw = yaml.safe_load(text)
        twice = _keys_twice(yaml.compose(text, yaml.SafeLoader))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InputError(f"target {where}", f"not YAML: {error}") from None
    if twice:
        raise InputError(f"target {where}, line {twice[1]}", f"the key {twice[0]!r} stands there a second time")
    if not isinstance(raw, dict):
        raise InputError(f"target {where}", "the file is not a mapping of keys to values")
    known = (*_TEXT, *_NUMBERS)
    for key in raw:
        if key not in known:
            raise InputError(f"target {where}, key {key!r}", f"unknown; {nearest(str(key), known)}".rstrip("; "))
    missing = [key for key in known if key not in raw]
    if missing:
        raise InputError(f"target {where}", f"missing: {', '.join(missing)}")
    values: dict[str, Any] = {key: _text(raw[key], f"target {where}, key {key!r}") for key in _TEXT}
    provenance = []
    for key in _NUMBERS:
        values[key], origin = _quantity(key, raw[key], f"target {where}, key {key!r}")
        provenance.append((key, origin))
    fitted = [key for key, origin in provenance if origin.kind == "fitted"]
    if len(fitted) > MAX_FITTED:
        raise InputError(f"target {where}", f"{len(fitted)} fitted numbers ({', '.join(fitted)}), at most {MAX_FITTED}")
    _check_grid(values, f"target {where}")
    return Target(**values, provenance=tuple(provenance))


def _check_grid(values: dict[str, Any], where: str) -> None:
    """The cells of the grid are the units, banks divide a PMU, and the hops of a stage are part of its latency."""
    cells = values["tile_columns"] * values["tile_rows"] * values["tiles_across"] * values["tiles_down"]
    if not cells == values["pcus"] == values["pmus"]:
        what = f"{cells} cells, {values['pcus']} PCUs and {values['pmus']} PMUs: a cell is one of each"
        raise InputError(
            f"{where}, the grid", what, "tiles_across x tiles_down x tile_columns x tile_rows = pcus = pmus"
        )
    if values["pmu_bytes"] % values["pmu_banks"]:
        raise InputError(f"{where}, key 'pmu_banks'", f"{values['pmu_banks']} banks do not divide pmu_bytes")
    if values["stage_hop_cycles"] > values["stage_latency_cycles"]:
        raise InputError(f"{where}, key 'stage_hop_cycles'", "is more than stage_latency_cycles, which it is part of")


def _keys_twice(node: Any) -> tuple[str, int] | None:
    """The first key that a mapping has twice, with its line; YAML itself lets the last one win."""
    seen = set()
    for key, value in node.value if node is not None and node.id == "mapping" else ():
        if key.value in seen:
            return str(key.value), key.start_mark.line + 1
        seen.add(key.value)
        if deeper := _keys_twice(value):
            return deeper
    return None


def _filled(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise InputError(where, f"{value!r} is not text")
    return value


def _quantity(key: str, raw: Any, where: str) -> tuple[Any, Provenance]:
    right = f"{key}: {{value: NUMBER, source: ...}} (or assumed: ..., or fitted: ...)"
    if not isinstance(raw, dict) or "value" not in raw:
        raise InputError(where, "no value", right)
    kinds = [k for k in raw if k != "value"]
    if len(kinds) != 1 or kinds[0] not in ("source", "assumed", "fitted") or not _filled(raw[kinds[0]]):
        raise InputError(where, f"needs exactly one of source, assumed, fitted; has {kinds or 'none'}", right)
    origin = Provenance(kinds[0], raw[kinds[0]].strip())
    value = raw["value"]
    if key == "socket_counts":
        if not isinstance(value, list) or not value or not all(type(v) is int and v > 0 for v in value):
            raise InputError(where, f"{value!r} is not a list of positive whole numbers")
        return tuple(sorted(set(value))), origin
    if isinstance(value, str):  # YAML 1.1 reads 1e12 without a dot as text
        try:
            value = float(value)
        except ValueError:
            raise InputError(where, f"{value!r} is not a number", right) from None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1e-18 <= value <= 1e24:
        raise InputError(where, f"{value!r} is not a positive number between 1e-18 and 1e24", right)
    if key in _FRACTIONS and value > 1:
        raise InputError(where, f"{value} is more than 1: no stream is faster than its channel")
    if key in _INTEGER:
        if value != int(value):
            raise InputError(where, f"{value} is not a whole number")
        return int(value), origin
    return float(value), origin
