"""Norms behind the sums of a layer (BERT, BART): the next part and the next sum read what the norm gives.

Found before anything is named, since such a norm also stands in front of a projection.
"""

from compiler.frontend.capture.latent import Layer
from compiler.frontend.capture.seen import Call
from compiler.frontend.capture.steps import Kind, Step


def normed_sums(layer: Layer) -> tuple[tuple[Step, Step], ...]:
    """(sum, norm behind it) from the block input on, in order; the sums become residual, what the norms give a stream.

    Nothing where a sum is read by anything but its norm: there the stream is the sum.
    """
    streams, found = layer.flow.streams, []
    for norm in layer.steps:
        above = layer.sources(norm) if norm.kind is Kind.NORM else []
        if len(above) != 1 or not _adds(above[0]) or layer.readers.get(above[0].outputs[0]) != [norm]:
            continue
        if not streams.intersection(above[0].sources):
            continue
        above[0].residual = True
        streams.update(norm.outputs[:1])
        found.append((above[0], norm))
    return tuple(found)


def _adds(step: Step) -> bool:
    """Whether a step is one sum of two activations, and nothing else."""
    return (
        step.kind is Kind.MAP
        and [Call(node).name for node in step.nodes] == ["aten.add"]
        and len(step.sources) == 2
        and not step.weights
    )
