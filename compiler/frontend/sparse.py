"""Sparse attention on top of a mixer: which cached rows a token reads."""

from dataclasses import dataclass

from compiler.frontend.parts import LAYER_NORM, positive


@dataclass(frozen=True, slots=True)
class SparseIndexer:
    """The lightning indexer of DeepSeek-V3.2 (DeepSeek Sparse Attention, report of V3.2-Exp, equation 1).

    A small key a token is cached; `heads` queries score all of them, and attention reads the best `top_k` rows only.
    """

    heads: int
    dim: int
    top_k: int

    def __post_init__(self) -> None:
        positive("sparse indexer", self.heads, self.dim, self.top_k)

    def params(self, hidden: int, q_lora: int) -> int:
        """Projections of queries (out of the query latent), key and head weights; the norm of keys."""
        return q_lora * self.heads * self.dim + hidden * (self.dim + self.heads) + LAYER_NORM.params(self.dim)
