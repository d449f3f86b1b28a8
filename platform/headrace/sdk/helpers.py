"""The modules of a package that one of its modules imports, found in compiled code; nothing is imported."""

from __future__ import annotations

import dis
import hashlib
import importlib.util
import logging
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import CodeType
from typing import Final, NamedTuple, cast

log = logging.getLogger(__name__)

_IMPORT: Final = dis.opmap["IMPORT_NAME"]
_MOST_MODULES: Final = 500
"""Of a function. Reading one takes some milliseconds, and each executor does at its start."""

_OF_PLACES: Final = frozenset({"__firstlineno__", "__static_attributes__"})
"""What Python from 3.13 on notes of a class by itself: the first changes with a line above the class."""


class Import(NamedTuple):
    """One `import`: how many dots come first, what is behind them, and the names that are taken from it."""

    level: int
    module: str
    names: tuple[str, ...]


def imports_of(code: CodeType) -> Iterator[Import]:
    """The imports of a code object, without those of what is nested in it."""
    if _IMPORT not in code.co_code[::2]:  # taking it apart costs a hundred times as much
        return
    steps = _steps(code)
    for index, step in enumerate(steps):
        # An import pushes its level (over 0: relative) and the names, then imports.
        if step.opname == "IMPORT_NAME":
            level, names = steps[index - 2].argval, steps[index - 1].argval
            yield Import(level or 0, str(step.argval), tuple(names or ()))


def _steps(code: CodeType) -> list[dis.Instruction]:
    return [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]


def nested_code(code: CodeType) -> Iterator[CodeType]:
    """A code object and all that is nested in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from nested_code(constant)


def told_of(code: CodeType) -> bytes:
    """What makes it this code, without what is nested in it."""
    if not _OF_PLACES.isdisjoint(code.co_names):
        return _told_of_class(code)
    named = "\0".join((*code.co_names, *map(_stable, code.co_consts)))
    return code.co_name.encode() + b"\0" + code.co_code + b"\0" + named.encode(errors="replace")


def _told_of_class(code: CodeType) -> bytes:
    """The same of a class's body, without what Python notes by itself: constants by value, not by place."""
    steps = _steps(code)
    noted = {
        index for index, step in enumerate(steps) if step.opname == "STORE_NAME" and step.argval in _OF_PLACES
    }
    noted |= {index - 1 for index in noted}  # a store, and the constant that it stores
    told = (f"{step.opname} {_stable(step.argval)}" for at, step in enumerate(steps) if at not in noted)
    return "\0".join((code.co_name, *told)).encode(errors="replace")


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


class _Read(NamedTuple):
    """A module as its file has it: a hash of its code, and which of its own package it imports."""

    digest: bytes
    imports: tuple[str, ...]


_read: dict[tuple[str, str | None, int, int], _Read | None] = {}
"""What was read by name, file, and the time and size of that: many functions may have the same helpers."""


def helper_modules(own: str, others: Iterable[str] = ()) -> dict[str, bytes]:
    """A hash of each module that a module imports from its own top-level package, as such or through others.

    An import in a body counts as one at the top. Modules that have no file, be it in a zip, are passed over,
    and so is what isn't Python; a module that stands by itself, outside any package, has none. Beyond
    `_MOST_MODULES` a warning is logged, and the others are passed over.

    Args:
        own: the module, which is left out itself.
        others: modules that count as if it imported them, with what they import from their packages.

    Returns:
        By name, in the order of the names.
    """
    found: dict[str, bytes] = {}
    waiting = sorted({own, *others})
    seen = set(waiting)
    while waiting:
        if len(found) > _MOST_MODULES:
            log.warning(
                "module %s imports more than %d others of its package: changes of the rest make no other "
                "revision of its functions",
                own,
                _MOST_MODULES,
            )
            break
        name = waiting.pop()
        spec = _spec(name)
        module = None if spec is None else _module(spec)
        if module is None:
            continue
        found[name] = module.digest
        for helper in module.imports:
            if helper not in seen:
                seen.add(helper)
                waiting.append(helper)
    return {name: found[name] for name in sorted(found.keys() - {own})}


def _module(spec: ModuleSpec) -> _Read | None:
    status = _status(spec.origin or "") if spec.has_location else None
    if status is None:
        return None
    key = spec.name, spec.origin, status.st_mtime_ns, status.st_size
    if key not in _read:
        code = _code(spec)
        if code is None:
            _read[key] = None
        else:
            digest = hashlib.sha256(b"".join(map(told_of, nested_code(code)))).digest()
            _read[key] = _Read(digest, tuple(_imported(code, spec)))
    return _read[key]


def _status(origin: str) -> os.stat_result | None:
    """Of a module's file, or of the archive that it is in."""
    path = Path(origin)
    for one in (path, *path.parents):
        try:
            status = one.stat()
        except OSError:
            continue
        return status if stat.S_ISREG(status.st_mode) else None
    return None


def _imported(code: CodeType, importer: ModuleSpec) -> Iterator[str]:
    """The modules of its own top-level package that a module imports."""
    top = importer.name.partition(".")[0]
    for part in nested_code(code):
        for level, module, names in imports_of(part):
            try:
                base = importlib.util.resolve_name("." * level + module, importer.parent)
            except ImportError:  # beyond the top
                continue
            if base.partition(".")[0] != top:
                continue
            submodules = [f"{base}.{name}" for name in names]
            are_modules = [_spec(one) is not None for one in submodules]
            yield from (one for one, is_module in zip(submodules, are_modules, strict=True) if is_module)
            if not all(are_modules) or not names:
                yield base


def _spec(name: str) -> ModuleSpec | None:
    """Where a module is; of a package that isn't imported yet, nothing is run to find its parts."""
    known = sys.modules.get(name)
    if known is not None:
        return getattr(known, "__spec__", None)
    parent = name.rpartition(".")[0]
    above = _spec(parent) if parent else None
    if above is None or above.submodule_search_locations is None:
        return None
    return PathFinder.find_spec(name, list(above.submodule_search_locations))


def _code(spec: ModuleSpec) -> CodeType | None:
    get_code = getattr(spec.loader, "get_code", None)
    if get_code is None:
        return None
    try:
        return get_code(spec.name)
    except Exception:  # whoever imports it is going to be told, also that it is nested too deeply
        return None
