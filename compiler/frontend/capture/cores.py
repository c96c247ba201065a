"""The ops of semantic operators: attention with its cache, latent attention, routed experts.

The same ops, dimensions and figures as `compiler.frontend.attention` and `.ffn` build from a ModelSpec.
"""

from compiler.frontend.capture.dims import bias_tables, crosses, key_heads
from compiler.frontend.capture.emit import Emitter
from compiler.frontend.capture.indexers import enter, index_of, selected, top_k
from compiler.frontend.capture.latent import Latent, Layer
from compiler.frontend.capture.steps import Step
from compiler.frontend.flops import ACTIVATION_FLOPS, GATE_FLOPS, ROPE_FLOPS, SOFTCAP_FLOPS, SOFTMAX_FLOPS
from compiler.frontend.quant import WeightKind
from compiler.ir.graph import Op, Pattern, Role, Routing


def spans(step: Step) -> tuple[int, int]:
    """Window and chunk of an attention in tokens, 0 for none."""
    call = step.call
    return (call.number(5), call.number(6)) if call.name == "rdutune.attention" else (0, 0)


def cached_tokens(step: Step, context: int) -> int:
    """Tokens of a sequence of `context` that an attention's cache holds."""
    return min(context, *(span for span in spans(step) if span), context)


def causal(step: Step) -> bool:
    call = step.call
    if call.name == "rdutune.attention":
        return bool(call.get(4, "causal", True))
    return bool(call.get(5, "is_causal", False)) or call.ref(3, "attn_mask") is not None


def attention(e: Emitter, step: Step) -> None:
    """Cache, scores, softmax and values of one attention operator."""
    if e.decode and not causal(step) and not crosses(e.layer, step):
        raise e.refuse(step, "every token attends to later ones, so there is no decoding", "phase prefill")
    prefix = step.name.rpartition(".")[0]
    word = context_word(e, step)
    latent = e.layer.latents.get(id(step))
    if latent is not None and prefix == "attn":
        keys: tuple[str, ...] = ("attn.k",)
        values: tuple[str, ...] = ("attn.v",)
        heads, key, value = "heads", "qk_dim", "v_dim"
    else:
        heads, key, value = _head_words(e, step)
        keys, values = _cache(e, step, prefix, word)
    queries = e.read(step.call.must(0))
    if index_of(e, step) is not None and not e.decode:
        keys = (*keys, "attn.selection")
    mixed = e.output(step) if e.output(step) in ("y",) else f"{prefix}.mixed"
    _core(e, step, (heads, key, value, word), (*queries, *keys), values, mixed)
    e.tensor[step.outputs[0]] = (mixed,)


def context_word(e: Emitter, step: Step) -> str:
    """The dimension of what an attention's cache holds; a second attention may hold another number of tokens."""
    if crosses(e.layer, step):
        return e.names.source
    context, index = cached_tokens(step, e.workload.context), index_of(e, step)
    if index is not None:
        if id(step) not in e.layer.latents:
            raise e.refuse(step, "an indexer chooses among keys that are cached whole", "latent attention")
        e.names.sizes["cached"] = context
        context = min(context, top_k(index))
    size = e.names.sizes.setdefault("context", context)
    word = "context" if size == context else f"context_{step.name.split('.')[0]}"
    e.names.sizes[word] = context
    return word


def enter_caches(e: Emitter, step: Step) -> None:
    """The caches an attention reads, among the inputs of the block: its own in decode, another layer's always."""
    prefix, context = step.name.rpartition(".")[0], context_word(e, step)
    if prefix == "attn" and id(step) in e.layer.latents:
        rows = context if index_of(e, step) is None else "cached"
        if e.decode:
            e.builder.enter("attn.latent_cache", f"batch {rows} latent_dim", Role.KV_CACHE)
        index = index_of(e, step)
        if index is not None:
            enter(e, index)
        return
    borrowed = _borrows(e, step)
    if e.decode or borrowed:
        for side, row in zip("kv", _rows(e, step), strict=True):
            role = Role.BORROWED if borrowed else Role.KV_CACHE
            e.builder.enter(f"{prefix}.{side}_cache", f"batch {context} {row}", role)


