"""MODEL as `path.py:function`: run the file that was asked for, and get what its function returns.

Nothing else is ever run: no file a config names, no file beside it. An error in the file is the user's: it is shown
with its file and line, without a traceback.
"""

import ast
import sys
from pathlib import Path
from traceback import extract_tb
from types import ModuleType

from compiler.errors import InputError, nearest

FORM = "path.py:function, where function() returns a ModelSpec or a torch.nn.Module"
_NAME = "rdutune_described_model"


def python_place(model: str) -> tuple[Path, str] | None:
    """(file, function) of a MODEL that names a Python file, else None. The function is empty where none is named."""
    if model.endswith(".py"):
        return Path(model), ""
    base, colon, function = model.rpartition(":")
    return (Path(base), function) if colon and base.endswith(".py") else None


def call_function(path: Path, function: str) -> object:
    """What `function` of the file returns, called without arguments. InputError for whatever goes wrong in it."""
    text = _text(path)
    names = _functions(path, text)
    if function not in names:
        what = f"has no function {function}" if function else "is a Python file, and no function in it is named"
        hint = nearest(function, names)
        listed = f"functions there: {', '.join(names) or 'none'}"
        raise InputError(str(path), what, f"{FORM}; {hint + ' ' if hint else ''}{listed}")
    module = ModuleType(_NAME)
    module.__file__ = str(path)
    sys.modules[_NAME] = module  # dataclasses look their module up while they are made
    try:
        exec(compile(text, str(path), "exec"), module.__dict__)
        return module.__dict__[function]()
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        raise _failed(path, error) from error
    finally:
        del sys.modules[_NAME]


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(str(path), f"cannot be read ({error.strerror})", FORM) from error
    except (UnicodeDecodeError, ValueError) as error:
        raise InputError(str(path), f"is not a Python file ({error})", FORM) from error


def _functions(path: Path, text: str) -> tuple[str, ...]:
    """The functions defined at the top of the file, in order."""
    try:
        tree = ast.parse(text, str(path))
    except SyntaxError as error:
        raise InputError(f"{path}: line {error.lineno}", f"is not Python: {error.msg}", "repair the file") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise InputError(str(path), f"is not a Python file ({error})", FORM) from error
    return tuple(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def _failed(path: Path, error: BaseException) -> InputError:
    lines = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == str(path)]
    where = f"{path}: line {lines[-1]}" if lines else str(path)
    return InputError(where, f"{type(error).__name__}: {error}", "the file is run as it is: repair it there")
