"""What a config beside a captured class says about its stored weights: read as the other door reads it."""

from dataclasses import replace
from pathlib import Path

from compiler.frontend.capture.ir import Captured
from compiler.frontend.capture.place import find_place
from compiler.frontend.compared import file_facts, renamed
from compiler.frontend.facts import Facts
from compiler.frontend.quant import Checkpoint, read_dtype, read_quantisation
from compiler.frontend.read import open_model
from compiler.frontend.weights import read_stored


def with_checkpoint(captured: Captured, model: str) -> Captured:
    """`captured` with how the weights of MODEL are stored, where MODEL is a config.

    Of weights files the headers are read; which tensors should be there is not compared. Raises InputError for a
    storage that makes no sense.
    """
    place = find_place(model)
    if place.kind != "config":
        return captured
    source = open_model(str(place.path), {})
    facts = Facts(source, "a model")
    stored = read_stored(Path(source.where).parent) if place.path.name == "config.json" else None
    found = None if stored is None else renamed(stored)
    checkpoint = Checkpoint(place.name, read_dtype(facts), read_quantisation(facts), found)
    said = (*facts.all(), *(() if found is None else file_facts(found)))
    return replace(captured, checkpoint=checkpoint, said=said)
