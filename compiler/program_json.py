"""The file form of a program: versioned JSON with names for numbers, strict to read, equal bytes on re-emit.

An object of `format`, `version` and the fields of `Program` (`compiler.codec`). Stages name the stages they wait for.
What is read is checked as a whole: layouts and groups as after the shard pass, sections that run the ops of a block in
order, sizes that a simulator can work with.
"""

import json
from collections.abc import Iterable
from itertools import groupby
from typing import Any

from compiler.canonical import readable_json
from compiler.codec import Codec, shown
from compiler.errors import InputError
from compiler.ir.graph import Block
from compiler.program import PROGRAM_VERSION, Program, Run, Section, Stage
from compiler.verify import CompilerFault, verify_mesh, verify_sections

FORMAT = "rdutune program"
#: Numbers of a program that are at least 1.
_AT_LEAST_ONE = {
    Stage: ("pcus_used", "kv_ports", "depth"),
    Section: ("tiles", "tile_tokens", "context_rows"),
    Run: ("times",),
}


def program_to_json(program: Program) -> dict[str, Any]:
    """`program` as JSON; keys in the order of the fields, the blocks last."""
    return {"format": FORMAT, "version": PROGRAM_VERSION, **_CODEC.encode_fields(program)}


def program_from_json(value: Any, where: str = "program") -> Program:
    """The program that `value` is the JSON of. InputError names the place that is wrong, and what would be right."""
    right = f'an object that begins with {{"format": "{FORMAT}", "version": {PROGRAM_VERSION}'
    if not isinstance(value, dict):
        raise InputError(where, f"{shown(value)} is not a program", right)
    version = value.get("version")
    if type(version) is not int or version != PROGRAM_VERSION:
        what = f"a program of version {shown(version)}; this rdutune reads version {PROGRAM_VERSION}"
        raise InputError(where, what, "compile the model again: rdutune compile MODEL --emit FILE.json")
    if value.get("format") != FORMAT:
        raise InputError(where, "not a program", right)
    body = {key: item for key, item in value.items() if key not in ("format", "version")}
    program: Program = _CODEC.decode_fields(Program, body, where)
    _check(program, where)
    return program


def print_program(program: Program) -> str:
    """The text of a program file."""
    return readable_json(program_to_json(program))


def parse_program(text: str, where: str) -> Program:
    """Read the text of a program file. InputError with line and column where it is not JSON."""
    return program_from_json(parse_json(text, where), where)


def parse_json(text: str, where: str) -> Any:
    """JSON of `text`; InputError for what is none, and for a key that stands twice in one object."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            keys = [key for key, _ in pairs]
            raise InputError(where, f"the key {next(k for k in keys if keys.count(k) > 1)!r} stands there twice")
        return found

    try:
        return json.loads(text, object_pairs_hook=once)
    except json.JSONDecodeError as error:
        end = "; the file ends too early" if error.pos >= len(text.rstrip()) else ""
        raise InputError(f"{where}, line {error.lineno}, column {error.colno}", f"not JSON: {error.msg}{end}") from None
    except (RecursionError, ValueError) as error:
        raise InputError(where, f"not JSON that can be read: {error}") from None


def _write_section(codec: Codec, section: Section) -> dict[str, Any]:
    out = codec.encode_fields(section)
    for row, stage in zip(out["stages"], section.stages, strict=True):
        row["preds"] = [section.stages[i].op for i in stage.preds]
    return out


def _read_section(codec: Codec, value: Any, where: str) -> Section:
    """A section, its stages' names of stages as their places."""
    stages = value.get("stages") if isinstance(value, dict) else None
    if not isinstance(stages, list):
        section: Section = codec.decode_fields(Section, value, where)
        return section
    places: dict[str, int] = {}
    rows = []
    for i, stage in enumerate(stages):
        place = f"{where}.stages[{i}]"
        if isinstance(stage, dict) and "preds" in stage:
            names = codec.decode(tuple[str, ...], stage["preds"], f"{place}.preds")
            for name in names:
                if name not in places:
                    right = f"stages before it: {', '.join(places) or 'none'}"
                    raise InputError(f"{place}.preds", f"{shown(name)} is no stage before this one", right)
            stage = {**stage, "preds": [places[name] for name in names]}
        if isinstance(stage, dict) and isinstance(stage.get("op"), str):
            places[stage["op"]] = i
        rows.append(stage)
    made: Section = codec.decode_fields(Section, {**value, "stages": rows}, where)
    return made


_CODEC = Codec({Section: (_write_section, _read_section)})


def _check(program: Program, where: str) -> None:
    """What the fields alone do not say."""
    if not program.runs:
        raise InputError(f"{where}.runs", "no run", "a program runs something")
    for r, run in enumerate(program.runs):
        place = f"{where}.runs[{r}]"
        _at_least_one(run, place)
        if not run.sections:
            raise InputError(f"{place}.sections", "no section", "a run has sections")
        for s, section in enumerate(run.sections):
            here = f"{place}.sections[{s}]"
            _at_least_one(section, here)
            if section.block not in program.block:
                kinds = ", ".join(program.block)
                raise InputError(f"{here}.block", f"no block {shown(section.block)}", f"blocks: {kinds}")
            for i, stage in enumerate(section.stages):
                _at_least_one(stage, f"{here}.stages[{i}]")
            _check_place(section, here)
        for kind, sections in groupby(run.sections, key=lambda section: section.block):
            _executions(program.block[kind], tuple(sections), place)
    for b, block in enumerate(program.blocks):
        here = f"{where}.blocks[{b}]"
        if len(program.block) != len(program.blocks) or block.sockets != program.workload.sockets:
            raise InputError(
                here, f"{block.kind} on {block.sockets} sockets", "one block a kind, all on the same sockets"
            )
        _lawful(lambda block=block: verify_mesh(block), here)


def _check_place(section: Section, where: str) -> None:
    """Buffers are of stages that are there; a place has all of them."""
    last = len(section.stages) - 1
    for b, buffer in enumerate(section.buffers):
        if max((buffer.stage, *buffer.readers)) > last:
            raise InputError(f"{where}.buffers[{b}]", "of a stage that is not there", f"stages 0 to {last}")
    place = section.place
    if place is None:
        return
    for name, have, need in (("stages", place.stages, section.stages), ("buffers", place.buffers, section.buffers)):
        if len(have) != len(need):
            raise InputError(f"{where}.place.{name}", f"{len(have)} places", f"{len(need)}, one each")


def _executions(block: Block, sections: tuple[Section, ...], where: str) -> None:
    """The sections are whole executions of the block, one after another."""
    begun: list[Section] = []
    for section in sections:
        begun.append(section)
        if sum(len(s.stages) for s in begun) >= len(block.ops):
            _lawful(lambda: verify_sections(block, tuple(begun)), where)  # noqa: B023  called at once
            begun = []
    if begun:
        _lawful(lambda: verify_sections(block, tuple(begun)), where)


def _lawful(verify: Any, where: str) -> None:
    """What is our fault in a program that was just compiled is a fault of the file here."""
    try:
        verify()
    except CompilerFault as fault:
        raise InputError(where, str(fault), "a program as rdutune compile writes it") from None


def _at_least_one(value: Stage | Section | Run, where: str) -> None:
    names: Iterable[str] = _AT_LEAST_ONE[type(value)]
    for name in names:
        if getattr(value, name) < 1:
            raise InputError(f"{where}.{name}", f"is {getattr(value, name)}", "at least 1")
