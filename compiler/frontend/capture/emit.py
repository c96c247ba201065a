"""Steps with names as the ops and tensors of a block."""

from dataclasses import dataclass, field, replace

from compiler.errors import InputError
from compiler.frontend.builder import BlockBuilder
from compiler.frontend.capture.axes import Axis
from compiler.frontend.capture.dims import Names
from compiler.frontend.capture.ir import Capture, Value
from compiler.frontend.capture.latent import Layer
from compiler.frontend.capture.seen import Origin
from compiler.frontend.capture.steps import Kind, Step
from compiler.frontend.quant import WeightKind
from compiler.ir.dtype import DType
from compiler.ir.graph import Block, Op, Pattern, Phase, Role, Tensor, Workload

#: What an op gives, by its name; others give `<op>_out`.
_OUTPUTS = {
    "attn.norm": "attn.normed",
    "attn.q_proj": "attn.q",
    "attn.k_proj": "attn.k",
    "attn.v_proj": "attn.v",
    "attn.q_norm": "attn.q_normed",
    "attn.k_norm": "attn.k_normed",
    "attn.q_rope": "attn.q_rot",
    "attn.k_rope": "attn.k_rot",
    "attn.o_proj": "attn.out",
    "attn.post_norm": "attn.out_normed",
    "attn.residual": "attn.y",
    "attn.q_a_proj": "attn.q_a",
    "attn.q_a_norm": "attn.q_a_normed",
    "attn.q_b_proj": "attn.q",
    "attn.kv_a_proj": "attn.kv_a",
    "attn.kv_a_norm": "attn.latent",
    "cross.norm": "cross.normed",
    "cross.q_proj": "cross.q",
    "cross.k_proj": "cross.k",
    "cross.v_proj": "cross.v",
    "cross.o_proj": "cross.out",
    "cross.residual": "cross.y",
    "ffn.norm": "ffn.normed",
    "ffn.gate_proj": "ffn.gate",
    "ffn.up_proj": "ffn.up",
    "ffn.act": "ffn.mid",
    "ffn.down_proj": "ffn.out",
    "ffn.shared_gate_proj": "ffn.shared_gate",
    "ffn.shared_up_proj": "ffn.shared_up",
    "ffn.shared_act": "ffn.shared_mid",
    "ffn.shared_down_proj": "ffn.shared_out",
    "ffn.router": "ffn.router_out",
    "ffn.topk": "ffn.routes",
    "ffn.add_shared": "ffn.sum",
    "ffn.post_norm": "ffn.out_normed",
    "head.norm": "head.normed",
    "encoder.norm": "memory",
    "attn.sum_norm": "attn.y",
    "cross.sum_norm": "cross.y",
    "ffn.sum_norm": "y",
}

#: Projections that no published checkpoint quantises.
_PLAIN = ("ffn.router", "ffn.shared_gate", "attn.index_weights_proj")

_PATTERNS = {
    Kind.CONTRACT: Pattern.CONTRACT,
    Kind.CONV: Pattern.CONTRACT,
    Kind.MAP: Pattern.MAP,
    Kind.NORM: Pattern.REDUCE,
    Kind.REDUCE: Pattern.REDUCE,
    Kind.SCAN: Pattern.SCAN,
    Kind.GATHER: Pattern.GATHER,
    Kind.SCATTER: Pattern.SCATTER,
    Kind.SORT: Pattern.SORT,
}