def _borrows(e: Emitter, step: Step) -> bool:
    """Whether keys and values are what another layer put into its cache."""
    seen, call = e.layer.flow.seen, step.call
    return all(e.is_input(root) for place in (1, 2) for root in seen[call.must(place)].roots)


def _rows(e: Emitter, step: Step) -> tuple[str, str]:
    """The dimensions of a row of keys and of values."""
    seen, call = e.layer.flow.seen, step.call
    heads = e.words(key_heads(e.layer, step))
    key, value = (f"{heads} {e.words(seen[call.must(place)].axes[-1])}" for place in (1, 2))
    return key, value


def _head_words(e: Emitter, step: Step) -> tuple[str, str, str]:
    seen, atoms = e.layer.flow.seen, e.layer.flow.atoms
    q, k, v = (seen[step.call.must(place)].axes for place in range(3))
    return e.words(atoms.leaves(q[-3])), e.words(k[-1]), e.words(v[-1])


def _cache(e: Emitter, step: Step, prefix: str, context: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Append keys and values; the tensors in which all keys and all values are."""
    rows = _rows(e, step)
    caches = tuple(f"{prefix}.{side}_cache" for side in "kv")
    if _borrows(e, step):
        return caches[:1], caches[1:]
    out = tuple(f"{prefix}.{side}_new" for side in "kv") if e.decode else caches
    across = crosses(e.layer, step)
    if across and e.decode:
        return caches[:1], caches[1:]
    if gathered(e.layer, step):
        return e.read(step.call.must(1)), e.read(step.call.must(2))
    made = e.read(step.call.must(1), step.call.must(2))
    points = e.builder.dims(f"batch {context} {rows[0]}" if across else f"tokens {rows[0]}")
    if not across and not causal(step):
        out = tuple(f"{prefix}.{side}_all" for side in "kv")
        place = Op(f"{prefix}.kv_place", Pattern.SCATTER, points, made, out, flops_per_point=0)
        e.builder.emit(place, *(f"batch {context} {row}" for row in rows))
        return out[:1], out[1:]
    append = Op(f"{prefix}.kv_append", Pattern.SCATTER, points, made, out, flops_per_point=0)
    lead = "tokens" if e.decode else f"batch {context}"
    e.builder.emit(append, *(f"{lead} {row}" for row in rows), role=Role.KV_CACHE)
    e.outputs.extend(out)
    if not e.decode:
        return out[:1], out[1:]
    return (caches[0], out[0]), (caches[1], out[1])


def gathered(layer: Layer, step: Step) -> tuple[str, ...]:
    """The keys and values of a bidirectional attention that nothing else reads: made by sequence, and never cached.

    Nothing where they are cached, or are also read token by token.
    """
    if causal(step) or crosses(layer, step):
        return ()
    seen = layer.flow.seen
    roots = tuple(dict.fromkeys(root for place in (1, 2) for root in seen[step.call.must(place)].roots))
    queries = seen[step.call.must(0)].roots
    alone = all(root in layer.made and layer.readers[root] == [step] and root not in queries for root in roots)
    return roots if alone and not layer.results.intersection(roots) else ()


def _core(
    e: Emitter, step: Step, words: tuple[str, str, str, str], keys: tuple[str, ...], values: tuple[str, ...], mixed: str
) -> None:
    """Scores, softmax and weighted values. `words`: heads, dimension of a key, of a value, and the context."""
    heads, key, value, context = words
    prefix, b = step.name.rpartition(".")[0], e.builder
    table, along = f"tokens {heads} {context}", (context,)
    softmax = f"{prefix}.softmax"
    extra = [e.weight(name, softmax, WeightKind.PLAIN, heads) for name in step.weights if name == step.call.ref(8)]
    extra += [e.weight(name, softmax, WeightKind.PLAIN) for name in bias_tables(e.layer, step)]
    names = [f"{prefix}.{n}" for n in ("scores", "softmax", "values", "scores_out", "probs")]
    points = b.dims(f"tokens {heads} {key} {context}")
    reduced = tuple(key.split())
    b.emit(Op(names[0], Pattern.CONTRACT, points, keys, (names[3],), reduced, 2, along), table)
    inputs = (names[3], *extra)
    capped = step.call.name == "rdutune.attention" and step.call.get(7, "softcap", 0.0)
    flops = SOFTMAX_FLOPS + (SOFTCAP_FLOPS if capped else 0)
    b.emit(Op(names[1], Pattern.REDUCE, b.dims(table), inputs, (names[4],), (), flops, along), table)
    points = b.dims(f"tokens {heads} {value} {context}")
    b.emit(
        Op(names[2], Pattern.CONTRACT, points, (names[4], *values), (mixed,), along, 2, along),
        f"tokens {heads} {value}",
    )


def latent_query(e: Emitter, step: Step) -> None:
    """Rotation of the query of latent attention: the part without position, and the rotated part."""
    words = ("tokens heads nope", "tokens heads rope")
    out = ("attn.q_nope", "attn.q_pe")
    dims = e.builder.dims("tokens heads qk_dim")
    e.builder.emit(Op(step.name, Pattern.MAP, dims, e.read(*step.sources), out, flops_per_point=ROPE_FLOPS), *words)
    e.tensor[step.outputs[0]] = out


def latent_key(e: Emitter, step: Step) -> None:
    """Rotation of the one key row that all heads share."""
    e.builder.pointwise(step.name, e.read(*step.sources), "attn.k_pe", "tokens rope", ROPE_FLOPS)
    e.tensor[step.outputs[0]] = ("attn.k_pe",)


def latent_cache(e: Emitter, latent: Latent, index: Step | None) -> None:
    """Append the latent rows, and expand the cached latents to keys and values of all heads; of an indexer's choice
    in decode the chosen rows only."""
    b, cached = e.builder, "context" if index is None else "cached"
    rows: tuple[str, ...] = (*e.read(*(latent.scale or latent.norm).outputs), "attn.k_pe")
    stored = f"batch {cached} latent_dim"
    out = "attn.latent_new" if e.decode else "attn.latent_cache"
    append = Op("attn.kv_append", Pattern.SCATTER, b.dims("tokens latent_dim"), rows, (out,), flops_per_point=0)
    b.emit(append, "tokens latent_dim" if e.decode else stored, role=Role.KV_CACHE)
    e.outputs.append(out)
    if e.decode:
        rows = ("attn.latent_cache", "attn.latent_new") if index is None else selected(e)
        cached = "context"
    weight = e.weight(latent.expand.weights[0], "attn.kv_b_proj", WeightKind.LINEAR, "heads kv_b kv_lora")
    dims = b.dims(("batch context" if e.decode else "tokens") + " heads kv_b kv_lora")
    expand = Op("attn.kv_b_proj", Pattern.CONTRACT, dims, (*rows, weight), ("attn.k", "attn.v"), ("kv_lora",), 2)
    b.emit(expand, f"batch {cached} heads qk_dim", f"batch {cached} heads v_dim")


def experts(e: Emitter, step: Step) -> None:
    """Routed experts: gate and up projections, activation, down projection, sum over the chosen ones."""
    call, seen, atoms = step.call, e.layer.flow.seen, e.layer.flow.atoms
    down, hidden = seen[call.must(4)], e.words(seen[call.must(0)].axes[-1])
    count = atoms.extent(down.axes[0])
    gated = bool(call.get(10, "gated", True))
    width = atoms.extent(down.axes[2] if not call.get(11, "transposed", False) else down.axes[1])
    slots = atoms.extent(seen[call.must(1)].axes[-1])
    ffn = "ffn" if e.names.sizes.get("ffn", width) == width else "expert_ffn"
    e.names.sizes.update({"experts": count, "slots": slots, ffn: width})
    routing = Routing(count, slots)
    rows = e.read(call.must(0))
    routes = e.read(call.must(1), call.must(2))
    parts = ("gate", "up") if gated else ("gate",)
    for part in parts:
        words = f"experts {ffn} {hidden}"
        inputs = (*rows, *routes, *_expert_weights(e, f"ffn.experts_{part}", (3, 5), words, step))
        _expert(e, f"ffn.experts_{part}", inputs, f"tokens slots {ffn} <- {hidden}", f"ffn.experts_{part}_out", routing)
    flops = ACTIVATION_FLOPS + (GATE_FLOPS if gated else 0)
    outs = tuple(f"ffn.experts_{part}_out" for part in parts)
    e.builder.pointwise("ffn.experts_act", outs, "ffn.experts_mid", f"tokens slots {ffn}", flops)
    weights = _expert_weights(e, "ffn.experts_down", (4, 6), f"experts {hidden} {ffn}", step)
    down_inputs = ("ffn.experts_mid", *routes, *weights)
    _expert(e, "ffn.experts_down", down_inputs, f"tokens slots {hidden} <- {ffn}", "ffn.experts_out", routing)
    result = "ffn.experts_out"
    norm = call.ref(7, "post_norm")
    if norm is not None:
        weight = e.weight(norm, "ffn.experts_norm", WeightKind.PLAIN, hidden)
        dims, last = e.builder.dims(f"tokens slots {hidden}"), (hidden.split()[-1],)
        op = Op("ffn.experts_norm", Pattern.REDUCE, dims, (result, weight), ("ffn.experts_normed",), (), 4, last)
        e.builder.emit(op, f"tokens slots {hidden}")
        result = "ffn.experts_normed"
    out = "y" if e.output(step) == "y" else "ffn.out"
    dims = e.builder.dims(f"tokens slots {hidden}")
    combine = Op("ffn.combine", Pattern.CONTRACT, dims, (result, *routes), (out,), ("slots",), 2, linear=True)
    e.builder.emit(combine, f"tokens {hidden}")
    e.tensor[step.outputs[0]] = (out,)


def _expert(e: Emitter, name: str, inputs: tuple[str, ...], words: str, out: str, routing: Routing) -> None:
    left, reduced = (part.split() for part in words.split("<-"))
    dims = e.builder.dims(" ".join(left + reduced))
    op = Op(name, Pattern.CONTRACT, dims, inputs, (out,), tuple(reduced), 2, routing=routing)
    e.builder.emit(op, " ".join(left))


def _expert_weights(e: Emitter, op: str, places: tuple[int, int], words: str, step: Step) -> tuple[str, ...]:
    """The weight of one projection of all experts, and its bias; gate and up share a tensor of the checkpoint."""
    matrix, bias, part = step.call.must(places[0]), step.call.ref(places[1]), int(op.endswith("_up"))
    out = [e.builder.weight(f"w.{op}", words, _published(e, matrix, part), WeightKind.EXPERT)]
    if bias is not None:
        kept = " ".join(words.split()[:2])
        out.append(e.builder.weight(f"b.{op}", kept, _published(e, bias, part)))
    return tuple(out)


def _published(e: Emitter, name: str, part: int) -> str:
    """The checkpoint tensor of part number `part` (gate, up) of a weight, also of several put together."""
    roots = e.layer.flow.seen[name].roots
    return e.weight_value(roots[min(part, len(roots) - 1)]).published(part)


def routes(e: Emitter, step: Step) -> None:
    """The chosen experts and their gates, from the router's scores: one sort over the experts."""
    scores = e.words(step.sequential)
    users = [user.call for user in e.layer.users(step) if user.call.name == "rdutune.experts"]
    e.names.sizes["slots"] = e.layer.flow.atoms.extent(e.layer.flow.seen[users[0].must(1)].axes[-1])
    inputs, points = (*e.read(*step.sources), *e.weights(step)), e.builder.dims(f"tokens {scores}")
    op = Op(step.name, Pattern.SORT, points, inputs, ("ffn.routes",), (), step.flops, tuple(scores.split()))
    e.builder.emit(op, "tokens slots")
    e.tensor.update(dict.fromkeys(step.outputs, ("ffn.routes",)))
