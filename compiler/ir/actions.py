"""The actions a schedule is made of: one frozen dataclass a family, each documented as `rewrite: before -> after`.

The order of the families here is the order in which the compiler applies them. The same text feeds
`rdutune actions`, the prompt and the README. `block` is a block kind, or `*` for every kind the action applies to.
"""

from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, ClassVar

ALL = "*"


@dataclass(frozen=True, slots=True)
class Hole:
    """A number left to `fill`: `?`, or a range `low..high` (both ends included)."""

    low: int | None = None
    high: int | None = None

    def __post_init__(self) -> None:
        if (self.low is None) != (self.high is None) or (self.low is not None and self.low > self.high):  # type: ignore[operator]
            raise ValueError(f"range {self.low}..{self.high}")

    def __str__(self) -> str:
        return "?" if self.low is None else f"{self.low}..{self.high}"


Number = int | Hole


def known(value: Number) -> int:
    """The number, in passes that run after holes were refused."""
    assert isinstance(value, int)
    return value


class Rule(StrEnum):
    MERGE_QKV = "merge_qkv"
    MERGE_GATE_UP = "merge_gate_up"
    MLA_ABSORB = "mla_absorb"
    STREAMING_SOFTMAX = "streaming_softmax"
    SPLIT_KV = "split_kv"


class Launch(StrEnum):
    HARDWARE = "hardware"
    SOFTWARE = "software"


class Tier(StrEnum):
    SRAM = "sram"
    HBM = "hbm"
    DDR = "ddr"


class Class(StrEnum):
    """Classes of tensors that `place` moves."""

    WEIGHTS = "weights"
    EXPERTS = "experts"
    KV = "kv"


class Axis(StrEnum):
    TOKENS = "tokens"
    CONTEXT = "context"


class Allocation(StrEnum):
    STATIC = "static"


def word(kind: str, **default: Any) -> Any:
    """A positional argument of the text form; `kind` says what it names in error messages."""
    return field(metadata={"kind": kind, "keyword": False}, **default)


def number(kind: str = "count", low: int = 1, **default: Any) -> Any:
    """A keyword argument `name=value` of at least `low`; kind `bytes` accepts and prints KiB, MiB and GiB."""
    return field(metadata={"kind": kind, "keyword": True, "low": low}, **default)


@dataclass(frozen=True, slots=True)
class Action:
    """Base of all actions. `rank` orders the families; equal `subject`s override, the last one wins."""

    family: ClassVar[str]
    rewrite: ClassVar[str]
    #: Which fields make the subject; an action replaces an earlier one of its family with an equal subject.
    key: ClassVar[tuple[str, ...]]

    @property
    def subject(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.key)

    def __post_init__(self) -> None:
        for f in fields(self):
            value, low = getattr(self, f.name), f.metadata.get("low")
            if low is None:
                continue
            least = value.low if isinstance(value, Hole) else value
            if least is not None and least < low:
                raise ValueError(f"{f.name} is at least {low}, not {least}")


@dataclass(frozen=True, slots=True)
class Rewrite(Action):
    """Change the ops of a block without changing what they compute."""

    family = "rewrite"
    key = ("block", "rule")
    rewrite = (
        "merge_qkv: q, k, v projections -> one contraction (one weight stream) | merge_gate_up: gate, up -> one | "
        "mla_absorb: expand latent to k, v; attend -> fold kv_b into query and output; attend on the latent itself | "
        "streaming_softmax: scores; softmax; values -> one pass along the context, scores never stored | "
        "split_kv ways=N: one walk along the cache -> N walks at once, on up to N units a head, then one reduction "
        "(needs streaming_softmax)"
    )
    block: str = word("block")
    rule: Rule = word("rule")
    ways: Number = number(default=1)

    def __post_init__(self) -> None:
        Action.__post_init__(self)
        if self.rule is not Rule.SPLIT_KV and self.ways != 1:
            raise ValueError(f"{self.rule} takes no ways")


@dataclass(frozen=True, slots=True)
class Shard(Action):
    """Split a dimension of the ops of a part over sockets; collectives are inserted where values must meet."""

    family = "shard"
    key = ("block", "part", "dim")
    rewrite = (
        "part(dim) on every socket -> part(dim/ways) on each of `ways` sockets, all_reduce after a split reduction, "
        "all_gather where a whole value is needed; pad=M rounds a shard up to a multiple of M"
    )
    block: str = word("block")
    part: str = word("op")
    dim: str = word("dim")
    ways: Number = number()
    pad: Number = number(low=0, default=0)


