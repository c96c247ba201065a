"""Any accepted shard of any block computes what one socket computes, before and after rewrites, on real numbers.

An interpreter of its own (float64, named dimensions) runs a block whole, and on every virtual socket. What a socket
holds, reads and exchanges is what layouts, splits and collectives say of its number; the shape of everything written is
checked. `routes` holds expert + gate in one number (gate in 0..1).
"""

from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from compiler.frontend.spec import Attention, Dense, LatentAttention, Layer, MoE
from compiler.ir.actions import Rewrite, Rule, Shard
from compiler.ir.graph import Block, Graph, Op, Pattern, Phase
from compiler.ir.mesh import CollectiveKind, MeshAxis, Split, groups
from compiler.passes.rewrite import rewrite_block
from compiler.passes.shard import shard_block, splittable
from compiler.verify import verify_mesh

Make = Callable[..., Graph]
T = torch.Tensor
Named = tuple[T, list[str]]
GQA, MLA = Attention(4, 2, 4), LatentAttention(4, 8, 8, 4, 4, 4)
LAYERS = {
    "gqa_dense": (Layer(GQA, Dense(8)),),
    "gqa_moe": (Layer(GQA, MoE(4, 2, 8, shared_width=16)),),
    "mla_dense": (Layer(MLA, Dense(8)),),
    "mla_moe": (Layer(MLA, MoE(4, 2, 8)),),
}
RULES = (Rule.MERGE_QKV, Rule.MERGE_GATE_UP, Rule.MLA_ABSORB, Rule.STREAMING_SOFTMAX, Rule.SPLIT_KV)
SPLITS, EXPERTS, POISON = 2, 4, 1e6
WALKED = ("splits", "context")  # a cache has no padded rows here: nothing masks them


def axes(block: Block, name: str) -> list[str]:
    return [d.name for d in block.tensor[name].dims]


def piece(value: Named, sizes: dict[str, int], splits: tuple[Split, ...], socket: int) -> Named:
    """The socket's slice of every dimension longer than `sizes` says; what padding adds is zero."""
    tensor, names = value
    of = {split.dim: split for split in splits}
    for axis, dim in enumerate(names):
        local = sizes.get(dim, tensor.shape[axis])
        if local < tensor.shape[axis]:
            first, end = of[dim].span(socket)
            shape = list(tensor.shape)
            shape[axis] = local - (end - first)
            inside = tensor.narrow(axis, first, end - first)
            tensor = torch.cat([inside, torch.zeros(shape, dtype=tensor.dtype)], axis)
    return tensor, names


def contract(terms: list[Named], out: list[str]) -> T:
    """Product of `terms` summed over what is not in `out`. The batch of a cache is the token of a decode step."""
    names = {n: chr(97 + i) for i, n in enumerate(dict.fromkeys(n for _, ns in terms for n in ns if n != "batch"))}
    names["batch"] = names.get("tokens", "z") if terms[-1][0].shape[0] > 1 or "tokens" not in names else "z"
    spell = ["".join(names[n] for n in ns) for _, ns in terms]
    return torch.einsum(f"{','.join(spell)}->{''.join(names[n] for n in out)}", *(t for t, _ in terms))


