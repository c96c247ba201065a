"""What a trace of a PyTorch model is, as data: one exported program a distinct layer, and the order of the layers.

Between `trace` (which needs torch) and `lower` (which does not). Everything is JSON-able, so that a capture is cached
by content; shapes are those of one sequence of `tokens` tokens, a prime number that no model has as a size.
"""

from dataclasses import dataclass, field
from typing import Any

from compiler.frontend.quantisation import Checkpoint
from compiler.frontend.spec import Fact

#: Tokens of the traced sequence: a prime, so that no product of a model's sizes is mistaken for it.
TRACED_TOKENS = 13

#: Tokens of what an encoder-decoder reads: another prime, so that both sides can be told apart.
SOURCE_TOKENS = 17


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of a capture. `key`: the name of a weight in the class (with {layer}), empty for everything else.

    parts: the checkpoint tensors it is made of, in order (with {layer}, {expert}), where they have other names.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    key: str = ""
    parts: tuple[str, ...] = ()

    def published(self, part: int = 0) -> str:
        """The checkpoint tensor that part number `part` of a weight is in."""
        return self.parts[min(part, len(self.parts) - 1)] if self.parts else self.key


@dataclass(frozen=True, slots=True)
class Ref:
    """A use of a value, by name, among a node's arguments."""

    name: str


Argument = Ref | int | float | bool | str | None | tuple["Argument", ...]


@dataclass(frozen=True, slots=True)
class Node:
    """One operator call. `target` is `namespace.name.overload`; `rdutune.*` are semantic operators kept whole.

    module, module_class: where in the layer it came from; line: `file.py:line` of the source.
    """

    target: str
    args: tuple[Argument, ...]
    kwargs: tuple[tuple[str, Argument], ...]
    outputs: tuple[Value, ...]
    module: str = ""
    module_class: str = ""
    line: str = ""


@dataclass(frozen=True, slots=True)
class Capture:
    """One distinct layer (or the part before or after the layers). `inputs[0]` and `outputs[0]` are the hidden states.

    buffers: tensors of the module that are no parameters (rope frequencies, a router's correction bias), and constants.
    tokens: tokens of the traced sequence; memory: tokens of the encoder's output, 0 where nothing reads one.
    """

    label: str
    inputs: tuple[Value, ...]
    weights: tuple[Value, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]
    buffers: tuple[Value, ...] = ()
    tokens: int = TRACED_TOKENS
    memory: int = 0


@dataclass(frozen=True, slots=True)
class Captured:
    """A traced model: its distinct layers, which of them each layer is, and what surrounds them.

    facts: scalars of the module (hidden, vocab, ...) and of the trace (torch and transformers versions).
    feeds: for each distinct layer, the value of `before` that each of its inputs is where it first occurs; "" for the
    hidden states and for what a layer before it made.
    encoders: how many of `sequence` are layers of an encoder with a decoder behind it, and middle what lies between
    (the encoder's last norm, the decoder's embedding), whose values `feeds` of decoder layers name.
    fixed: tokens a sequence where the class fixes them (patches of an image, frames of a sound), 0 where it does not.
    checkpoint: what a config says about stored weights, None where there is none; said: the facts of it. Read anew, and
    not in the cache.
    """

    model: str
    model_type: str
    before: Capture
    layers: tuple[Capture, ...]
    sequence: tuple[int, ...]
    after: Capture
    tied: bool
    params: int
    facts: tuple[tuple[str, Any], ...] = ()
    feeds: tuple[tuple[str, ...], ...] = ()
    encoders: int = 0
    middle: Capture | None = None
    fixed: int = 0
    checkpoint: Checkpoint | None = field(default=None, compare=False)
    said: tuple[Fact, ...] = field(default=(), compare=False)
