"""A layer's steps and who reads what; and whether an attention's keys and values may be cached as a latent."""

from dataclasses import dataclass

from compiler.frontend.capture.groups import producers, readers
from compiler.frontend.capture.steps import Flow, Kind, Step


@dataclass(frozen=True)
class Layer:
    """The steps of a capture, who makes and who reads each value, and which projections cache a latent."""

    flow: Flow
    steps: list[Step]
    made: dict[str, Step]
    readers: dict[str, list[Step]]
    latents: "dict[int, Latent]"
    results: frozenset[str]

    @classmethod
    def of(cls, flow: Flow, steps: list[Step], results: tuple[str, ...]) -> "Layer":
        layer = cls(flow, steps, producers(steps), readers(steps), {}, frozenset(flow.roots(results)))
        attentions = [step for step in steps if step.kind is Kind.ATTENTION]
        # what rewrites latent attention knows one a layer
        found = find_latent(layer, attentions[0]) if len(attentions) == 1 else None
        if found is not None:
            layer.latents[id(attentions[0])] = found
        return layer

    def sources(self, step: Step) -> list[Step]:
        """The steps that make what `step` reads."""
        return list(dict.fromkeys(self.made[name] for name in step.sources if name in self.made))

    def users(self, step: Step) -> list[Step]:
        """The steps that read what `step` makes."""
        return list(dict.fromkeys(user for name in step.outputs for user in self.readers.get(name, ())))

    def of_value(self, name: str | None) -> list[Step]:
        """The steps that make the value `name` (several where it is a concatenation)."""
        roots = self.flow.seen[name].roots if name is not None else ()
        return list(dict.fromkeys(self.made[root] for root in roots if root in self.made))


@dataclass(frozen=True, slots=True)
class Latent:
    """Keys and values that are a projection of a cached latent, and a rotary part all heads share.

    expand: the projection to keys and values; norm, down: what makes the latent; rope: what makes the shared part.
    scale: what multiplies the latent behind its norm; k_norm: the norm of the shared part. None where there is none.
    """

    expand: Step
    norm: Step
    down: Step
    rope: Step
    query: Step
    q_rope: Step
    scale: Step | None = None
    k_norm: Step | None = None


def find_latent(layer: Layer, attention: Step) -> Latent | None:
    """The latent of an attention, where caching it in place of keys and values keeps the meaning and is smaller.

    Legal where keys and values are one linear map, without bias, of one normalised latent, and the rest of the keys is
    one row a token for all heads; the latent and that row must come of one projection of the block's input.
    """
    call, flow = attention.call, layer.flow
    keys, values = layer.of_value(call.must(1)), layer.of_value(call.must(2))
    if len(keys) != 2 or len(values) != 1 or values[0] not in keys:
        return None
    expand = values[0]
    rope = next(step for step in keys if step is not expand)
    scale, above = behind(layer, layer.sources(expand), Kind.MAP)
    if expand.kind is not Kind.CONTRACT or len(expand.weights) != 1 or len(above) != 1:
        return None
    norm = above[0]
    down = layer.sources(norm)
    k_norm, shares = behind(layer, layer.sources(rope), Kind.NORM)
    if norm.kind is not Kind.NORM or rope.kind is not Kind.MAP:
        return None
    if shares != down or len(down) != 1 or down[0].kind is not Kind.CONTRACT:
        return None
    latent, shared = flow.atoms.extent(norm.points), flow.atoms.extent(rope.points)
    whole = sum(flow.atoms.extent(flow.atoms.flat(flow.seen[call.must(place)].axes)) for place in (1, 2))
    queries = layer.of_value(call.must(0))
    turned = [step for step in queries if step.kind is Kind.MAP]
    plain = [step for step in layer.sources(turned[0]) if step.kind is Kind.CONTRACT] if len(turned) == 1 else []
    if latent + shared >= whole or len(plain) != 1 or any(step not in (*turned, *plain) for step in queries):
        return None
    return Latent(expand, norm, down[0], rope, plain[0], turned[0], scale, k_norm)


def behind(layer: Layer, above: list[Step], kind: Kind) -> tuple[Step | None, list[Step]]:
    """(a step of `kind` that changes each element of one tensor, what makes that), or (None, `above`) without one."""
    own = above[0] if len(above) == 1 and above[0].kind is kind and len(above[0].sources) == 1 else None
    changes = own is not None and not own.tables and len(own.outputs) == 1
    return (own, layer.sources(own)) if own is not None and changes else (None, above)
