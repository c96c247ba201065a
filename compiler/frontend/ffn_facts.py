"""Read the feed-forward part of each layer: dense width, experts, and which layers are MoE."""

from dataclasses import dataclass
from typing import Final

from compiler.frontend.facts import Facts
from compiler.frontend.layouts import GPT_OSS_EXPERTS, HUNYUAN_EXPERTS, LLAMA4_EXPERTS, LLAMA_EXPERTS
from compiler.frontend.mixer_facts import block_configs
from compiler.frontend.patterns import frequency, indices, last_of, numbers
from compiler.frontend.read import describe
from compiler.frontend.spec import Dense, ExpertNames, Ffn, MoE, Scoring

Ffns = tuple[Ffn | None, ...]

SOFTMAX: Final = Scoring()
#: What gates are multiplied by where the config is silent: the classes' own numbers; 1 for all others.
USUAL_SCALES: Final = {
    "deepseek_v3": 2.5,
    "deepseek_v32": 2.5,
    "exaone_moe": 2.5,
    "glm_moe_dsa": 2.5,
    "glm4_moe_lite": 1.8,
    "kimi_linear": 2.446,
}


@dataclass(frozen=True, slots=True)
class Plain:
    """How a family's code reads a dense part that all layers have.

    bias: the flag that gives all its projections a bias (false when absent, unless `default`); "" for none, or for
    always where `default` is true. times: the width is that many times the hidden size when the key is absent (0: the
    key is needed); `fixed`: whatever the config says.
    """

    gated: bool = True
    bias: str = ""
    default: bool = False
    times: int = 0
    fixed: bool = False

    def __call__(self, facts: Facts, layers: int) -> Ffns:
        biased = facts.flag(self.bias, self.default) if self.bias else self.default
        return (Dense(self._width(facts), gated=self.gated, bias=biased),) * layers

    def _width(self, facts: Facts) -> int:
        if not self.times:
            return facts.integer("ffn_width")
        width = self.times * facts.integer("hidden")
        if self.fixed:
            facts.fixed("ffn_width", width, f"{facts.family} has {self.times} times the hidden size")
            return width
        found = facts.maybe_integer("ffn_width")
        if found is None:
            facts.assume("ffn_width", width, f"{self.times} times the hidden size when the key is absent")
        return width if found is None else found


@dataclass(frozen=True, slots=True)
class Routed:
    """How a family's code reads experts that all layers have.

    width: the fact that is their width. scoring: how the router chooses.
    limit: the only number of experts a token that the family's code has, 0 for any.
    """

    names: ExpertNames = LLAMA_EXPERTS
    width: str = "ffn_width"
    scoring: Scoring = SOFTMAX
    limit: int = 0

    def __call__(self, facts: Facts, layers: int) -> Ffns:
        experts, top_k = _experts(facts)
        if self.limit and top_k != self.limit:
            raise facts.error(
                "top_k", f"is {top_k}: the router of {facts.family} chooses {self.limit}", f"{self.limit}"
            )
        width = facts.integer(self.width)
        return (MoE(experts, top_k, width, scoring=self.chosen(facts), names=self.names),) * layers

    def chosen(self, facts: Facts) -> Scoring:
        """The family's own; InputError where the config says otherwise."""
        facts.word("scoring", (self.scoring.function,), self.scoring.function)
        if facts.flag("normalise", self.scoring.normalise) != self.scoring.normalise:
            what = f"differs from the router of {facts.family}"
            raise facts.error("normalise", what, f"{str(self.scoring.normalise).lower()}, or no key")
        return self.scoring


def hunyuan(facts: Facts, layers: int) -> Ffns:
    """Experts and one shared expert of width `intermediate_size`; `moe_topk` may be a list with one number a layer.

    Other widths and numbers of shared experts, which the class in transformers does not read, are InputErrors.
    """
    chosen = numbers(facts, "top_k", layers)
    if chosen is None:
        raise facts.missing("top_k")
    experts, width = facts.integer("experts"), facts.integer("ffn_width")
    for fact, right in (("expert_width", width), ("shared_expert_number", 1)):
        if set(numbers(facts, fact, layers) or (right,)) != {right}:
            raise facts.error(fact, "is not modelled", f"{right} in all layers")
    if max(chosen) > experts:
        raise facts.error("top_k", f"is {max(chosen)}, more than the {experts} experts", f"1 to {experts}")
    scoring = Routed().chosen(facts)
    return tuple(MoE(experts, k, width, width, scoring=scoring, names=HUNYUAN_EXPERTS) for k in chosen)


def olmoe(facts: Facts, layers: int) -> Ffns:
    """Experts of width `intermediate_size`; the gates add up to 1 where `norm_topk_prob` says so."""
    scoring = Scoring(normalise=facts.flag("normalise", False))
    return Routed(scoring=scoring)(facts, layers)


