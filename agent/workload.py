"""What a command works on: its model, workload and target, checked against each other before any work."""

import json
from pathlib import Path

from agent.presets import PRESETS, preset
from agent.settings import Settings
from compiler.errors import InputError, nearest
from compiler.frontend import Model, open_door
from compiler.ir.graph import Graph
from compiler.ir.schedule import Schedule
from compiler.ir.text import from_json, parse_schedule
from compiler.target import Target, load_target

MAX_SCHEDULE_BYTES = 4 * 2**20


def graph_for(settings: Settings) -> tuple[Model, Graph, Target]:
    """Model description, graph and target of `settings`. InputError for whatever is not possible, target first."""
    target = load_target(settings.target)
    check_sockets(settings.sockets, target)
    model = open_door(settings.model, settings.frontend, settings.captures)
    return model, graph_of(model, settings), target


def graph_of(model: Model, settings: Settings) -> Graph:
    """The graph of `model` under `settings`. InputError where it is asked for a number of tokens that it cannot have:
    an image and a sound have one of their own, which is taken where no --context is given.
    """
    graph = model.graph(settings.workload)
    own = graph.workload.context
    if settings.context not in (None, own):
        what = f"{model.name} makes {own:,} tokens of each input, whatever is asked"
        raise InputError(f"--context {settings.context}", what, f"--context {own}, or no --context")
    return graph


def check_sockets(sockets: int, target: Target) -> None:
    """InputError where machines with `target` are not built of that many sockets."""
    if sockets in target.socket_counts:
        return
    counts = ", ".join(map(str, target.socket_counts))
    below = max((c for c in target.socket_counts if c < sockets), default=None)
    above = min((c for c in target.socket_counts if c > sockets), default=None)
    near = " or ".join(str(c) for c in (below, above) if c is not None)
    raise InputError(
        f"--sockets {sockets}",
        f"{target.name} machines are built of {counts} sockets",
        f"the nearest: --sockets {near}",
    )


def schedule_for(name: str, graph: Graph, target: Target) -> Schedule:
    """The schedule that `--schedule` names: a preset, or a file (JSON if it ends in .json, else text).

    InputError with line, column and a caret for text that is no schedule. Holes pass; the compiler refuses them.
    """
    if name in PRESETS:
        return preset(name, graph, target)
    right = f"a schedule file, or a preset: {', '.join(PRESETS)}"
    return read_schedule(read_text(name, f"--schedule {name}", right, MAX_SCHEDULE_BYTES, PRESETS), name)


def read_schedule(text: str, name: str) -> Schedule:
    """The schedule in a file called `name`: JSON if it ends in .json, else text. InputError for what is none."""
    if not name.endswith(".json"):
        return parse_schedule(text, name)
    try:
        return from_json(json.loads(text), name)
    except json.JSONDecodeError as error:
        raise InputError(f"{name}, line {error.lineno}, column {error.colno}", f"not JSON: {error.msg}") from None
    except (RecursionError, ValueError) as error:
        raise InputError(name, f"not a schedule: {error}") from None


def read_text(name: str, where: str, right: str, most: int, words: tuple[str, ...] = ()) -> str:
    """The UTF-8 text of a file of at most `most` bytes. InputError (`where`, `right`) where there is none; `words` are
    what else might have been meant."""
    path = Path(name)
    try:
        with path.open("rb") as file:  # a pipe will do, an endless one will not
            content = file.read(most + 1)
        if len(content) > most:
            raise InputError(where, f"is larger than {most:,} bytes", right)
        return content.decode("utf-8-sig")
    except FileNotFoundError:
        raise InputError(where, f"no such file; {nearest(name, words)}".rstrip("; "), right) from None
    except UnicodeDecodeError as error:
        raise InputError(where, f"byte {error.start} is not UTF-8 text", right) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(where, f"cannot be read ({reason})", right) from None
