"""Whether the slots that functions reserve leave one to the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gpu_runner.slots import group_of
from headrace.errors import SetupError
from headrace.sdk import Function

_MOST_NAMED = 5


def check_reserves(functions: Iterable[Function[Any, Any]], executors: int) -> None:
    """Look at each group of functions that share slots, in a runner with so many executors.

    Raises:
        SetupError: more slots are reserved than there are, or none is left to those that reserve none.
    """
    groups: dict[tuple[str, int], list[Function[Any, Any]]] = {}
    for function in functions:
        groups.setdefault(group_of(function), []).append(function)
    for (_, per_executor), members in groups.items():
        reserving = [one for one in members if one.manifest.reserve]
        reserved = sum(one.manifest.reserve for one in reserving)
        needed = reserved + (1 if len(reserving) < len(members) else 0)
        slots = per_executor * executors
        if reserving and needed > slots:
            enough = -(-needed // per_executor)
            whose = f"that {_names(members)} share" if len(members) > 1 else "that it alone runs in"
            raise SetupError(
                f"{_names(reserving)} {'reserves' if len(reserving) == 1 else 'reserve'} {reserved} of the "
                f"{slots} {'slot' if slots == 1 else 'slots'} {whose}: "
                f"set HEADRACE_EXECUTORS={enough} or leave out reserve="
            )


def _names(functions: list[Function[Any, Any]]) -> str:
    names = sorted(one.name for one in functions)
    if len(names) > _MOST_NAMED:
        names = [*names[: _MOST_NAMED - 1], f"{len(names) - _MOST_NAMED + 1} others"]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
