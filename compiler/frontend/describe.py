"""A model as the Python file a person would write for it: `function()` in it returns the ModelSpec.

Only what differs from defaults is written, equal layers once, each argument with the config key it came from. For a
`model_type` nobody knows, a start is written: what could be read is filled in, the rest are `raise` lines.
"""

import os
from pathlib import Path
from typing import Any

from compiler.frontend.alias import spellings
from compiler.frontend.families import classified, is_unknown, load_model, open_source
from compiler.frontend.python_file import python_place
from compiler.frontend.source_text import Writer, text_literal
from compiler.frontend.spec import Fact, ModelSpec, Status, name_kinds
from compiler.frontend.unknown import Classified

FUNCTION = "model"
#: Field (of a class, or of any) -> the facts it may come from, where the names differ.
_FACTS = {
    "width": ("expert_width", "ffn_width"),
    "shared_width": ("shared_width", "shared_experts"),
    "latent": ("latent_width",),
    "kernel": ("conv_kernel",),
    "GatedDeltaNet.key_heads": ("delta_key_heads",),
    "GatedDeltaNet.heads": ("delta_heads",),
    "GatedDeltaNet.k_dim": ("delta_key_dim",),
    "GatedDeltaNet.v_dim": ("delta_value_dim",),
    "KimiDelta.heads": ("kimi_heads",),
    "KimiDelta.head_dim": ("kimi_head_dim",),
    "KimiDelta.rank": ("kimi_head_dim",),
    "Mamba2.groups": ("ssm_groups",),
    "Mamba2.heads": ("ssm_heads",),
    "Mamba2.k_dim": ("ssm_state",),
    "Mamba2.v_dim": ("ssm_head_dim", "head_dim"),
    "Mamba2.bias": ("ssm_proj_bias", "use_bias"),
    "MambaOne.channels": ("ssm_expand",),
    "MambaOne.k_dim": ("ssm_state",),
    "MambaOne.rank": ("ssm_rank",),
    "MambaOne.bias": ("ssm_proj_bias", "use_bias"),
    "ShortConv.channels": ("hidden",),
    "ShortConv.bias": ("conv_bias",),
    "SparseIndexer.heads": ("index_heads",),
    "SparseIndexer.dim": ("index_dim",),
    "SparseIndexer.top_k": ("index_topk",),
    "CompressedAttention.rotary": ("rope",),
    "o_rank": ("o_lora",),
    "streams": ("streams",),
    "PerLayer.width": ("per_layer_width",),
    "PerLayer.vocab": ("per_layer_vocab",),
    "AltUp.streams": ("altup_streams",),
    "AltUp.scaled": ("altup_scaled",),
    "Laurel.rank": ("laurel_rank",),
    "iterations": ("sinkhorn",),
    "hashed": ("hash_layers",),
    "q_group": ("heads",),
    "q_bias": ("attention_bias", "qkv_flag"),
    "k_bias": ("attention_bias", "qkv_flag"),
    "v_bias": ("attention_bias", "qkv_flag"),
    "o_bias": ("attention_bias",),
    "bias": ("attention_bias", "mlp_bias", "expert_bias"),
    "router_bias": ("expert_bias",),
    "function": ("scoring",),
    "groups": ("expert_groups",),
    "scale": ("routed_scale",),
    "rotary": ("rotary_share",),
}
#: Longest value in a comment.
_CUT = 90


def describe_model(model: str, out: Path | None = None) -> str:
    """The Python file of MODEL, to be written as `out`: it finds MODEL's weights files from there.

    InputError for what cannot be read, but not for a `model_type` nobody knows.
    """
    if python_place(model) is None:
        source = open_source(model)
        if is_unknown(source):
            return _start(classified(source))
    return describe(load_model(model), out)


def describe(spec: ModelSpec, out: Path | None = None) -> str:
    """The Python file of `spec`, to be written as `out` (None: it is not known where)."""
    used: set[str] = set()
    writer = Writer(lambda owner, field, value: _comment(spec.facts, used, (owner, field), value))
    body = _body(writer, spec, out)
    rest = [fact for fact in spec.facts if fact.name not in used and fact.name != "layers"]
    return _file(writer, spec, body, _remaining(rest))


def _file(writer: Writer, spec: ModelSpec, body: list[str], notes: list[str]) -> str:
    title = f"{_plain(spec.name)} ({_plain(spec.model_type)})"
    head = f'"""{title}, as rdutune reads it: `rdutune inspect FILE.py:{FUNCTION}`."""'
    lines = [head, "", *writer.imports, "", "", f"def {FUNCTION}() -> ModelSpec:", *_indented(body)]
    return "\n".join([*lines, *([""] if notes else []), *notes]) + "\n"


def _indented(lines: list[str]) -> list[str]:
    return [f"    {line}" if line else "" for text in lines for line in text.split("\n")]


def _body(writer: Writer, spec: ModelSpec, out: Path | None = None) -> list[str]:
    """The statements of the function."""
    taken = {FUNCTION}
    lines: list[str] = []
    for part in ("mixer", "ffn"):
        found = [getattr(layer, part) for layer in dict.fromkeys(spec.layers) if getattr(layer, part) is not None]
        _name_all(writer, lines, [(item.label, item) for item in dict.fromkeys(found)], taken)
    _name_all(writer, lines, list(dict(zip(spec.layers, spec.kinds, strict=True)).items()), taken, layers=True)
    made = writer.made(spec, 0, skip=("facts", "stored"))
    writer.use("compiler.frontend.spec", "ModelSpec")
    if spec.stored is None:
        return [*lines, f"return {made}"]
    writer.use("compiler.frontend.compared", "with_stored")
    writer.use("pathlib", "Path")
    folder = f"Path({spec.stored.folder!r})"
    if out is not None:
        folder = f"Path(__file__).parent / {os.path.relpath(spec.stored.folder, out.resolve().parent)!r}"
    return [*lines, f"spec = {made}", f"return with_stored(spec, {folder})"]


