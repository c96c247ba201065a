"""Sparse indexers: the scores of a few small heads, their weighted sum and the top-k, put together as one operator.

An indexer written out is a product of tokens with tokens, whose second axis is the context; as one operator its keys
can be cached. `rdutune.index`: q (b,t,h,d), k (b,t,d), weights (b,t,h), top_k -> indices (b,t,chosen). A layer may read
the choice of an earlier one: `rdutune.chosen`: indices, top_k -> indices.
"""

from dataclasses import replace

from compiler.frontend.capture.costs import ELEMENTWISE
from compiler.frontend.capture.eager import SAME, moving, through
from compiler.frontend.capture.ir import TRACED_TOKENS, Argument, Capture, Node, Ref
from compiler.frontend.capture.seen import Call

INDEX, CHOSEN = "rdutune.index", "rdutune.chosen"

_ATTENTION = ("rdutune.attention.default",)
_PRODUCT = "aten.matmul"
_VIEWS = SAME | frozenset({"aten.unsqueeze", "aten.squeeze", "aten.transpose", "aten.permute"})


def indexed(capture: Capture, top_k: int) -> Capture:
    """`capture` with every written-out indexer as one `rdutune.index`. top_k: as the configuration says, 0 for nothing.

    The traced sequence is shorter than what an indexer chooses, so the trace cannot say how much that is.
    """
    made = {value.name: node for node in capture.nodes for value in node.outputs}
    moves = moving(capture)
    given = {value.name: value for value in capture.inputs[1:]}
    nodes: list[Node] = []
    for node in capture.nodes:
        choice = through(Call(node).ref(10) or "", made, moves, SAME)[0] if node.target in _ATTENTION else ""
        if choice in given and top_k:
            out = replace(given[choice], name=f"{choice}.chosen")
            args: tuple[Argument, ...] = (Ref(choice), top_k)
            nodes.append(replace(node, target=f"{CHOSEN}.default", args=args, kwargs=(), outputs=(out,)))
            node = replace(node, args=(*node.args[:10], Ref(out.name), *node.args[11:]))
        nodes.append(_index(node, made, moves, top_k) or node)
    return replace(capture, nodes=tuple(nodes))


def _index(topk: Node, made: dict[str, Node], moves: set[str], top_k: int) -> Node | None:
    """The indexer whose choice `topk` is."""
    if Call(topk).name != "aten.topk" or not topk.outputs or topk.outputs[0].shape[1:2] != (TRACED_TOKENS,):
        return None
    number = Call(topk).number(1, "k")
    chosen = top_k if number == TRACED_TOKENS else number
    summed = made.get(through(Call(topk).must(0), made, moves, _VIEWS | frozenset(ELEMENTWISE))[0])
    if not chosen or summed is None or Call(summed).name != _PRODUCT:
        return None
    weights = through(Call(summed).must(0), made, moves, _VIEWS | frozenset(ELEMENTWISE))[0]
    scores = made.get(through(Call(summed).must(1), made, moves, _VIEWS | frozenset(ELEMENTWISE))[0])
    if scores is None or Call(scores).name != _PRODUCT:
        return None
    query, key = (through(Call(scores).must(place), made, moves, SAME)[0] for place in (0, 1))
    key = _row(key, made)
    args: tuple[Argument, ...] = (Ref(query), Ref(key), Ref(weights), chosen)
    return replace(topk, target=f"{INDEX}.default", args=args, kwargs=())


def _row(name: str, made: dict[str, Node]) -> str:
    """The key of a token behind the views that turn it for the product."""
    turns = frozenset({"aten.transpose", "aten.permute", "aten.unsqueeze", "aten._to_copy", "aten.clone"})
    while (node := made.get(name)) is not None and Call(node).name in turns:
        name = Call(node).must(0)
    return name