class Socket:
    """One virtual socket: its number, and the tensors it holds. Slots of experts it has not are poisoned."""

    def __init__(self, block: Block, number: int, given: dict[str, T]) -> None:
        self.block, self.number = block, number
        self.held = {n: self.part(n, v) for n, v in given.items() if n in block.tensor}

    def part(self, name: str, value: T) -> T:
        """What the socket holds of the whole value of a tensor."""
        tensor = self.block.tensor[name]
        sizes = {d.name: d.size for d in tensor.dims}
        return piece((value, axes(self.block, name)), sizes, tensor.layout.splits, self.number)[0]

    def run(self, op: Op) -> None:
        self.splits = {s.dim: s for s in op.splits}
        sizes = {d.name: d.size for d in op.dims}
        terms = {i: self.cut((self.held[i], axes(self.block, i)), sizes) for i in op.inputs}
        terms = {i: v for i, v in terms.items() if not i.endswith("_new")}  # rows already in the cache
        for name, value in zip(op.outputs, self.values(op, list(terms.values()), sizes, terms), strict=True):
            self.held[name] = value.reshape([d.size for d in self.block.tensor[name].dims])

    def cut(self, value: Named, sizes: dict[str, int]) -> Named:
        """What the op that runs reads of a value."""
        return piece(value, sizes, tuple(self.splits.values()), self.number)

    def mine(self, routes: T, axis: MeshAxis | None, experts: int) -> T:
        """Which slots have their expert on this socket."""
        if axis is None:
            return torch.ones_like(routes, dtype=torch.bool)
        return routes.floor().long() * axis.ways // experts == axis.place(self.number)

    def values(self, op: Op, v: list[Named], sizes: dict[str, int], named: dict[str, Named]) -> list[T]:
        kind, outs = op.name.split(".")[1], [axes(self.block, o) for o in op.outputs]
        if op.pattern is Pattern.REDUCE and kind.endswith("norm"):
            x = v[0][0][..., : v[1][0].shape[-1]]
            return [x / x.norm(dim=-1, keepdim=True) * v[1][0]]
        if kind == "softmax":
            return [torch.softmax(v[0][0], -1)]
        if kind in ("residual", "add_shared"):
            return [v[0][0] + v[1][0]]
        if kind.endswith("act"):
            return [torch.nn.functional.silu(v[0][0]) * v[1][0]]
        if kind.endswith("rope"):  # mixes a row from end to end, as rotation does
            row = v[0][0]
            if op.name == "attn.k_rope" and "rope" in sizes:
                return [row[..., -sizes["rope"] :].flip(-1)]
            return [row.flip(-1)] if len(outs) == 1 else list(row.flip(-1).split(MLA.nope, -1))
        if kind == "kv_append":
            rows = [x for x, _ in v] if len(outs) == len(v) else [torch.cat([x for x, _ in v], -1)]
            return [self.append(x, o, names) for x, o, names in zip(rows, op.outputs, outs, strict=True)]
        if kind == "topk":
            top = torch.softmax(v[0][0], -1).topk(2, -1)
            return [top.indices + top.values.clamp(0.01, 0.99)]
        if kind == "combine":
            mine = self.mine(v[1][0], self.block.tensor[op.inputs[0]].layout.apart, EXPERTS)[..., None]
            return [(v[0][0].where(mine, 0.0) * v[1][0].frac()[..., None]).sum(1)]
        if kind == "kv_reduce":
            x, scale = v[0][0][..., :-2], (v[0][0][..., -2] - v[0][0][..., -2].amax(0)).exp()
            total = (v[0][0][..., -1] * scale).sum(0).clamp_min(1e-300)  # nothing where padding adds heads
            mixed = (x * scale[..., None]).sum(0) / total[..., None]
            return [self.cut((mixed, outs[0]), sizes)[0]]
        if op.routing:
            return self.experts(op, named, sizes, outs)
        if kind == "kv_b_proj":
            return self.expand(v, sizes, outs)
        if kind in ("scores", "values", "core"):
            return [self.attend(kind, v, sizes, outs[0])]
        rows = [n for n in ("qkv_rows", "gate_up") if n in sizes]
        return self.split_rows(contract(v, [*rows, *(outs[-1])]), rows, outs, sizes)

    def append(self, rows: T, name: str, names: list[str]) -> T:
        """Rows as the socket stores them: its part of the splits of the context, and of a latent row."""
        if "splits" in names:
            rows = rows.reshape(1, SPLITS, -1, *rows.shape[1:])
        elif "batch" in names:
            rows = rows[None]
        return self.part(name, rows)

    def split_rows(self, x: T, rows: list[str], outs: list[list[str]], sizes: dict[str, int]) -> list[T]:
        if not rows:
            return [x]
        parts = x.split([GQA.q_group, 1, 1] if rows == ["qkv_rows"] else [1, 1])
        return [p.movedim(0, 2) if "q_group" in out else p[0] for p, out in zip(parts, outs, strict=True)]

    def experts(self, op: Op, named: dict[str, Named], sizes: dict[str, int], outs: list[list[str]]) -> list[T]:
        x, routes = (named[i] for i in op.inputs[:2])
        weight, names = named[op.inputs[2]]
        mine = self.mine(routes[0], op.routing and op.routing.axis, EXPERTS)
        index = torch.where(mine, routes[0].floor().long() % weight.shape[0], 0)
        chosen = weight[index].where(mine.reshape(*mine.shape, *[1] * (weight.dim() - 1)), POISON)
        rows = [n for n in ("gate_up",) if n in sizes]
        y = contract([x, (chosen, ["tokens", "slots", *names[1:]])], [*rows, *outs[-1]])
        return self.split_rows(y, rows, outs, sizes)

    def expand(self, v: list[Named], sizes: dict[str, int], outs: list[list[str]]) -> list[T]:
        """Latent rows to keys and values of the heads: the rotary part of a key is in the row itself."""
        latent, names = self.values_of(v[0], sizes), v[0][1][:-1]
        kv = contract([latent, v[-1]], [*names, "heads", "kv_b"])
        pe = v[1][0] if len(v) == 3 else v[0][0][..., MLA.kv_lora :]  # prefill: rows come as latent and rotary part
        first = "kv_lora" not in self.splits or self.splits["kv_lora"].axis.place(self.number) == 0
        pe = pe[..., None, :].expand(*kv.shape[:-1], -1) * first
        return [torch.cat([kv[..., : MLA.nope], pe], -1), kv[..., MLA.nope :]]

    def attend(self, kind: str, v: list[Named], sizes: dict[str, int], out: list[str]) -> T:
        if kind == "values":
            v = [v[0], self.values_of(v[1], sizes)]
            return contract(v, out)
        q, rest = v[0], v[1:]
        if q[1][-1] not in ("head_dim", "qk_dim"):  # latent attention: both parts of the query against the whole row
            wide = "latent_dim" if q[1][-1] == "kv_lora" else "qk_dim"
            q = self.cut((torch.cat([q[0], rest[0][0]], -1), [*q[1][:-1], wide]), sizes)
            rest = rest[1:]
        if kind == "scores":
            return contract([q, rest[0]], out)
        heads = q[1][:-1]
        splits = ["splits"] if "splits" in sizes else []
        s = contract([q, rest[0]], [*splits, *heads, "context"])
        top = s.amax(-1, keepdim=True)
        p = (s - top).exp()
        value = self.values_of(rest[-1], sizes)
        mixed = contract([(p, [*splits, *heads, "context"]), value], [*splits, *heads, value[1][-1]])
        total = p.sum(-1, keepdim=True)
        return torch.cat([mixed, top, total], -1) if splits else mixed / total

    def values_of(self, row: Named, sizes: dict[str, int]) -> Named:
        """Values: a cache of their own, or the latent part of a row."""
        if row[1][-1] != "latent_dim":
            return row
        return self.cut((row[0][..., : MLA.kv_lora], [*row[1][:-1], "kv_lora"]), sizes)


