"""The model as described here against the PyTorch class itself: parameters, FLOPs and cache, at full size.

The class is built with fake tensors, so that nothing is allocated or computed; its semantic operators (attention,
routed experts) are counted by their shapes, everything else by `torch.utils.flop_counter`. Recurrences are left out on
both sides: the class computes them in chunks, with other products than a step has.
"""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from compiler.errors import InputError
from compiler.frontend.capture.ir import TRACED_TOKENS
from compiler.frontend.parts import START_TOKENS, is_edge, numbered
from compiler.ir.graph import Block, Graph, Op, Pattern, Phase, Workload

Make = Callable[[Workload], Graph]


class Level(StrEnum):
    PARAMS = "params"
    FLOPS = "flops"
    CACHE = "cache"
    OUTPUTS = "outputs"


#: What is counted, of a model at full size; outputs are those of a small instance that is run.
COUNTED = (Level.PARAMS, Level.FLOPS, Level.CACHE)


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison: what is counted here and by the class; of outputs, the programs that give the class's, and all.

    `note` says what stands behind a difference.
    """

    level: Level
    ours: int
    theirs: int
    note: str = ""

    @property
    def equal(self) -> bool:
        return self.ours == self.theirs


def checks(graph: Make, model: str, levels: tuple[Level, ...]) -> tuple[Check, ...]:
    """Compare the graphs that `graph` makes of MODEL with the class MODEL names, by the levels that are `COUNTED`.

    A module of a Python file has no cache of its own: it is not compared, unless that is all that was asked for.
    InputError where there is no class, and there.
    """
    from compiler.frontend.capture.given import sized
    from compiler.frontend.capture.source import open_module

    opened = sized(open_module(model))
    if opened.config is None and Level.CACHE in levels:
        levels = tuple(level for level in levels if level is not Level.CACHE)
        if not levels:
            raise InputError(
                f"{model}: --level cache", "a module of a Python file has no cache of its own", "params, flops"
            )
    run: dict[Level, Callable[[Make, Any], Check]] = {
        Level.PARAMS: _params,
        Level.FLOPS: _flops,
        Level.CACHE: _cache,
    }
    return tuple(run[level](graph, opened) for level in levels)


def _workload(phase: Phase = Phase.PREFILL) -> Workload:
    return Workload(phase, 1, TRACED_TOKENS, 1, "bf16")


def _params(make: Make, opened: Any) -> Check:
    theirs = Counter({name: p.numel() for name, p in opened.module.named_parameters()})
    ours = named_elements(make(_workload()))
    notes = []
    if sum(ours.values()) != sum(theirs.values()):
        idle = idle_parameters(opened)
        if idle:
            places = ", ".join(dict.fromkeys(".".join(name.split(".")[:3]) for name in idle))
            count = sum(theirs.pop(name) for name in idle)
            notes.append(f"without {count:,} that no forward on tokens reads ({places[:120]})")
    notes += _by_layer(ours, theirs)
    return Check(Level.PARAMS, sum(ours.values()), sum(theirs.values()), "; ".join(notes))


def idle_parameters(opened: Any) -> list[str]:
    """Parameters of the class that a forward on tokens reads nowhere: a vision tower, cross attention."""
    from torch.utils import _pytree
    from torch.utils._python_dispatch import TorchDispatchMode

    class Reading(TorchDispatchMode):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.read: set[int] = set()

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.read.update(id(leaf) for leaf in _pytree.tree_leaves((args, kwargs or {})))
            return func(*args, **(kwargs or {}))

    read = _watched(opened, Reading).read
    return [name for name, parameter in opened.module.named_parameters() if id(parameter) not in read]


def _watched(opened: Any, watch: Callable[[], Any]) -> Any:
    """`watch()` after one forward of the class on TRACED_TOKENS tokens under it, behind an encoder on the
    START_TOKENS a decoder begins with; with masks where it needs them.

    Raises InputError naming where the class itself fails.
    """
    import torch

    from compiler.frontend.capture.failure import FAILURES, place_of, quiet, reason
    from compiler.frontend.capture.patches import patched, use_masks
    from compiler.frontend.capture.trace import runnable

    both = getattr(opened.config, "is_encoder_decoder", False)
    module, args, kwargs = runnable(opened, TRACED_TOKENS, START_TOKENS if both else TRACED_TOKENS, False)
    seen = watch()
    try:
        with quiet(), patched(opened.module), opened.mode, torch.no_grad(), seen:
            module(*args, **kwargs)
    except FAILURES as error:
        if use_masks(opened.module):
            return _watched(opened, watch)
        where = f"{opened.name}: {place_of(error, opened.module)}"
        raise InputError(where, f"the class does not run: {reason(error)}") from error
    return seen


def named_elements(graph: Graph) -> Counter[str]:
    """Elements of every checkpoint tensor by its name, layers numbered; parts that share a tensor add up."""
    out: Counter[str] = Counter()
    stored: set[str] = set()
    for kind, number in numbered(graph.sequence):
        # without a number: the embedding that is the head too, a table that all layers read
        own = [t for t in graph.block[kind].weights if "{layer}" in t.key or t.key not in stored]
        for t in own:
            out[t.key.replace("{layer}", str(number))] += t.elements
        stored.update(t.key for t in own)
    return out


_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block|layer)\.(\d+)\.")


def _by_layer(ours: Counter[str], theirs: Counter[str]) -> list[str]:
    """Layers whose elements differ: a layer at a time, since classes fuse what checkpoints keep apart."""

    def place(name: str) -> str:
        found = _LAYER.search(name)
        return f"layer {found[1]}" if found else "around the layers"

    sums: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    for total, named in zip(sums, (ours, theirs), strict=True):
        for name, count in named.items():
            total[place(name)] += count
    places = dict.fromkeys([*sums[0], *sums[1]])
    return [f"{p}: {sums[0][p]:,} here, {sums[1][p]:,} in the class" for p in places if sums[0][p] != sums[1][p]][:3]


#: Types whose class computes every token of a prompt in layers that only read caches.
_EVERY_TOKEN = ("gemma3n", "gemma3n_text")
#: Ops whose FLOPs the class does not do as matrix products.
_NOT_PRODUCTS = ("ffn.combine", "ffn.shared_scale", "attn.hc_collapse", "ffn.hc_collapse", "head.hc_collapse")


def _flops(make: Make, opened: Any) -> Check:
    graph = make(_workload())
    own = _keeps(graph) or opened.config is None
    head = graph.block.get("head") if own else None  # an encoder's is computed as it is described
    ours = sum(
        _products(op, block)
        * _times(graph, block)
        * graph.repeats[block.kind]
        * (_repeats(block, op, opened) if block is head else 1)
        for block in graph.blocks
        for op in block.ops
        if op.pattern is Pattern.CONTRACT and op.name not in _NOT_PRODUCTS
    )
    note = f"one sequence of {graph.workload.context} tokens"
    if any(_times(graph, block) > 1 for block in graph.blocks):
        note += "; layers that only read caches counted for all of them, which the class computes"
    return Check(Level.FLOPS, ours, class_flops(opened), note)


def _times(graph: Graph, block: Block) -> int:
    """How many tokens the class computes for each that a layer here does: all of a prompt, or the last one."""
    tokens = max(op.size("tokens") for op in block.ops)
    if is_edge(block.kind) or graph.model_type not in _EVERY_TOKEN:
        return 1
    return graph.workload.tokens // tokens


def _repeats(head: Block, op: Op, opened: Any) -> int:
    """How often the class computes an op of the head: for every token, where a graph has the last token's alone.

    Asked for the logits of the last token, a class computes only the product with the vocabulary for that one.
    """
    from compiler.frontend.capture.example import example

    if any(dim.name == "tokens" and dim.size > 1 for one in head.ops for dim in one.dims):
        return 1
    if opened.config is None:  # a module that a person wrote gives scores of all tokens, or of none
        return TRACED_TOKENS if any(dim.name == "tokens" for dim in op.dims) else 1
    with opened.mode:
        asked = "logits_to_keep" in example(opened, 1, 1, False)
    every = START_TOKENS if getattr(opened.config, "is_encoder_decoder", False) else TRACED_TOKENS
    return 1 if asked and op.name == "head.lm_head" else every


def _products(op: Op, block: Block) -> int:
    """Operations of an op that the class does as products.

    Scores of an indexer are also rectified; on compressed rows they are then weighed and added, elsewhere that is a
    product too.
    """
    rectified = op.points * (3 if "attn.index_compress" in block.op else 1)
    return op.flops - (rectified if op.name == "attn.index_scores" else 0)


def class_flops(opened: Any) -> int:
    """FLOPs of matrix products, convolutions, attention and routed experts of a sequence of TRACED_TOKENS tokens.

    Logits are those of the last token where the class can be asked for these alone. Behind an encoder, the decoder gets
    the START_TOKENS it begins with.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    ops = torch.ops.rdutune
    mapping = {
        ops.attention: _attention,
        ops.experts: _experts,
        ops.causal_conv: _conv,
        torch.ops.aten.convolution: _padded,
        # the kernel of a CPU, which the counter does not know
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    }
    counter = _watched(opened, lambda: FlopCounterMode(display=False, custom_mapping=mapping))
    return int(counter.get_total_flops())


