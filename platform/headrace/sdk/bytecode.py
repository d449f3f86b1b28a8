"""What can be read from compiled code without running it: heavy imports, and a fingerprint."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from headrace.sdk.helpers import helper_modules, imports_of, told_of

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
    for one in imports_of(code):
        if one.level == 0:  # else it is the user's own
            yield one.module.partition(".")[0]


def fingerprint(function: Callable[..., Any], *others: Callable[..., Any]) -> str:
    """A hash of what a function does: equal for equal code, whatever its file, lines and process.

    It covers what the function names in its own module, and whole modules of its package that this one
    imports; what is true of it is true of the others, such as loaders, whose own modules count as a whole.
    """
    digest = hashlib.sha256()
    for one in (function, *others):
        for code in reachable_code(one):
            digest.update(told_of(code))
    own, *more = (inspect.unwrap(one).__module__ or "" for one in (function, *others))  # `exec` may name none
    for name, part in helper_modules(own, more).items():
        digest.update(name.encode(errors="replace") + b"\0" + part)
    return digest.hexdigest()


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
