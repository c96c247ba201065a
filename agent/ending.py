"""How a command ends: its exit code, and at most one screen on stderr."""

import os
import sys


def flushed(code: int) -> int:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return unread()
    except OSError as error:
        unread()
        return complain(f"the output cannot be written ({error.strerror})", "", 1)
    return code


def fault(error: Exception, debug: bool) -> int:
    if debug:
        import traceback

        traceback.print_exc()
    hint = "This is a bug in rdutune, not in your input." + ("" if debug else " `rdutune --debug ...` shows where.")
    return complain(f"fault: {type(error).__name__}: {error}", hint, 1)


def complain(what: str, right: str, code: int) -> int:
    """One screen on stderr: foreign text cleaned, long text cut, line breaks of `right` kept (a caret stands in it)."""
    from agent.words import clean

    lines = [f"rdutune: {clean(what, 900)}", *(f"  {clean(text, 300)}" for text in right.splitlines()[:12])]
    sys.stderr.write("\n".join(lines) + "\n")
    return code


def unread() -> int:
    """Nobody reads stdout any more: end as a shell expects, without a second complaint at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno())  # type: ignore[union-attr]
    return 141
