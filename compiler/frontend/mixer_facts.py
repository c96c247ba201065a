"""Read the mixer of each layer: heads, biases, norms of queries and keys, rotation, latent ranks."""

from dataclasses import dataclass, replace
from enum import StrEnum

from compiler.frontend.facts import Facts
from compiler.frontend.parts import RMS, Norm
from compiler.frontend.patterns import per_layer
from compiler.frontend.read import describe
from compiler.frontend.spans import Span, Spans, no_windows
from compiler.frontend.spec import Attention, LatentAttention, Mixer, QkNorm


class Kv(StrEnum):
    """How the number of kv heads is known."""

    NEEDED = "needed"  # num_key_value_heads
    RULE = "rule"  # num_key_value_heads, all heads when absent
    ALL = "all"  # all heads, fixed by the family's code
    FALCON = "falcon"  # by multi_query and new_decoder_architecture
    QUERY = "query"  # one where multi_query is true, else all heads


class Dim(StrEnum):
    """How the head size is known."""

    NEEDED = "needed"  # head_dim
    RULE = "rule"  # head_dim, hidden / heads when absent
    QUOTIENT = "quotient"  # hidden / heads, fixed by the family's code
    STATED = "stated"  # head_dim, which must be hidden / heads


@dataclass(frozen=True, slots=True)
class Bias:
    """Which projections (letters of qkvo) have a bias when the flag `fact` is true; fixed by the code without one.

    default: the flag when absent, None where it is needed.
    """

    parts: str
    fact: str = ""
    default: bool | None = False

    def read(self, facts: Facts) -> str:
        """The letters that have a bias."""
        if self.fact:
            return self.parts if facts.flag(self.fact, self.default) else ""
        names = ", ".join(self.parts)
        why = f"{facts.family} has a bias on {names} whatever the config says"
        facts.ignore("attention_bias", why)
        if set("qkv") <= set(self.parts):
            facts.ignore("qkv_flag", why)
        others = ", ".join(letter for letter in "qkvo" if letter not in self.parts)
        rest = f", none on {others}" if others else ""
        facts.fixed("attention_bias", names, f"{facts.family} has a bias on {names}{rest}")
        return self.parts


#: attention_bias: on all four projections, false when absent; needed; on queries, keys and values only.
STATED, NEEDED = Bias("qkvo", "attention_bias"), Bias("qkvo", "attention_bias", None)
QKV_FIXED, QKV_STATED = Bias("qkv"), Bias("qkv", "attention_bias")


@dataclass(frozen=True, slots=True)
class QkRule:
    """How queries and keys are normalised, when the flag `fact` is true.

    default: the flag when absent, None where the family's code always normalises.
    rotated_only: not in layers that are not rotated (llama4).
    quotient: the norms are as wide as heads of hidden / heads, and heads of another size do not fit them.
    """

    kind: QkNorm
    norm: Norm = RMS
    fact: str = "qk_norm"
    default: bool | None = None
    rotated_only: bool = False
    quotient: bool = False

    def read(self, facts: Facts, heads: int, head_dim: int) -> QkNorm:
        """The norms of `heads` heads of `head_dim` elements; InputError where they do not fit the heads."""
        if not self._there(facts):
            return QkNorm.NONE
        hidden = facts.integer("hidden")
        if self.quotient and heads * head_dim != hidden:
            what = f"is {head_dim}: norms of queries and keys in {facts.family} are made for hidden / heads"
            raise facts.error("head_dim", what, f"hidden_size / num_attention_heads = {hidden / heads:g}")
        return self.kind

    def _there(self, facts: Facts) -> bool:
        if self.default is not None:
            return facts.flag(self.fact, self.default)
        if facts.find(self.fact) is not None and not facts.flag(self.fact):
            raise facts.error(self.fact, f"is false: {facts.family} always has these norms", "true, or no key")
        facts.fixed("qk_norm", True, f"{facts.family} normalises queries and keys")
        return True


@dataclass(frozen=True, slots=True)
class Rotary:
    """Which elements of a head are rotated.

    share: the part rotated when the config has no partial_rotary_factor; None where the family rotates all of a head.
    dim: the config may state the number instead (rotary_dim), and must where there is no share.
    no: none, whatever the config says.
    """

    share: float | None = None
    dim: bool = False
    no: bool = False

    def read(self, facts: Facts, head_dim: int) -> int | None:
        """Elements rotated, None for all."""
        if self.no:
            return 0
        if self.dim:
            return self._stated(facts, head_dim)
        share = _share(facts)
        if share is None and self.share is not None:
            facts.assume("rotary_share", self.share, f"{facts.family} takes {self.share:g} when the key is absent")
            share = self.share
        if share in (None, 1):
            return None
        if self.share is None or share > 1:
            what = f"is {share:g}: partial rotation is not modelled in {facts.family}"
            raise facts.error("rotary_share", what, "1, or no key")
        return int(head_dim * share)

    def _stated(self, facts: Facts, head_dim: int) -> int | None:
        """rotary_dim; when it is null, all; when it is absent, a share."""
        rotated = facts.maybe_integer("rotary_dim", low=0)
        if rotated is None and self.share is not None:
            return replace(self, dim=False).read(facts, head_dim)
        if rotated is None:
            if not facts.states("rotary_dim"):
                raise facts.missing("rotary_dim", "add rotary_dim: a number of elements, or null for all")
            return None
        if rotated > head_dim:
            raise facts.error("rotary_dim", f"is {rotated}, more than the {head_dim} of a head", f"0 to {head_dim}")
        return rotated


