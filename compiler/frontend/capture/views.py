"""Operators that move no data: what each does to the axes of its input. A view of a value is read from that value."""

from collections.abc import Callable
from typing import Final

from compiler.frontend.capture.axes import Axes, Axis
from compiler.frontend.capture.ir import Ref
from compiler.frontend.capture.seen import Call, Seen, Walk

View = Callable[[Walk, Call], tuple[Axes, ...] | None]


def view(walk: Walk, call: Call) -> bool:
    """Record the outputs of a view. False where the node is none, or its axes cannot be followed."""
    rule = VIEWS.get(call.name)
    if rule is None:
        return False
    results = rule(walk, call)
    if results is None:
        return False
    names = _read(call)
    roots, origin = walk.roots(names), walk.origin(names)
    for value, axes in zip(call.node.outputs, results, strict=True):
        walk.seen[value.name] = Seen(axes, roots, origin)
    return True


def _read(call: Call) -> tuple[str, ...]:
    """The values whose elements a view gives; the others say a shape or a type only."""
    names = call.refs()
    if _joins(call):
        return names
    return names[1:] if VIEWS[call.name] is _copy else names[:1]


def _joins(call: Call) -> bool:
    """Whether a view puts several values together."""
    return VIEWS[call.name] in (_cat, _stack, _slice_scatter)


def _source(walk: Walk, call: Call) -> Axes:
    return walk.seen[call.must(0, "self")].axes


def _same(walk: Walk, call: Call) -> tuple[Axes, ...]:
    axes = _source(walk, call)
    return tuple(axes for _ in call.node.outputs)


def _regroup(walk: Walk, call: Call) -> tuple[Axes, ...] | None:
    axes = walk.atoms.regroup(_source(walk, call), call.shape)
    return None if axes is None else (axes,)


def _transpose(walk: Walk, call: Call) -> tuple[Axes, ...]:
    axes = list(_source(walk, call))
    one, other = call.number(1, "dim0"), call.number(2, "dim1", 1)
    if axes:
        axes[one], axes[other] = axes[other], axes[one]
    return (tuple(axes),)


def _turn(walk: Walk, call: Call) -> tuple[Axes, ...]:
    return (tuple(reversed(_source(walk, call))),)


def _permute(walk: Walk, call: Call) -> tuple[Axes, ...] | None:
    axes, order = _source(walk, call), call.get(1, "dims")
    if not isinstance(order, tuple):
        return None
    return (tuple(axes[i] for i in order if isinstance(i, int)),)


def _fit(walk: Walk, call: Call) -> tuple[Axes, ...]:
    """unsqueeze, squeeze: axes of size 1 come and go; the others keep their order."""
    axes = _source(walk, call)
    last = [axis for axis in axes if walk.atoms.last in axis]
    rest = iter(axis for axis in axes if walk.atoms.extent(axis) != 1)
    out = [() if size == 1 else next(rest) for size in call.shape]
    if last and () in out:
        out[out.index(())] = last[0]
    return (tuple(out),)


def _expand(walk: Walk, call: Call) -> tuple[Axes, ...]:
    """New axes in front, and new atoms where a size of 1 is repeated."""
    axes = _source(walk, call)
    lead = len(call.shape) - len(axes)
    padded = ((),) * lead + axes
    pairs = zip(padded, call.shape, strict=True)
    return (tuple(axis if walk.atoms.extent(axis) == size else walk.axis(size) for axis, size in pairs),)


def _place(call: Call, index: int, name: str, rank: int) -> int:
    return call.number(index, name) % max(rank, 1)


def _slice(walk: Walk, call: Call) -> tuple[Axes, ...]:
    axes = list(_source(walk, call))
    dim = _place(call, 1, "dim", len(axes))
    extent, size = walk.atoms.extent(axes[dim]), call.shape[dim]
    start = call.number(2, "start")
    whole = walk.atoms.shrink(axes[dim], size)
    axes[dim] = (
        whole if whole is not None else walk.atoms.cut(axes[dim], start % extent, size, call.number(4, "step", 1))
    )
    return (tuple(axes),)


def _narrow(walk: Walk, call: Call) -> tuple[Axes, ...]:
    axes = list(_source(walk, call))
    dim = _place(call, 1, "dim", len(axes))
    axes[dim] = walk.atoms.cut(axes[dim], call.number(2, "start"), call.shape[dim])
    return (tuple(axes),)


def _select(walk: Walk, call: Call) -> tuple[Axes, ...]:
    axes = _source(walk, call)
    dim = _place(call, 1, "dim", len(axes))
    kept = axes[:dim] + axes[dim + 1 :]
    if walk.atoms.leaves(axes[dim]) == (walk.atoms.tokens,):
        kept = ((walk.atoms.last,), *kept[1:])
    return (kept,)


def _unbind(walk: Walk, call: Call) -> tuple[Axes, ...]:
    axes = _source(walk, call)
    dim = _place(call, 1, "dim", len(axes))
    return (axes[:dim] + axes[dim + 1 :],) * len(call.node.outputs)


def _split(walk: Walk, call: Call) -> tuple[Axes, ...]:
    axes = _source(walk, call)
    dim = _place(call, 2, "dim", len(axes))
    out: list[Axes] = []
    start = 0
    for value in call.node.outputs:
        size = value.shape[dim]
        out.append((*axes[:dim], walk.atoms.cut(axes[dim], start, size), *axes[dim + 1 :]))
        start += size
    return tuple(out)