def exchange(op: Op, sockets: list[Socket]) -> None:
    source, result = (sockets[0].block.tensor[n] for n in (op.inputs[0], op.outputs[0]))
    assert op.collective is not None
    for members in groups(op.collective.axes, len(sockets)):
        parts = {n: sockets[n].held[source.name] for n in members}
        if op.collective.kind is CollectiveKind.ALL_REDUCE:
            value = torch.stack(list(parts.values())).sum(0)
        else:
            value = torch.full([d.size for d in result.dims], torch.nan, dtype=torch.float64)
            for n, part in parts.items():
                spans = {dim: source.layout.split(dim).span(n) for dim in op.collective.dims}  # type: ignore[union-attr]
                for axis, dim in enumerate(d.name for d in source.dims):
                    first, end = spans.get(dim, (0, part.shape[axis]))
                    part = part.narrow(axis, 0, end - first)
                value[tuple(slice(*spans.get(d.name, (None,))) for d in source.dims)] = part
        for n in members:
            sockets[n].held[result.name] = value


def simulate(block: Block, given: dict[str, T]) -> list[Socket]:
    sockets = [Socket(block, n, given) for n in range(block.sockets)]
    for op in block.ops:
        if op.collective:
            exchange(op, sockets)
        else:
            for s in sockets:
                s.run(op)
    return sockets


