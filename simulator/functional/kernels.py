"""What each op computes, by its role. An op without an entry is not executed: `Unmeant` names it."""

from collections.abc import Callable, Mapping

from compiler.ir.graph import Op, Pattern
from simulator.functional import attention, dense, experts, recurrent
from simulator.functional.named import Named
from simulator.functional.numbers import Unmeant
from simulator.functional.tile import Tile

Kernel = Callable[[Mapping[str, Named], Tile], dict[str, Named]]

KERNELS: dict[str, Kernel] = {
    "embed.gather": dense.embed,
    "attn.q_rope": dense.rotate,
    "attn.k_rope": dense.rotate,
    "attn.kv_append": attention.append,
    "attn.kv_b_proj": attention.expand,
    "attn.scores": attention.scores,
    "attn.softmax": attention.softmax,
    "attn.values": attention.values,
    "attn.core": attention.core,
    "attn.kv_reduce": attention.reduce_splits,
    "attn.gate_act": dense.gated,
    "attn.residual": dense.add,
    "mixer.residual": dense.add,
    "ffn.residual": dense.add,
    "ffn.add_shared": dense.add,
    "ffn.act": dense.activate,
    "ffn.shared_act": dense.activate,
    "ffn.experts_act": dense.activate,
    "ffn.topk": experts.choose,
    "ffn.experts_gate": experts.project,
    "ffn.experts_up": experts.project,
    "ffn.experts_gate_up": experts.project,
    "ffn.experts_down": experts.project,
    "ffn.combine": experts.combine,
    "ffn.shared_scale_act": dense.sigmoid,
    "mixer.gates": recurrent.gates,
    "mixer.strength": dense.sigmoid,
    "mixer.steps": recurrent.steps,
    "mixer.skip": recurrent.skip,
    "mixer.out_gate": recurrent.out_gate,
    "mixer.scan": recurrent.scan,
    "head.softcap": dense.soft_cap,
    "sample.argmax": dense.argmax,
}


def kernel_of(op: Op) -> Kernel:
    """The kernel of `op`. Unmeant where there is none."""
    if op.name in KERNELS:
        return KERNELS[op.name]
    if op.name.startswith("mixer.conv_act_"):
        return recurrent.conv_act
    if op.name.startswith("mixer.conv_"):
        return recurrent.convolve
    if op.pattern is Pattern.REDUCE and op.name.endswith("norm"):
        return dense.norm
    if op.pattern is Pattern.CONTRACT and not op.sequential and op.routing is None:
        return dense.contract
    raise Unmeant(f"what {op.name} computes is not written down")