def _share(facts: Facts) -> float | None:
    """partial_rotary_factor, at the top or among the rope_parameters."""
    share = facts.number("rotary_share")
    inner = (facts.table("rope_parameters") or {}).get("partial_rotary_factor")
    if inner is None:
        return share
    place = ".partial_rotary_factor"
    if not isinstance(inner, int | float) or isinstance(inner, bool) or not 0 < inner < 1e30:
        raise facts.error("rope_parameters", f"is {describe(inner)}", "a positive number", place)
    if share not in (None, inner):
        raise facts.error("rope_parameters", f"is {inner:g}, but elsewhere {share:g}", "one value", place)
    return float(inner)


@dataclass(frozen=True, slots=True)
class Heads:
    """How a family's code reads its attention. Facts that are not named here are as in llama."""

    spans: Spans
    kv: Kv = Kv.NEEDED
    dim: Dim = Dim.RULE
    bias: tuple[Bias, ...] = ()
    qk_norm: QkRule | None = None
    rotary: Rotary = Rotary()
    sinks: bool = False
    alibi: bool | None = False  # None: the flag of the config (falcon)
    softcap: float | bool = False  # True: the number of the config; a number: that one where the config is silent

    def __call__(self, facts: Facts, layers: int) -> tuple[Mixer | None, ...]:
        """The attention of each layer."""
        heads = facts.integer("heads")
        kv_heads = self._kv_heads(facts, heads)
        head_dim = self._head_dim(facts, heads)
        biased = {letter for bias in self.bias for letter in bias.read(facts)}
        alibi = facts.flag("alibi", False) if self.alibi is None else self.alibi
        base = Attention(
            kv_heads=kv_heads,
            q_group=heads // kv_heads,
            head_dim=head_dim,
            sinks=self.sinks,
            alibi=alibi,
            softcap=bool(self.softcap) and facts.cap("softcap", None if self.softcap is True else self.softcap),
            rotary=0 if alibi else self.rotary.read(facts, head_dim),
            qk_norm=self.qk_norm.read(facts, heads, head_dim) if self.qk_norm else QkNorm.NONE,
            qk_norm_kind=self.qk_norm.norm if self.qk_norm else RMS,
            q_bias="q" in biased,
            k_bias="k" in biased,
            v_bias="v" in biased,
            o_bias="o" in biased,
        )
        if self.sinks:
            facts.fixed("sinks", True, f"{facts.family} has an attention sink a head")
        spans = self.spans(facts, layers)
        made = {span: self._seeing(base, span) for span in spans}
        return tuple(made[span] for span in spans)

    def _seeing(self, base: Attention, span: Span) -> Attention:
        mixer = replace(base, window=span.window, chunk=span.chunk)
        if span.rotated:
            return mixer
        plain = self.qk_norm is not None and self.qk_norm.rotated_only
        return replace(mixer, rotary=0, qk_norm=QkNorm.NONE if plain else mixer.qk_norm)

    def _kv_heads(self, facts: Facts, heads: int) -> int:
        if self.kv is Kv.ALL:
            facts.fixed("kv_heads", heads, f"{facts.family} has as many as query heads")
            return heads
        if self.kv is Kv.FALCON:
            return _falcon_kv_heads(facts, heads)
        if self.kv is Kv.QUERY:
            one = facts.flag("multi_query")
            facts.ignore("kv_heads", f"multi_query is {str(one).lower()}")
            return 1 if one else heads
        found = facts.maybe_integer("kv_heads")
        if found is None:
            if self.kv is not Kv.RULE:
                raise facts.missing("kv_heads")
            facts.assume("kv_heads", heads, f"{facts.family} takes num_attention_heads when the key is absent")
            return heads
        return _dividing(facts, found, heads)

    def _head_dim(self, facts: Facts, heads: int) -> int:
        found = facts.maybe_integer("head_dim")
        if found is not None and self.dim not in (Dim.QUOTIENT, Dim.STATED):
            return found
        if found is None and self.dim in (Dim.NEEDED, Dim.STATED) and not facts.source.defaults:
            raise facts.missing("head_dim")
        size = quotient(facts, heads)
        if found is not None and found != size:
            what = f"is {found}, but {facts.family} takes hidden / heads, which is {size}"
            raise facts.error("head_dim", what, f"{size}, or no key")
        return size


