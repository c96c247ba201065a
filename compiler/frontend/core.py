"""The core of an attention: scores, softmax, and values weighed by it."""

from compiler.frontend.builder import BlockBuilder
from compiler.frontend.flops import SOFTMAX_FLOPS
from compiler.ir.graph import Op, Pattern

#: What scores read, what values are, and the sinks.
Sources = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]


def add_core(
    b: BlockBuilder,
    words: tuple[str, str, str],
    sources: Sources,
    softmax_flops: int = SOFTMAX_FLOPS,
) -> None:
    """Scores, softmax and weighted values.

    words: head dimensions, dimension of a key, dimension of a value. sources: of scores, of values, sinks.
    """
    heads, key_dim, value_dim = words
    keys, values, sinks = sources
    table = f"tokens {heads} context"
    scores = Op(
        "attn.scores",
        Pattern.CONTRACT,
        b.dims(f"tokens {heads} {key_dim} context"),
        keys,
        ("attn.scores_out",),
        reduced=(key_dim,),
        sequential=("context",),
        flops_per_point=2,
    )
    b.emit(scores, table)
    softmax = Op(
        "attn.softmax",
        Pattern.REDUCE,
        b.dims(table),
        ("attn.scores_out", *sinks),
        ("attn.probs",),
        sequential=("context",),
        flops_per_point=softmax_flops,
    )
    b.emit(softmax, table)
    mixed = Op(
        "attn.values",
        Pattern.CONTRACT,
        b.dims(f"tokens {heads} {value_dim} context"),
        ("attn.probs", *values),
        ("attn.mixed",),
        reduced=("context",),
        sequential=("context",),
        flops_per_point=2,
    )
    b.emit(mixed, f"tokens {heads} {value_dim}")
