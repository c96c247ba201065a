"""The compressed-tensors layout: groups of modules, each with a type, a strategy and targets."""

from compiler.frontend.quant_table import Table
from compiler.frontend.quantisation import Rule, WeightKind
from compiler.frontend.read import describe
from compiler.ir.dtype import FP8_BLOCK, MXFP4, NVFP4, Element, Scheme

_FORMATS = (
    "pack-quantized",
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mixed-precision",
)
_ELEMENTS = {("int", 4): Element.INT4, ("int", 8): Element.INT8, ("float", 8): Element.FP8, ("float", 4): Element.FP4}
_STRATEGIES = ("tensor", "channel", "group", "tensor_group", "block")
_EVERY = (WeightKind.LINEAR, WeightKind.EXPERT, WeightKind.HEAD)


def compressed_tensors(table: Table) -> tuple[Rule, ...]:
    """The rules of `config_groups`. What is sparse besides, or stored uncompressed, is refused."""
    table.word("format", _FORMATS, "pack-quantized")
    sparse = table.table("sparsity_config")
    if sparse is not None and sparse.values.get("format") not in (None, "dense"):
        raise sparse.error("format", f"is {describe(sparse.values['format'])}: sparse storage is not modelled", "dense")
    groups = table.table("config_groups")
    if groups is None or not groups.values:
        raise table.error("config_groups", "is missing or empty", "an object of groups")
    rules = []
    for name in groups.values:
        group = groups.table(name)
        weights = group.table("weights") if group else None
        if group is None or weights is None:
            continue  # activations or a cache only
        targets = _targets(group)
        rules.append(Rule(_scheme(weights), _EVERY, targets))
    if len({rule.scheme for rule in rules if not rule.targets}) > 1:
        raise table.error("config_groups", "has two groups for every Linear, of different types", "one of them")
    if not rules:
        raise table.error("config_groups", "has no group with weights", "at least one")
    return (*(r for r in rules if r.targets), *(r for r in rules if not r.targets))


def _targets(group: Table) -> tuple[str, ...]:
    """The targets of a group; empty for every matrix (the class Linear). Other class names cannot be resolved."""
    names = group.names("targets")
    if not names:
        raise group.error("targets", "is missing or empty", "module names, re: expressions, or Linear")
    if "Linear" in names:
        return ()
    for name in names:
        if name[0].isupper() and "." not in name:
            raise group.error("targets", f"has the class {name}, which is not modelled", "Linear, names or re:")
    return names


def _scheme(weights: Table) -> Scheme:
    bits, kind = weights.number("num_bits", (4, 8)), weights.word("type", ("int", "float"), "int")
    element, size = _ELEMENTS[kind, bits], weights.group("group_size")
    usual = "group" if size else "channel" if weights.values.get("group_size") == -1 else "tensor"
    strategy = weights.word("strategy", _STRATEGIES, usual)
    if element is Element.FP4:
        return _fp4(weights, size)
    scale = _scale_bits(weights)
    zero = 0 if weights.flag("symmetric", True) else bits
    usual_scale = 32 if element is Element.FP8 else 16  # as in the other layouts: a label stands for the bits
    tail = ("_zp" if zero else "") + ("" if scale == usual_scale else f"_s{scale}")
    if strategy == "tensor":
        return Scheme(f"{element.label}_tensor{tail}", element, scale, zero, rows=None)
    if strategy == "channel":
        return Scheme(f"{element.label}_channel{tail}", element, scale, zero)
    if strategy == "block":
        return _block(weights, element, scale, zero, tail)
    if size is None:
        raise weights.error("group_size", "is missing or -1", f"elements of a group: the strategy is {strategy}")
    if strategy == "tensor_group":
        raise weights.error("strategy", f"is tensor_group for {element.label}", "group, or 4-bit floats")
    ordered = weights.values.get("actorder") == "group"
    label = f"{element.label}_g{size}{tail}{'_order' if ordered else ''}"
    return Scheme(label, element, scale, zero, columns=size, column=32 if ordered else 0)


def _block(weights: Table, element: Element, scale: int, zero: int, tail: str) -> Scheme:
    sides = weights.sides("block_structure")
    if sides is None:
        raise weights.error("block_structure", "is missing", "[rows, columns]: the strategy is block")
    if (element, sides, scale, zero) == (Element.FP8, (128, 128), 32, 0):
        return FP8_BLOCK
    label = f"{element.label}_block_{sides[0]}x{sides[1]}{tail}"
    return Scheme(label, element, scale, zero, rows=sides[0], columns=sides[1])


def _fp4(weights: Table, size: int | None) -> Scheme:
    """NVFP4 in groups of 16, MXFP4 in groups of 32."""
    if size not in (16, 32):
        raise weights.error("group_size", f"is {describe(weights.values.get('group_size'))}", "16 (nvfp4), 32 (mxfp4)")
    return NVFP4 if size == 16 else MXFP4


def _scale_bits(weights: Table) -> int:
    """Scales are as wide as what is not quantised, unless `scale_dtype` says otherwise."""
    stated = weights.values.get("scale_dtype")
    if stated is None:
        return weights.plain.element.bits
    known = {"float32": 32, "bfloat16": 16, "float16": 16, "float8_e4m3fn": 8, "uint8": 8}
    word = weights.word("scale_dtype", (*known, *(f"torch.{name}" for name in known)), "")
    return known[word.removeprefix("torch.")]
