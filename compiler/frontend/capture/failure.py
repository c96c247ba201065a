"""What torch and transformers raise when a module cannot be built or traced, and where it happened, as one sentence."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

#: Everything a model class is seen to raise; an interrupt or a lack of memory is none of it.
FAILURES = (RuntimeError, ValueError, TypeError, AttributeError, LookupError, AssertionError, ImportError, OSError)

#: What code that a person wrote may raise, classes of its own among it; not what names bad input, nor a lack of memory.
RAISED = (Exception, SystemExit)


def reason(error: BaseException) -> str:
    """Type and first line of an exception."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


def place_of(error: BaseException, module: Any) -> str:
    """`module path (Class) at file.py:line`: the innermost frame of model code an exception passed through."""
    names = {id(part): name for name, part in _inside(module).named_modules()}
    found, path, owner = "", "", ""
    trace = error.__traceback__
    while trace is not None:
        file = Path(trace.tb_frame.f_code.co_filename)
        if is_model_code(file):
            found = f"{file.name}:{trace.tb_lineno}"
            part = trace.tb_frame.f_locals.get("self")
            if id(part) in names:
                path, owner = names[id(part)], type(part).__name__
        trace = trace.tb_next
    where = f"{path or 'the model'} ({owner})" if owner else "the model"
    return f"{where} at {found}" if found else where


def _inside(module: Any) -> Any:
    """A module without what was put around it here."""
    return module.inner if getattr(module, "wraps", False) else module


def is_model_code(file: Path) -> bool:
    """Whether a source file is a model's: neither torch, nor this package, nor the machinery of transformers."""
    parts = file.parts
    if "torch" in parts or file.parent == Path(__file__).parent or str(file).startswith("<"):
        return False
    return "transformers" not in parts or "models" in parts


@contextmanager
def quiet() -> Iterator[None]:
    """torch and transformers log nothing inside: what matters of it becomes an InputError."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(before)
