"""Pass 1, rewrite: change the ops of a block without changing what they compute.

Contract: the block's inputs and outputs keep their names; a rule that does not apply gives a diagnostic that says what
it looked for. One block at a time, cached: schedules that differ in later passes share the result.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from compiler.diagnostic import Code, Diagnostic, Refusals
from compiler.ir.actions import Rewrite, Rule, known
from compiler.ir.dtype import DType, blended
from compiler.ir.graph import CONTEXTS, Block, Dim, Op, Pattern, Role, Tensor

#: Scores, softmax and values in one streaming pass: the core of each attention, and the dimension it walks.
CORES = {f"{part}.core": context for part, context in zip(("attn", "cross"), CONTEXTS, strict=True)}
SOFTMAX_FLOPS = 7  # a score: running maximum 1, subtract 1, exp 4 (STeP cost table), sum 1


class NotApplicable(Exception):
    """Internal to this module: the rule's precondition, in words, with what would help."""

    def __init__(self, rule: str, *levers: str) -> None:
        super().__init__(rule)
        self.levers = levers


@lru_cache(maxsize=4096)
def rewrite_block(block: Block, actions: tuple[Rewrite, ...]) -> tuple[Block, Refusals]:
    """Apply `actions`, which all name this block, in rule order (absorb and streaming come before split_kv)."""
    refusals = []
    last = {a.rule: a for a in actions}  # `*` and a kind are one block here: the last one wins
    for action in sorted(last.values(), key=lambda a: list(Rule).index(a.rule)):
        try:
            block = _RULES[action.rule](block, action)
        except NotApplicable as refusal:
            subject = f"{action.rule} on {block.kind}"
            levers = refusal.levers or ("drop this line",)
            refusals.append((action, Diagnostic(Code.REWRITE_NOT_APPLICABLE, subject, str(refusal), levers=levers)))
    return block, tuple(refusals)


def _replace_ops(block: Block, gone: set[str], new: dict[str, tuple[Op, ...]], tensors: tuple[Tensor, ...]) -> Block:
    """`block` without the ops `gone`; `new[name]` takes the place of op `name`. Unused tensors are dropped."""
    ops: list[Op] = []
    for op in block.ops:
        ops.extend(new.get(op.name, ()))
        if op.name not in gone:
            ops.append(op)
    by_name = {t.name: t for t in (*block.tensors, *tensors)}
    used = {n for op in ops for n in (*op.inputs, *op.outputs)} | set(block.inputs) | set(block.outputs)
    return replace(block, ops=tuple(ops), tensors=tuple(t for n, t in by_name.items() if n in used))


def _merge(block: Block, names: tuple[str, ...], merged: str, rows: Dim, drop: tuple[str, ...]) -> Block:
    """Contractions `names`, which read the same input, become one with a dimension `rows` in place of `drop`."""
    ops = [block.op[n] for n in names]
    weights = [[block.tensor[i] for i in op.inputs if block.tensor[i].role is Role.WEIGHT] for op in ops]
    if any(len({w.dtype.label for w in slot}) > 1 for slot in zip(*weights, strict=True)):
        raise NotApplicable(f"{', '.join(names)} are stored in different types")
    base = ops[-1]
    dims = list(base.dims)
    at = next(i for i, d in enumerate(dims) if d.name not in ("tokens", "slots", "kv_heads"))
    dims.insert(at, rows)
    fresh = []
    for slot, last in enumerate(weights[-1]):
        wdims = [d for d in last.dims if d.name not in drop]
        place = next((i for i, d in enumerate(wdims) if d.name not in ("experts", "kv_heads")), len(wdims))
        wdims.insert(place, rows)
        prefix = "w." if slot == 0 else "b."
        key = "+".join(ws[slot].key for ws in weights)
        dtype = blended((ws[slot].dtype, ws[slot].elements) for ws in weights)
        fresh.append(Tensor(prefix + merged, tuple(wdims), dtype, Role.WEIGHT, key))
    shared = tuple(i for i in base.inputs if block.tensor[i].role is not Role.WEIGHT)
    op = replace(
        base,
        name=merged,
        dims=tuple(dims),
        inputs=(*shared, *(t.name for t in fresh)),
        outputs=tuple(o for x in ops for o in x.outputs),
    )
    first = min(names, key=lambda n: block.ops.index(block.op[n]))
    return _replace_ops(block, set(names), {first: (op,)}, tuple(fresh))


