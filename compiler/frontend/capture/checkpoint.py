"""What a config beside a captured class says about its stored weights: read as the other door reads it."""

from pathlib import Path

from compiler.frontend.capture.place import find_place
from compiler.frontend.compared import renamed
from compiler.frontend.facts import Facts
from compiler.frontend.quant import Checkpoint, read_dtype, read_quantisation
from compiler.frontend.read import open_model
from compiler.frontend.weights import read_stored


def read_checkpoint(model: str) -> Checkpoint | None:
    """How the weights of MODEL are stored; None where MODEL is no config. InputError for a storage that makes no sense.

    Of weights files the headers are read; which tensors should be there is not compared.
    """
    place = find_place(model)
    if place.kind != "config":
        return None
    source = open_model(str(place.path), {})
    facts = Facts(source, "a model")
    stored = read_stored(Path(source.where).parent) if place.path.name == "config.json" else None
    found = None if stored is None else renamed(stored)
    return Checkpoint(place.name, read_dtype(facts), read_quantisation(facts), found)
