"""A model nobody has described: grouped attention, and a gated MLP with a depthwise convolution."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional


class Conv(nn.Module):
    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(width, width, kernel, groups=width)
        self.kernel = kernel

    def forward(self, x: Any) -> Any:
        return self.conv(functional.pad(x.transpose(1, 2), (self.kernel - 1, 0))).transpose(1, 2)


class Block(nn.Module):
    def __init__(self, hidden: int, heads: int, kv: int, dim: int, width: int, kernel: int) -> None:
        super().__init__()
        self.heads, self.kv, self.dim = heads, kv, dim
        self.norm1, self.norm2 = nn.RMSNorm(hidden), nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, (heads + 2 * kv) * dim, bias=False)
        self.out = nn.Linear(heads * dim, hidden, bias=False)
        self.gate, self.up = nn.Linear(hidden, width, bias=False), nn.Linear(hidden, width, bias=False)
        self.mix = Conv(width, kernel)
        self.down = nn.Linear(width, hidden, bias=False)

    def forward(self, x: Any) -> Any:
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).split([self.heads * self.dim, self.kv * self.dim, self.kv * self.dim], -1)
        q = q.view(b, t, self.heads, self.dim).transpose(1, 2)
        k = k.view(b, t, self.kv, self.dim).transpose(1, 2)
        v = v.view(b, t, self.kv, self.dim).transpose(1, 2)
        a = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(a.transpose(1, 2).reshape(b, t, -1))
        y = self.norm2(x)
        return x + self.down(functional.silu(self.mix(self.gate(y))) * self.up(y))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers, hidden, heads, kv, dim, width, kernel, vocab = 3, 48, 6, 2, 8, 80, 4, 160
        self.embed = nn.Embedding(vocab, hidden)
        self.layers = nn.ModuleList(Block(hidden, heads, kv, dim, width, kernel) for _ in range(layers))
        self.norm = nn.RMSNorm(hidden)
        self.head = nn.Linear(hidden, vocab, bias=False)

    def forward(self, ids: Any) -> Any:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def make() -> tuple[Model, tuple[Any, ...]]:
    """The module and example inputs, for the tracer."""
    return Model(), (torch.zeros(1, 13, dtype=torch.long),)
