"""Put together one block: ops in dataflow order and the tensors between them, with sizes named once.

Dimensions are written as words (`"tokens hidden"`); the sizes come from one table for the block. The projections and
norms that every architecture has are here, so that the modules that describe a layer read as the layer does.
"""

from dataclasses import dataclass
from math import prod

from compiler.frontend.names import LLAMA, Names
from compiler.frontend.parts import RMS, Norm
from compiler.frontend.quant import Matrix, Storage, WeightKind
from compiler.ir.dtype import DType
from compiler.ir.graph import Block, Dim, Op, Pattern, Role, Routing, Tensor

#: Dimensions of the data that flows; a weight has none of them.
_FLOWING = frozenset({"tokens", "batch", "context", "context_cross", "slots"})


@dataclass(frozen=True, slots=True)
class Weight:
    """The weight of a projection: its module in the checkpoint, whether there is a bias, and how it is stored.

    bias_module: where the bias is, if not with the weight (a head whose weight is the embedding's).
    """

    module: str
    bias: bool = False
    kind: WeightKind = WeightKind.LINEAR
    routing: Routing | None = None
    suffixes: tuple[str, str] = (".weight", ".bias")
    bias_module: str = ""

    @property
    def key(self) -> str:
        return self.module + self.suffixes[0]

    @property
    def bias_key(self) -> str:
        return (self.bias_module or self.module) + self.suffixes[1]


class BlockBuilder:
    """Collects the ops and tensors of one block. `names` gives the checkpoint module of a role."""

    def __init__(self, sizes: dict[str, int], storage: Storage, names: Names = LLAMA) -> None:
        self.sizes = sizes
        self.storage = storage
        self.names = names
        self.matrices: list[Matrix] = []
        self._ops: list[Op] = []
        self._tensors: list[Tensor] = []
        self._inputs: list[str] = []

    def dims(self, words: str) -> tuple[Dim, ...]:
        return tuple(Dim(word, self.sizes[word]) for word in words.split())

    def enter(self, name: str, words: str, role: Role = Role.ACTIVATION, dtype: DType = DType.BF16) -> str:
        """An input of the block."""
        self._tensors.insert(len(self._inputs), Tensor(name, self.dims(words), dtype, role))  # inputs come first
        self._inputs.append(name)
        return name

    def weight(self, name: str, words: str, key: str, kind: WeightKind = WeightKind.PLAIN, contracted: int = 1) -> str:
        """A weight tensor stored as its kind says; `key` is its full checkpoint name.

        Its matrices have the last `contracted` dimensions as columns and the others as rows; experts have one each.
        """
        dims = self.dims(words)
        experts = [d.size for d in dims if d.name == "experts" and kind is WeightKind.EXPERT]
        sides = [d.size for d in dims if d.name != "experts" or not experts]
        if kind is not WeightKind.PLAIN:
            self.matrices.append(Matrix(key, kind, prod(experts)))
        dtype = self.storage.dtype(kind, key, prod(sides[:-contracted]), prod(sides[-contracted:]))
        self._tensors.append(Tensor(name, dims, dtype, Role.WEIGHT, key))
        return name

    def emit(self, op: Op, *words: str, role: Role = Role.ACTIVATION, dtype: DType = DType.BF16) -> None:
        """Append `op`; `words` are the dimensions of each of its outputs."""
        for name, dims in zip(op.outputs, words, strict=True):
            self._tensors.append(Tensor(name, self.dims(dims), dtype, role))
        self._ops.append(op)

    def emit_with_state(self, op: Op, words: str, state_words: str, dtype: DType) -> None:
        """Append `op`, whose first output is an activation and whose second is a recurrent state kept in `dtype`."""
        made, state = op.outputs
        self._tensors.append(Tensor(made, self.dims(words), DType.BF16, Role.ACTIVATION))
        self._tensors.append(Tensor(state, self.dims(state_words), dtype, Role.STATE))
        self._ops.append(op)

    def norm(self, name: str, source: str, out: str, words: str, norm: Norm = RMS, over: int = 1) -> None:
        """Normalise over the last `over` dimensions; the role of the weights is `name`."""
        last = words.split()[-over:]
        own = [word for word in words.split() if word not in _FLOWING] if norm.per_head else last
        tensors = []
        for there, prefix, suffix in ((norm.scale, "w.", ".weight"), (norm.bias, "b.", ".bias")):
            if there:
                tensors.append(self.weight(prefix + name, " ".join(own), self.names.module(name) + suffix))
        op = Op(
            name,
            Pattern.REDUCE,
            self.dims(words),
            (source, *tensors),
            (out,),
            sequential=tuple(last),
            flops_per_point=norm.flops_per_point,
        )
        self.emit(op, words)

    def project(
        self, name: str, sources: tuple[str, ...], out: str, words: str, weight: Weight, placed: str = ""
    ) -> None:
        """`out` = `sources[0]` times a weight (plus a bias). `words`: dimensions of out, `<-`, the contracted ones.

        placed: the dimensions of out where its rows stand otherwise (tokens by sequence).
        """
        left, reduced = (part.split() for part in words.split("<-"))
        kept = [word for word in left if word not in _FLOWING]
        lead = ["experts"] if weight.routing else []
        tensors = [self.weight(f"w.{name}", " ".join(lead + kept + reduced), weight.key, weight.kind, len(reduced))]
        if weight.bias:
            tensors.append(self.weight(f"b.{name}", " ".join(lead + kept), weight.bias_key))
        op = Op(
            name,
            Pattern.CONTRACT,
            self.dims(" ".join(left + reduced)),
            (*sources, *tensors),
            (out,),
            reduced=tuple(reduced),
            flops_per_point=2,
            routing=weight.routing,
        )
        self.emit(op, placed or " ".join(left))

    def pointwise(self, name: str, sources: tuple[str, ...], out: str, words: str, flops: int = 1) -> None:
        """An element-wise op with `flops` operations an element."""
        self.emit(Op(name, Pattern.MAP, self.dims(words), sources, (out,), flops_per_point=flops), words)

    def block(self, kind: str, outputs: tuple[str, ...]) -> Block:
        return Block(kind, tuple(self._ops), tuple(self._tensors), tuple(self._inputs), outputs)
