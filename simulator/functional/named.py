"""A torch tensor whose dimensions have the names of the graph, so that kernels never count axes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Named:
    """`data` has one axis for each name in `dims`, in that order."""

    dims: tuple[str, ...]
    data: Any

    def __post_init__(self) -> None:
        if self.data.dim() != len(self.dims):
            raise ValueError(f"{self.data.dim()} axes are named {self.dims}")

    def size(self, dim: str) -> int:
        """Elements along `dim`; 1 where there is no such dimension."""
        return int(self.data.shape[self.dims.index(dim)]) if dim in self.dims else 1

    def over(self, dims: Sequence[str]) -> Any:
        """The data with axes `dims` in that order, of length 1 where it has no such dimension.

        ValueError if it has a dimension that is not among them.
        """
        missing = set(self.dims) - set(dims)
        if missing:
            raise ValueError(f"dimensions {sorted(missing)} of {self.dims} have no place among {tuple(dims)}")
        ordered = self.data.permute([self.dims.index(d) for d in dims if d in self.dims])
        shape = iter(ordered.shape)
        return ordered.reshape([next(shape) if d in self.dims else 1 for d in dims])

    def cut(self, dim: str, start: int, stop: int) -> "Named":
        """The elements start..stop - 1 along `dim`."""
        return Named(self.dims, self.data.narrow(self.dims.index(dim), start, stop - start))

    def split(self, dim: str, sizes: dict[str, int]) -> "Named":
        """`dim` as several dimensions, the last of them fastest."""
        at = self.dims.index(dim)
        shape = self.data.shape
        data = self.data.reshape(*shape[:at], *sizes.values(), *shape[at + 1 :])
        return Named((*self.dims[:at], *sizes, *self.dims[at + 1 :]), data)

    def joined(self, dims: tuple[str, ...], name: str) -> "Named":
        """Neighbouring dimensions `dims` as one. ValueError if they are not neighbours in that order."""
        at = self.dims.index(dims[0])
        if self.dims[at : at + len(dims)] != dims:
            raise ValueError(f"{dims} are not side by side in {self.dims}")
        shape = self.data.shape
        data = self.data.reshape(*shape[:at], -1, *shape[at + len(dims) :])
        return Named((*self.dims[:at], name, *self.dims[at + len(dims) :]), data)


def product(values: Iterable[Named], dims: Sequence[str]) -> Named:
    """The product of `values`, summed over every dimension that is not in `dims`."""
    values = tuple(values)
    letters = {d: i for i, d in enumerate(dict.fromkeys(d for v in values for d in v.dims))}
    operands: list[Any] = []
    for v in values:
        operands += [v.data, [letters[d] for d in v.dims]]
    there = [d for d in dims if d in letters]
    return Named(tuple(there), torch.einsum(*operands, [letters[d] for d in there]))


def side_by_side(values: Sequence[Named], dim: str) -> Named:
    """`values` one after another along `dim`; each has the dimensions of the first, or is repeated along them."""
    dims = values[0].dims
    sizes = {d: max(v.size(d) for v in values) for d in dims if d != dim}
    parts = []
    for v in values:
        data = v.over(dims)
        parts.append(data.expand([data.shape[i] if d == dim else sizes[d] for i, d in enumerate(dims)]))
    return Named(dims, torch.cat(parts, dims.index(dim)))
