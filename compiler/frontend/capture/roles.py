"""Names by what a step is for: the projections that feed an attention, what follows a router, the sums with the stream.

Only the flow of data is looked at, never the name of a module; a step that no rule recognises keeps a name of its own
made of its module path. A rule names a step only once and a name is given only once.
"""

from collections.abc import Iterator
from dataclasses import replace

from compiler.frontend.capture.chosen import CHOSEN
from compiler.frontend.capture.costs import ACTIVATIONS
from compiler.frontend.capture.dims import crosses
from compiler.frontend.capture.latent import Latent, Layer, behind
from compiler.frontend.capture.seen import Call, Origin
from compiler.frontend.capture.steps import Flow, Kind, Step
from compiler.frontend.capture.sums import normed_sums

#: The order in which the spec builders put the ops of a layer.
_ORDER = tuple(
    f"{part}.{name}"
    for part, names in (
        (
            "attn",
            "norm q_a_proj q_a_norm q_a_scale q_proj q_b_proj k_proj v_proj q_norm k_norm q_rope q_scale",
        ),
        ("attn", "kv_a_proj kv_a_norm kv_a_scale k_rope k_scale"),
        ("attn", "index_k_proj index_k_norm index_k_rope index_q_proj index_q_norm index_q_rope"),
        ("attn", "index_weights_proj index kv_b_proj core gate o_proj post_norm residual sum_norm"),
        (
            "cross",
            "norm q_proj k_proj v_proj q_norm k_norm q_scale k_scale core gate o_proj post_norm residual sum_norm",
        ),
        ("ffn", "norm gate_proj up_proj act down_proj shared_gate_proj shared_up_proj shared_act shared_down_proj"),
        ("ffn", "router topk experts shared_gate add_shared post_norm residual sum_norm"),
    )
    for name in names.split()
)


def arranged(layer: Layer) -> Layer:
    """The steps in the order of the spec builders where the flow of data allows it; others stay where they were."""
    ranks: dict[int, tuple[int, int]] = {}
    last = -1
    for place, step in enumerate(layer.steps):
        if step.name in _ORDER:
            last = max(last, _ORDER.index(step.name))
            ranks[id(step)] = (_ORDER.index(step.name), place)
        else:
            ranks[id(step)] = (last, place)
    waiting = {id(step): len(layer.sources(step)) for step in layer.steps}
    ready = [(ranks[id(step)], step) for step in layer.steps if not waiting[id(step)]]
    out: list[Step] = []
    while ready:
        chosen = min(ready, key=lambda item: item[0])
        ready.remove(chosen)
        out.append(chosen[1])
        for user in layer.users(chosen[1]):
            waiting[id(user)] -= 1
            if not waiting[id(user)]:
                ready.append((ranks[id(user)], user))
    return replace(layer, steps=out)


