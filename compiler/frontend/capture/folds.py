"""A capture made regular before its axes are followed: written-out norms, attention and recurrences as one node each,
fused projections taken apart."""

from dataclasses import replace

from compiler.frontend.capture.chosen import indexed
from compiler.frontend.capture.eager import joined
from compiler.frontend.capture.fused import taken_apart
from compiler.frontend.capture.ir import Argument, Capture, Node, Ref
from compiler.frontend.capture.loops import rolled
from compiler.frontend.capture.seen import Call

#: Overloads that are another operator than the rest of their name.
_OTHER = {"aten.min.other": "aten.minimum.default", "aten.max.other": "aten.maximum.default"}

_CASTS = frozenset({"aten._to_copy", "aten.to", "aten.clone", "aten.type_as", "aten.float"})


def folded(capture: Capture, top_k: int = 0) -> Capture:
    """`capture` with every written-out norm as one node and fused projections as several; top_k: see `indexed`."""
    whole = joined(indexed(_linear(rolled(_once(capture))), top_k))
    return taken_apart(_Norms(replace(whole, nodes=tuple(_live(list(whole.nodes), whole.outputs)))).run())


def completed(after: Capture, before: Capture) -> Capture:
    """`after` with the nodes of `before` that it needs and that depend on weights only (a norm's weight, cast)."""
    made = {value.name: node for node in before.nodes for value in node.outputs}
    stored = {value.name: value for value in before.weights}
    buffers = {value.name: value for value in before.buffers}
    wanted, moved, used = [value.name for value in after.inputs[1:]], [], set()
    for node in reversed(before.nodes):
        if any(value.name in wanted for value in node.outputs):
            moved.append(node)
            wanted.extend(Call(node).refs())
    used = {name for node in moved for name in Call(node).refs()}
    if not moved or any(name not in made and name not in stored and name not in buffers for name in used):
        return after
    given = {value.name for node in moved for value in node.outputs}
    own = {value.name for value in (*after.weights, *after.buffers)}
    return replace(
        after,
        inputs=tuple(value for value in after.inputs if value.name not in given),
        weights=(*after.weights, *(stored[name] for name in stored if name in used - own)),
        buffers=(*after.buffers, *(buffers[name] for name in buffers if name in used - own)),
        nodes=(*moved[::-1], *after.nodes),
    )


def _linear(capture: Capture) -> Capture:
    """`capture` with products with a turned weight as linear operators."""
    weights = {value.name for value in capture.weights if len(value.shape) == 2}
    turned: dict[str, str] = {}
    nodes: list[Node] = []
    for node in capture.nodes:
        call = Call(node)
        turns = call.name in ("aten.t", "aten.transpose") or (call.name == "aten.permute" and call.get(1) == (1, 0))
        if turns and call.ref(0) in weights:
            turned[call.out] = call.must(0)
        weight = turned.get(call.ref(1) or "") if call.name in ("aten.matmul", "aten.mm") else None
        if weight is not None:
            node = replace(node, target="aten.linear.default", args=(node.args[0], Ref(weight)), kwargs=())
        nodes.append(node)
    return replace(capture, nodes=tuple(nodes))


def _once(capture: Capture) -> Capture:
    """`capture` without nodes that compute what an earlier node has computed."""
    first: dict[tuple[object, ...], Node] = {}
    names: dict[str, str] = {}
    nodes: list[Node] = []
    for node in capture.nodes:
        node = replace(
            node,
            target=_OTHER.get(node.target, node.target),
            args=tuple(_renamed(argument, names) for argument in node.args),
            kwargs=tuple((key, _renamed(argument, names)) for key, argument in node.kwargs),
        )
        twin = first.setdefault((node.target, node.args, node.kwargs), node)
        again = twin is not node and not any(value.name in capture.outputs for value in node.outputs)
        if again and not node.target.startswith("aten._assert"):
            names |= {new.name: old.name for new, old in zip(node.outputs, twin.outputs, strict=True)}
        else:
            nodes.append(node)
    return replace(capture, nodes=tuple(nodes))


def _renamed(argument: Argument, names: dict[str, str]) -> Argument:
    if isinstance(argument, Ref):
        return Ref(names.get(argument.name, argument.name))
    return tuple(_renamed(item, names) for item in argument) if isinstance(argument, tuple) else argument


