"""Names of atoms: the dimension vocabulary where a role is known, else words made of the weight they belong to."""

from collections.abc import Iterable

from compiler.frontend.capture.axes import Axis
from compiler.frontend.capture.chosen import INDEX
from compiler.frontend.capture.costs import DELTAS
from compiler.frontend.capture.latent import Latent, Layer
from compiler.frontend.capture.loops import SCAN
from compiler.frontend.capture.seen import Origin
from compiler.frontend.capture.steps import Kind, Step

#: The dimension that the rows of a projection are, by its name.
_ROWS = {
    "ffn.gate_proj": "ffn",
    "ffn.up_proj": "ffn",
    "ffn.shared_gate_proj": "shared_ffn",
    "ffn.shared_up_proj": "shared_ffn",
    "ffn.router": "experts",
    "head.lm_head": "vocab",
    "head.classifier": "classes",
    "attn.kv_a_proj": "kv_a",
    "attn.q_a_proj": "q_lora",
}


class Names:
    """The names and sizes of the dimensions of one block. `sizes` is what a `BlockBuilder` reads.

    source: the dimension of the encoder's tokens of a sequence; last: what one token of each sequence is called.
    """

    def __init__(self, layer: Layer, sizes: dict[str, int], source: str = "", last: str = "tokens") -> None:
        self.source = source
        self.atoms = layer.flow.atoms
        self.sizes = sizes
        self._runs: dict[Axis, str] = {}
        self._names: dict[int, str] = {layer.flow.atoms.tokens: "tokens", layer.flow.atoms.last: last}

    def give(self, axis: Iterable[int], *names: str) -> None:
        """Name the atoms of `axis`: one name each, or one for all together. Named atoms keep their names."""
        leaves = self.atoms.leaves(axis)
        if len(names) == 1 and len(leaves) > 1:
            if leaves not in self._runs and not any(atom in self._names for atom in leaves):
                self._runs[leaves] = self._free(names[0], self.atoms.extent(leaves))
            return
        for atom, name in zip(leaves, names, strict=False):
            if atom not in self._names:
                self._names[atom] = self._free(name, self.atoms.size(atom))

    def _free(self, name: str, size: int) -> str:
        """`name`, or with a number where a dimension of another size has it."""
        number, unique = 2, name
        while self.sizes.get(unique, size) != size:
            unique, number = f"{name}_{number}", number + 1
        self.sizes[unique] = size
        return unique

    def name(self, atom: int) -> str:
        leaf = self.atoms.find(atom)
        if leaf not in self._names:
            self.give((leaf,), f"d{len(self._names)}")
        return self._names[leaf]

    def _single(self, leaves: Axis) -> Iterable[str]:
        """A name for each leaf, or for each run of leaves that has one name."""
        place = 0
        while place < len(leaves):
            if leaves[place] == self.atoms.find(self.atoms.memory):
                yield from ("batch", self.source)
                place += 1
                continue
            run = next((run for run in self._runs if leaves[place : place + len(run)] == run), ())
            yield self._runs[run] if run else self.name(leaves[place])
            place += len(run) or 1

    def words(self, axis: Iterable[int], taken: Iterable[str] = ()) -> list[str]:
        """The names of the atoms of `axis`, tokens first (layout is the compiler's choice, not the module's).

        A name met twice (or in `taken`) is another dimension: `_in`.
        """
        out: list[str] = []
        for word in self._single(self.atoms.leaves(axis)):
            while word in (*out, *taken):
                self.sizes.setdefault(f"{word}_in", self.sizes[word])
                word = f"{word}_in"
            out.append(word)
        return sorted(out, key=lambda word: word != "tokens")


