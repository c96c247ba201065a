"""Read what a checkpoint says about its quantisation, in each of the published layouts.

Bytes counted are those of elements, scales and zero points. Not counted: scales of activations, tables that are the
same for every model (the quantiles of nf4), shapes written beside packed weights.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from compiler.errors import InputError
from compiler.frontend.facts import Facts
from compiler.frontend.quant_groups import compressed_tensors
from compiler.frontend.quant_table import Table
from compiler.frontend.quantisation import Quantisation, Rule, WeightKind
from compiler.frontend.read import describe, read_object
from compiler.ir.dtype import FP8_BLOCK, MXFP4, NVFP4, DType, Element, Scheme

_STATED = {
    "bfloat16": DType.BF16,
    "bf16": DType.BF16,
    "float16": DType.FP16,
    "fp16": DType.FP16,
    "half": DType.FP16,
    "float32": DType.FP32,
    "fp32": DType.FP32,
    "float": DType.FP32,
}
#: Written by NVIDIA ModelOpt beside config.json.
MODELOPT_FILE = "hf_quant_config.json"
_EVERY = (WeightKind.LINEAR, WeightKind.EXPERT, WeightKind.HEAD)
#: One FP32 scale a matrix; one a row.
FP8_TENSOR = Scheme("fp8_tensor", Element.FP8, scale=32, rows=None)
FP8_CHANNEL = Scheme("fp8_channel", Element.FP8, scale=32)


def read_dtype(facts: Facts) -> DType:
    """The storage type of what is not quantised; bf16 when the config is silent."""
    if facts.find("dtype") is None:
        facts.assume("dtype", "bfloat16", "bf16 storage when the config is silent")
        return DType.BF16
    name = facts.word("dtype", (*_STATED, *(f"torch.{name}" for name in _STATED)), "")
    return _STATED[name.removeprefix("torch.")]


def read_quantisation(facts: Facts) -> Quantisation:
    """How the checkpoint stores its matrices. An unknown method is kept by name: `quant.storage` refuses it."""
    values = facts.table("quantisation")
    beside = _beside(facts)
    if values is None:
        return _read(beside, "modelopt") if beside else Quantisation()
    found = facts.find("quantisation")
    place = f"{facts.source.where}: {found.place if found else 'quantization_config'}"
    experts = facts.word("expert_storage", ("fp4", "fp8"), "") if facts.find("expert_storage") else None
    table = Table(values if experts is None else {**values, "expert_dtype": experts}, place, read_dtype(facts))
    method = values.get("quant_method")
    if not isinstance(method, str) or not method:
        raise table.error("quant_method", f"is {describe(method)}", f"one of {', '.join(METHODS)}")
    if beside is not None:
        _same_algorithm(table, method, beside)
    return _read(beside if beside and method == "modelopt" else table, method)


def _read(table: Table, method: str) -> Quantisation:
    reader = METHODS.get(method)
    if reader is None:
        return Quantisation(method)
    rules = reader(table)
    return Quantisation(method, rules, table.excluded())


def _beside(facts: Facts) -> Table | None:
    """The `quantization` object of hf_quant_config.json beside the config, None where there is none."""
    path = Path(facts.source.where).parent / MODELOPT_FILE
    if facts.source.defaults or Path(facts.source.where).name != "config.json" or not path.is_file():
        return None
    values = read_object(path).get("quantization")
    if not isinstance(values, dict):
        raise InputError(f"{path}: quantization", f"is {describe(values)}, not an object", "quant_algo and its facts")
    return Table(values, f"{path}: quantization", read_dtype(facts))


def _same_algorithm(table: Table, method: str, beside: Table) -> None:
    """The config and the file beside it describe one checkpoint."""
    stated, other = table.values.get("quant_algo"), beside.values.get("quant_algo")
    if method != "modelopt" or (stated is not None and stated != other):
        what = f"is {describe(other)}, but {table.place} says {describe(stated or method)}"
        raise beside.error("quant_algo", what, "one of them: both describe the checkpoint")


# --- one reader a method


def _fp8(table: Table) -> tuple[Rule, ...]:
    """DeepSeek's blocks (`weight_block_size`), or a scale a matrix. DeepSeek-V4 names the type of its experts apart,
    and stores its scales as bare exponents of 8 bits.
    """
    block = table.sides("weight_block_size")
    scheme = FP8_TENSOR if block is None else blocks(block, 32)
    experts = table.word("expert_dtype", ("fp4", "fp8"), "fp8")
    if experts == "fp8":
        return (Rule(scheme),)
    if block is not None and table.values.get("scale_fmt") == "ue8m0":
        scheme = blocks(block, 8)
    return Rule(MXFP4, kinds=(WeightKind.EXPERT,)), Rule(scheme)


def blocks(sides: tuple[int, int], scale: int) -> Scheme:
    """fp8 with a scale of `scale` bits a block of `sides` (rows, columns)."""
    if (sides, scale) == ((128, 128), 32):
        return FP8_BLOCK
    label = f"fp8_block_{sides[0]}x{sides[1]}" + ("" if scale == 32 else f"_s{scale}")
    return Scheme(label, Element.FP8, scale=scale, rows=sides[0], columns=sides[1])


def _fbgemm(table: Table) -> tuple[Rule, ...]:
    """A scale a row (FBGEMM, as in Llama-3.1-405B-Instruct-FP8)."""
    return (Rule(FP8_CHANNEL),)


def _mxfp4(table: Table) -> tuple[Rule, ...]:
    """gpt_oss: routed experts only."""
    return (Rule(MXFP4, kinds=(WeightKind.EXPERT,)),)


def _modelopt(table: Table) -> tuple[Rule, ...]:
    """NVIDIA ModelOpt: NVFP4, or fp8 with a scale a matrix."""
    algorithm = table.word("quant_algo", ("NVFP4", "FP8"), "")
    if algorithm == "FP8":
        return (Rule(FP8_TENSOR, kinds=_EVERY),)
    group = table.group("group_size")
    if group not in (None, 16):
        raise table.error("group_size", f"is {group}", "16, as NVFP4 has it")
    return (Rule(NVFP4, kinds=_EVERY),)


def _integers(bits: int, group: int | None, zero: bool, ordered: bool) -> Scheme:
    """Groups along a row with FP16 scales; `ordered` checkpoints write the group of each column as INT32."""
    label = f"int{bits}_{'channel' if group is None else f'g{group}'}{'_zp' if zero else ''}"
    element = Element.INT4 if bits == 4 else Element.INT8
    made = Scheme(label, element, scale=16, zero=bits if zero else 0, columns=group)
    return replace(made, label=f"{label}_order", column=32) if ordered else made


def _gptq(table: Table) -> tuple[Rule, ...]:
    """GPTQ: zero points are stored for symmetric weights too. `dynamic` overrides modules, a minus leaves them out."""
    scheme = _gptq_scheme(table)
    kinds = _EVERY if table.flag("lm_head", False) else (WeightKind.LINEAR, WeightKind.EXPERT)
    overrides = tuple(
        Rule(_gptq_scheme(inner.over(table)), kinds, (f"re:{pattern}",)) for pattern, inner in table.dynamic()
    )
    return (*overrides, Rule(scheme, kinds, table.nested_names("modules_in_block_to_quantize")))


def _gptq_scheme(table: Table) -> Scheme:
    group = table.group("group_size", needed=True)
    return _integers(table.number("bits", (4, 8)), group, True, table.flag("desc_act", False))


def _awq(table: Table) -> tuple[Rule, ...]:
    """AWQ: 4 bits; zero points are stored for symmetric weights too."""
    bits = table.number("w_bit" if "w_bit" in table.values else "bits", (4,))
    group = table.group("q_group_size" if "q_group_size" in table.values else "group_size", needed=True)
    return (Rule(_integers(bits, group, True, False)),)


def _bitsandbytes(table: Table) -> tuple[Rule, ...]:
    """8 bits: a scale a row (LLM.int8, arXiv 2208.07339). 4 bits: a scale 64 elements; with double quantisation of 8
    bits, 256 of which share an FP32 one (QLoRA, arXiv 2305.14314, section 3).
    """
    four = table.flag("load_in_4bit", False)
    if four == table.flag("load_in_8bit", False):
        raise table.error("load_in_4bit", f"is {describe(four)}, and load_in_8bit too", "one of them true")
    if not four:
        return (Rule(Scheme("int8_channel_s32", Element.INT8, scale=32)),)
    kind = table.word("bnb_4bit_quant_type", ("nf4", "fp4"), "fp4")
    element = Element.NF4 if kind == "nf4" else Element.FP4
    if table.flag("bnb_4bit_use_double_quant", False):
        twice = Scheme(f"{kind}_g64_double", element, scale=8, columns=64, flat=True, nested=256)
        return (Rule(twice),)
    return (Rule(Scheme(f"{kind}_g64", element, scale=32, columns=64, flat=True)),)


#: quant_method -> its reader.
METHODS: Final[dict[str, Callable[[Table], tuple[Rule, ...]]]] = {
    "fp8": _fp8,
    "fbgemm_fp8": _fbgemm,
    "mxfp4": _mxfp4,
    "modelopt": _modelopt,
    "compressed-tensors": compressed_tensors,
    "gptq": _gptq,
    "awq": _awq,
    "bitsandbytes": _bitsandbytes,
}