def merge_qkv(block: Block, action: Rewrite) -> Block:
    names = ("attn.q_proj", "attn.k_proj", "attn.v_proj")
    if not all(n in block.op for n in names):
        raise NotApplicable("needs separate q, k and v projections of one input")
    q, k = block.op["attn.q_proj"], block.op["attn.k_proj"]
    if len(q.inputs) != len(k.inputs):
        raise NotApplicable("q and k, v differ in biases")
    return _merge(block, names, "attn.qkv_proj", Dim("qkv_rows", q.size("q_group") + 2), ("q_group",))


def merge_gate_up(block: Block, action: Rewrite) -> Block:
    found = False
    for gate, up, merged in (
        ("ffn.gate_proj", "ffn.up_proj", "ffn.gate_up_proj"),
        ("ffn.experts_gate", "ffn.experts_up", "ffn.experts_gate_up"),
        ("ffn.shared_gate_proj", "ffn.shared_up_proj", "ffn.shared_gate_up_proj"),
    ):
        if gate in block.op and up in block.op:
            block, found = _merge(block, (gate, up), merged, Dim("gate_up", 2), ()), True
    if not found:
        raise NotApplicable("needs a gated ffn with separate gate and up projections")
    return block


def mla_absorb(block: Block, action: Rewrite) -> Block:
    """Fold kv_b into the query and the output (DeepSeek-V2, arXiv 2405.04434, section 2.1.2).

    scores = (q_nope W_uk) . latent + q_pe . k_pe, mixed = (probs . latent) W_uv: the cache is read as stored.
    """
    if "attn.kv_b_proj" not in block.op:
        raise NotApplicable("needs latent attention with its kv_b projection not yet absorbed")
    kv_b, scores, softmax = block.op["attn.kv_b_proj"], block.op["attn.scores"], block.op["attn.softmax"]
    values, weight = block.op["attn.values"], block.tensor["w.attn.kv_b_proj"]
    rows = tuple(i for i in kv_b.inputs if any(d.name == "latent_dim" for d in block.tensor[i].dims))
    rows = rows or ("attn.latent_cache",)
    chosen = tuple(i for i in scores.inputs if i == "attn.selection")
    cache = block.tensor[rows[0]]
    heads, lora = Dim("heads", kv_b.size("heads")), Dim("kv_lora", kv_b.size("kv_lora"))
    tokens, context = Dim("tokens", scores.size("tokens")), Dim("context", scores.size("context"))
    nope = next(d for d in block.tensor["attn.q_nope"].dims if d.name == "nope")
    v_dim = next(d for d in block.tensor["attn.mixed"].dims if d.name == "v_dim")
    latent = next(d for d in cache.dims if d.name == "latent_dim")
    tensors = (
        Tensor("w.attn.k_absorb", (heads, nope, lora), weight.dtype, Role.WEIGHT, weight.key + "[k]"),
        Tensor("w.attn.v_absorb", (heads, v_dim, lora), weight.dtype, Role.WEIGHT, weight.key + "[v]"),
        Tensor("attn.q_latent", (tokens, heads, lora), DType.BF16, Role.ACTIVATION),
        Tensor("attn.mixed_latent", (tokens, heads, lora), DType.BF16, Role.ACTIVATION),
    )
    k_absorb = Op(
        "attn.k_absorb",
        Pattern.CONTRACT,
        (tokens, heads, lora, nope),
        ("attn.q_nope", "w.attn.k_absorb"),
        ("attn.q_latent",),
        ("nope",),
        2,
    )
    absorbed_scores = replace(
        scores,
        dims=(tokens, heads, latent, context),
        reduced=("latent_dim",),
        inputs=("attn.q_latent", "attn.q_pe", *rows, *chosen),
    )
    absorbed_values = replace(
        values,
        dims=(tokens, heads, lora, context),
        inputs=(*softmax.outputs, *rows),
        outputs=("attn.mixed_latent",),
    )
    v_absorb = Op(
        "attn.v_absorb",
        Pattern.CONTRACT,
        (tokens, heads, v_dim, lora),
        ("attn.mixed_latent", "w.attn.v_absorb"),
        ("attn.mixed",),
        ("kv_lora",),
        2,
    )
    return _replace_ops(
        block,
        {kv_b.name, scores.name, values.name},
        {scores.name: (k_absorb, absorbed_scores), values.name: (absorbed_values, v_absorb)},
        tensors,
    )


