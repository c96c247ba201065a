"""Read the feed-forward part of each layer: dense width, experts, and which layers are MoE."""

from compiler.frontend.facts import Facts
from compiler.frontend.read import describe
from compiler.frontend.spec import Dense, ExpertNames, Ffn, MoE, Scoring

MIXTRAL_NAMES = ExpertNames(
    router="block_sparse_moe.gate",
    gate="block_sparse_moe.experts.{expert}.w1",
    up="block_sparse_moe.experts.{expert}.w3",
    down="block_sparse_moe.experts.{expert}.w2",
)
#: gpt_oss keeps all experts of a layer, and gate and up interleaved, in one tensor.
GPT_OSS_NAMES = ExpertNames(
    router="mlp.router",
    gate="mlp.experts.gate_up_proj",
    up="mlp.experts.gate_up_proj",
    down="mlp.experts.down_proj",
    weight="",
    bias="_bias",
)


def dense(facts: Facts, layers: int) -> tuple[Ffn, ...]:
    """A gated dense part in all layers, without bias."""
    return (Dense(facts.integer("ffn_width")),) * layers


def dense_maybe_biased(facts: Facts, layers: int) -> tuple[Ffn, ...]:
    """A gated dense part in all layers, with a bias where `mlp_bias` is true (llama)."""
    return (Dense(facts.integer("ffn_width"), bias=facts.flag("mlp_bias", False)),) * layers


def mixtral(facts: Facts, layers: int) -> tuple[Ffn, ...]:
    """Experts of width `intermediate_size` in all layers; the gates of the chosen experts add up to 1."""
    experts, top_k = _experts(facts)
    return (MoE(experts, top_k, facts.integer("ffn_width"), names=MIXTRAL_NAMES),) * layers


def gpt_oss(facts: Facts, layers: int) -> tuple[Ffn, ...]:
    """Experts of width `intermediate_size` with biases in all layers; the router has a bias too."""
    experts, top_k = _experts(facts)
    facts.fixed("expert_bias", True, "gpt_oss experts and router have biases")
    facts.number("activation_limit", 7.0)
    facts.number("activation_alpha", 1.702)
    width = facts.integer("ffn_width")
    return (MoE(experts, top_k, width, bias=True, router_bias=True, names=GPT_OSS_NAMES),) * layers


def qwen3_moe(facts: Facts, layers: int) -> tuple[Ffn, ...]:
    """Layer i is MoE when it is not in `mlp_only_layers` and `decoder_sparse_step` divides i + 1.

    As in Qwen3MoeDecoderLayer of transformers.
    """
    step = facts.maybe_integer("sparse_step")
    if step is None:
        raise facts.missing("sparse_step")
    only = _dense_layers(facts, layers)
    sparse = [index not in only and (index + 1) % step == 0 for index in range(layers)]
    experts, top_k = _experts(facts)
    scoring = Scoring(normalise=facts.flag("normalise", False))
    moe = MoE(experts, top_k, facts.integer("expert_width"), scoring=scoring)
    return _choose(facts, sparse, moe, bias=False)


def deepseek_v2(facts: Facts, layers: int) -> tuple[Ffn, ...]:
    """DeepSeek-V2: softmax scores, the best group members by their maximum."""
    return _deepseek(facts, layers, Scoring(function="softmax", normalise=False), "greedy", bias=True)


def deepseek_v3(facts: Facts, layers: int) -> tuple[Ffn, ...]:
    """DeepSeek-V3: sigmoid scores with a correction buffer (not a parameter) in the choice of experts."""
    return _deepseek(facts, layers, Scoring(function="sigmoid", normalise=True), "noaux_tc", bias=False)


def _deepseek(facts: Facts, layers: int, usual: Scoring, method: str, bias: bool) -> tuple[Ffn, ...]:
    """Layer i is MoE when i >= first_k_dense_replace and moe_layer_freq divides i (the publisher's modeling code)."""
    experts, top_k = _experts(facts)
    width = facts.integer("expert_width")
    shared = facts.integer("shared_experts", low=0) * width
    scoring = _scoring(facts, usual, experts, top_k)
    facts.word("topk_method", ("greedy", "group_limited_greedy", "noaux_tc"), method)
    first = facts.integer("first_dense", low=0)
    if first > layers:
        raise facts.error("first_dense", f"is {first}, more than the {layers} layers", f"0 to {layers}")
    sparse = [index >= first and chosen for index, chosen in enumerate(_frequency(facts, layers))]
    return _choose(facts, sparse, MoE(experts, top_k, width, shared, scoring=scoring), bias)


def _choose(facts: Facts, sparse: list[bool], moe: MoE, bias: bool) -> tuple[Ffn, ...]:
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
    return Scoring(
        function=facts.word("scoring", ("softmax", "sigmoid"), usual.function),
        groups=groups,
        top_groups=chosen,
        normalise=facts.flag("normalise", usual.normalise),
        scale=facts.number("routed_scale", usual.scale) or usual.scale,
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


def _frequency(facts: Facts, layers: int) -> list[bool]:
    """moe_layer_freq: a number (layer i when it divides i) or a list of 0 and 1, one a layer; 1 when absent."""
    found = facts.find("moe_frequency")
    if found is not None and isinstance(found.value, list):
        items = facts.items("moe_frequency") or []
        if len(items) != layers:
            what = f"has {len(items)} entries for {layers} layers"
            raise facts.error("moe_frequency", what, "one 0 or 1 a layer, or a number")
        bad = next((item for item in items if type(item) is not int or item not in (0, 1)), None)
        if bad is not None:
            raise facts.error("moe_frequency", f"has the entry {describe(bad)}", "one 0 or 1 a layer, or a number")
        return [item == 1 for item in items]
    every = facts.maybe_integer("moe_frequency")
    if every is None:
        every = 1
        facts.assume("moe_frequency", 1, "every layer after the dense ones is MoE when the key is absent")
    return [index % every == 0 for index in range(layers)]


def _dense_layers(facts: Facts, layers: int) -> frozenset[int]:
    items = facts.items("dense_layers")
    if items is None:
        facts.assume("dense_layers", (), f"{facts.family} has none when the key is absent")
        return frozenset()
    chosen = [item for item in items if type(item) is int and 0 <= item < layers]
    if len(chosen) != len(items):
        raise facts.error("dense_layers", f"is {items!r:.60}", f"layer indices from 0 to {layers - 1}")
    return frozenset(chosen)
