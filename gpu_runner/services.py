"""What a runner can serve, as gateways are told."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpu_runner.children.executors import ExecutorProcess
from headrace.link.frames import Service
from headrace.sdk import Function


def services_of(
    functions: Mapping[str, Function[Any, Any]],
    slots_for: Callable[[str], int],
    degraded: Mapping[str, str],
    per_slot: Mapping[str, int],
) -> tuple[Service, ...]:
    """Each function with its interface, how many of its calls may run at once, and why none can, if so.

    Args:
        functions: by name.
        slots_for: tells how many slots a function has where it can run.
        degraded: why some can run nowhere.
        per_slot: how many calls share a slot, of functions whose calls are joined.
    """
    return tuple(
        Service(
            name,
            function.manifest.interface,
            slots_for(name) * per_slot.get(name, 1),
            degraded.get(name, ""),
        )
        for name, function in functions.items()
    )


def degraded_everywhere(executors: Sequence[ExecutorProcess]) -> dict[str, str]:
    """Functions that none of the executors that are ready can run, with the reason of the first."""
    reasons = [executor.degraded for executor in executors if executor.is_ready]
    first, others = (reasons[0], reasons[1:]) if reasons else ({}, [])
    return {name: reason for name, reason in first.items() if all(name in other for other in others)}