def gpt_oss(facts: Facts, layers: int) -> Ffns:
    """Experts of width `intermediate_size` with biases in all layers; the router has a bias too."""
    experts, top_k = _experts(facts)
    facts.fixed("expert_bias", True, "gpt_oss experts and router have biases")
    facts.number("activation_limit", 7.0)
    facts.number("activation_alpha", 1.702)
    width = facts.integer("ffn_width")
    return (MoE(experts, top_k, width, bias=True, router_bias=True, names=GPT_OSS_EXPERTS),) * layers


def llama4(facts: Facts, layers: int) -> Ffns:
    """MoE in the layers of `moe_layers`, else in the last of every `interleave_moe_layer_step`.

    A shared expert is as wide as the others; dense layers are `intermediate_size_mlp` wide (Llama4TextDecoderLayer of
    transformers).
    """
    chosen = indices(facts, "moe_layers", layers)
    if chosen is None:
        if facts.maybe_integer("moe_step") is None:
            hint = "add interleave_moe_layer_step: a number of layers, or moe_layers: indices of layers"
            raise facts.missing("moe_step", hint)
        sparse = last_of(facts, "moe_step", layers)
    else:
        facts.ignore("moe_step", "moe_layers says it")
        sparse = tuple(index in chosen for index in range(layers))
    experts, top_k = _experts(facts)
    width = facts.integer("ffn_width")
    scoring = Scoring("sigmoid", normalise=False)
    moe = MoE(experts, top_k, width, width, scoring=scoring, names=LLAMA4_EXPERTS)
    if all(sparse):
        facts.ignore("dense_width", "all layers are MoE")
        return (moe,) * layers
    dense = Dense(facts.integer("dense_width"))
    return tuple(moe if there else dense for there in sparse)


def ernie_moe(facts: Facts, layers: int) -> Ffns:
    """MoE from `moe_layer_start_index` to `moe_layer_end_index` (-1: the last layer), in the last of every interval.

    As in Ernie4_5_MoeDecoderLayer of transformers. Choosing experts adds a correction that is a parameter.
    """
    first, interval = facts.integer("moe_start", low=0), last_of(facts, "moe_interval", layers)
    last = facts.maybe_integer("moe_end", low=-1)
    if last is None:
        raise facts.missing("moe_end")
    last = layers - 1 if last == -1 else last
    sparse = [first <= index <= last and there for index, there in enumerate(interval)]
    experts, top_k = _experts(facts)
    width, biased = facts.integer("expert_width"), facts.flag("use_bias", False)
    shared = facts.integer("shared_experts", low=0) * width
    moe = MoE(experts, top_k, width, shared, correction=True, shared_bias=biased)
    dense = Dense(facts.integer("ffn_width"), bias=biased)
    return tuple(moe if there else dense for there in sparse)


def deci(facts: Facts, layers: int) -> Ffns:
    """DeciLM: a width of `ffn_mult` x 2/3 of the hidden size, rounded up to 256, or none at all, block by block."""
    hidden, biased = facts.integer("hidden"), facts.flag("mlp_bias", False)
    facts.ignore("ffn_width", "block_configs says it for each layer")
    made: list[Ffn | None] = []
    for index, block in enumerate(block_configs(facts, layers, "ffn")):
        multiple = block.get("ffn_mult")
        if block.get("no_op"):
            made.append(None)
            continue
        if not isinstance(multiple, int | float) or isinstance(multiple, bool) or not 0 < multiple < 1000:
            what, place = f"is {describe(multiple)}", f"[{index}].ffn.ffn_mult"
            raise facts.error("block_configs", what, "a positive number", place)
        width = int(2 * multiple * hidden / 3)
        made.append(Dense(width + -width % 256, bias=biased))
    return tuple(made)


def qwen3_moe(facts: Facts, layers: int) -> Ffns:
    """Layer i is MoE when it is not in `mlp_only_layers` and `decoder_sparse_step` divides i + 1.

    As in Qwen3MoeDecoderLayer of transformers.
    """
    step = facts.maybe_integer("sparse_step")
    if step is None:
        raise facts.missing("sparse_step")
    only = indices(facts, "dense_layers", layers)
    if only is None:
        facts.assume("dense_layers", (), f"{facts.family} has none when the key is absent")
        only = frozenset()
    sparse = [index not in only and (index + 1) % step == 0 for index in range(layers)]
    experts, top_k = _experts(facts)
    scoring = Scoring(normalise=facts.flag("normalise", False))
    moe = MoE(experts, top_k, facts.integer("expert_width"), scoring=scoring)
    return choose(facts, sparse, moe, bias=False)


def deepseek_v2(facts: Facts, layers: int) -> Ffns:
    """DeepSeek-V2: softmax scores, the best group members by their maximum."""
    return _deepseek(facts, layers, Scoring(function="softmax", normalise=False), "greedy", bias=True)


