"""Every model type through the import door, and what came of it: a table.

    python -m benchmarks.import_sweep [--frontend capture] [--models DIR] [--json FILE] [TYPE or DIRECTORY ...]

Without names: every causal model_type of the installed transformers, by class default, and every directory with a
config.json in DIR. Each model has a process of its own. CPU seconds and peak memory are those of the import alone (the
door, and the graphs of a decode and a prefill step), read before the class is asked for its own figures.
"""

import argparse
import json
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from compiler.errors import InputError
from compiler.frontend.door import Frontend, Model, open_door
from compiler.frontend.oracle import Check, Level, checks
from compiler.ir.graph import Phase, Workload

#: Seconds a model may take, its comparison with the class included.
TIMEOUT_S = 60


def measure(model: str, frontend: Frontend) -> Iterator[dict[str, Any]]:
    """Import one model in this process and compare it with its class: a row of the table, fuller each time."""
    row: dict[str, Any] = {"model": model, "door": "", "problem": ""}
    try:
        opened = open_door(model, frontend)
        row["door"] = str(opened.door)
        for phase in (Phase.DECODE, Phase.PREFILL):
            try:
                opened.graph(Workload(phase, 1, 4096, 1, "bf16"))
            except InputError as error:
                if phase is Phase.PREFILL:
                    raise
                row["problem"] = f"decode: {error}"
    except InputError as error:
        row["problem"] = str(error)
        yield row | _used()
        return
    row |= _used()
    yield row
    yield row | _compared(opened, model, row["problem"])


def _compared(opened: Model, model: str, problem: str) -> dict[str, Any]:
    """What the class says of each level; the levels that can be compared where not all can."""
    found: tuple[Check, ...] = ()
    try:
        found = checks(opened.graph, model, tuple(Level))
    except InputError:
        for level in Level:
            try:
                found += checks(opened.graph, model, (level,))
            except InputError as error:
                problem = problem or f"{level}: {error}"
    rows = {str(c.level): {"ours": c.ours, "theirs": c.theirs, "note": c.note} for c in found}
    return {"problem": problem, **rows}


def _used() -> dict[str, float]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {"cpu_s": round(usage.ru_utime + usage.ru_stime, 1), "mib": usage.ru_maxrss // 1024}


def in_process(model: str, frontend: Frontend) -> dict[str, Any]:
    """`measure` in a process of its own; a crash or a timeout is a row too."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.import_sweep", "--frontend", frontend, "--one", model]
    row: dict[str, Any] = {"model": model, "door": "", "problem": "", "cpu_s": 0.0, "mib": 0}
    with TemporaryFile("w+") as out, TemporaryFile("w+") as errors:
        try:
            status = subprocess.run(command, stdout=out, stderr=errors, timeout=TIMEOUT_S, check=False).returncode
            ended = f"exit status {status}" if status else ""
        except subprocess.TimeoutExpired:
            ended = f"took more than {TIMEOUT_S} s"
        out.seek(0)
        errors.seek(0)
        for line in out:
            row = json.loads(line) if line.startswith("{") else row
        said = errors.read().strip().splitlines()[-1:] if ended.startswith("exit") else []
    return row | {"problem": "; ".join([row["problem"], ended, *said]).strip("; ")} if ended else row


def everything(models: Path | None) -> list[str]:
    """The causal types of the installed transformers, then the configs of a directory."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL

    found = sorted(path.parent for path in models.glob("*/config.json")) if models is not None else []
    return [*sorted(CAUSAL), *map(str, found)]


def _equal(row: dict[str, Any], level: Level) -> bool:
    found = row.get(str(level))
    return found is not None and found["ours"] == found["theirs"]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """One line a model: type, door, parameters, what is equal, CPU seconds, MiB, and the problem."""
    head = ("type", "door", "params here", "params in class", "equal", "FLOPs", "cache", "CPU s", "MiB", "problem")
    lines = [head]
    for row in rows:
        params = row.get("params", {"ours": 0, "theirs": 0})
        verdicts = ["yes" if _equal(row, level) else "no" if str(level) in row else "-" for level in Level]
        sizes = (f"{params['ours']:,}", f"{params['theirs']:,}")
        problem = row["problem"].splitlines()[0][:160] if row["problem"] else ""
        name = row["model"].rpartition("/")[2]
        lines.append((name, row["door"], *sizes, *verdicts, str(row["cpu_s"]), str(row["mib"]), problem))
    widths = [max(len(line[place]) for line in lines) for place in range(len(head) - 1)]
    out = ["  ".join([*(w.ljust(n) for w, n in zip(line, widths, strict=False)), line[-1]]).rstrip() for line in lines]
    return "\n".join([*out, "", summary(rows)])


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """How many import, agree with the class, and are cheap."""
    both = [row for row in rows if _equal(row, Level.PARAMS) and _equal(row, Level.FLOPS)]
    cheap = [row for row in both if row["cpu_s"] <= 15 and row["mib"] <= 1024]
    counts = (
        f"{len(rows)} models",
        f"{sum(bool(row['door']) and 'params' in row for row in rows)} imported",
        f"{sum(_equal(row, Level.PARAMS) for row in rows)} with equal parameters",
        f"{len(both)} with equal parameters and FLOPs",
        f"{sum(_equal(row, Level.CACHE) for row in both)} of them with an equal cache",
        f"{len(cheap)} of them within 15 CPU seconds and 1 GiB",
    )
    return ", ".join(counts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--frontend", type=Frontend, default=Frontend.CAPTURE)
    parser.add_argument("--models", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        for row in measure(given.one, given.frontend):
            print(json.dumps(row), flush=True)
        return
    names = given.names or everything(given.models)
    rows: list[dict[str, Any]] = []
    with ThreadPoolExecutor(given.jobs) as pool:
        for row in pool.map(lambda name: in_process(name, given.frontend), names):
            rows.append(row)
            print(f"{len(rows)}/{len(names)} {row['model']}", file=sys.stderr, flush=True)
            if given.json:
                given.json.write_text(json.dumps(rows, indent=1))
    print(table(rows))


if __name__ == "__main__":
    main()
