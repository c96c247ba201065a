"""Attention over a compressed cache and hyper-connections (DeepSeek-V4). Frozen dataclasses to compose.

The formulas are those of the report (sections 2.2 and 2.3) as the class in transformers computes them.
"""

from dataclasses import dataclass

from compiler.frontend.parts import RMS, Norm, positive
from compiler.frontend.sparse import SparseIndexer

#: The root of the mean square, without a scale.
UNIT = Norm(scale=False)
#: Bytes of an element of an open block: as the activations.
PENDING_NBYTES = 2


@dataclass(frozen=True, slots=True)
class Compressor:
    """Every `ratio` tokens become one cached row: a softmax over the tokens of a block weighs each element.

    overlap: a block also weighs the tokens of the block before, through a second series of projections.
    """

    ratio: int
    overlap: bool = False

    def __post_init__(self) -> None:
        positive("compressor", self.ratio)
        if self.ratio < 2:
            raise ValueError("compressor: a row must stand for 2 tokens or more")

    @property
    def series(self) -> int:
        """Rows of `dim` elements that a token gives to compress."""
        return 2 if self.overlap else 1

    @property
    def block(self) -> int:
        """Tokens that a row is made of."""
        return self.series * self.ratio

    def rows(self, context: int) -> int:
        """Rows that `context` tokens fill; what is left over waits."""
        return context // self.ratio

    def params(self, hidden: int, dim: int) -> int:
        """Projections of values and gates; a bias for each place in a block; a norm of the row."""
        width = self.series * dim
        return 2 * hidden * width + self.ratio * width + RMS.params(dim)

    def pending(self, dim: int) -> int:
        """Elements that wait: values and gates of an open block, and those of the last one that overlaps."""
        return 2 * dim * (self.series * (self.ratio - 1) + self.overlap * self.ratio)


@dataclass(frozen=True, slots=True)
class CompressedAttention:
    """Attention of all heads over one row a token that is key and value at once, and over compressed rows.

    The last `window` tokens are there one by one; `compressor` gives the rows of all that came before, and `indexer`
    chooses `top_k` of them for each token. A sink a head. The output is projected by `o_groups` of heads to `o_rank`
    each, and then together. rotary: elements of a row that are rotated.
    """

    heads: int
    head_dim: int
    q_lora: int
    window: int
    o_groups: int
    o_rank: int
    rotary: int
    compressor: Compressor | None = None
    indexer: SparseIndexer | None = None

    def __post_init__(self) -> None:
        sizes = (self.heads, self.head_dim, self.q_lora, self.window, self.o_groups, self.o_rank)
        positive("compressed attention", *sizes)
        if self.heads % self.o_groups:
            raise ValueError(f"compressed attention: {self.heads} heads in {self.o_groups} groups")
        if not 0 <= self.rotary <= self.head_dim:
            raise ValueError(f"compressed attention: {self.rotary} of {self.head_dim} elements rotated")
        if self.indexer and not self.compressor:
            raise ValueError("compressed attention: an indexer, and no compressed rows for it")

    @property
    def label(self) -> str:
        return "csa" if self.indexer else "hca" if self.compressor else "swa"

    @property
    def kv_elements_per_token(self) -> int:
        """Cache elements a token of one layer: its row, and its share of compressed rows (rounded up)."""
        shared = self.head_dim + (self.indexer.dim if self.indexer else 0)
        return self.head_dim + (-(-shared // self.compressor.ratio) if self.compressor else 0)

    @property
    def state_nbytes(self) -> int:
        """Bytes a sequence keeps for blocks that are not full, however long it is."""
        if self.compressor is None:
            return 0
        dims = (self.head_dim, *([self.indexer.dim] if self.indexer else []))
        return PENDING_NBYTES * sum(self.compressor.pending(dim) for dim in dims)

    def cached_tokens(self, context: int) -> int:
        """Tokens of a sequence of `context` that are cached one by one."""
        return min(self.window, context)

    def rows(self, context: int) -> int:
        """Compressed rows of a sequence of `context` tokens."""
        return self.compressor.rows(context) if self.compressor else 0

    def read(self, context: int) -> int:
        """Rows that a token attends to: those of its window, and compressed ones."""
        far = self.rows(context)
        return self.cached_tokens(context) + (min(far, self.indexer.top_k) if self.indexer else far)

    def params(self, hidden: int) -> int:
        width = self.heads * self.head_dim
        query = self.q_lora * (hidden + 1 + width)
        row = hidden * self.head_dim + RMS.params(self.head_dim)
        out = self.o_rank * width + self.o_groups * self.o_rank * hidden
        far = self.compressor.params(hidden, self.head_dim) if self.compressor else 0
        if self.indexer and self.compressor:
            far += self.compressor.params(hidden, self.indexer.dim)
            far += self.indexer.heads * (self.q_lora * self.indexer.dim + hidden)
        return query + row + out + far + self.heads


@dataclass(frozen=True, slots=True)
class HyperConnections:
    """The residual stream as several streams, mixed around each part (manifold-constrained hyper-connections).

    A projection of all streams gives the weights by which they are collapsed into a part's input, by which its output
    is added to each, and by which they are mixed; the last are made doubly stochastic in `iterations` (Sinkhorn-Knopp).
    """

    streams: int
    iterations: int

    def __post_init__(self) -> None:
        positive("hyper-connections", self.streams, self.iterations)

    @property
    def mixes(self) -> int:
        """Weights of a token: to collapse, to expand, to mix."""
        return self.streams * (2 + self.streams)

    def params(self, hidden: int) -> int:
        """Of one part: the projection, a bias each, a scale for each of the three kinds."""
        return self.mixes * (self.streams * hidden + 1) + 3

    def head_params(self, hidden: int) -> int:
        """Before the head, where streams are collapsed only."""
        return self.streams * (self.streams * hidden + 1) + 1