def _attention(q: Any, k: Any, v: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    """Scores and values: 2 b h t s (d + dv)."""
    b, h, t, d = q
    return int(2 * b * h * t * k[2] * (d + v[3]))


def _experts(x: Any, index: Any, weights: Any, up: Any, down: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    """Every chosen expert of a token: two FLOPs a weight."""
    a, b = up[1] * up[2], down[1] * down[2]
    return int(2 * index[0] * index[1] * (a + b))


def _conv(x: Any, weight: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    return int(2 * x[0] * x[2] * weight[0] * weight[-1])


def _padded(x: Any, weight: Any, *more: Any, out_shape: Any = None, **__: Any) -> int:
    """A convolution; of one padded on both sides, what it gives beyond the last token is cut off and not counted."""
    from torch.utils.flop_counter import conv_flop_count

    transposed = more[4]
    longer = len(x) == 3 and not transposed and out_shape[2] > x[2]
    shape = [*out_shape[:2], x[2]] if longer else out_shape
    return int(conv_flop_count(list(x), list(weight), list(shape), transposed=transposed))


def _cache(make: Make, opened: Any) -> Check:
    """Elements a sequence of TRACED_TOKENS tokens caches, latent attention in its latent form."""
    if opened.config is not None and not _decodes(make):
        return Check(Level.CACHE, 0, 0, "an encoder caches nothing")
    graph = make(_workload(Phase.DECODE))
    ours = sum(t.elements * graph.repeats[b.kind] for b in graph.blocks for t in b.stored)
    theirs, note = class_cache(opened, any("attn.kv_cache" in block.tensor for block in graph.blocks))
    return Check(Level.CACHE, ours, theirs, note)


def _decodes(make: Make) -> bool:
    """Whether a model caches anything for the tokens that follow."""
    return _keeps(make(_workload()))


def _keeps(graph: Graph) -> bool:
    return any(block.stored for block in graph.blocks)


def class_cache(opened: Any, one_row: bool = False) -> tuple[int, str]:
    """(elements in the class's own cache after TRACED_TOKENS tokens, what was translated).

    one_row: keys and values are the same rows, cached once.
    """
    import torch

    from compiler.frontend.capture.example import example
    from compiler.frontend.capture.failure import FAILURES, place_of, quiet, reason
    from compiler.frontend.capture.patches import patched, use_masks

    with quiet(), patched(opened.module), opened.mode, torch.no_grad():
        given = example(opened, TRACED_TOKENS, TRACED_TOKENS)
        try:
            out = opened.module(**given | {"use_cache": True})
        except FAILURES as error:
            if use_masks(opened.module):
                return class_cache(opened, one_row)
            where = f"{opened.name}: {place_of(error, opened.module)}"
            raise InputError(where, f"the class does not run with a cache: {reason(error)}") from error
    with quiet():  # a name that transformers is about to give up
        cache = getattr(out, "past_key_values", None)
    if cache is None:
        raise InputError(opened.name, "its class gives no cache", "compare parameters and FLOPs only")
    config = opened.config.get_text_config()
    lora = getattr(config, "kv_lora_rank", None)
    latent = lora + config.qk_rope_head_dim if lora else 0
    both = (getattr(cache, name, None) for name in ("self_attention_cache", "cross_attention_cache"))
    sides = [side for side in both if side is not None] or [cache]
    layers = [vars(layer) for side in sides for layer in side.layers]
    notes = []
    if one_row:
        layers = [{name: value for name, value in layer.items() if name != "values"} for layer in layers]
        notes.append("a row that is key and value is counted once; an open block of a compressor as full")
    if latent:
        notes.append("the class keeps keys and values of all heads; counted as latents")
    if any(_copies(config, tensor) > 1 for layer in layers for tensor in _tensors(layer.get("keys"))):
        notes.append("the class keeps a copy of each key and value for every query head; counted once")
    if any(_tensors(layer.get("conv_states")) for layer in layers):
        notes.append("the class keeps the token itself in the state of a convolution; counted without")
    beside = {name: value for side in sides for name, value in vars(side).items() if name != "layers"}
    return sum(_held(layer, latent, config) for layer in (*layers, beside)), "; ".join(notes)


def _copies(config: Any, tensor: Any) -> int:
    """How many times the class holds each head of a cached (batch, heads, tokens, dim) tensor."""
    heads = getattr(config, "num_kv_heads", None)  # the spelling of Falcon, whose class broadcasts before it caches
    several = isinstance(heads, int) and tensor.dim() == 4 and tensor.shape[1] % heads == 0
    return int(tensor.shape[1] // heads) if several and getattr(config, "new_decoder_architecture", False) else 1


def _held(layer: dict[str, Any], latent: int, config: Any) -> int:
    """Elements in a layer of the class's cache. latent: those of a token in latent form, 0 for none."""
    total = 0
    for name, value in layer.items():
        for tensor in _tensors(value):
            if name.startswith("buffer_"):  # tokens of an open block, up to one less than fill it
                total += tensor.numel() // max(1, tensor.shape[1]) * (layer["compress_rate"] - 1)
            elif name == "conv_states":
                total += tensor.numel() // tensor.shape[-1] * (tensor.shape[-1] - 1)
            elif not (latent and name in ("keys", "values")):
                total += tensor.numel() // (_copies(config, tensor) if name in ("keys", "values") else 1)
    return total + (TRACED_TOKENS * latent if latent and _tensors(layer.get("keys")) else 0)


def _tensors(value: Any) -> list[Any]:
    """The tensors of an attribute of a cache that hold more than numbers a channel."""
    import torch
    from torch.utils import _pytree

    return [leaf for leaf in _pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor) and leaf.dim() > 2]
