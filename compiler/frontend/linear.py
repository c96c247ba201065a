"""The mixers without a softmax: linear attention, state spaces, short convolutions. Frozen dataclasses to compose.

A token updates a state of fixed size and reads it, so nothing grows with the context. Sizes are whole-model element
counts. Every mixer has `label`, `params(hidden)`, and the elements that a sequence keeps in one layer:
`state_elements` of the recurrence (fp32) and `conv_elements` of the convolutions (kernel - 1 rows of bf16).
"""

from dataclasses import dataclass

from compiler.frontend.parts import positive

#: Bytes of an element of a recurrent state, and of a row that a convolution still needs.
STATE_NBYTES, CONV_NBYTES = 4, 2


@dataclass(frozen=True, slots=True)
class Recurrent:
    """What the mixers here share: no cache grows."""

    @property
    def kv_elements_per_token(self) -> int:
        """Cache elements a token: none."""
        return 0

    def cached_tokens(self, context: int) -> int:
        """Tokens of a sequence that a cache holds: the context stands for them in one state."""
        return context

    @property
    def state_elements(self) -> int:
        return 0

    @property
    def conv_elements(self) -> int:
        return 0

    @property
    def state_nbytes(self) -> int:
        """Bytes a sequence keeps in one layer, however long it is."""
        return STATE_NBYTES * self.state_elements + CONV_NBYTES * self.conv_elements


def _channels(key_heads: int, heads: int, k_dim: int, v_dim: int) -> int:
    """Channels of the convolutions over queries, keys and values."""
    return 2 * key_heads * k_dim + heads * v_dim


@dataclass(frozen=True, slots=True)
class GatedDeltaNet(Recurrent):
    """Gated delta rule (Yang, Kautz and Hatamizadeh, 2024, equation 10), as in Qwen3-Next.

    heads: those of values; each key serves heads / key_heads of them. A head has one decay and one strength a token.
    """

    key_heads: int
    heads: int
    k_dim: int
    v_dim: int
    kernel: int

    def __post_init__(self) -> None:
        positive("gated delta net", self.key_heads, self.heads, self.k_dim, self.v_dim, self.kernel)
        if self.heads % self.key_heads:
            raise ValueError(f"gated delta net: {self.heads} heads share {self.key_heads} keys")

    @property
    def label(self) -> str:
        return "gdn"

    @property
    def state_elements(self) -> int:
        return self.heads * self.k_dim * self.v_dim

    @property
    def conv_elements(self) -> int:
        return _channels(self.key_heads, self.heads, self.k_dim, self.v_dim) * (self.kernel - 1)

    def params(self, hidden: int) -> int:
        """Projections of q, k, v, gate, decay and strength; convolution; decay's rate and bias; norm; output."""
        channels, values = _channels(self.key_heads, self.heads, self.k_dim, self.v_dim), self.heads * self.v_dim
        into = hidden * (channels + values + 2 * self.heads)
        return into + channels * self.kernel + 2 * self.heads + self.v_dim + values * hidden


@dataclass(frozen=True, slots=True)
class KimiDelta(Recurrent):
    """Kimi delta attention (Kimi Linear report, 2025, section 3): the gated delta rule with a decay a key channel.

    rank: of the low-rank projections that give the decay and the output gate.
    """

    heads: int
    head_dim: int
    rank: int
    kernel: int

    def __post_init__(self) -> None:
        positive("Kimi delta attention", self.heads, self.head_dim, self.rank, self.kernel)

    @property
    def label(self) -> str:
        return "kda"

    @property
    def state_elements(self) -> int:
        return self.heads * self.head_dim**2

    @property
    def conv_elements(self) -> int:
        return 3 * self.heads * self.head_dim * (self.kernel - 1)

    def params(self, hidden: int) -> int:
        """q, k, v and output; decay and gate through `rank`; strength; convolution; decay's rate and bias; norm."""
        width = self.heads * self.head_dim
        low_rank = 2 * self.rank * (hidden + width)
        small = self.heads * (hidden + 1) + width + self.head_dim
        return 4 * hidden * width + low_rank + small + 3 * width * self.kernel


