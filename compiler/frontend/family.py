"""What a row of the table of families is: how a `model_type` is read, and what surrounds its mixers and ffns."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from compiler.frontend.altup import AltUp, Laurel
from compiler.frontend.compressed import HyperConnections
from compiler.frontend.facts import Facts
from compiler.frontend.layouts import FALCON, FALCON_NORMS, LLAMA
from compiler.frontend.names import Names
from compiler.frontend.parts import PerLayer
from compiler.frontend.spec import RMS, Attention, Encoder, EncoderHead, Ffn, Mixer, Norm, Wiring
from compiler.frontend.stacks import Stem


@dataclass(frozen=True, slots=True)
class Shell:
    """What surrounds the mixers and feed-forward parts of a model; the words are those of Layer and ModelSpec.

    final_norm: whether there is a norm before the head.
    """

    norm: Norm = RMS
    pre_norm: bool = True
    post_norm: bool = False
    wiring: Wiring = Wiring.SERIAL
    names: Names = LLAMA
    head_bias: bool = False
    positions: int = 0
    embed_norm: Norm | None = None
    softcap: bool = False
    hyper: HyperConnections | None = None
    per_layer: PerLayer | None = None
    final_norm: bool = True
    sum_norm: bool = False
    cross: Attention | None = None
    types: int = 0
    stem: Stem | None = None
    head: EncoderHead | None = None
    encoder: Encoder | None = None
    altup: AltUp | None = None
    laurel: Laurel | None = None


#: A change of the shell by what a config says.
Adjust = Callable[[Facts, Shell], Shell]


def stated_layers(facts: Facts) -> int:
    """As many layers as the config says."""
    return facts.integer("layers")


def stated_vocabulary(facts: Facts) -> int:
    """As many ids as the config says."""
    return facts.integer("vocab")


@dataclass(frozen=True, slots=True)
class Family:
    """How a `model_type` is read. `config_class` is empty where transformers has no class of that type.

    tied: whether the head is the embedding when the config is silent; fixed_tied: whatever it says (None: as it says).
    """

    architecture: str
    config_class: str
    mixers: Callable[[Facts, int], tuple[Mixer | None, ...]]
    ffns: Callable[[Facts, int], tuple[Ffn | None, ...]]
    shell: Shell = Shell()
    adjust: tuple[Adjust, ...] = ()
    tied: bool = False
    fixed_tied: bool | None = None
    activation: str = "silu"
    count: Callable[[Facts], int] = stated_layers
    vocabulary: Callable[[Facts], int] = stated_vocabulary

    def read_tied(self, facts: Facts) -> bool:
        """Whether the head is the embedding."""
        if self.fixed_tied is None:
            return facts.flag("tied", self.tied)
        shares = "shares the table" if self.fixed_tied else "has a head of its own"
        facts.ignore("tied", f"the class of {facts.family} {shares} whatever the config says")
        return self.fixed_tied

    def read_shell(self, facts: Facts) -> Shell:
        shell = self.shell
        for change in self.adjust:
            shell = change(facts, shell)
        return shell


# --- changes of the shell


@dataclass(frozen=True, slots=True)
class Parallel:
    """Wired in parallel where `use_parallel_residual` says so; `default` when absent."""

    wiring: Wiring
    default: bool

    def __call__(self, facts: Facts, shell: Shell) -> Shell:
        return replace(shell, wiring=self.wiring if facts.flag("parallel", self.default) else Wiring.SERIAL)


def learned_positions(facts: Facts, shell: Shell) -> Shell:
    """A table of positions, one row each."""
    return replace(shell, positions=facts.integer("positions"))


def head_bias(facts: Facts, shell: Shell) -> Shell:
    """`lm_head_bias`, false when absent."""
    return replace(shell, head_bias=facts.flag("head_bias", False))


def bias_everywhere(facts: Facts, shell: Shell) -> Shell:
    """`use_bias` (false when absent) is that of the head too."""
    return replace(shell, head_bias=facts.flag("use_bias", False))


def soft_logits(facts: Facts, shell: Shell) -> Shell:
    """`final_logit_softcapping`: a number, or none."""
    return replace(shell, softcap=facts.cap("logit_softcap", None))


def usual_soft_logits(facts: Facts, shell: Shell) -> Shell:
    """The same; 30 where the config is silent (Gemma 2 and 3n, VaultGemma)."""
    return replace(shell, softcap=facts.cap("logit_softcap", 30.0))


def residual_before_norm(facts: Facts, shell: Shell) -> Shell:
    """BLOOM: the residual is taken before the norm; InputError where the config has it after."""
    if facts.flag("residual_after_norm", False):
        raise facts.error("residual_after_norm", "is true, which is not modelled", "false, or no key")
    return shell


def clipped(facts: Facts, shell: Shell) -> Shell:
    """`clip_qkv`: queries, keys and values are clipped to a range; a fact, no shape."""
    facts.number("clip_qkv")
    return shell


def scaled(facts: Facts, shell: Shell) -> Shell:
    """Multipliers of embedding, residual, scores and logits; facts, no shapes."""
    for fact in ("embedding_scale", "residual_scale", "attention_scale", "logit_scale"):
        facts.number(fact)
    return shell


def root_scaled(facts: Facts, shell: Shell) -> Shell:
    """Gemma: embeddings are multiplied by the root of the hidden size; a fact, no shape."""
    facts.fixed("embedding_scale", facts.integer("hidden") ** 0.5, f"{facts.family} takes the root of the hidden size")
    return shell


def falcon(facts: Facts, shell: Shell) -> Shell:
    """FalconDecoderLayer: serial, or parallel behind one norm, or (in the new architecture) behind one each."""
    parallel, new = facts.flag("parallel_attn"), facts.flag("new_decoder")
    norms = facts.maybe_integer("parallel_norms")
    if not parallel:
        if new:
            raise facts.error("parallel_attn", "is false with new_decoder_architecture", "true")
        return shell
    if norms is None:
        norms = 2 if new else 1
        facts.assume("parallel_norms", norms, "two in the new architecture, else one, when the key is absent")
    if norms > 1 + new:
        raise facts.error("parallel_norms", f"is {norms}", "1, or 2 in the new architecture")
    if norms == 1:
        return replace(shell, wiring=Wiring.PARALLEL, names=FALCON)
    return replace(shell, wiring=Wiring.PARALLEL_NORMS, names=FALCON_NORMS)
