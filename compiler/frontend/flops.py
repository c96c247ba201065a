"""Floating-point operations of what is no matrix product, an element: one table for both doors.

Addition, subtraction, product and comparison count 1, division 1, an exponential inside an activation or a softmax 3.
Moving data costs none.
"""

from typing import Final

#: Softmax: maximum, subtract, exponential, add, divide: 7 operations a score.
SOFTMAX_FLOPS: Final = 7
#: Rotary embedding: two products and an addition an element.
ROPE_FLOPS: Final = 3
#: Soft cap: divide, tanh (3), multiply.
SOFTCAP_FLOPS: Final = 5
#: Bias by distance: a product and an addition a score.
ALIBI_FLOPS: Final = 2
#: Sigmoid: negate, exponential, add, divide.
SIGMOID_FLOPS: Final = 4
#: An activation, whichever it is (silu: negate, exponential, add, divide, multiply), and the product with its gate.
ACTIVATION_FLOPS: Final = 8
GATE_FLOPS: Final = 1
#: A cutoff by mean and deviation of a row: sum; subtract, square, sum; subtract, compare.
CUTOFF_FLOPS: Final = 6
#: Top-k: comparisons and moves a score.
TOPK_FLOPS: Final = 4
#: Of an indexer's score of a head: its rectifier, and its share in the weighted sum of the heads.
INDEX_SCORE_FLOPS: Final = 3

#: Rate of decay of a token: exponential and a product, over the activation of the step.
DECAY_FLOPS: Final = 4
#: Adding the weighted input of a state space to its output.
SKIP_FLOPS: Final = 2
#: Operations a token at each point (key element, value element) of a head's state.
#: Delta rule, S = g S; u = b (v - S^T k); S = S + k u^T; o = S^T q (Gated Delta Networks, equation 10, as the kernels
#: order it): decay 1, read 2, update 2, read 2.
DELTA_FLOPS: Final = 7
#: S = g S + k v^T; o = S^T q (Lightning Attention-2, equation 3; Mamba-2, equation 16): decay 1, update 2, read 2.
LINEAR_FLOPS: Final = 5
#: h = exp(d A) h + d B x; y = C h (Mamba, equation 2 after discretisation): exp(d A) 4, d x B 1, update 2, read 2.
MAMBA_FLOPS: Final = 9

#: Compressed attention, an element of a block: its place's bias, softmax over the block, weigh, add.
COMPRESS_FLOPS: Final = SOFTMAX_FLOPS + 3
#: Hyper-connections: scale, bias and sigmoid of a weight; scale, bias and softmax of one that mixes; a normalisation
#: of rows or columns, which is a sum and a division.
HYPER_GATE_FLOPS: Final = 2 + SIGMOID_FLOPS
HYPER_MIX_FLOPS: Final = 2 + SOFTMAX_FLOPS
NORMALISE_FLOPS: Final = 2