@dataclass(frozen=True, slots=True)
class LightningAttention(Recurrent):
    """Linear attention with a fixed decay a head (Lightning Attention-2, Qin et al., 2024), as in MiniMax-Text-01."""

    heads: int
    head_dim: int

    def __post_init__(self) -> None:
        positive("lightning attention", self.heads, self.head_dim)

    @property
    def label(self) -> str:
        return "lightning"

    @property
    def state_elements(self) -> int:
        return self.heads * self.head_dim**2

    def params(self, hidden: int) -> int:
        """q, k, v, output gate and output projection; a norm over all heads."""
        width = self.heads * self.head_dim
        return 5 * hidden * width + width


@dataclass(frozen=True, slots=True)
class Mamba2(Recurrent):
    """State space duality (Mamba-2, Dao and Gu, 2024). B and C play key and query, x the value.

    heads: in all; each of the `groups` of B and C serves heads / groups of them. k_dim: the state size; v_dim: of a
    head. bias, out_bias: of the projections in and out. norm: a norm over each group behind the gate.
    """

    groups: int
    heads: int
    k_dim: int
    v_dim: int
    kernel: int
    conv_bias: bool = True
    bias: bool = False
    out_bias: bool = False
    norm: bool = True

    def __post_init__(self) -> None:
        positive("Mamba-2", self.groups, self.heads, self.k_dim, self.v_dim, self.kernel)
        if self.heads % self.groups:
            raise ValueError(f"Mamba-2: {self.heads} heads in {self.groups} groups")

    @property
    def label(self) -> str:
        return "mamba2"

    @property
    def state_elements(self) -> int:
        return self.heads * self.k_dim * self.v_dim

    @property
    def conv_elements(self) -> int:
        return _channels(self.groups, self.heads, self.k_dim, self.v_dim) * (self.kernel - 1)

    def params(self, hidden: int) -> int:
        """Projections of gate, x, B, C and step; convolution; step bias, rate and skip a head; norm; output."""
        channels, values = _channels(self.groups, self.heads, self.k_dim, self.v_dim), self.heads * self.v_dim
        into = (hidden + self.bias) * (channels + values + self.heads)
        out = hidden * (values + self.out_bias)
        return into + channels * (self.kernel + self.conv_bias) + 3 * self.heads + values * self.norm + out


@dataclass(frozen=True, slots=True)
class MambaOne(Recurrent):
    """Selective state space (Mamba, Gu and Dao, 2023): every channel has a state of its own.

    k_dim: the state size. rank: of the step's projection. norms: of step, B and C (Jamba). bias: of in and out.
    """

    channels: int
    k_dim: int
    rank: int
    kernel: int
    conv_bias: bool = True
    bias: bool = False
    norms: bool = False

    def __post_init__(self) -> None:
        positive("Mamba", self.channels, self.k_dim, self.rank, self.kernel)

    @property
    def label(self) -> str:
        return "mamba"

    @property
    def state_elements(self) -> int:
        return self.channels * self.k_dim

    @property
    def conv_elements(self) -> int:
        return self.channels * (self.kernel - 1)

    def params(self, hidden: int) -> int:
        """Projections of x and gate; convolution; step, B and C out of x; rate a channel and state, skip; output."""
        into, out = 2 * self.channels * (hidden + self.bias), hidden * (self.channels + self.bias)
        small = self.rank + 2 * self.k_dim
        inner = self.channels * (small + self.rank + 1) + self.channels * (self.k_dim + 1) + small * self.norms
        return into + self.channels * (self.kernel + self.conv_bias) + inner + out


@dataclass(frozen=True, slots=True)
class ShortConv(Recurrent):
    """Gated short convolution (LFM2): no recurrence, only the last rows of the convolution are kept.

    channels: as many as the hidden size in LFM2. bias: of the projections and of the convolution.
    """

    channels: int
    kernel: int
    bias: bool = False

    def __post_init__(self) -> None:
        positive("short convolution", self.channels, self.kernel)

    @property
    def label(self) -> str:
        return "conv"

    @property
    def conv_elements(self) -> int:
        return self.channels * (self.kernel - 1)

    def params(self, hidden: int) -> int:
        """Projections of two gates and the input; convolution; output."""
        into, out = 3 * self.channels * (hidden + self.bias), hidden * (self.channels + self.bias)
        return into + self.channels * (self.kernel + self.bias) + out


LinearMixer = GatedDeltaNet | KimiDelta | LightningAttention | Mamba2 | MambaOne | ShortConv