def numbers(block: Block) -> dict[str, T]:
    """Weights and inputs of an original block, and the forms that rewrites give its weights."""
    generator = torch.Generator().manual_seed(1)
    tensors = [*block.weights, *(block.tensor[n] for n in block.inputs)]
    v = {t.name: torch.randn([d.size for d in t.dims], generator=generator, dtype=torch.float64) for t in tensors}
    if "w.attn.q_proj" in v and "w.attn.k_proj" in v:
        q, k, w = (v[f"w.attn.{n}_proj"] for n in "qkv")
        v["w.attn.qkv_proj"] = torch.cat([q, k[:, None], w[:, None]], 1)
    for name in ("ffn.{}_proj", "ffn.shared_{}_proj", "ffn.experts_{}"):
        gate, up = (f"w.{name.format(n)}" for n in ("gate", "up"))
        if gate in v:
            v[f"w.{name.format('gate_up')}"] = torch.stack([v[gate], v[up]], v[gate].dim() - 2)
    if "w.attn.kv_b_proj" in v:
        b = v["w.attn.kv_b_proj"]
        v["w.attn.k_absorb"], v["w.attn.v_absorb"] = b[:, : MLA.nope], b[:, MLA.nope :]
    return v


def block_of(graph: Make, kind: str, phase: Phase) -> Block:
    batch, context = (2, 4) if phase is Phase.DECODE else (1, 4)
    return graph(layers=LAYERS[kind], hidden=16, phase=phase, batch=batch, context=context).block[kind]


def rewritten(block: Block, rules: tuple[Rule, ...]) -> Block:
    for rule in rules:
        block = rewrite_block(block, (Rewrite(block.kind, rule, SPLITS if rule is Rule.SPLIT_KV else 1),))[0]
    return block


def same(local: Block, whole: Block, sockets: list[Socket], expected: Socket) -> None:
    for mine, name in zip(local.outputs, whole.outputs, strict=True):
        for s in sockets:
            want = s.part(mine, expected.held[name].reshape([d.size for d in whole.tensor[name].dims]))
            torch.testing.assert_close(s.held[mine], want, rtol=1e-8, atol=1e-8, msg=f"{mine} on {s.number}")


KINDS = [(k, p) for k in LAYERS for p in Phase]


@pytest.mark.parametrize(("kind", "phase"), KINDS)
def test_rewrites_keep_what_is_computed(graph: Make, kind: str, phase: Phase) -> None:
    source = block_of(graph, kind, phase)
    (expected,) = simulate(source, numbers(source))
    for n in range(2 ** len(RULES)):
        rules = tuple(r for i, r in enumerate(RULES) if n >> i & 1)
        block = rewritten(source, rules)
        given = numbers(source)
        for name in block.inputs:  # a cache whose context is split
            given[name] = given[name].reshape([d.size for d in block.tensor[name].dims])
        (got,) = simulate(block, given)
        torch.testing.assert_close(got.held["y"], expected.held["y"], rtol=1e-8, atol=1e-8, msg=str(rules))


def choices(block: Block) -> list[tuple[str, str]]:
    """(part, dimension) that may be asked for: whole parts and single ops."""
    pairs = [(op, dim) for op in block.ops for dim in (*splittable(op), *(("experts",) if op.routing else ()))]
    return list(dict.fromkeys((part, dim) for op, dim in pairs for part in (op.name, op.name.split(".")[0])))


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
@pytest.mark.parametrize(("kind", "phase"), KINDS)
def test_any_accepted_shard_computes_the_same(graph: Make, kind: str, phase: Phase, data: st.DataObject) -> None:
    """One dimension may be split in different ways in different ops, and what an op splits in another order."""
    source = block_of(graph, kind, phase)
    rules = tuple(r for r in RULES if data.draw(st.booleans(), label=r))
    whole = rewritten(source, rules)
    picked = data.draw(st.lists(st.sampled_from(choices(whole)), min_size=1, max_size=4, unique=True), label="shards")
    sockets = data.draw(st.sampled_from((4, 8)), label="sockets")
    actions = []
    for part, dim in picked:
        ways = data.draw(st.sampled_from([w for w in (2, 4) if sockets % w == 0]), label=f"ways {part} {dim}")
        pad = 0 if dim in WALKED else data.draw(st.sampled_from((0, 0, 3)), label=f"pad {part} {dim}")
        actions.append(Shard(kind, part, dim, ways, pad))
    local, refusals = shard_block(whole, tuple(actions), sockets)
    assume(not refusals)
    verify_mesh(local)
    given = numbers(source)
    for name in whole.inputs:
        given[name] = given[name].reshape([d.size for d in whole.tensor[name].dims])
    (expected,) = simulate(whole, given)
    same(local, whole, simulate(local, given), expected)
