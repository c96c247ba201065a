"""Run a compiled program and the class on the same weights, and compare what they give."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from agent.outputs.checkpoint import Weights, published
from agent.outputs.instance import Instance
from agent.outputs.scalars import ModelBindings
from compiler.frontend import build
from compiler.frontend.capture.failure import quiet
from compiler.frontend.mixers import Attention
from compiler.frontend.spec import ModelSpec
from compiler.ir.graph import Graph, Phase, Workload
from compiler.program import Program
from simulator.functional.attention import UNWRITTEN
from simulator.functional.machine import Caches, execute
from simulator.functional.named import Named
from simulator.functional.weights import filled

Compile = Callable[[Graph], Program]


@dataclass(frozen=True)
class Bench:
    """An instance, the class's logits of a few sequences at every place, and the caches that decoding starts from.

    ids: (batch, context). logits: (batch, context, vocab).
    """

    instance: Instance
    ids: Any
    logits: Any
    tensors: dict[str, Any]

    @property
    def batch(self) -> int:
        return int(self.ids.shape[0])

    @property
    def context(self) -> int:
        return int(self.ids.shape[1])

    def bindings(self, graph: Graph) -> ModelBindings:
        return ModelBindings(self.instance.spec, graph, self.instance.module, Weights(graph, self.tensors))

    def graph(self, phase: Phase, sockets: int) -> Graph:
        return build(self.instance.spec, Workload(phase, self.batch, self.context, sockets, "bf16"))

    def error(self, program: Program, graph: Graph, history: Caches) -> float:
        """The largest difference of logits, over the largest logit of the class."""
        decode = graph.workload.phase is Phase.DECODE
        ids = self.ids[:, -1] if decode else self.ids.reshape(-1)
        out = execute(program, self.bindings(graph), ids, history if decode else {})
        theirs = self.logits[:, -1]
        ours = out.outputs["logits"].over(("tokens", "vocab"))
        return float((ours - theirs).abs().max() / theirs.abs().max())


def bench(instance: Instance, batch: int = 2, context: int = 11, seed: int = 1) -> Bench:
    """The class run on random ids."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, instance.spec.vocab, (batch, context), generator=generator)
    with torch.no_grad(), quiet():
        logits = instance.module(ids, use_cache=False).logits
    return Bench(instance, ids, logits, published(instance.module))


def history(of: Bench, compiled: Compile) -> Caches:
    """The caches before the last token: those of a prefill of all others, laid out for one more."""
    spec, length = of.instance.spec, of.context - 1
    wide = replace(spec, layers=tuple(_unwindowed(spec)))
    graph = build(wide, Workload(Phase.PREFILL, of.batch, length, 1, "bf16"))
    bindings = ModelBindings(spec, graph, of.instance.module, Weights(graph, of.tensors))
    left = execute(compiled(graph), bindings, of.ids[:, :-1].reshape(-1), {}).caches
    decode = of.graph(Phase.DECODE, 1)
    return {
        (layer, _entering(name)): _longer(value, name, layer, decode, spec) for (layer, name), value in left.items()
    }


def _unwindowed(spec: ModelSpec) -> Any:
    for layer in spec.layers:
        mixer = layer.mixer
        yield replace(layer, mixer=replace(mixer, window=None)) if isinstance(mixer, Attention) else layer


def _entering(name: str) -> str:
    """What decode calls a cache or state that prefill gives."""
    return name.removesuffix("_new")


def _longer(value: Named, name: str, layer: int, decode: Graph, spec: ModelSpec) -> Named:
    """A cache with a place for one more token, and no more rows than its layer keeps."""
    if "context" not in value.dims:
        return value
    rows = spec.layers[layer].mixer.cached_tokens(value.size("context") + 1)  # type: ignore[union-attr]
    value = filled(value, "context", value.size("context") + 1, UNWRITTEN)
    return value.cut("context", value.size("context") - rows, value.size("context"))
