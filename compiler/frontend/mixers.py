"""The mixers a layer can have: how tokens see one another. Frozen dataclasses that a person can compose by hand.

Sizes are whole-model element counts. Every mixer has `label`, `params(hidden)`, `kv_elements_per_token` and
`cached_tokens(context)`.
"""

from dataclasses import dataclass
from enum import StrEnum

from compiler.frontend.compressed import CompressedAttention
from compiler.frontend.linear import LinearMixer
from compiler.frontend.parts import RMS, Norm, positive
from compiler.frontend.sparse import SparseIndexer


class QkNorm(StrEnum):
    """How queries and keys are normalised: not, a head at a time, or all heads of a token as one row."""

    NONE = "none"
    HEAD = "head"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Attention:
    """Grouped-query attention (multi-head when `q_group` is 1).

    window: over the last tokens only; chunk: over the tokens of the same chunk. rotary: elements of a head that are
    rotated, None for all, 0 for none. gate: the output is multiplied by a sigmoid, whose projection is as large as q's.
    softcap: scores go through a tanh. alibi: a bias by distance is added to them. borrows: keys and values are those of
    an earlier layer, and not projected here. v_norm: of values, a head at a time. k_is_v: values are the projected keys
    (before their norm and rotation). causal: tokens attend to earlier ones only; where they do not, nothing is cached.
    buckets: rows of a table of biases by distance, one a head, that all layers of a stack share (T5); 0 for none.
    own_buckets: every layer has a table of its own (UMT5).
    """

    kv_heads: int
    q_group: int
    head_dim: int
    window: int | None = None
    chunk: int | None = None
    sinks: bool = False
    qk_norm: QkNorm = QkNorm.NONE
    qk_norm_kind: Norm = RMS
    v_norm: Norm | None = None
    k_is_v: bool = False
    causal: bool = True
    buckets: int = 0
    own_buckets: bool = False
    rotary: int | None = None
    gate: bool = False
    softcap: bool = False
    alibi: bool = False
    borrows: bool = False
    q_bias: bool = False
    k_bias: bool = False
    v_bias: bool = False
    o_bias: bool = False

    def __post_init__(self) -> None:
        spans = (1 if n is None else n for n in (self.window, self.chunk))
        positive("attention", self.kv_heads, self.q_group, self.head_dim, *spans)
        if self.rotary is not None and not 0 <= self.rotary <= self.head_dim:
            raise ValueError(f"attention: {self.rotary} of {self.head_dim} elements rotated")

        if self.buckets and self.q_group > 1:
            raise ValueError("attention: a bias by distance, and keys that several query heads share")
        if not self.causal and (self.borrows or self.window or self.chunk or self.sinks):
            raise ValueError("attention: in both directions, and windows, sinks or another layer's cache")

    @property
    def label(self) -> str:
        if not self.causal:
            return "encoder"
        return "swa" if self.window is not None else "cka" if self.chunk is not None else "gqa"

    @property
    def kv_elements_per_token(self) -> int:
        """Cache elements a token of one layer: a key and a value for each kv head; none where they are borrowed."""
        return 0 if self.borrows or not self.causal else 2 * self.kv_heads * self.head_dim

    def lends(self, other: "Attention") -> bool:
        """Whether the cache of this layer is one that `other` can read."""
        sizes = ("kv_heads", "head_dim", "window", "chunk")
        return not self.borrows and all(getattr(self, name) == getattr(other, name) for name in sizes)

    def cached_tokens(self, context: int) -> int:
        """Tokens of a sequence of `context` that the cache of one layer holds."""
        return min(n for n in (self.window, self.chunk, context) if n is not None)

    def params(self, hidden: int) -> int:
        q, kv = self.kv_heads * self.q_group * self.head_dim, self.kv_heads * self.head_dim
        queries = (1 + self.gate) * q * (hidden + self.q_bias)
        keys = kv * (hidden + self.k_bias) + (0 if self.k_is_v else kv * (hidden + self.v_bias))
        if self.borrows:
            keys = 0
        elif self.v_norm:
            keys += self.v_norm.params(self.head_dim)
        keys += self.bias_params if self.own_buckets else 0
        return (
            queries + keys + hidden * (q + self.o_bias) + self._norms(q, kv) + self.kv_heads * self.q_group * self.sinks
        )

    @property
    def bias_params(self) -> int:
        """Parameters of its table of biases."""
        return self.buckets * self.kv_heads

    def _norms(self, q: int, kv: int) -> int:
        head = (q, kv) if self.qk_norm_kind.per_head else (self.head_dim, self.head_dim)
        widths = {QkNorm.NONE: (0, 0), QkNorm.HEAD: head, QkNorm.FULL: (q, kv)}[self.qk_norm]
        return sum(self.qk_norm_kind.params(width) for width in (widths[: 1 if self.borrows else 2]))


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2 report, section 2.1): one compressed cache row a token for all heads.

    `bias` is that of the down projections (query, key-value) and of the output projection. An indexer selects the rows
    that a token reads; it needs the query's latent. borrows_choice: the rows are those that the indexer of an earlier
    layer chose, and there is none here. rotary: the shared part of the key is rotated (not in Kimi Linear).
    """

    heads: int
    q_lora: int | None
    kv_lora: int
    nope: int
    rope: int
    v_dim: int
    bias: bool = False
    indexer: SparseIndexer | None = None
    rotary: bool = True
    borrows_choice: bool = False

    def __post_init__(self) -> None:
        if self.borrows_choice and not self.indexer:
            raise ValueError("latent attention: the choice of an indexer, and no indexer that says how many rows")
        if self.indexer and self.q_lora is None:
            raise ValueError("latent attention: an indexer, and no latent of the query for it")
        ranks = (self.kv_lora, 1 if self.q_lora is None else self.q_lora)
        positive("latent attention", self.heads, self.nope, self.rope, self.v_dim, *ranks)

    @property
    def label(self) -> str:
        return "dsa" if self.indexer else "mla"

    @property
    def qk_dim(self) -> int:
        return self.nope + self.rope

    @property
    def kv_elements_per_token(self) -> int:
        """Cache elements a token of one layer: the latent, the shared rotary key, the indexer's key."""
        own = self.indexer if not self.borrows_choice else None
        return self.kv_lora + self.rope + (own.dim if own else 0)

    def cached_tokens(self, context: int) -> int:
        """Tokens of a sequence of `context` that the cache of one layer holds: all."""
        return context

    def params(self, hidden: int) -> int:
        q = self.heads * self.qk_dim
        query = hidden * q if self.q_lora is None else self.q_lora * (hidden + 1 + q + self.bias)
        kv_a = self.kv_lora + self.rope
        down = hidden * kv_a + self.kv_lora + kv_a * self.bias
        up = self.kv_lora * self.heads * (self.nope + self.v_dim)
        own = self.indexer if not self.borrows_choice else None
        index = own.params(hidden, self.q_lora) if own and self.q_lora else 0
        return query + down + up + index + self.heads * self.v_dim * hidden + hidden * self.bias


@dataclass(frozen=True, slots=True)
class Beside:
    """Attention and a mixer without a softmax, side by side on the same input; their outputs are added (Falcon-H1)."""

    attention: Attention
    linear: LinearMixer

    @property
    def label(self) -> str:
        return f"{self.attention.label}_{self.linear.label}"

    @property
    def kv_elements_per_token(self) -> int:
        """Cache elements a token of one layer: those of the attention."""
        return self.attention.kv_elements_per_token

    @property
    def state_nbytes(self) -> int:
        """Bytes a sequence keeps in one layer, however long it is, beside the cache."""
        return self.linear.state_nbytes

    def cached_tokens(self, context: int) -> int:
        """Tokens of a sequence of `context` that the cache of one layer holds."""
        return self.attention.cached_tokens(context)

    def params(self, hidden: int) -> int:
        return self.attention.params(hidden) + self.linear.params(hidden)


Mixer = Attention | LatentAttention | CompressedAttention | LinearMixer | Beside
