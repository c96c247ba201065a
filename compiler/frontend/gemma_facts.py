"""Read Gemma 4: heads of two sizes, layers that share a cache, per-layer embeddings, experts beside a dense part."""

from dataclasses import replace
from typing import Final

from compiler.frontend.facts import Facts
from compiler.frontend.family import Shell
from compiler.frontend.layouts import GEMMA4_EXPERTS
from compiler.frontend.parts import Norm, PerLayer
from compiler.frontend.patterns import Part, words
from compiler.frontend.read import describe
from compiler.frontend.spec import Attention, Dense, Ffn, Mixer, MoE, QkNorm, Scoring

#: Every sixth layer attends to all tokens where no list says which (Gemma4TextConfig).
_EVERY: Final = 6
UNIT: Final = Norm(scale=False)


def mixers(facts: Facts, layers: int) -> tuple[Mixer | None, ...]:
    """Windows, and full attention with heads of another size; the last layers read the cache of earlier ones."""
    types = _types(facts, layers)
    if facts.find("bidirectional") is not None:
        facts.word("bidirectional", ("vision",), "vision")
    biased = facts.flag("attention_bias", False)
    window = facts.integer("window") if Part.SLIDING in types else None
    made = {}
    for kind in dict.fromkeys(types):
        heads, kv_heads, dim = _heads(facts, kind, types.index(kind))
        made[kind] = Attention(
            kv_heads=kv_heads,
            q_group=heads // kv_heads,
            head_dim=dim,
            window=window if kind is Part.SLIDING else None,
            qk_norm=QkNorm.HEAD,
            rotary=_rotary(facts, kind, dim),
            v_norm=UNIT,
            k_is_v=kind is Part.FULL and facts.flag("k_is_v", False),
            q_bias=biased,
            k_bias=biased,
            v_bias=biased,
            o_bias=biased,
        )
    return share_caches(facts, tuple(made[kind] for kind in types), shared_layers(facts, layers))


def share_caches(facts: Facts, own: tuple[Attention, ...], shared: int) -> tuple[Mixer | None, ...]:
    """The attention of each layer; the last `shared` read the cache of the last one before them that has theirs."""
    first = len(own) - shared
    lacking = next((mixer for mixer in own[first:] if not any(m.lends(mixer) for m in own[:first])), None)
    if lacking is not None:
        kind = Part.FULL if lacking.window is None else Part.SLIDING
        what = f"is {shared}: by layer_types no layer before them is {kind}, whose cache they read"
        raise facts.error("shared_caches", what, "fewer layers that share")
    return tuple(replace(mixer, borrows=index >= first) for index, mixer in enumerate(own))


def shared_layers(facts: Facts, layers: int) -> int:
    """How many of the last layers have no keys and values of their own."""
    shared = facts.maybe_integer("shared_caches", low=0)
    if shared is None:
        facts.assume("shared_caches", 0, f"{facts.family} shares no caches when the key is absent")
        return 0
    if shared >= layers:
        raise facts.error("shared_caches", f"is {shared} of {layers} layers", f"0 to {layers - 1}")
    return shared


def _types(facts: Facts, layers: int) -> tuple[Part, ...]:
    types = words(facts, "layer_types", layers, (Part.FULL, Part.SLIDING))
    if types is None:
        note = f"full attention in the last of every {_EVERY} layers, when the key is absent"
        facts.assume("layer_types", f"every {_EVERY}", note)
        types = tuple(Part.SLIDING if (index + 1) % _EVERY else Part.FULL for index in range(layers))
    if types[-1] is Part.SLIDING:
        facts.assume("last_layer", str(Part.FULL), f"the last layer of {facts.family} has full attention")
    return (*types[:-1], Part.FULL)


def _heads(facts: Facts, kind: Part, layer: int) -> tuple[int, int, int]:
    """(heads, kv heads, head size) of a kind of layer; those of full attention by facts of their own."""
    heads, kv_heads, dim = facts.integer("heads"), facts.integer("kv_heads"), facts.integer("head_dim")
    if kind is Part.FULL:
        kv_heads, dim = _overridden(facts, layer, kv_heads)
    if heads % kv_heads:
        what = f"is {kv_heads}, which does not divide the {heads} attention heads"
        raise facts.error("kv_heads", what, f"a divisor of {heads}")
    return heads, kv_heads, dim


def _overridden(facts: Facts, layer: int, kv_heads: int) -> tuple[int, int]:
    """KV heads and head size of full attention: `per_layer_config`, else the keys called global."""
    table = facts.table("per_layer_config")
    if table is None:
        own = facts.maybe_integer("global_kv_heads")
        dim = facts.integer("global_head_dim")
        return own if own is not None and facts.flag("k_is_v", False) else kv_heads, dim
    inner = next((value for key, value in table.items() if key.isdecimal() and int(key) == layer), None)
    at = f".{layer}"
    if not isinstance(inner, dict):
        raise facts.error("per_layer_config", f"is {describe(inner)}", "an object for each full layer", at)
    found = [inner.get("num_key_value_heads", kv_heads), inner.get("head_dim")]
    for value, key in zip(found, ("num_key_value_heads", "head_dim"), strict=True):
        if type(value) is not int or not 1 <= value <= 65_536:
            raise facts.error("per_layer_config", f"is {describe(value)}", "a whole number", f"{at}.{key}")
    return found[0], found[1]


def _rotary(facts: Facts, kind: Part, dim: int) -> int | None:
    """Elements of a head that are rotated: `rope_parameters` has a share for each kind of layer."""
    table = (facts.table("rope_parameters") or {}).get(str(kind))
    share = table.get("partial_rotary_factor") if isinstance(table, dict) else None
    if share is None:
        return None
    place = f".{kind}.partial_rotary_factor"
    if not isinstance(share, int | float) or isinstance(share, bool) or not 0 < share <= 1:
        raise facts.error("rope_parameters", f"is {describe(share)}", "a share from 0 to 1", place)
    facts.fixed("rotary_share", float(share), "the share of a head that is rotated in full attention")
    return None if share == 1 else int(dim * share)


def ffns(facts: Facts, layers: int) -> tuple[Ffn | None, ...]:
    """A gated part, twice as wide where caches are shared and `use_double_wide_mlp` says so; with experts beside it."""
    width, first = facts.integer("ffn_width"), layers - shared_layers(facts, layers)
    wide = 2 * width if facts.flag("double_wide", False) else width
    widths = [width if index < first else wide for index in range(layers)]
    if not facts.flag("moe_block", False):
        for fact in ("experts", "top_k", "expert_width"):
            facts.ignore(fact, "enable_moe_block is false")
        return tuple(Dense(own) for own in widths)
    experts, top_k = facts.integer("experts"), facts.integer("top_k")
    if top_k > experts:
        raise facts.error("top_k", f"is {top_k}, more than the {experts} experts", f"1 to {experts}")
    own_width, scoring = facts.integer("expert_width"), Scoring()
    return tuple(
        MoE(experts, top_k, own_width, own, apart=True, scoring=scoring, names=GEMMA4_EXPERTS) for own in widths
    )


def per_layer(facts: Facts, shell: Shell) -> Shell:
    """hidden_size_per_layer_input: width of each layer's own embedding, 0 for none."""
    width = facts.maybe_integer("per_layer_width", low=0)
    if width is None:
        raise facts.missing("per_layer_width", "add hidden_size_per_layer_input: a width, or 0 for none")
    if not width:
        facts.ignore("per_layer_vocab", "hidden_size_per_layer_input is 0")
        return shell
    return replace(shell, per_layer=PerLayer(width, facts.integer("per_layer_vocab")))
