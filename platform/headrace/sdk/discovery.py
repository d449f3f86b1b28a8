"""Finding the functions that a runner serves: by module name, or by entry point."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from headrace.errors import DeclarationError, NotInstalled
from headrace.sdk.functions import Function

ENTRY_POINTS: Final = "headrace.functions"
"""The entry point group whose modules are served when no module is named."""


def discover(
    names: Sequence[str] = (), missing: Callable[[NotInstalled], None] | None = None
) -> dict[str, Function[Any, Any]]:
    """Import modules, of a package its public submodules too, and collect the functions in them by name.

    Args:
        names: dotted module names; none means all modules that installed packages offer as entry points.
        missing: told of each submodule that is left out, as what it needs isn't installed.

    Raises:
        DeclarationError: a module isn't there, doesn't import or has no function, or a name is taken twice.
    """
    found: dict[str, Function[Any, Any]] = {}
    for name in names or [point.module for point in entry_points(group=ENTRY_POINTS)]:
        functions = [function for module in _modules(name, missing) for function in _functions(module)]
        if not functions:
            raise DeclarationError(
                f"module {name!r} declares no function: nothing in it is decorated with @function"
            )
        for function in functions:
            other = found.setdefault(function.name, function)
            if other is not function:
                raise DeclarationError(
                    f"two functions are named {function.name!r}: one at {other.place}, one at "
                    f"{function.place}; rename one, or give it name="
                )
    if not found:
        raise DeclarationError(
            f"no function to serve: name modules in HEADRACE_FUNCTIONS, or install a package that has "
            f"entry points in the group {ENTRY_POINTS!r}"
        )
    return found


def _functions(module: ModuleType) -> Iterator[Function[Any, Any]]:
    for value in list(vars(module).values()):
        if isinstance(value, Function):
            yield value


def _modules(name: str, missing: Callable[[NotInstalled], None] | None) -> Iterator[ModuleType]:
    if not all(part.isidentifier() for part in name.split(".")):
        raise DeclarationError(
            f"{name!r} is not a module name; write it with dots and without .py, as in an import"
        )
    module = _import(name)
    yield module
    for info in pkgutil.iter_modules(getattr(module, "__path__", ())):
        if not info.name.startswith("_"):
            try:
                yield from _modules(f"{name}.{info.name}", missing)
            except NotInstalled as error:
                if missing is not None:
                    missing(error)


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except NotInstalled:
        raise
    except DeclarationError as error:
        if _place(error).rpartition(":")[0] in str(error):
            raise  # it names its place already
        raise _import_failure(name, error) from error
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise DeclarationError(
                f"there is no module {name!r}: it is neither in the current folder nor installed"
            ) from None
        raise _import_failure(name, error) from error
    except (Exception, SystemExit) as error:
        raise _import_failure(name, error) from error


def _import_failure(name: str, error: BaseException) -> DeclarationError:
    message = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())
    reason = f"{type(error).__name__}: {message}" if message else type(error).__name__
    place = _place(error)
    if isinstance(error, ValueError) and (function := _decorated_at(place)):
        # A Budget or Limits can't know whose it is, and is made before anything that does.
        return DeclarationError(f"{place}: function {function!r}: {message}")
    return DeclarationError(f"{place}: module {name!r} can't be imported: {reason}")


def _decorated_at(place: str) -> str:
    """The function that has a decorator at that file and line; empty where there is none."""
    filename, _, line = place.rpartition(":")
    try:
        nodes = ast.walk(ast.parse(Path(filename).read_bytes()))
    except (OSError, SyntaxError, ValueError):
        return ""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for decorator in node.decorator_list:
                if decorator.lineno <= int(line) <= (decorator.end_lineno or 0):
                    return node.name
    return ""


def _place(error: BaseException) -> str:
    """File and line of the error in the user's own code, the deepest there is."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{error.filename}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if _is_users(frame.filename)] or frames
    return f"{own[-1].filename}:{own[-1].lineno}"


def _is_users(filename: str) -> bool:
    return not filename.startswith("<") and not any(Path(filename).is_relative_to(place) for place in _OTHERS)


_OTHERS: Final = (
    *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
    Path(__file__).parents[1],
)