class _Norms:
    """Root-mean-square and layer norms over the last dimension, found from their `rsqrt`."""

    def __init__(self, capture: Capture) -> None:
        self.capture = capture
        self.made = {value.name: node for node in capture.nodes for value in node.outputs}
        self.users: dict[str, list[Node]] = {}
        for node in capture.nodes:
            for name in Call(node).refs():
                self.users.setdefault(name, []).append(node)

    def run(self) -> Capture:
        """The capture with each norm at the place of its last node; what only it needed is gone with it."""
        found = [norm for node in self.capture.nodes if (norm := self._norm(node)) is not None]
        if not found:
            return self.capture
        last = {id(old): new for old, new in found}
        nodes = [last.get(id(node), node) for node in self.capture.nodes]
        return replace(self.capture, nodes=tuple(_live(nodes, self.capture.outputs)))

    def _norm(self, root: Node) -> tuple[Node, Node] | None:
        """(the last node of the norm around `root`, the node that stands for it)."""
        if Call(root).name not in ("aten.rsqrt", "aten.pow") or (
            root.target.startswith("aten.pow") and not _half(root)
        ):
            return None
        centred = self._squared_mean(Call(root).must(0))
        if centred is None:
            return None
        product = self._only(Call(root).out)
        if product is None or Call(product).name != "aten.mul":
            return None
        if not any(self._plain(name) == self._plain(centred) for name in Call(product).refs()):
            return None
        source, layer = self._uncentred(centred)
        last, weights = self._scaled(product)
        name = "aten.layer_norm.default" if layer else "rdutune.rms_norm.default"
        args: tuple[Argument, ...] = (Ref(source), (last.outputs[0].shape[-1],) if layer else None, *weights)
        if not layer:
            args = (Ref(source), *weights)
        return last, replace(last, target=name, args=args, kwargs=())

    def _squared_mean(self, name: str) -> str | None:
        """x, where `name` is the mean of the squares of x along the last dimension, plus an epsilon."""
        node = self.made.get(name)
        if node is None or Call(node).name != "aten.add" or len(Call(node).refs()) != 1:
            return None
        mean = self.made.get(Call(node).must(0))
        if mean is None or Call(mean).name != "aten.mean" or Call(mean).get(1) not in ((-1,), -1):
            return None
        square = self.made.get(self._plain(Call(mean).must(0)))
        if square is None:
            return None
        call = Call(square)
        if call.name == "aten.pow" and call.get(1) == 2:
            return call.must(0)
        return call.must(0) if call.name == "aten.mul" and len(call.refs()) == 1 else None

    def _uncentred(self, name: str) -> tuple[str, bool]:
        """The input of the norm, and whether its mean is taken off first."""
        node = self.made.get(self._plain(name))
        if node is not None and Call(node).name == "aten.sub" and len(Call(node).refs()) == 2:
            left, right = Call(node).refs()
            mean = self.made.get(right)
            if (
                mean is not None
                and Call(mean).name == "aten.mean"
                and self._plain(Call(mean).must(0)) == self._plain(left)
            ):
                return self._plain(left), True
        return self._plain(name), False

    def _scaled(self, node: Node) -> tuple[Node, tuple[Ref, ...]]:
        """The product and sum with weights that follow a norm, if it is all that follows."""
        weights: list[Ref] = []
        own = {value.name for value in self.capture.weights}
        for operator in ("aten.mul", "aten.add"):
            after = self._only(node.outputs[0].name)
            while after is not None and Call(after).name in _CASTS:
                follower = self._only(after.outputs[0].name)
                if follower is None or Call(follower).name != operator:
                    break
                after = follower
            if after is None or Call(after).name != operator:
                break
            weight = [name for name in Call(after).refs() if self._weight(name) in own]
            if len(weight) != 1 or len(Call(after).refs()) != 2:
                break
            weights.append(Ref(self._weight(weight[0])))
            node = after
        return node, tuple(weights)

    def _weight(self, name: str) -> str:
        """The weight behind casts and the addition of a number."""
        node = self.made.get(name)
        while node is not None and (Call(node).name in _CASTS or _plus_number(node)):
            name = Call(node).must(0)
            node = self.made.get(name)
        return name

    def _plain(self, name: str) -> str:
        """The value behind changes of type."""
        node = self.made.get(name)
        while node is not None and Call(node).name in _CASTS:
            name = Call(node).must(0)
            node = self.made.get(name)
        return name

    def _only(self, name: str) -> Node | None:
        users = self.users.get(name, [])
        return users[0] if len(users) == 1 and name not in self.capture.outputs else None


def _half(node: Node) -> bool:
    return Call(node).get(1) == -0.5


def _plus_number(node: Node) -> bool:
    return Call(node).name == "aten.add" and len(Call(node).refs()) == 1


def _live(nodes: list[Node], results: tuple[str, ...]) -> list[Node]:
    """The nodes that the results need."""
    wanted, out = set(results), []
    for node in reversed(nodes):
        if wanted.intersection(value.name for value in node.outputs):
            out.append(node)
            wanted.update(Call(node).refs())
    return out[::-1]
