"""MODEL as `path.py:function`: run the file that was asked for, and get what its function returns.

Nothing else is ever run: no file a config names, no file beside it. An error in the file is the user's: it is shown
with its file and line, without a traceback. A file that uses torch is run without memory: its tensors are fake.
"""

import ast
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import Any

from compiler.errors import InputError, nearest
from compiler.frontend.fake import fake_mode, faked
from compiler.frontend.watched import watched

FORM = "path.py:function, where function() returns a ModelSpec or a torch.nn.Module"
_NAME = "rdutune_described_model"


def python_place(model: str) -> tuple[Path, str] | None:
    """(file, function) of a MODEL that names a Python file, else None. The function is empty where none is named."""
    if model.endswith(".py"):
        return Path(model), ""
    base, colon, function = model.rpartition(":")
    return (Path(base), function) if colon and base.endswith(".py") else None


@dataclass(frozen=True, slots=True)
class Run:
    """made: what the function returned. mode: the fake mode its tensors belong to, None where torch was not used.

    read: the files that were read meanwhile, itself among them.
    """

    made: object
    mode: Any
    read: tuple[Path, ...]


def run_function(path: Path, function: str) -> Run:
    """Call `function` (or class) of the file without arguments. InputError for whatever goes wrong in it."""
    text = _text(path)
    tree = _tree(path, text)
    names = tuple(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef))
    if function not in names:
        what = f"has no function {function}" if function else "is a Python file, and no function in it is named"
        hint = nearest(function, names)
        listed = f"functions there: {', '.join(names) or 'none'}"
        raise InputError(str(path), what, f"{FORM}; {hint + ' ' if hint else ''}{listed}")
    module = ModuleType(_NAME)
    module.__file__ = str(path)
    sys.modules[_NAME] = module  # dataclasses look their module up while they are made
    try:
        with watched() as read:
            exec(compile(tree, str(path), "exec"), module.__dict__)
            mode = fake_mode() if _uses_torch(tree) or "torch" in sys.modules else None
            made = _called(module.__dict__[function], mode)
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        raise _failed(path, error) from error
    finally:
        del sys.modules[_NAME]
    return Run(made, mode, (path.resolve(), *(other for other in read if other != path.resolve())))


def _called(function: Any, mode: Any) -> object:
    """What the function returns. A module whose constructor asks for numbers is made with memory, and then faked."""
    inside: AbstractContextManager[object] = nullcontext() if mode is None else faked(mode)
    try:
        with inside:
            return function()
    except Exception as error:
        if type(error).__name__ != "DataDependentOutputException":
            raise
    return function()


def _uses_torch(tree: ast.Module) -> bool:
    """Whether torch is imported anywhere in the file."""
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return any(name.split(".")[0] in ("torch", "transformers") for name in names)


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(str(path), f"cannot be read ({error.strerror})", FORM) from error
    except (UnicodeDecodeError, ValueError) as error:
        raise InputError(str(path), f"is not a Python file ({error})", FORM) from error


def _tree(path: Path, text: str) -> ast.Module:
    try:
        return ast.parse(text, str(path))
    except SyntaxError as error:
        raise InputError(f"{path}: line {error.lineno}", f"is not Python: {error.msg}", "repair the file") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise InputError(str(path), f"is not a Python file ({error})", FORM) from error


def _failed(path: Path, error: BaseException) -> InputError:
    lines = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == str(path)]
    where = f"{path}: line {lines[-1]}" if lines else str(path)
    return InputError(where, f"{type(error).__name__}: {error}", "the file is run as it is: repair it there")