def streaming_softmax(block: Block, action: Rewrite) -> Block:
    """Scores, softmax and values in one pass with a running maximum and sum (Milakov, Gimelshein, arXiv 1805.02867);
    of every attention of the block."""
    if "attn.scores" not in block.op:
        raise NotApplicable("needs attention as scores, softmax, values")
    for core, context in CORES.items():
        if f"{_part(core)}.scores" in block.op:
            block = _streamed(block, core, context)
    return block


def _part(core: str) -> str:
    return core.split(".")[0]


def _streamed(block: Block, name: str, context: str) -> Block:
    scores, softmax, values = (block.op[f"{_part(name)}.{n}"] for n in ("scores", "softmax", "values"))
    width = scores.size(scores.reduced[0])
    value_dim = next(d for d in values.dims if d.name in ("head_dim", "v_dim", "kv_lora"))
    rows = tuple(d for d in scores.dims if d.name != scores.reduced[0])
    inputs = dict.fromkeys((*scores.inputs, *(i for i in (*softmax.inputs, *values.inputs))))
    inner = {*scores.outputs, *softmax.outputs}
    core = Op(
        name,
        Pattern.CONTRACT,
        rows,
        tuple(i for i in inputs if i not in inner),
        values.outputs,
        (context,),
        2 * width + SOFTMAX_FLOPS + 2 * value_dim.size,
        (context,),
    )
    return _replace_ops(block, {scores.name, softmax.name, values.name}, {values.name: (core,)}, ())


def split_kv(block: Block, action: Rewrite) -> Block:
    """Split-KV decode: `ways` partial softmaxes along the context, then one reduction with their maxima and sums.

    Of every attention of the block with that many rows: a decoder that begins has few of its own, and all those of its
    encoder.
    """
    cores = [core for core in CORES if core in block.op]
    if not cores:
        raise NotApplicable("needs streaming softmax", f"rewrite {block.kind} {Rule.STREAMING_SOFTMAX}")
    ways, context = known(action.ways), max(block.op[core].context for core in cores)
    if context < 2:
        raise NotApplicable("a context of one row cannot be split")
    if not 2 <= ways <= context:
        raise NotApplicable(f"ways={ways} is outside 2..{context}", f"ways<={context}")
    for core in cores:
        if ways <= block.op[core].context:
            block = _split_core(block, core, ways)
    return block


def _split_core(block: Block, name: str, ways: int) -> Block:
    part, splits = _part(name), Dim("splits", ways)
    block = _split_context(block, CORES[name], splits)
    core = block.op[name]
    out = block.tensor[core.outputs[0]]
    partial = Tensor(
        f"{part}.partial", (splits, *out.dims[:-1], Dim("partial", out.dims[-1].size + 2)), DType.FP32, Role.ACTIVATION
    )
    merge = Op(f"{part}.kv_reduce", Pattern.MAP, (splits, *out.dims), (partial.name,), core.outputs, ("splits",), 3)
    return _replace_ops(block, {name}, {name: (replace(core, outputs=(partial.name,)), merge)}, (partial,))


def _split_context(block: Block, context: str, splits: Dim) -> Block:
    """Every op and tensor with a dimension `context` gets (splits, context/splits) in its place.

    So do the rows of a cache out of which an indexer selects the context: a split then has an equal share of the
    selected rows, which holds in expectation. What walks all rows in order walks the splits too.
    """
    walked = (context, "cached") if context == CONTEXTS[0] else (context,)

    def split(dims: tuple[Dim, ...]) -> tuple[Dim, ...]:
        out: list[Dim] = []
        for d in dims:
            out.extend((splits, Dim(d.name, -(-d.size // splits.size))) if d.name in walked else (d,))
        return tuple(out)

    def walk(op: Op) -> tuple[str, ...]:
        return ("splits", *op.sequential) if "cached" in op.sequential and "cached" in walked else op.sequential

    ops = tuple(replace(op, dims=split(op.dims), sequential=walk(op)) for op in block.ops)
    return replace(block, ops=ops, tensors=tuple(replace(t, dims=split(t.dims)) for t in block.tensors))


_RULES: dict[Rule, Callable[[Block, Rewrite], Block]] = {
    Rule.MERGE_QKV: merge_qkv,
    Rule.MERGE_GATE_UP: merge_gate_up,
    Rule.MLA_ABSORB: mla_absorb,
    Rule.STREAMING_SOFTMAX: streaming_softmax,
    Rule.SPLIT_KV: split_kv,
}