def name_dims(layer: Layer, names: Names, hidden: Axis, weights: dict[str, str]) -> None:
    """Identify the axes of the semantic operators and name every atom that has a meaning.

    weights: the checkpoint key of each weight value, for the names of the rest.
    """
    for step in layer.steps:
        if step.kind is Kind.ATTENTION and id(step) not in layer.latents:
            _attention(layer, step)
    names.give(hidden, "hidden")
    for seen in layer.flow.seen.values():
        if len(seen.axes) == 3 and layer.flow.atoms.leaves(seen.axes[1]) == (layer.flow.atoms.memory,):
            names.give(seen.axes[2], "hidden")
            break
    for latent in layer.latents.values():
        _latent(layer, names, latent)
    for step in layer.steps:
        if step.kind is Kind.ATTENTION and id(step) not in layer.latents:
            _name_attention(layer, names, step)
        elif step.kind is Kind.INDEX and step.call.name == INDEX:
            query = layer.flow.seen[step.call.must(0)].axes
            names.give(query[-2], "index_heads")
            names.give(query[-1], "index_dim")
        elif step.kind is Kind.RECURRENCE:
            _recurrence(layer, names, step)
        elif step.name in _ROWS:
            names.give(layer.flow.seen[step.outputs[0]].axes[-1], _ROWS[step.name])
        elif step.name == "embed.gather" and step.weights:
            names.give(layer.flow.seen[step.weights[0]].axes[0], "vocab")
    for step in layer.steps:
        if step.kind is Kind.CONV and len(step.call.shape) == 4:
            _name_image(layer, names, step)
        elif step.kind is Kind.CONV:
            names.give(step.reduced[:1], "kernel")
            names.give(layer.flow.seen[step.outputs[0]].axes[1], "channels")
    for value, key in weights.items():
        parts = key.removesuffix(".weight").split(".")
        stem = next((part for part in reversed(parts) if part.isidentifier()), "weight")
        for axis, suffix in zip(layer.flow.seen[value].axes, ("rows", "columns", "depth", "depth_2"), strict=False):
            whole = layer.flow.atoms.leaves(axis)
            if _walked_in_part(layer, whole):
                for number, atom in enumerate(whole):
                    names.give((atom,), f"{stem}_{suffix}" + (f"_{number + 1}" if number else ""))
            names.give(axis, f"{stem}_{suffix}")


def _walked_in_part(layer: Layer, axis: Axis) -> bool:
    """Whether a step walks along or sums over some atoms of `axis` and not over others."""
    leaves = layer.flow.atoms.leaves
    walked = [set(leaves(one)) for step in layer.steps for one in (step.sequential, step.reduced)]
    return any(0 < len(one.intersection(axis)) < len(axis) for one in walked)