@dataclass(frozen=True, slots=True)
class Fuse(Action):
    """Make a run of ops one section; `all` is the whole block. Without it every op is a section of its own."""

    family = "fuse"
    key = ("block", "span")
    rewrite = "sections [a] [b] [c] -> [a b c]: intermediates stay on chip, one launch instead of three"
    block: str = word("block")
    span: str = word("span")

    def __post_init__(self) -> None:
        ends = self.span.split("..")
        if self.span != "all" and (len(ends) != 2 or not all(ends)):
            raise ValueError(f"{self.span!r} is neither `all` nor FIRST..LAST, two ops")


@dataclass(frozen=True, slots=True)
class Cut(Action):
    """End a section after an op."""

    family = "cut"
    key = ("block", "after")
    rewrite = "section [a b c] -> [a b] [c]: frees units and SRAM, costs a launch and the traffic between"
    block: str = word("block")
    after: str = word("op")


@dataclass(frozen=True, slots=True)
class Loop(Action):
    """Kernel looping: run consecutive repeats as one launch; `a+b` loops a period of two kinds, both resident."""

    family = "loop"
    key = ("block",)
    rewrite = (
        "launch(block) x N -> launch(loop N { block }): no launch between layers, the carry of one tile stays on chip"
    )
    block: str = word("block")


@dataclass(frozen=True, slots=True)
class SetLaunch(Action):
    """Who starts sections: hardware orchestration (the chip) or software (the host)."""

    family = "launch"
    key = ()
    rewrite = "launch hardware -> launch software, or back: the cost of each launch changes"
    mode: Launch = word("mode")


@dataclass(frozen=True, slots=True)
class Place(Action):
    """Where a class of tensors lives. sram: held on chip while its section runs, loaded once for all loop tiles."""

    family = "place"
    key = ("block", "tensors")
    rewrite = (
        "tensors in hbm -> in ddr (frees HBM, streams at DDR speed) | in sram (loaded once a section, not once a tile)"
    )
    block: str = word("block")
    tensors: Class = word("class")
    tier: Tier = word("tier")


@dataclass(frozen=True, slots=True)
class Experts(Action):
    """How routed experts share the chip: static regions visited in a fixed order, and the rows of a loop tile."""

    family = "experts"
    key = ("block",)
    rewrite = "experts in one region, tile of all rows -> `regions` fixed regions, tiles of `tile` rows padded to full"
    block: str = word("block")
    allocation: Allocation = word("allocation")
    regions: Number = number(default=1)
    tile: Number = number(default=1)


@dataclass(frozen=True, slots=True)
class Tile(Action):
    """Loop tile: rows of tokens a pass of a section takes, or context rows a step of streaming softmax takes."""

    family = "tile"
    key = ("block", "axis")
    rewrite = (
        "one pass over all of axis -> ceil(axis/size) pipelined passes over `size`: less SRAM, overlap, more restarts"
    )
    block: str = word("block")
    axis: Axis = word("axis")
    size: Number = number()


@dataclass(frozen=True, slots=True)
class Units(Action):
    """PCUs of a stage."""

    family = "units"
    key = ("block", "op")
    rewrite = "stage on its heuristic share of the PCUs -> on `pcus` PCUs"
    block: str = word("block")
    op: str = word("op")
    pcus: Number = number()


@dataclass(frozen=True, slots=True)
class Buffer(Action):
    """Tiles a stage's output buffer holds: 1 makes producer and consumer take turns, 2 lets them overlap."""

    family = "buffer"
    key = ("block", "op")
    rewrite = "output buffer of 2 tiles -> of `depth` tiles"
    block: str = word("block")
    op: str = word("op")
    depth: Number = number()


@dataclass(frozen=True, slots=True)
class Prefetch(Action):
    """SRAM set aside so that weight streams of a section, and of the next loop iteration, run ahead of their use."""

    family = "prefetch"
    key = ("block",)
    rewrite = "weights stream while their stage runs -> they run ahead by up to `nbytes` while HBM is idle"
    block: str = word("block")
    nbytes: Number = number("bytes", low=0)


FAMILIES: tuple[type[Action], ...] = (
    Rewrite,
    Shard,
    Fuse,
    Cut,
    Loop,
    SetLaunch,
    Place,
    Experts,
    Tile,
    Units,
    Buffer,
    Prefetch,
)
FAMILY = {cls.family: cls for cls in FAMILIES}
#: fuse and cut are one ordered family: a later fuse undoes an earlier cut inside its span.
RANK = {cls: (2 if cls is Cut else i) for i, cls in enumerate(FAMILIES)}