def quotient(facts: Facts, heads: int) -> int:
    """The head size by the rule hidden / heads, which must be whole."""
    hidden = facts.integer("hidden")
    if hidden % heads:
        what = f"is {hidden}, which the {heads} attention heads do not divide, and there is no head_dim"
        raise facts.error("hidden", what, f"head_dim, or a multiple of {heads}")
    facts.assume("head_dim", hidden // heads, "hidden_size / num_attention_heads when the key is absent")
    return hidden // heads


def _dividing(facts: Facts, found: int, heads: int) -> int:
    if heads % found:
        what = f"is {found}, which does not divide the {heads} attention heads"
        raise facts.error("kv_heads", what, f"a divisor of {heads}")
    return found


def _falcon_kv_heads(facts: Facts, heads: int) -> int:
    """FalconAttention: num_kv_heads in the new architecture (all heads when null), else 1 or all by multi_query."""
    new, one = facts.flag("new_decoder"), facts.flag("multi_query")
    if not new:
        facts.ignore("kv_heads", f"multi_query is {str(one).lower()} and new_decoder_architecture false")
        return 1 if one else heads
    found = facts.maybe_integer("kv_heads")
    if found is None and not facts.states("kv_heads"):
        raise facts.missing("kv_heads")
    return heads if found is None else _dividing(facts, found, heads)


def latent(facts: Facts, layers: int) -> tuple[Mixer | None, ...]:
    """Multi-head latent attention in all layers."""
    mixer = latent_mixer(facts)
    no_windows(facts, layers)
    return (mixer,) * layers


def latent_mixer(facts: Facts) -> LatentAttention:
    """Multi-head latent attention. The kv heads of the config mean nothing here."""
    facts.ignore("kv_heads", "latent attention caches one row a token for all heads")
    facts.ignore("head_dim", "latent attention has qk_nope_head_dim, qk_rope_head_dim and v_head_dim")
    facts.ignore("qk_dim", "it is qk_nope_head_dim + qk_rope_head_dim")
    q_lora = facts.maybe_integer("q_lora")
    if q_lora is None:
        if not facts.states("q_lora"):
            raise facts.missing("q_lora", "add q_lora_rank: a rank, or null for one plain q projection")
        facts.assume("q_lora", None, "null: one plain q projection")
    mixer = LatentAttention(
        heads=facts.integer("heads"),
        q_lora=q_lora,
        kv_lora=facts.integer("kv_lora"),
        nope=facts.integer("nope"),
        rope=facts.integer("rope"),
        v_dim=facts.integer("v_dim"),
        bias=facts.flag("attention_bias", False),
    )
    Rotary().read(facts, mixer.rope)
    return mixer


# --- a description of each block (Deci, nemotron-nas)


def block_configs(facts: Facts, layers: int, part: str) -> list[dict[str, object]]:
    """The `part` (attention, ffn) of each entry of `block_configs`; InputError for a linear stand-in."""
    items = per_layer(facts, "block_configs", layers)
    if items is None:
        raise facts.missing("block_configs")
    out = []
    for index, item in enumerate(items):
        inner = item.get(part) if isinstance(item, dict) else None
        if not isinstance(inner, dict):
            raise facts.error("block_configs", f"is {describe(inner)}", "an object", f"[{index}].{part}")
        for key in ("no_op", "replace_with_linear"):
            if type(inner.get(key, False)) is not bool:
                raise facts.error("block_configs", f"is {describe(inner[key])}", "a boolean", f"[{index}].{part}.{key}")
        for key in ("replace_with_linear", "sparsify", "num_sink_tokens", "unshifted_sink"):
            if inner.get(key):
                what = f"is {describe(inner[key])}, which is not modelled"
                raise facts.error("block_configs", what, "false or null", f"[{index}].{part}.{key}")
        out.append(inner)
    return out


def deci(facts: Facts, layers: int) -> tuple[Mixer | None, ...]:
    """DeciLM: `n_heads_in_group` query heads share a kv head, or no attention at all (`no_op`), block by block."""
    heads = facts.integer("heads")
    facts.ignore("kv_heads", "block_configs says it for each layer")
    found = facts.maybe_integer("head_dim")
    head_dim = found if found is not None else quotient(facts, heads)
    biased = bool(STATED.read(facts))
    rotary = Rotary().read(facts, head_dim)
    made: list[Mixer | None] = []
    for index, block in enumerate(block_configs(facts, layers, "attention")):
        group, window, at = block.get("n_heads_in_group"), block.get("window_length"), f"[{index}].attention"
        if block.get("no_op"):
            made.append(None)
            continue
        if type(group) is not int or group < 1 or heads % group:
            what, place = f"is {describe(group)}", f"{at}.n_heads_in_group"
            raise facts.error("block_configs", what, f"a divisor of {heads}", place)
        if window is not None and (type(window) is not int or window < 1):
            raise facts.error("block_configs", f"is {describe(window)}", "tokens or null", f"{at}.window_length")
        mixer = Attention(heads // group, group, head_dim, window=window, rotary=rotary)
        made.append(replace(mixer, q_bias=biased, k_bias=biased, v_bias=biased, o_bias=biased))
    return tuple(made)