def _attention(layer: Layer, step: Step) -> None:
    """Identify heads and head sizes of query, key and value; a query's heads are (kv_heads, q_group)."""
    atoms, call = layer.flow.atoms, step.call
    q, k, v = (layer.flow.seen[call.must(place)].axes for place in range(3))
    atoms.unify(k[-3], v[-3])
    own, heads = key_heads(layer, step), atoms.leaves(q[-3])
    many, few = atoms.extent(heads), atoms.extent(own)
    if atoms.extent(atoms.leaves(k[-3])) == many and many != few:  # keys repeated for the heads of a group
        atoms.unify(q[-3], k[-3])
    elif len(heads) == 1 and len(own) == 1 and heads != own and many % few == 0:
        atoms.unify((atoms.split(heads[0], (few, many // few))[0],), own)
    elif many == few:
        atoms.unify(q[-3], k[-3])
    atoms.unify(q[-1], k[-1])
    if atoms.extent(v[-1]) == atoms.extent(k[-1]):
        atoms.unify(v[-1], k[-1])
    sinks = call.ref(8, "sinks") if call.name == "rdutune.attention" else None
    if sinks is not None:
        atoms.unify(layer.flow.seen[sinks].axes[0], q[-3])
    for table in bias_tables(layer, step):
        atoms.unify(layer.flow.seen[table].axes[-1], q[-3])


def bias_tables(layer: Layer, step: Step) -> tuple[str, ...]:
    """The weights that an attention adds to its scores by the distance of two tokens: (buckets, heads)."""
    mask = step.call.ref(9) if step.call.name == "rdutune.attention" else None
    roots = () if mask is None else layer.flow.seen[mask].roots
    return tuple(root for root in roots if layer.flow.seen[root].origin is Origin.WEIGHT)


def _name_image(layer: Layer, names: Names, step: Step) -> None:
    """Names of a convolution over an image: its kernel and channels, the patches it gives."""
    flow = layer.flow
    image, out = (flow.seen[name].axes for name in (step.call.must(0), step.outputs[0]))
    for atom, name in zip(step.reduced, ("channels", "kernel_height", "kernel_width"), strict=True):
        names.give((atom,), name)
    for axes, words in ((image, ("height", "width")), (out, ("patch_rows", "patch_columns"))):
        for side, name in zip(axes[2:], words, strict=True):
            names.give(side, name)


def crosses(layer: Layer, step: Step) -> bool:
    """Whether an attention reads what an encoder gave."""
    flow = layer.flow
    return flow.atoms.leaves(flow.seen[step.call.must(1)].axes[-2]) == (flow.atoms.memory,)


def key_heads(layer: Layer, step: Step) -> Axis:
    """The atoms of a key's heads that the stored key has: those that are not copies for a group of query heads."""
    flow, key = layer.flow, layer.flow.seen[step.call.must(1)]
    stored = {atom for root in key.roots for atom in flow.atoms.flat(flow.seen[root].axes)}
    stored |= {atom for root in key.roots for axis in flow.seen[root].axes for atom in flow.atoms.inside(axis)}
    leaves = flow.atoms.leaves(key.axes[-3])
    kept = tuple(atom for atom in leaves if atom in stored)
    return kept or leaves


def _name_attention(layer: Layer, names: Names, step: Step) -> None:
    atoms, call = layer.flow.atoms, step.call
    q, k, v = (layer.flow.seen[call.must(place)].axes for place in range(3))
    own = set(key_heads(layer, step))
    names.give((atom for atom in atoms.leaves(q[-3]) if atom in own), "kv_heads")
    names.give((atom for atom in atoms.leaves(q[-3]) if atom not in own), "q_group")
    names.give(k[-1], "head_dim")
    names.give(v[-1], "v_dim")
    for table in bias_tables(layer, step):
        names.give(layer.flow.seen[table].axes[0], "buckets")


def _latent(layer: Layer, names: Names, latent: Latent) -> None:
    """Names and sizes of latent attention; its heads are those of the query."""
    flow = layer.flow
    attention = next(step for step in layer.steps if layer.latents.get(id(step)) is latent)
    q, k, v = (flow.seen[attention.call.must(place)].axes for place in range(3))
    extent = flow.atoms.extent
    flow.atoms.unify(q[-3], v[-3])
    names.give(q[-3], "heads")
    names.give(q[-1], "qk_dim")
    names.give(v[-1], "v_dim")
    names.give(flow.seen[latent.norm.outputs[0]].axes[-1], "kv_lora")
    if latent.k_norm is not None:
        names.give(flow.seen[latent.k_norm.outputs[0]].axes[-1], "rope")
    lora = extent(flow.seen[latent.norm.outputs[0]].axes[-1])
    rope = extent(flow.seen[latent.down.outputs[0]].axes[-1]) - lora
    nope, value = extent(k[-1]) - rope, extent(v[-1])
    names.sizes |= {"nope": nope, "rope": rope, "kv_b": nope + value, "latent_dim": lora + rope, "qk_dim": nope + rope}
    names.sizes |= {"kv_lora": lora, "v_dim": value, "heads": extent(q[-3])}


def _recurrence(layer: Layer, names: Names, step: Step) -> None:
    flow, call = layer.flow, step.call
    if call.name in DELTAS:
        key, value = flow.seen[call.must(1)].axes, flow.seen[call.must(2)].axes
        names.give(value[-2], "heads")
        names.give(value[-1], "v_dim")
        names.give(key[-1], "k_dim")
        names.give(key[-2], "k_heads")
    elif call.name == "rdutune.ssm_scan":
        x, state = flow.seen[call.must(0)].axes, flow.seen[call.must(3)].axes
        names.give(x[-2], "heads")
        names.give(x[-1], "v_dim")
        names.give(state[-1], "k_dim")
        names.give(state[-2], "groups")
    elif call.name == SCAN:
        names.give(flow.seen[call.must(0)].axes[-1], "channels")
    else:
        x, state = flow.seen[call.must(0)].axes, flow.seen[call.must(2)].axes
        names.give(x[1], "heads")
        names.give(state[-1], "k_dim")