class Namer:
    """Gives names to the steps of one layer. `edge`: the part's name where the capture is no layer (embed, head)."""

    def __init__(self, layer: Layer, edge: str = "") -> None:
        self.layer = layer
        self.edge = edge
        self.taken: set[str] = set()

    def claim(self, step: Step, name: str) -> bool:
        """Name `step`, unless it has a name or another step has this one."""
        if step.name or name in self.taken:
            return False
        step.name = name
        self.taken.add(name)
        return True

    def run(self) -> None:
        """Name every step."""
        if self.edge:
            self._edge()
        else:
            behind_sums = normed_sums(self.layer)
            for number, (_, norm) in enumerate(behind_sums):
                self.claim(norm, f"sum_norm.{number}")  # until its sum has a name
            mixers = ("attn", *(f"attn_{n}" for n in range(2, len(self.layer.steps) + 2)))
            across = [step for step in self._kind(Kind.ATTENTION) if crosses(self.layer, step)]
            own = [step for step in self._kind(Kind.ATTENTION) if step not in across]
            for step, prefix in zip(own, mixers, strict=False):
                self._attention(step, prefix)
            for number, step in enumerate(across):
                self._attention(step, f"cross_{number + 1}" if number else "cross")
            for step in self._kind(Kind.EXPERTS):
                self._experts(step)
            self._recurrences()
            self._feed_forwards()
            self._sums()
            for total, norm in behind_sums:
                if total.name:
                    norm.name = f"{total.name.partition('.')[0]}.sum_norm"
        for step in self.layer.steps:
            if not step.name:
                self._fallback(step)

    def _kind(self, *kinds: Kind) -> list[Step]:
        return [step for step in self.layer.steps if step.kind in kinds]

    def _edge(self) -> None:
        usual = {
            "embed": {Kind.GATHER: "embed.gather", Kind.CONV: "embed.conv"},
            "head": {Kind.NORM: "head.norm", Kind.CONTRACT: "head.lm_head"},
        }
        for step in reversed(self.layer.steps) if self.edge == "head" else self.layer.steps:
            if step.kind is Kind.NORM and self.layer.flow.atoms.memory in step.points and self.edge == "embed":
                self.claim(step, "encoder.norm")
            name = usual[self.edge].get(step.kind)
            # a table read by position, or by a count of the ids, is no vocabulary
            ids = bool(step.weights and step.sources) and self.layer.flow.streams.issuperset(step.sources)
            looked_up = step.kind is not Kind.GATHER or ids
            if name and looked_up:
                self.claim(step, name)

    def _fallback(self, step: Step) -> None:
        """`layer.<module>.<operator>`, with a number where that is not enough."""
        node = step.nodes[-1]
        parts = [self.edge or "layer", *node.module.split("."), Call(node).name.split(".")[1].strip("_")]
        name = ".".join(part for part in parts if part)
        number = 2
        unique = name
        while not self.claim(step, unique):
            unique, number = f"{name}_{number}", number + 1

    # attention

    def _attention(self, step: Step, prefix: str) -> None:
        self.claim(step, f"{prefix}.core")
        call = step.call
        latent = self.layer.latents.get(id(step)) if prefix == "attn" else None
        if latent is not None:
            self._latent(latent)
        else:
            for place, side in enumerate("qkv"):
                for source in self.layer.of_value(call.must(place)):
                    self._back(source, prefix, side)
        for index in (source for source in self.layer.sources(step) if source.kind is Kind.INDEX):
            self._index(index, prefix)
        for user in self.layer.users(step):
            self._forward(user, prefix, "o_proj")

    def _index(self, step: Step, prefix: str) -> None:
        """An indexer, and what makes its queries, its keys and the weights of its heads."""
        self.claim(step, f"{prefix}.index")
        if step.call.name == CHOSEN:
            return
        for place, side in enumerate(("index_q", "index_k", "index_weights")):
            for source in self.layer.of_value(step.call.must(place)):
                self._back(source, prefix, side)

    def _latent(self, latent: Latent) -> None:
        for step, name in (
            (latent.expand, "kv_b_proj"),
            (latent.norm, "kv_a_norm"),
            (latent.down, "kv_a_proj"),
            (latent.rope, "k_rope"),
            (latent.q_rope, "q_rope"),
            (latent.scale, "kv_a_scale"),
            (latent.k_norm, "k_norm"),
        ):
            if step is not None:
                self.claim(step, f"attn.{name}")
        scale, above = behind(self.layer, self.layer.sources(latent.query), Kind.MAP)
        low = [step for norm in above if norm.kind is Kind.NORM for step in self.layer.sources(norm)]
        if len(low) == 1 and low[0].kind is Kind.CONTRACT:
            self.claim(latent.query, "attn.q_b_proj")
            self.claim(above[0], "attn.q_a_norm")
            self.claim(low[0], "attn.q_a_proj")
            if scale is not None:
                self.claim(scale, "attn.q_a_scale")
        else:
            self.claim(latent.query, "attn.q_proj")
        self._norm(latent.down, "attn.norm")

    def _back(self, step: Step, prefix: str, side: str) -> None:
        """From an argument of an attention back to its projection."""
        names = {Kind.NORM: f"{side}_norm", Kind.CONTRACT: f"{side}_proj", Kind.CONV: f"{side}_conv"}
        turns = f"{side}_rope" if step.tables else f"{side}_scale"
        name = turns if step.kind is Kind.MAP else names.get(step.kind)
        if name is None or not self.claim(step, f"{prefix}.{name}"):
            return
        if step.kind is Kind.CONTRACT:
            self._norm(step, f"{prefix}.norm")
            return
        for source in self.layer.sources(step):
            self._back(source, prefix, side)

    def _forward(self, step: Step, prefix: str, projection: str) -> None:
        """From what a mixer gives to its output projection."""
        if step.kind is Kind.CONTRACT:
            self.claim(step, f"{prefix}.{projection}")
            return
        names = {Kind.MAP: f"{prefix}.gate", Kind.NORM: f"{prefix}.out_norm"}
        if step.residual or step.kind not in names or not self.claim(step, names[step.kind]):
            return
        for user in self.layer.users(step):
            self._forward(user, prefix, projection)

    def _norm(self, step: Step, name: str) -> None:
        """Name the norm in front of a projection."""
        for source in self.layer.sources(step):
            if source.kind is Kind.NORM:
                self.claim(source, name)

    # feed-forward

    def _experts(self, step: Step) -> None:
        self.claim(step, "ffn.experts")
        for source in self.layer.sources(step):
            if source.kind is Kind.SORT:
                self.claim(source, "ffn.topk")
                for scores in self.layer.sources(source):
                    if scores.kind is Kind.CONTRACT and self.claim(scores, "ffn.router"):
                        self._norm(scores, "ffn.norm")
        self._norm(step, "ffn.norm")

    def _feed_forwards(self) -> None:
        routed = bool(self._kind(Kind.EXPERTS))
        for step in self._kind(Kind.MAP):
            above = self.layer.sources(step)
            below = self.layer.users(step)
            if step.name or not 1 <= len(above) <= 2 or len(below) != 1 or below[0].kind is not Kind.CONTRACT:
                continue
            gate = next((source for source in above if _activated(self.layer.flow, step, source)), None)
            if gate is None or len(step.sources) != len(above) or below[0].name:
                continue
            ups = [self._projection(source) for source in above if source is not gate]
            gate = self._projection(gate)
            if any(source.kind is not Kind.CONTRACT or source.name for source in (gate, *ups)):
                continue
            self._swiglu(step, gate, ups, below[0], "ffn.shared_" if routed else "ffn.")

    def _projection(self, step: Step) -> Step:
        """The projection a convolution reads, else the step itself."""
        above = self.layer.sources(step)
        return above[0] if step.kind is Kind.CONV and len(above) == 1 else step

    def _swiglu(self, act: Step, gate: Step, ups: list[Step], down: Step, prefix: str) -> None:
        if f"{prefix}act" in self.taken:
            return
        self.claim(act, f"{prefix}act")
        self.claim(gate, f"{prefix}gate_proj")
        for up in ups:
            self.claim(up, f"{prefix}up_proj")
        self.claim(down, f"{prefix}down_proj")
        self._norm(gate, "ffn.norm")

    # recurrences

    def _recurrences(self) -> None:
        """Everything between the norm in front of a scan and its output projection is the mixer."""
        scans = self._kind(Kind.RECURRENCE)
        for number, step in enumerate(scans):
            self.claim(step, "mixer.scan" if number == 0 else f"mixer.scan_{number + 1}")
            for source in self.layer.sources(step):
                self._mixer(source)
            for user in self.layer.users(step):
                self._mixer_out(user)
        if not scans:
            for step in self._kind(Kind.CONV):
                around = [*self.layer.sources(step), *self.layer.users(step)]
                if not any(other.name for other in around):
                    self._number(step, "mixer.conv")

    def _mixer(self, step: Step) -> None:
        if step.name or step.residual:
            return
        if step.kind is Kind.NORM and any(name in self.layer.flow.streams for name in step.sources):
            self.claim(step, "mixer.norm")
            return
        words = {Kind.CONV: "conv", Kind.MAP: "gates", Kind.SHIFT: "shift"}
        node = step.nodes[0]
        leaf = node.module.rpartition(".")[2] or "in_proj"
        self._number(step, f"mixer.{words.get(step.kind, leaf)}")
        for source in self.layer.sources(step):
            self._mixer(source)

    def _mixer_out(self, step: Step) -> None:
        if step.name or step.residual:
            return
        if step.kind is Kind.CONTRACT:
            self._number(step, "mixer.out_proj")
            return
        self._number(step, "mixer.out_norm" if step.kind is Kind.NORM else "mixer.gate")
        for source in self.layer.sources(step):
            self._mixer(source)
        for user in self.layer.users(step):
            self._mixer_out(user)

    def _number(self, step: Step, name: str) -> None:
        number, unique = 2, name
        while not step.name and not self.claim(step, unique):
            unique, number = f"{name}_{number}", number + 1

    # sums

    def _sums(self) -> None:
        """Sums with the stream, by what they add; the sum of experts and shared expert; norms in between."""
        for step in self._kind(Kind.MAP):
            above = self.layer.sources(step)
            names = {source.name for source in above}
            if step.residual or "ffn.experts" not in names or not 2 <= len(above) <= 3:
                continue
            if self.claim(step, "ffn.add_shared"):
                for source in above:
                    if source.kind is Kind.CONTRACT and not source.name:
                        self.claim(source, "ffn.shared_gate")
        for step in self._kind(Kind.MAP):
            if not step.residual:
                continue
            parts = list(self._parts(step))
            last = bool(set(step.outputs) & self.layer.results)
            part = "ffn" if last and "ffn" in parts else next(iter(parts), "")
            if part:
                self.claim(step, f"{part}.residual")
        for step in self._kind(Kind.NORM):
            part = next((source.name.split(".")[0] for source in self.layer.sources(step) if source.name), "")
            if part and not step.name and not any(name in self.layer.flow.streams for name in step.sources):
                self.claim(step, f"{part}.post_norm")
        for step in self._kind(Kind.NORM):
            if not step.name and any(user.kind is Kind.CONTRACT for user in self.layer.users(step)):
                self.claim(step, "ffn.norm")

    def _parts(self, step: Step) -> Iterator[str]:
        """The parts (attn, ffn, mixer) whose results reach a sum other than by the stream."""
        for name in step.sources:
            if name in self.layer.flow.streams or name not in self.layer.made:
                continue
            source = self.layer.made[name]
            if source.name:
                yield source.name.split(".")[0]
            else:
                yield from self._parts(source)


def _activated(flow: Flow, step: Step, source: Step) -> bool:
    """Whether an activation inside `step` reads what `source` gives, possibly scaled or bounded first."""
    reach = set(source.outputs)
    found = False
    for node in step.nodes:
        call = Call(node)
        data = [name for name in call.refs() if flow.seen[name].origin is Origin.DATA]
        if data and all(_read(flow, name) & reach for name in data):
            found = found or call.name in ACTIVATIONS
            reach.update(value.name for value in node.outputs)
    return found


def _read(flow: Flow, name: str) -> set[str]:
    return {name, *flow.seen[name].roots}


def named(flow: Flow, steps: list[Step], results: tuple[str, ...], edge: str = "") -> Layer:
    """The layer of `steps`, every one of which has a name afterwards."""
    layer = Layer.of(flow, steps, results)
    Namer(layer, edge).run()
    return arranged(layer)
