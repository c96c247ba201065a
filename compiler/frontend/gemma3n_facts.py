"""Read Gemma 3n: shared caches, streams around the layers, an augmented residual, gates that are mostly zero."""

from dataclasses import replace
from typing import Final

from compiler.frontend.altup import AltUp, Laurel
from compiler.frontend.facts import Facts
from compiler.frontend.family import Shell
from compiler.frontend.gemma_facts import UNIT, share_caches, shared_layers
from compiler.frontend.mixer_facts import STATED, Dim, Heads, QkRule
from compiler.frontend.patterns import numbers, per_layer
from compiler.frontend.read import describe
from compiler.frontend.spans import Alternating
from compiler.frontend.spec import Attention, Dense, Ffn, Mixer, QkNorm

#: Every fifth layer attends to all tokens where no list says which (Gemma3nTextConfig).
_HEADS: Final = Heads(Alternating(5), dim=Dim.NEEDED, bias=(STATED,), qk_norm=QkRule(QkNorm.HEAD))
_SPARSE_LAYERS: Final = 10
_SPARSE_SHARE: Final = 0.95


def mixers(facts: Facts, layers: int) -> tuple[Mixer | None, ...]:
    """Windows and full attention with normalised values; the last layers read the cache of earlier ones."""
    if facts.maybe_integer("shared_caches", low=0) is None:
        raise facts.missing("shared_caches", "add num_kv_shared_layers: a number of layers, 0 for none")
    made = [mixer for mixer in _HEADS(facts, layers) if isinstance(mixer, Attention)]
    own = tuple(replace(mixer, v_norm=UNIT) for mixer in made)
    return share_caches(facts, own, shared_layers(facts, layers))


def ffns(facts: Facts, layers: int) -> tuple[Ffn | None, ...]:
    """A gated part; `intermediate_size` and `activation_sparsity_pattern` may have one number a layer."""
    widths = numbers(facts, "ffn_width", layers)
    if widths is None:
        raise facts.missing("ffn_width")
    shares = _sparsity(facts, layers)
    return tuple(Dense(width, sparsity=share) for width, share in zip(widths, shares, strict=True))


def _sparsity(facts: Facts, layers: int) -> tuple[float, ...]:
    """The share of the gate that is made zero, a layer. Gemma3nTextConfig, when silent: 0.95 in the first ten of more
    than ten layers.
    """
    items = per_layer(facts, "sparsity", layers)
    if items is None:
        first = _SPARSE_LAYERS if layers > _SPARSE_LAYERS else 0
        note = f"{_SPARSE_SHARE} in the first {first} layers, when the key is absent"
        shares = (_SPARSE_SHARE,) * first + (0.0,) * (layers - first)
        facts.assume("sparsity", shares, note)
        return shares
    for index, item in enumerate(items):
        if not isinstance(item, int | float) or isinstance(item, bool) or not 0 <= item < 1:
            raise facts.error("sparsity", f"is {describe(item)}", "a share from 0 to below 1", f"[{index}]")
    return tuple(float(item) for item in items if isinstance(item, int | float))


def streams(facts: Facts, shell: Shell) -> Shell:
    """AltUp around the layers, LAuReL inside them."""
    count = facts.integer("altup_streams", low=2)
    active = facts.maybe_integer("altup_active", low=0)
    if active is None:
        facts.assume("altup_active", 0, f"{facts.family} works on the first stream when the key is absent")
    elif active >= count:
        raise facts.error("altup_active", f"is {active} of {count} streams", f"0 to {count - 1}")
    altup = AltUp(count, facts.flag("altup_scaled", True))
    return replace(shell, altup=altup, laurel=Laurel(facts.integer("laurel_rank")))
