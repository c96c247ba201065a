"""The stacks of layers of a model, one after the other, and how many tokens pass through each.

Of an encoder-decoder, prefill runs the encoder over `context` tokens a sequence (or as many as its class fixes), then
the decoder over the START_TOKENS it begins with; decode runs the decoder alone, which has `context` tokens behind it.
"""

from dataclasses import dataclass, replace

from compiler.frontend.capture import cores
from compiler.frontend.capture.dims import crosses
from compiler.frontend.capture.ir import Capture, Captured
from compiler.frontend.capture.latent import Layer
from compiler.frontend.capture.seen import Call, Origin
from compiler.frontend.capture.steps import Flow, Kind
from compiler.frontend.capture.walk import walk_capture
from compiler.frontend.parts import START_TOKENS
from compiler.ir.graph import Phase, Workload


@dataclass(frozen=True, slots=True)
class Stage:
    """A stack and what comes before it. `sequence` and `feeds` are of its own layers.

    source: tokens a sequence of the encoder's output that it reads, 0 for none; given: whether all inputs of `before`
    are activations (ids and the encoder's output), not the first alone.
    """

    name: str
    before: Capture
    layers: tuple[Capture, ...]
    sequence: tuple[int, ...]
    feeds: tuple[tuple[str, ...], ...]
    workload: Workload
    source: int = 0
    given: bool = False


@dataclass(frozen=True, slots=True)
class Walked:
    """A stage whose operators are followed. fed: of each layer, the inputs that carry activations."""

    stage: Stage
    before: Flow | None
    layers: tuple[Flow, ...]
    fed: tuple[tuple[int, ...], ...]

    @property
    def handed(self) -> tuple[str, ...]:
        """The values of `before` that layers read beside hidden states; in decode the encoder's output is cached."""
        stage = self.stage
        places = [(i, place) for i, own in enumerate(self.fed) for place in own[1:] if stage.feeds[i][place]]
        names = tuple(dict.fromkeys(stage.feeds[i][place] for i, place in places))
        if self.before is None or not (stage.source and stage.workload.phase is Phase.DECODE):
            return names
        memory = self.before.atoms.memory
        return tuple(n for n in names if memory not in self.before.atoms.flat(self.before.seen[n].axes))


def staged(captured: Captured, workload: Workload) -> tuple[Stage, ...]:
    """The stacks that run under `workload`, in order."""
    own = replace(workload, context=captured.fixed) if captured.fixed else workload
    if captured.middle is None:
        feeds = captured.feeds
        return (Stage("embed", captured.before, captured.layers, captured.sequence, feeds, own),)
    source = captured.fixed or workload.context
    early, late = captured.sequence[: captured.encoders], captured.sequence[captured.encoders :]
    decode = workload.phase is Phase.DECODE
    sides = []
    if not decode:
        sides.append(_part("embed", captured, early, replace(workload, context=source)))
    start = workload if decode else replace(workload, context=START_TOKENS)
    decoder = _part("embed" if decode else "embed_decoder", captured, late, start)
    sides.append(replace(decoder, before=captured.middle, source=source, given=True))
    return tuple(sides)


def _part(name: str, captured: Captured, sequence: tuple[int, ...], workload: Workload) -> Stage:
    kinds = tuple(dict.fromkeys(sequence))
    layers, feeds = (tuple(all_of[kind] for kind in kinds) for all_of in (captured.layers, captured.feeds))
    return Stage(name, captured.before, layers, tuple(kinds.index(kind) for kind in sequence), feeds, workload)  # type: ignore[arg-type]


def walked(stage: Stage) -> Walked:
    """`stage` with its operators followed."""
    places = tuple(range(len(stage.before.inputs))) if stage.given else (0,)
    before = walk_capture(stage.before, inputs(stage.before, places)) if stage.before.nodes else None
    fed = tuple(_fed(stage, before, index) for index in range(len(stage.layers)))
    pairs = zip(stage.layers, fed, strict=True)
    return Walked(stage, before, tuple(walk_capture(layer, inputs(layer, own)) for layer, own in pairs), fed)


def _fed(stage: Stage, before: Flow | None, index: int) -> tuple[int, ...]:
    """The inputs of a layer that carry activations: the first, and what earlier layers or the embedding made."""
    feeds = stage.feeds[index] if index < len(stage.feeds) else ("",)
    made = {} if before is None else before.seen
    moving = [
        place for place, feed in enumerate(feeds) if not feed or (feed in made and made[feed].origin is Origin.DATA)
    ]
    return tuple(dict.fromkeys((0, *moving)))


def inputs(capture: Capture, places: tuple[int, ...]) -> frozenset[str]:
    """The names of the inputs at `places`."""
    return frozenset(capture.inputs[place].name for place in places if place < len(capture.inputs))


def encodes(captured: Captured) -> bool:
    """Whether a model has an encoder: before a decoder, or alone."""
    layers = captured.layers if captured.middle is None else ()
    calls = [Call(node) for layer in layers for node in layer.nodes]
    alone = any(call.name == "rdutune.attention" and not call.get(4, "causal", True) for call in calls)
    return captured.middle is not None or alone


def bidirectional(layer: Layer) -> bool:
    """Whether a layer's tokens attend to later ones."""
    own = [step for step in layer.steps if step.kind is Kind.ATTENTION and not crosses(layer, step)]
    return any(not cores.causal(step) for step in own)