def deepseek_v3(facts: Facts, layers: int) -> Ffns:
    """DeepSeek-V3: sigmoid scores with a correction buffer (not a parameter) in the choice of experts."""
    return _deepseek(facts, layers, Scoring(function="sigmoid", normalise=True), "noaux_tc", bias=False)


def glm4_moe(facts: Facts, layers: int) -> Ffns:
    """As DeepSeek-V3, in every layer behind the dense ones (Glm4MoeDecoderLayer)."""
    no_frequency(facts)
    return deepseek_v3(facts, layers)


def no_frequency(facts: Facts) -> None:
    """InputError where `moe_layer_freq` is another number than 1 in a family whose code does not read it."""
    every = facts.maybe_integer("moe_frequency")
    if every not in (None, 1):
        raise facts.error("moe_frequency", f"is {every}: {facts.family} reads every layer's kind elsewhere", "1")


def _deepseek(facts: Facts, layers: int, usual: Scoring, method: str, bias: bool) -> Ffns:
    """Layer i is MoE when i >= first_k_dense_replace and moe_layer_freq divides i (the publisher's modeling code)."""
    moe = with_shared(facts, usual, LLAMA_EXPERTS)
    facts.word("topk_method", ("greedy", "group_limited_greedy", "noaux_tc"), method)
    first = first_dense(facts, layers)
    sparse = [index >= first and chosen for index, chosen in enumerate(frequency(facts, "moe_frequency", layers))]
    return choose(facts, sparse, moe, bias)


def with_shared(facts: Facts, usual: Scoring, names: ExpertNames) -> MoE:
    """Experts, and as many shared ones of their width as the config says, as one part."""
    experts, top_k, scoring = routed(facts, usual)
    width = facts.integer("expert_width")
    return MoE(experts, top_k, width, facts.integer("shared_experts", low=0) * width, scoring=scoring, names=names)


def first_dense(facts: Facts, layers: int) -> int:
    """How many layers at the start are dense."""
    first = facts.integer("first_dense", low=0)
    if first > layers:
        raise facts.error("first_dense", f"is {first}, more than the {layers} layers", f"0 to {layers}")
    return first


def choose(facts: Facts, sparse: list[bool], moe: MoE, bias: bool) -> Ffns:
    """The MoE where `sparse` says so, elsewhere a dense part (with `mlp_bias` where the family's code reads it)."""
    if bias and facts.flag("mlp_bias", False):
        what = "is true: biases of dense and shared parts of an MoE model are not modelled"
        raise facts.error("mlp_bias", what, "false, or describe the model in Python")
    if all(sparse):
        facts.ignore("ffn_width", "all layers are MoE, with experts of their own width")
        return (moe,) * len(sparse)
    plain = Dense(facts.integer("ffn_width"))
    return tuple(moe if chosen else plain for chosen in sparse)


def _experts(facts: Facts) -> tuple[int, int]:
    experts, top_k = facts.integer("experts"), facts.integer("top_k")
    if top_k > experts:
        raise facts.error("top_k", f"is {top_k}, more than the {experts} experts", f"1 to {experts}")
    return experts, top_k


def routed(facts: Facts, usual: Scoring) -> tuple[int, int, Scoring]:
    """(experts, those chosen a token, how they are chosen); `usual` where the config is silent."""
    experts, top_k = _experts(facts)
    return experts, top_k, _scoring(facts, usual, experts, top_k)


def _scoring(facts: Facts, usual: Scoring, experts: int, top_k: int) -> Scoring:
    groups, chosen = _groups(facts)
    if experts % groups:
        raise facts.error("expert_groups", f"is {groups}, which does not divide the {experts} experts", "a divisor")
    if chosen > groups:
        raise facts.error("top_groups", f"is {chosen}, more than the {groups} groups", f"1 to {groups}")
    if top_k > chosen * (experts // groups):
        what = f"leaves {chosen * (experts // groups)} experts to choose {top_k} from"
        raise facts.error("top_groups", what, "more groups, or fewer experts a token")
    scale = USUAL_SCALES.get(facts.family, usual.scale)
    return Scoring(
        function=facts.word("scoring", tuple(dict.fromkeys(("softmax", "sigmoid", usual.function))), usual.function),
        groups=groups,
        top_groups=chosen,
        normalise=facts.flag("normalise", usual.normalise),
        scale=facts.number("routed_scale", scale) or scale,
    )


def _groups(facts: Facts) -> tuple[int, int]:
    """(groups of experts, groups chosen a token): one of one when the config has neither."""
    groups, chosen = facts.maybe_integer("expert_groups"), facts.maybe_integer("top_groups")
    if groups is None and chosen in (None, 1):
        facts.assume("expert_groups", 1, "no groups of experts when the key is absent")
        return 1, 1
    if groups is None:
        raise facts.missing("expert_groups")
    if chosen is None and groups > 1:
        raise facts.missing("top_groups")
    return groups, chosen or 1
