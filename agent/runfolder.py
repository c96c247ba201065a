"""The run folder: what a run leaves on disk. Each file appears whole or not at all, run.json last."""

import os
import re
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agent.evaluate import VERSION, Measured, Rejected
from agent.explain import Explanation
from agent.report import dumps, report_json
from agent.trial import Onboarding, Trial
from compiler.canonical import canonical_json
from compiler.errors import InputError
from compiler.ir.text import HEADER

KIND = "rdutune run"
FILES = ("trials.jsonl", "best.schedule", "report.json", "report.html", "run.json")
_PREFIX = ".rdutune-"
#: What each file of a run always has in its first lines.
_SIGNS = {
    "trials.jsonl": '"schedule_id"',
    "best.schedule": HEADER,
    "report.json": '"versions"',
    "report.html": "rdutune</title>",
    "run.json": f'"kind": "{KIND}"',
}
_PASSWORD = re.compile(r"(://[^/@:]*):[^@]*@")


def check_folder(folder: Path) -> None:
    """InputError if a run cannot be written to `folder`: told before the work, not after. Leaves nothing behind."""
    where = f"--out {folder}"
    try:
        if folder.is_dir():
            inside = [p for p in folder.iterdir() if not p.name.startswith(_PREFIX)]
            ours = {p.name for p in inside if p.name in FILES and _is_ours(p)}
            foreign = sorted(p.name for p in inside if p.name not in ours)
            if "run.json" in ours:  # notes beside an earlier run stay; a file that would be lost does not
                foreign = [name for name in foreign if name in FILES]
            if foreign:
                raise InputError(
                    where,
                    f"holds something else ({', '.join(foreign[:3])})",
                    "give a new folder, or one of an earlier run",
                )
        elif folder.exists() or folder.is_symlink():
            raise InputError(where, "is not a folder", "give a new folder, or one of an earlier run")
        present = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    except OSError as error:
        raise InputError(where, f"cannot be looked up ({error.strerror})") from None
    if not present.is_dir():
        raise InputError(where, f"{present} is not a folder", "give a new folder, or one of an earlier run")
    try:
        with tempfile.TemporaryFile(prefix=_PREFIX, dir=present):
            pass
    except OSError as error:
        what = f"{present} cannot be written to ({error.strerror})"
        raise InputError(where, what, "give a folder that you may write to") from None


def _is_ours(path: Path) -> bool:
    """Whether a file with one of our names was written by a run: it holds what such a file always holds."""
    if not path.is_file():
        return False
    with path.open(encoding="utf-8", errors="replace") as file:
        return _SIGNS[path.name] in file.read(2**16)


def write_run(folder: Path, onboarding: Onboarding, explanation: Explanation) -> None:
    """Write every file of the run to `folder`, over those of an earlier run. InputError if it cannot be written."""
    from agent.pages import report_html

    texts = {
        "trials.jsonl": "".join(canonical_json(trial_json(t)) + "\n" for t in onboarding.trials),
        "best.schedule": onboarding.best.schedule.text,
        "report.json": dumps(report_json(onboarding, explanation)),
        "report.html": report_html(onboarding, explanation),
        "run.json": dumps(run_json(onboarding)),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "run.json").unlink(missing_ok=True)  # until the last file is there, this is no run
        for name in FILES:
            write_whole(folder / name, texts[name])
    except OSError as error:
        raise InputError(f"--out {folder}", f"cannot be written ({error.strerror or error})") from None


def write_whole(path: Path, text: str) -> None:
    """Write `text` (UTF-8, line feeds) to `path` in one step: readers see the old file or the new. OSError if not."""
    handle, name = tempfile.mkstemp(prefix=_PREFIX, dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n", errors="backslashreplace") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_file(name: str, flag: str, text: str) -> None:
    """Write `text` to the file that `flag` names; InputError if it cannot be written."""
    path = Path(name)
    try:
        if path.is_dir():
            raise InputError(f"{flag} {name}", "is a folder", "give the name of a file")
        if path.is_symlink() or (path.exists() and not path.is_file()):
            path.write_text(text, encoding="utf-8")  # a pipe, a device or a link is written to, never replaced
        else:
            write_whole(path, text)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"{flag} {name}", f"cannot be written ({reason})") from None


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def trial_json(trial: Trial) -> dict[str, Any]:
    """One line of trials.jsonl."""
    evaluation = trial.evaluation
    out: dict[str, Any] = {
        "index": trial.index,
        "parent": trial.parent,
        "origin": trial.origin,
        "schedule_id": trial.schedule.id,
        "schedule": trial.schedule.text,
        "cached": trial.cached,
    }
    if isinstance(evaluation, Rejected):
        return out | {"latency_s": None, "diagnostics": [str(d.code) for d in evaluation.diagnostics]}
    return out | {"latency_s": evaluation.report.latency_s, "program_id": evaluation.report.program_id}


def run_json(onboarding: Onboarding) -> dict[str, Any]:
    """What the run was and how it went: every identity needed to make it again."""
    o = onboarding
    assert isinstance(o.best.evaluation, Measured)
    settings = o.settings.model_dump(mode="json")
    settings["context"] = o.graph.workload.context  # as it was used, said or not
    settings["store"] = _PASSWORD.sub(r"\1:***@", settings["store"])
    return {
        "kind": KIND,
        "version": 1,
        "run_id": o.run_id,
        "settings": settings,
        "versions": {"evaluation": VERSION},
        "ids": {
            "graph": o.graph.id,
            "target": o.target.id,
            "best_schedule": o.best.schedule.id,
            "best_program": o.report.program_id,
            "presets": {name: trial.schedule.id for name, trial in o.presets},
        },
        "best_trial": o.best.index,
        "best_latency_s": o.report.latency_s,
        "bound_latency_s": o.bound.latency_s,
        "start": asdict(o.start),
        "evaluations": asdict(o.counts),
        "wall_s": o.wall_s,
    }