def _name_all(
    writer: Writer, lines: list[str], items: list[tuple[Any, Any]], taken: set[str], layers: bool = False
) -> None:
    """Give each of `items` (label, value; of layers value, label) a variable, and write it."""
    pairs = [(label, value) for value, label in items] if layers else items
    for (_, value), kind in zip(pairs, name_kinds(pairs), strict=True):
        name = kind if kind.isidentifier() else "part"
        while name in taken:
            name += "_layer" if layers else "_part"
        taken.add(name)
        lines.append(f"{name} = {writer.made(value, 0)}")
        writer.give_name(value, name)


def _comment(facts: tuple[Fact, ...], used: set[str], place: tuple[object, str], value: object) -> str:
    """Where the value of the field at `place` (owner, field) comes from."""
    owner, field = place
    names = _FACTS.get(f"{type(owner).__name__}.{field}", _FACTS.get(field, (field,)))
    found = [fact for name in names for fact in facts if fact.name == name]
    fact = next((fact for fact in found if fact.value == value), found[0] if found else None)
    if fact is None:
        return ""
    used.add(fact.name)
    if fact.status is Status.ASSUMED:
        return _plain(f"assumed: {fact.note}")
    same = fact.value == value or not isinstance(fact.value, int | float)
    return _plain(fact.key if same else f"{fact.key} = {fact.value}")


def _remaining(facts: list[Fact]) -> list[str]:
    """Comments with the facts that the description has no place for."""
    lines = []
    for status, title in ((Status.READ, "no place above"), (Status.ASSUMED, "assumed"), (Status.UNKNOWN, "unknown")):
        rows = [fact for fact in facts if fact.status is status]
        if rows:
            lines += [f"# {title}:"] + [_row(fact) for fact in rows]
    return lines


def _row(fact: Fact) -> str:
    note = f": {fact.note}" if fact.note else ""
    return f"#   {_plain(fact.name)} = {_plain(str(fact.value))} ({_plain(fact.key)}){_plain(note)}"


def _plain(text: str, cut: int = _CUT) -> str:
    """Foreign text on one line of a comment or docstring."""
    line = "".join(c if c.isprintable() else " " for c in text).replace("\\", "/").replace('"', "'")
    return line if len(line) <= cut else line[: cut - 3] + "..."


# --- a start for an unknown type


def _start(found: Classified) -> str:
    """A file to complete: the nearest type's description where the facts fit one, else the facts one by one."""
    asks = [_ask(text) for text in found.open]
    if found.spec is None:
        return _skeleton(found, asks)
    used: set[str] = set()
    known = found.spec.facts
    writer = Writer(lambda owner, field, value: _comment(known, used, (owner, field), value))
    body = _body(writer, found.spec)
    intro = [f"# as {found.nearest} reads these facts; delete a raise line when the description says what it asks"]
    rest = [fact for fact in found.spec.facts if fact.name not in used and fact.name != "layers"]
    return _file(writer, found.spec, [*intro, *asks, *body], _remaining(rest))


def _ask(text: str) -> str:
    """A line that stops the file until a person has decided what it says."""
    return f"raise ValueError({text_literal(f'fill in: {_plain(text, 240)}')})"


_NEEDED = ("hidden", "vocab", "layers", "heads", "kv_heads", "head_dim", "tied")
_DENSE = ("ffn_width",)
_EXPERTS = ("experts", "top_k", "expert_width")


def _skeleton(found: Classified, asks: list[str]) -> str:
    """The sizes every decoder has, as variables."""
    sizes = {name: (key, value) for name, key, value in found.known if type(value) in (int, bool)}
    moe = any(name in sizes for name in _EXPERTS)
    body = []
    for name in (*_NEEDED, *(_EXPERTS if moe else _DENSE)):
        if name in sizes:
            body.append(f"{name} = {sizes[name][1]}  # {_plain(sizes[name][0])}")
        else:  # no value that could be forgotten: without one, the next line fails
            body.append(_ask(f"{name} = ?, looked for as {', '.join(spellings(name))}"))
    ffn = "MoE(experts, top_k, expert_width)" if moe else "Dense(ffn_width)"
    body += [
        f"layer = Layer(Attention(kv_heads, heads // kv_heads, head_dim), {ffn})",
        "return ModelSpec(",
        f"    name={text_literal(found.name)},",
        f"    model_type={text_literal(found.model_type)},",
        "    hidden=hidden,",
        "    vocab=vocab,",
        "    tied=tied,",
        "    layers=(layer,) * layers,",
        ")",
    ]
    names = ", ".join(sorted(["Attention", "Layer", "ModelSpec", "MoE" if moe else "Dense"]))
    head = f'"""{_plain(found.name)} ({_plain(found.model_type)}): a start. Nearest supported type: {found.nearest}."""'
    lines = [head, "", f"from compiler.frontend.spec import {names}", "", "", f"def {FUNCTION}() -> ModelSpec:"]
    told = "".join(f"; {word}" for word in found.layers)
    asks.append(_ask(f"the mixer and the feed-forward part of each layer{told}"))
    return "\n".join([*lines, *_indented([*asks, *body])]) + "\n"