def pieces(call: Call) -> tuple[str, ...]:
    """The tensors a concatenation joins."""
    first = call.get(0, "tensors")
    return tuple(item.name for item in first if isinstance(item, Ref)) if isinstance(first, tuple) else ()


def join(walk: Walk, call: Call) -> Axes | None:
    """The axes of a concatenation."""
    parts = [walk.seen[name] for name in pieces(call)]
    parts = [part for part in parts if len(part.axes) == len(call.shape)]
    if not parts:
        return None
    dim = _place(call, 1, "dim", len(call.shape))
    out: list[Axis] = []
    for place, size in enumerate(call.shape):
        if place == dim:
            joined = walk.atoms.join(tuple(part.axes[dim] for part in parts), size)
            out.append(walk.axis(size) if size == walk.atoms.size(walk.atoms.tokens) else joined)
            continue
        best = max(parts, key=lambda part: part.origin)
        for part in parts:
            walk.atoms.unify(best.axes[place], part.axes[place])
        out.append(best.axes[place])
    return tuple(out)


def _cat(walk: Walk, call: Call) -> tuple[Axes, ...] | None:
    axes = join(walk, call)
    return None if axes is None else (axes,)


def _stack(walk: Walk, call: Call) -> tuple[Axes, ...]:
    parts = [walk.seen[name] for name in pieces(call)]
    dim = _place(call, 1, "dim", len(call.shape))
    for part in parts[1:]:
        for one, other in zip(parts[0].axes, part.axes, strict=True):
            walk.atoms.unify(one, other)
    axes = parts[0].axes
    return ((*axes[:dim], walk.axis(call.shape[dim]), *axes[dim:]),)


def _repeat_interleave(walk: Walk, call: Call) -> tuple[Axes, ...] | None:
    """Each element of an axis several times: the copies are a new atom, which varies fastest."""
    axes = list(_source(walk, call))
    dim = _place(call, 2, "dim", len(axes))
    extent = walk.atoms.extent(axes[dim])
    if call.shape[dim] % extent or len(axes) != len(call.shape):
        return None
    axes[dim] = axes[dim] + walk.atoms.axis(call.shape[dim] // extent)
    return (tuple(axes),)


def _repeat(walk: Walk, call: Call) -> tuple[Axes, ...]:
    """The axis as a whole several times: the copies are a new atom, which varies slowest."""
    axes = _source(walk, call)
    padded = ((),) * (len(call.shape) - len(axes)) + axes
    out = [
        axis if walk.atoms.extent(axis) == size else walk.atoms.axis(size // walk.atoms.extent(axis)) + axis
        for axis, size in zip(padded, call.shape, strict=True)
    ]
    return (tuple(out),)


def _copy(walk: Walk, call: Call) -> tuple[Axes, ...]:
    return (walk.seen[call.must(1, "src")].axes,)


def _slice_scatter(walk: Walk, call: Call) -> tuple[Axes, ...]:
    """The input with a part of one axis exchanged: the other axes are those of the part."""
    axes, part = list(_source(walk, call)), walk.seen[call.must(1, "src")].axes
    dim = _place(call, 2, "dim", len(axes))
    for place, (one, other) in enumerate(zip(axes, part, strict=True)):
        if place != dim:
            walk.atoms.unify(one, other)
            axes[place] = other
    return (tuple(axes),)


def _complex(walk: Walk, call: Call) -> tuple[Axes, ...]:
    """Pairs as complex numbers; the axis of the pair comes back with `view_as_real`."""
    axes = _source(walk, call)
    walk.pairs[axes[-2]] = axes[-1]
    return (axes[:-1],)


def _real(walk: Walk, call: Call) -> tuple[Axes, ...]:
    axes = _source(walk, call)
    return ((*axes, walk.pairs.get(axes[-1]) or walk.axis(2)),)


def _pad(walk: Walk, call: Call) -> tuple[Axes, ...]:
    pairs = zip(_source(walk, call), call.shape, strict=True)
    return (tuple(axis if walk.atoms.extent(axis) == size else walk.atoms.extend(axis, size) for axis, size in pairs),)


_RULES: Final[tuple[tuple[str, View], ...]] = (
    ("view reshape _unsafe_view flatten unflatten _reshape_copy view_copy", _regroup),
    ("transpose swapaxes", _transpose),
    ("t", _turn),
    ("permute", _permute),
    ("unsqueeze squeeze", _fit),
    ("expand broadcast_to expand_as", _expand),
    ("slice", _slice),
    ("narrow", _narrow),
    ("select", _select),
    ("unbind", _unbind),
    ("split split_with_sizes chunk tensor_split", _split),
    ("cat concat concatenate", _cat),
    ("stack", _stack),
    ("repeat_interleave", _repeat_interleave),
    ("repeat", _repeat),
    ("copy", _copy),
    ("slice_scatter", _slice_scatter),
    ("constant_pad_nd pad", _pad),
    ("view_as_complex", _complex),
    ("view_as_real", _real),
    (
        "clone contiguous _to_copy to alias detach dropout lift_fresh_copy type_as float half bfloat16 native_dropout",
        _same,
    ),
)
VIEWS: Final[dict[str, View]] = {f"aten.{name}": rule for names, rule in _RULES for name in names.split()}
