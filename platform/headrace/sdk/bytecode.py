"""What can be read from compiled code without running it: heavy imports, and a fingerprint."""

from __future__ import annotations

import dis
import hashlib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from headrace.sdk.functions import Function


def heavy_imports(functions: Iterable[Function[Any, Any]]) -> list[str]:
    """Packages imported inside bodies and loaders, sorted: what is worth importing ahead of the first call.

    The standard library and Headrace itself are left out.
    """
    found: set[str] = set()
    for function in functions:
        for declared in (function.fn, *(model.loader for model in function.models.values())):
            for code in reachable_code(declared):
                found.update(_imported(code))
    return sorted(found - sys.stdlib_module_names - {"headrace"})


def _imported(code: CodeType) -> Iterator[str]:
    steps = [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]
    for index, step in enumerate(steps):
        # An import pushes its level (over 0: relative, so the user's own) and the names, then imports.
        if step.opname == "IMPORT_NAME" and steps[index - 2].argval == 0:
            yield str(step.argval).partition(".")[0]


def fingerprint(*declared: Callable[..., Any]) -> str:
    """A hash of what the functions do: equal for equal code, whatever its file, lines and process."""
    digest = hashlib.sha256()
    for one in declared:
        for code in reachable_code(one):
            digest.update(code.co_name.encode() + b"\0" + code.co_code + b"\0")
            digest.update("\0".join((*code.co_names, *map(_stable, code.co_consts))).encode(errors="replace"))
    return digest.hexdigest()


def _stable(constant: object) -> str:
    """A constant's text; sets are sorted, since their order changes from process to process."""
    match constant:
        case CodeType():
            return "code"  # walked on its own
        case frozenset():
            return f"{{{','.join(sorted(map(_stable, cast('frozenset[object]', constant))))}}}"
        case tuple():
            return f"({','.join(map(_stable, cast('tuple[object, ...]', constant)))})"
        case _:
            return repr(constant)


def reachable_code(declared: Callable[..., Any]) -> Iterator[CodeType]:
    """The function's code, what is nested in it, and helpers of its own module that it names."""
    function = inspect.unwrap(declared)
    assert isinstance(function, FunctionType)
    seen: set[CodeType] = set()
    waiting = [function.__code__]
    while waiting:
        code = waiting.pop()
        if code in seen:
            continue
        seen.add(code)
        yield code
        waiting.extend(constant for constant in code.co_consts if isinstance(constant, CodeType))
        for name in code.co_names:
            named = function.__globals__.get(name)
            helper = getattr(named, "__wrapped__", named)  # a cached helper is one too
            if isinstance(helper, FunctionType) and helper.__module__ == function.__module__:
                waiting.append(helper.__code__)
