"""Read encoders (BERT, ViT) and encoder-decoders (T5, BART, Whisper)."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from compiler.frontend.encoder_layouts import BART_ENCODER, T5_ENCODER, WHISPER_ENCODER
from compiler.frontend.facts import Facts
from compiler.frontend.family import Shell
from compiler.frontend.mixer_facts import quotient
from compiler.frontend.names import Names
from compiler.frontend.parts import LAYER_NORM, START_TOKENS, Norm
from compiler.frontend.read import describe
from compiler.frontend.spec import Attention, Dense, Encoder, EncoderHead, Ffn, Layer, Mixer, Patches, Sound

#: Positions of BART begin behind two that are never used.
_BART_OFFSET = 2


def _attention(heads: int, dim: int, bias: str = "qkvo", buckets: int = 0, own_buckets: bool = False) -> Attention:
    """Attention in both directions, its heads as many as keys. bias: letters of the projections that have one."""
    return Attention(
        kv_heads=heads,
        q_group=1,
        head_dim=dim,
        rotary=0,
        causal=False,
        buckets=buckets,
        own_buckets=own_buckets,
        q_bias="q" in bias,
        k_bias="k" in bias,
        v_bias="v" in bias,
        o_bias="o" in bias,
    )


def _heads(facts: Facts, fact: str) -> tuple[int, int]:
    """(heads, head size): the hidden size divided by the heads."""
    heads = facts.integer(fact)
    return heads, quotient(facts, heads)


# --- encoders alone


def bert(facts: Facts, layers: int) -> tuple[Mixer | None, ...]:
    """Attention in both directions, with biases."""
    facts.word("position_kind", ("absolute",), "absolute")
    if facts.flag("is_decoder", False):
        raise facts.error("is_decoder", "is true: bert as described here is an encoder", "false, or no key")
    return (_attention(*_heads(facts, "heads")),) * layers


def bert_shell(facts: Facts, shell: Shell) -> Shell:
    """Positions, kinds of segments and a norm behind the embedding; scores of every token behind a projection."""
    if not facts.flag("tied", True):
        what = "is false: scores by another table than the embedding, with two biases, are not described"
        raise facts.error("tied", what, "true, or no key")
    positions, types = facts.integer("positions"), facts.integer("segment_types")
    return replace(shell, positions=positions, types=types, head=EncoderHead(transform=LAYER_NORM))


def distilbert(facts: Facts, layers: int) -> tuple[Mixer | None, ...]:
    """Attention in both directions, with biases."""
    return (_attention(*_heads(facts, "heads")),) * layers


def distilbert_shell(facts: Facts, shell: Shell) -> Shell:
    """As BERT, without kinds of segments. `sinusoidal_pos_embds` fills the same table otherwise."""
    facts.ignore("sinusoidal", "the table of positions has the same size either way")
    if not facts.flag("tied", True):
        what = "is false: scores by another table than the embedding, with two biases, are not described"
        raise facts.error("tied", what, "true, or no key")
    return replace(shell, positions=facts.integer("positions"), head=EncoderHead(transform=LAYER_NORM))


def vit(facts: Facts, layers: int) -> tuple[Mixer | None, ...]:
    """Attention in both directions; `qkv_bias` (true when absent) is that of queries, keys and values."""
    heads, dim = _heads(facts, "heads")
    bias = "qkvo" if facts.flag("qkv_flag", True) else "o"
    return (_attention(heads, dim, bias),) * layers


def vit_shell(facts: Facts, shell: Shell, distilled: bool = False) -> Shell:
    """Patches of an image, and a classifier of the first token."""
    height, width = _sides(facts, "image_size")
    patch = _sides(facts, "patch_size")
    if patch[0] != patch[1]:
        raise facts.error("patch_size", f"is {patch[0]} x {patch[1]}: patches are squares here", "one number")
    if patch[0] > min(height, width):
        what = f"is {patch[0]}, more than the image of {height} x {width} has"
        raise facts.error("patch_size", what, f"1 to {min(height, width)}")
    stem = Patches(height, width, patch[0], facts.integer("image_channels"), distilled)
    facts.fixed("tokens_a_sequence", stem.tokens, "patches of the image, and the tokens in front of them")
    return replace(shell, stem=stem, head=EncoderHead(classifier=True), head_bias=True)


def deit_shell(facts: Facts, shell: Shell) -> Shell:
    """As ViT, with a token of distillation behind the class token."""
    return vit_shell(facts, shell, distilled=True)


def _sides(facts: Facts, fact: str) -> tuple[int, int]:
    """A number for both sides, or [height, width]."""
    found = facts.find(fact)
    if found is None or not isinstance(found.value, list):
        side = facts.integer(fact)
        return side, side
    items = facts.items(fact) or []
    sides = [item for item in items if type(item) is int and 1 <= item <= 1 << 16]
    if len(items) != 2 or len(sides) != 2:
        raise facts.error(fact, f"is {describe(found.value)}", "a number, or [height, width]")
    return sides[0], sides[1]


def classes(facts: Facts) -> int:
    """Classes of a classifier: `num_labels`, else the entries of `id2label`; two when both are absent."""
    stated = facts.maybe_integer("classes")
    table = facts.table("labels")
    if table is not None and stated is not None and len(table) != stated:
        raise facts.error("classes", f"is {stated}, and id2label has {len(table)}", "one number of classes")
    if table is not None:
        return len(table)
    if stated is None:
        facts.assume("classes", 2, f"{facts.family} has two classes when no key says it")
        return 2
    return stated


# --- encoder and decoder


@dataclass(frozen=True, slots=True)
class Sides:
    """How a family's code reads its two stacks.

    heads, ffns, layers: the facts of encoder and decoder. bias: of the projections. norm: of the layers; `sum_norm`:
    behind each sum. gated: whether the feed-forward part is gated, by the facts and what a silent config means.
    own_buckets: every layer stores its biases. names: of the encoder.
    """

    heads: tuple[str, str]
    ffns: tuple[str, str]
    layers: tuple[str, str]
    bias: str
    norm: Norm
    names: Names
    sum_norm: bool = False
    final_norm: bool = True
    dense_bias: bool = True
    stated_dim: bool = False
    buckets: bool = False
    own_buckets: bool = False
    silent_ffn: str = "relu"
    gated: Callable[[Facts, str], bool] = lambda facts, silent: False

    def count(self, facts: Facts) -> int:
        """Layers of the decoder: as many as the encoder where the fact is absent."""
        if not facts.flag("encoder_decoder", True):
            raise facts.error("encoder_decoder", f"is false: {facts.family} has an encoder", "true, or no key")
        found = facts.maybe_integer(self.layers[1])
        if found is None:
            if self.layers[1] != "decoder_layers_or":
                raise facts.missing(self.layers[1])
            found = facts.integer(self.layers[0])
            facts.assume(self.layers[1], found, f"{facts.family} has as many as the encoder when the key is absent")
        return found

    def mixers(self, facts: Facts, layers: int) -> tuple[Mixer | None, ...]:
        """The attention of the decoder."""
        return (replace(self._attention(facts, 1), causal=True),) * layers

    def ffns_of(self, facts: Facts, layers: int) -> tuple[Ffn | None, ...]:
        """The feed-forward parts of the decoder."""
        return (self._dense(facts, 1),) * layers

    def _dense(self, facts: Facts, side: int) -> Dense:
        return Dense(facts.integer(self.ffns[side]), gated=self.gated(facts, self.silent_ffn), bias=self.dense_bias)

    def _attention(self, facts: Facts, side: int, buckets: bool = True) -> Attention:
        heads = facts.integer(self.heads[side])
        dim = facts.integer("head_dim") if self.stated_dim else quotient(facts, heads)
        rows = facts.integer("bias_buckets") if self.buckets and buckets else 0
        return _attention(heads, dim, self.bias, rows, self.own_buckets and rows > 0)

    def encoder(self, facts: Facts) -> Encoder:
        """The encoder of the config."""
        part = self._attention(facts, 0), self._dense(facts, 0)
        layer = Layer(*part, self.norm, pre_norm=not self.sum_norm, sum_norm=self.sum_norm)
        norm = self.norm if self.final_norm else None
        return Encoder((layer,) * facts.integer(self.layers[0]), norm, names=self.names)

    def shell(self, facts: Facts, shell: Shell) -> Shell:
        """Both stacks: the encoder, and cross attention in the decoder."""
        cross = self._attention(facts, 1, buckets=False)
        facts.fixed("decoder_prefill_tokens", START_TOKENS, "tokens a decoder begins with, behind its encoder")
        return replace(
            shell,
            norm=self.norm,
            final_norm=self.final_norm,
            pre_norm=not self.sum_norm,
            sum_norm=self.sum_norm,
            cross=cross,
            encoder=self.encoder(facts),
        )


def _t5_gated(facts: Facts, silent: str) -> bool:
    """`feed_forward_proj`: an activation, or "gated-" before it."""
    word = facts.word("t5_activation", ("relu", "gated-gelu", "gelu", "silu", "gated-silu", "gated-relu"), silent)
    gated = word.startswith("gated-")
    facts.ignore("t5_dense_activation", "feed_forward_proj says it")
    if facts.flag("t5_gated", gated) is not gated:
        raise facts.error("t5_gated", f"differs from feed_forward_proj, which is {word}", f"{str(gated).lower()}")
    return gated


T5 = Sides(
    heads=("t5_heads", "t5_heads"),
    ffns=("ffn_width", "ffn_width"),
    layers=("layers", "decoder_layers_or"),
    bias="",
    norm=Norm(),
    names=T5_ENCODER,
    dense_bias=False,
    stated_dim=True,
    buckets=True,
    gated=_t5_gated,
)
BART = Sides(
    heads=("encoder_heads", "decoder_heads"),
    ffns=("encoder_ffn", "decoder_ffn"),
    layers=("encoder_layers", "decoder_layers"),
    bias="qkvo",
    norm=LAYER_NORM,
    names=BART_ENCODER,
    sum_norm=True,
    final_norm=False,
)
WHISPER = replace(BART, bias="qvo", names=WHISPER_ENCODER, sum_norm=False, final_norm=True)


def bart_shell(facts: Facts, shell: Shell) -> Shell:
    """Learned positions and a norm behind the embedding, on both sides; the hidden size of both."""
    return bart_like(BART, facts, shell, _BART_OFFSET, normed=True)


def bart_like(sides: Sides, facts: Facts, shell: Shell, offset: int | None, normed: bool) -> Shell:
    """Both stacks of BART or a relative. offset: rows of the table of positions before the first one, None where
    positions are computed and stored nowhere. normed: a norm behind the embedding.
    """
    shell = sides.shell(facts, shell)
    facts.ignore("layers", "encoder_layers and decoder_layers say it")
    if not facts.flag("tied", True):
        what = "is false: a table for each of encoder, decoder and head, as the class then has, is not described"
        raise facts.error("tied", what, "true, or no key")
    if not facts.flag("shared_tables", True):
        what = "is false: a table of its own for the decoder is not described"
        raise facts.error("shared_tables", what, "true, or no key")
    own, whole = facts.maybe_integer("decoder_vocab"), facts.integer("vocab")
    if own not in (None, whole):
        raise facts.error("decoder_vocab", f"is {own}, and the encoder has {whole} ids", "one number for one table")
    rows = 0 if offset is None else facts.integer("positions") + offset
    norm = LAYER_NORM if normed else None
    assert shell.encoder is not None
    encoder = replace(shell.encoder, positions=rows, embed_norm=norm)
    return replace(shell, positions=rows, embed_norm=norm, encoder=encoder)


def whisper_shell(facts: Facts, shell: Shell) -> Shell:
    """A sound before the encoder; learned positions before the decoder."""
    shell = WHISPER.shell(facts, shell)
    facts.ignore("layers", "encoder_layers and decoder_layers say it")
    stem = Sound(facts.integer("mel_bins"), facts.integer("source_positions"))
    facts.fixed("tokens_a_sequence", stem.tokens, "positions of a sound")
    assert shell.encoder is not None
    return replace(shell, positions=facts.integer("target_positions"), encoder=replace(shell.encoder, stem=stem))
