"""Where tokens stand: what shifts them by one, and views that would mistake one token for all of them.

A step runs over all tokens alike, so a layer may read the last token, or every token's predecessor, but no token by its
number: a loop over the tokens that `loops` does not recognise would be taken for work on each token alone.
"""

from compiler.frontend.capture.seen import Call
from compiler.frontend.capture.steps import Flow, Kind
from compiler.frontend.capture.views import join, pieces


def one_place(flow: Flow, call: Call) -> str:
    """Why a view of some tokens is none of all: another token than the last, or tokens moved to other places."""
    if flow.edge or call.name not in ("aten.select", "aten.slice", "aten.narrow", "aten.cat"):
        return ""
    tokens, count = (flow.atoms.tokens,), flow.atoms.size(flow.atoms.tokens)
    if call.name == "aten.cat":
        out = join(flow, call)
        dim = call.number(1, "dim") % len(call.shape)
        moved = out is not None and call.shape[dim] == count and len(pieces(call)) > 1
        return "puts tokens of other places beside each other" if moved else ""
    axes = flow.seen[call.must(0)].axes
    dim = call.number(1, "dim") % max(len(axes), 1)
    single = bool(axes) and (call.name == "aten.select" or call.shape[dim] == 1)
    last = call.number(2) % count == count - 1
    return "reads one token by its place" if single and not last and flow.atoms.leaves(axes[dim]) == tokens else ""


def shifts(flow: Flow, call: Call) -> bool:
    """Padded in front and cut at the end by as many tokens: each token sees an earlier one, so decoding keeps it."""
    pads = call.get(1, "pad")
    if call.name not in ("aten.pad", "aten.constant_pad_nd") or not isinstance(pads, tuple):
        return False
    axes = flow.seen[call.must(0)].axes
    pairs = zip(pads[::2], pads[1::2], strict=True)
    moved = [(flow.atoms.leaves(axis), pair) for axis, pair in zip(reversed(axes), pairs, strict=False) if any(pair)]
    if moved != [((flow.atoms.tokens,), (1, -1))]:
        return False
    flow.add(Kind.SHIFT, call, (axes,), flow.atoms.flat(axes), flops=0)
    return True