@dataclass
class Emitter:
    """Collects the block of one capture. `tensor`: the tensors that a value of the capture is in."""

    capture: Capture
    layer: Layer
    names: Names
    builder: BlockBuilder
    workload: Workload
    edge: str = ""
    tied: str = ""  # the key of the embedding that is the head too
    gathered: dict[str, str] = field(default_factory=dict)  # rows that all tokens of a sequence read: their dimension
    tensor: dict[str, tuple[str, ...]] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    retyped: dict[str, tuple[Role, DType]] = field(
        default_factory=dict
    )  # outputs of another role than their op's others

    @property
    def decode(self) -> bool:
        return self.workload.phase is Phase.DECODE

    def weight_value(self, name: str) -> Value:
        return next(value for value in self.capture.weights if value.name == name)

    def words(self, axis: Axis) -> str:
        return " ".join(self.names.words(axis))

    def flow_words(self, axis: Axis) -> list[str]:
        """The dimensions of activations; around the layers, what has no tokens (an image) is there by sequence."""
        words = self.names.words(axis)
        return words if not self.edge or {"tokens", "batch"}.intersection(words) else ["batch", *words]

    def _result(self, value: str) -> str:
        """The dimensions of an output of an op; keys that every token reads stand by sequence."""
        words = self.flow_words(self.layer.flow.atoms.flat(self.layer.flow.seen[value].axes))
        rows = self.gathered.get(value, "tokens")
        return " ".join(rows if word == "tokens" else word for word in words)

    def value_words(self, name: str) -> str:
        """The dimensions of a value, by name."""
        return self.words(self.layer.flow.atoms.flat(self.layer.flow.seen[name].axes))

    def read(self, *values: str) -> tuple[str, ...]:
        """The tensors that hold `values` (of which views are read where they come from)."""
        roots = self.layer.flow.roots(values)
        return tuple(dict.fromkeys(tensor for root in roots for tensor in self.tensor.get(root, ())))

    def weight(
        self, value: str, op: str, kind: WeightKind, words: str = "", prefix: str = "w.", reduced: tuple[str, ...] = ()
    ) -> str:
        """The tensor of a weight; the one there is where another op has it already.

        reduced: what a product sums over; these dimensions come last, as the columns of the matrix.
        """
        if value in self.tensor:
            return self.tensor[value][0]
        found = self.weight_value(value)
        embedding = self.tied and op == "head.lm_head" and len(found.shape) > 1
        key = self.tied if embedding else found.published()
        taken = {tensor for names in self.tensor.values() for tensor in names}
        number, stem = 2, f"{prefix}{op}"
        name = stem
        while name in taken:
            name, number = f"{stem}_{number}", number + 1
        kind = WeightKind.PLAIN if embedding else kind
        rows = (words or self.value_words(value)).split()
        columns = [word for word in rows if word in reduced]
        ordered = " ".join([*(word for word in rows if word not in columns), *columns])
        self.builder.weight(name, ordered, key, kind, len(columns) or 1)
        self.tensor[value] = (name,)
        return name

    def weights(self, step: Step) -> tuple[str, ...]:
        """The weight tensors of a step: matrices of projections may be quantised, everything else stays plain."""
        matrix = step.kind is Kind.CONTRACT and not self.edge and step.name not in _PLAIN
        usual = WeightKind.LINEAR if matrix else WeightKind.HEAD if step.name == "head.lm_head" else WeightKind.PLAIN
        reduced = tuple(self.names.words(step.reduced, self.flow_words(step.points))) if matrix else ()
        out = []
        biases = self._biases(step)
        for value in sorted(step.weights, key=lambda value: value in biases):
            if value in biases:
                out.append(self.weight(value, step.name, WeightKind.PLAIN, prefix="b."))
            else:
                out.append(self.weight(value, step.name, usual, reduced=reduced))
        return tuple(out)

    def _operands(self, step: Step) -> list[str]:
        """What a step reads; of a sum with the stream that first, then what it adds in the order of the layer."""
        if not step.residual:
            return list(step.sources)
        places = {name: place for place, maker in enumerate(self.layer.steps, 1) for name in maker.outputs}
        streams = self.layer.flow.streams
        return sorted(step.sources, key=lambda name: (name not in streams, places.get(name, 0)))

    def _biases(self, step: Step) -> tuple[str, ...]:
        """The weights of a step that are added: of a norm the second, of a product those with fewer dimensions."""
        if step.kind is Kind.NORM:
            return step.weights[1:]
        if step.kind not in (Kind.CONTRACT, Kind.CONV):
            return ()
        ranks = {value: len(self.weight_value(value).shape) for value in step.weights}
        return tuple(value for value, rank in ranks.items() if rank < max(ranks.values()))

    def output(self, step: Step, place: int = 0) -> str:
        """The tensor name of an output of a step."""
        value = step.outputs[place]
        if self.layer.flow.seen[self.capture.outputs[0]].roots == (value,):
            return {"": "y", "embed": "y", "head": "logits"}[self.edge]
        name = _OUTPUTS.get(step.name, f"{step.name}_out")
        if step.residual and any(user.name.endswith(".sum_norm") for user in self.layer.users(step)):
            name = f"{step.name.partition('.')[0]}.sum"
        return name if place == 0 else f"{name}_{place + 1}"

    def emit(self, step: Step) -> None:
        """The op of a step that is no semantic operator."""
        points = self.flow_words(step.points)
        reduced = self.names.words(step.reduced, taken=points) if step.kind is not Kind.MAP else []
        inputs = (*self.read(*self._operands(step)), *self.weights(step))
        outputs = tuple(self.output(step, place) for place in range(len(step.outputs)))
        op = Op(
            step.name,
            _PATTERNS[step.kind],
            self.builder.dims(" ".join([*points, *reduced])),
            inputs,
            outputs,
            reduced=tuple(reduced),
            flops_per_point=step.flops,
            sequential=tuple(word for word in self.names.words(step.sequential) if word in points),
            linear=step.name == "ffn.add_shared" and step.flops == 1,
        )
        self.builder.emit(op, *(self._result(value) for value in step.outputs))
        for value, name in zip(step.outputs, outputs, strict=True):
            self.tensor[value] = (name,)

    def enter(self, value: Value) -> None:
        """The first input, as the block input."""
        first = value.name == self.capture.inputs[0].name
        memory = self.layer.flow.atoms.memory in self.layer.flow.atoms.flat(self.layer.flow.seen[value.name].axes)
        ids = self.edge == "embed" and first and value.dtype in ("int64", "int32")
        image = self.edge == "embed" and first and not ids
        name = "ids" if ids else "x" if first or (memory and self.edge) else "memory" if memory else f"x.{value.name}"
        role = Role.INPUT if ids or image else Role.ACTIVATION
        dtype = DType.INT32 if value.dtype in ("int64", "int32") else DType.BF16
        words = self.flow_words(self.layer.flow.atoms.flat(self.layer.flow.seen[value.name].axes))
        self.builder.enter(name, " ".join(words), role, dtype)
        self.tensor[value.name] = (name,)

    def finish(self, kind: str) -> Block:
        """The block; a result that is several tensors (or the input) is put into one."""
        result = self.layer.flow.seen[self.capture.outputs[0]]
        want = "logits" if self.edge == "head" else "y"
        words = " ".join(self.flow_words(self.layer.flow.atoms.flat(result.axes)))
        if self.read(self.capture.outputs[0]) != (want,):
            name = f"{self.edge or 'layer'}.place"
            weights = [root for root in result.roots if self.layer.flow.seen[root].origin is Origin.WEIGHT]
            put = (*self.read(*result.roots), *(self.weight(root, name, WeightKind.PLAIN) for root in weights))
            inputs = tuple(dict.fromkeys(put))
            op = Op(name, Pattern.MAP, self.builder.dims(words), inputs, (want,), flops_per_point=0)
            self.builder.emit(op, words)
        block = self.builder.block(kind, (want, *self.outputs))
        tensors = tuple(self._retyped(tensor) for tensor in block.tensors)
        return replace(block, tensors=tensors) if self.retyped else block

    def _retyped(self, tensor: Tensor) -> Tensor:
        role, dtype = self.retyped.get(tensor.name, (tensor.role, tensor.dtype))
        return replace(tensor, role=role, dtype=dtype)

    def refuse(self, step: Step, what: str, right: str) -> InputError:
        node = step.nodes[0]
        return InputError(f"{node.target} in {node.module or 'the module itself'} ({node.line})", what, right)

    def is_input(self, name: str) -> bool:
        """Whether a value enters the block with activations beside the hidden states."""
        others = {value.name for value in self.capture.inputs[1:]}
        return name in others and self.layer.flow.seen[name].origin is Origin.DATA
