"""Steps: what computes in a capture, over which axes; views are followed already, nothing is named yet.

A step reads tensors (`sources`), weights and tables, and gives tensors.
"""

from dataclasses import dataclass, field
from enum import Enum, auto

from compiler.frontend.capture.axes import Axes, Axis
from compiler.frontend.capture.ir import Node
from compiler.frontend.capture.seen import Call, Origin, Seen, Walk


class Kind(Enum):
    CONTRACT = auto()
    CONV = auto()
    MAP = auto()
    NORM = auto()
    REDUCE = auto()
    SCAN = auto()  # a running sum
    SHIFT = auto()  # for each token, an earlier one
    GATHER = auto()
    SCATTER = auto()
    SORT = auto()
    INDEX = auto()  # which keys an attention reads
    ATTENTION = auto()
    EXPERTS = auto()
    RECURRENCE = auto()


@dataclass(eq=False)
class Step:
    """One operator, or several element-wise ones. `points`: the axes it runs over; `work`: its operations by element.

    work: for a MAP, (operations an element, elements) of each node; for others one pair with the operations a point.
    """

    kind: Kind
    nodes: list[Node]
    sources: tuple[str, ...]
    weights: tuple[str, ...]
    outputs: tuple[str, ...]
    points: Axis
    reduced: Axis = ()
    sequential: Axis = ()
    flops: int = 1
    work: int = 0
    tables: bool = False
    residual: bool = False
    name: str = ""
    words: dict[str, str] = field(default_factory=dict)

    @property
    def call(self) -> Call:
        return Call(self.nodes[0])


@dataclass(frozen=True, slots=True)
class Unsupported:
    """An operator that cannot be lowered, and why."""

    node: Node
    why: str

    def __str__(self) -> str:
        where = self.node.module or "the module itself"
        return f"{self.node.target} in {where} ({self.node.line or 'no source line'}): {self.why}"


@dataclass
class Flow(Walk):
    """The steps of one capture, in the order of its nodes, and what could not be lowered."""

    steps: list[Step] = field(default_factory=list)
    unsupported: list[Unsupported] = field(default_factory=list)
    biases: set[str] = field(default_factory=set)  # tables of distances as rows of a weight
    streams: set[str] = field(default_factory=set)  # the residual stream: the block input and every sum with it
    fixed: bool = False  # whether the traced tokens are all that a sequence ever has (patches of an image)
    edge: bool = False  # whether this is no layer: there a token may be read by its place (an encoder's first one)

    def add(self, kind: Kind, call: Call, axes: tuple[Axes, ...], points: Axis, **more: object) -> Step:
        """Append the step of a node whose outputs have `axes`."""
        names = call.refs()
        roots = self.roots(names)
        if any(self.atoms.flat(one).count(self.atoms.tokens) > 1 for one in axes):
            self.unsupported.append(
                Unsupported(call.node, "has a row for every two tokens outside a semantic operator")
            )
        for value, one in zip(call.node.outputs, axes, strict=True):
            self.seen[value.name] = Seen(one, (value.name,), Origin.DATA)
        step = Step(
            kind,
            [call.node],
            tuple(r for r in roots if self.seen[r].origin is Origin.DATA),
            tuple(r for r in roots if self.seen[r].origin is Origin.WEIGHT),
            tuple(value.name for value in call.node.outputs),
            points,
            tables=any(self.seen[name].origin is Origin.TABLE for name in names),
            **more,  # type: ignore[arg-type]
        )
        self.steps.append(step)
        return step
