"""The ops of per-layer embeddings: a second, narrow embedding a layer, behind the feed-forward part (Gemma 3n, 4)."""

from compiler.frontend.builder import BlockBuilder, Weight
from compiler.frontend.flops import ACTIVATION_FLOPS, GATE_FLOPS
from compiler.frontend.parts import PerLayer
from compiler.ir.graph import Op, Pattern

#: The tensor that the embedding gives and every layer reads its row of.
INPUTS = "per_layer_inputs"
#: Scaled by the width, then added to the projection of the embedding, and scaled again.
_SUM_FLOPS = 3


def per_layer_sizes(per_layer: PerLayer, layers: int) -> dict[str, int]:
    """Sizes of the dimensions in the block of the embedding."""
    return {"per_layer": per_layer.width, "per_layers": layers, "per_layer_vocab": per_layer.vocab}


def embed_per_layer(b: BlockBuilder, ids: str, embedded: str) -> str:
    """The narrow embedding of every layer: a row of its own table, and a projection of the model's embedding."""
    words = "tokens per_layers per_layer"
    table = b.weight(
        "w.embed.per_layer", "per_layer_vocab per_layers per_layer", f"{b.names.module('embed.per_layer')}.weight"
    )
    rows = Op("embed.per_layer", Pattern.GATHER, b.dims(words), (ids, table), ("embed.own",), flops_per_point=0)
    b.emit(rows, words)
    weight = Weight(b.names.module("embed.per_layer_proj"))
    b.project("embed.per_layer_proj", (embedded,), "embed.projected", f"{words} <- hidden", weight)
    b.norm("embed.per_layer_norm", "embed.projected", "embed.projected_normed", words)
    b.pointwise("embed.per_layer_add", ("embed.own", "embed.projected_normed"), INPUTS, words, _SUM_FLOPS)
    return INPUTS


def add_per_layer(b: BlockBuilder, source: str, residual: str, out: str, words: str) -> None:
    """The hidden states `source` gate the layer's own embedding; projected and normalised, it is added to `residual`.

    words: the dimensions of the residual; of streams, one is left as it is.
    """
    b.project(
        "ple.gate_proj", (source,), "ple.gate", "tokens per_layer <- hidden", Weight(b.names.module("ple.gate_proj"))
    )
    b.pointwise("ple.act", ("ple.gate", "per_layer"), "ple.mid", "tokens per_layer", ACTIVATION_FLOPS + GATE_FLOPS)
    b.project("ple.proj", ("ple.mid",), "ple.out", "tokens hidden <- per_layer", Weight(b.names.module("ple.proj")))
    b.norm("ple.norm", "ple.out", "ple.normed", "tokens hidden")
    b.pointwise("ple.residual", (residual, "ple.normed"), out, words)
