"""What a runner can do at this moment, as it tells gateways and Postgres each second.

Later versions may add fields: a reader ignores what it doesn't know, and takes defaults for what is missing.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

MOST_COSTS: Final = 16
"""Buckets of cost that are told of at most, of a function."""

Warmth = Literal["warm", "loading", "cold", "none"]
"""Whether a function's models are loaded in some executor that is ready: `none`, no executor is ready."""


class CostTime(msgspec.Struct, frozen=True):
    """How long inputs of about one cost took, in seconds.

    Args:
        cost: the power of two that they don't exceed.
        mean_s: exponentially weighted.
        p95_s: of the last few hundred.
        known: how many executions that are; 0: a runner of before that doesn't say.
    """

    cost: int
    mean_s: float
    p95_s: float
    known: int = 0


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """How one function stands on one runner.

    Functions that share slots tell the same of them, where the same executors can run them: those that have
    their models, load them, or have room for them.

    Args:
        slots: how many of its calls may run at once; 0: it can't run.
        free: how many more could start now.
        busy: calls that run in its slots, or are handed to an executor to run next.
        waiting: calls that wait for one of its slots.
        waiting_cost: the cost of those among them that are its own.
        mean_s: how long an execution takes, exponentially weighted; 0 until one has ended.
        p95_s: the 95th percentile of the last few hundred; of fewer than 20, the slowest left out.
        p50_s: the median of the last hundred; 0 until some have ended.
        known: how many executions that is of; 0: none, or a runner of before that doesn't say.
        cost_s: seconds for a cost of 1; 0 where inputs have no cost.
        by_cost: times by the input's cost, from the lowest on.
        warmth: whether its models are loaded.
        load_s: how long loading what it lacks takes, as far as is known.
        memory: bytes that its models take on this runner, of those that are loaded.
    """

    slots: int = 0
    free: int = 0
    busy: int = 0
    waiting: int = 0
    waiting_cost: float = 0.0
    mean_s: float = 0.0
    p95_s: float = 0.0
    p50_s: float = 0.0
    known: int = 0
    cost_s: float = 0.0
    by_cost: tuple[CostTime, ...] = ()
    warmth: Warmth = "warm"
    load_s: float = 0.0
    memory: int = 0


class ModelStanding(msgspec.Struct, frozen=True, kw_only=True):
    """How one model stands in one executor.

    Args:
        model: its name.
        executor: the executor's number; -1: the model is in none.
        device: where it is, or would be loaded.
        state: `loaded`, `loading`, `unloading`, `unloaded`, `failed`, or `waiting`: it is to be loaded, as
            soon as there is room.
        size: bytes that it takes of its device, as measured, or as far as is known while it loads; 0: not
            known.
        declared: bytes that its declaration says; 0: none.
        in_use: calls that use it at this moment.
        used_at: when it was last used, in seconds since 1970; 0: it isn't loaded, or is in use.
        load_s: how long its last load took; 0: it never was loaded.
        functions: who uses it.
        reason: why it could not be loaded.
    """

    model: str
    executor: int = 0
    device: str = ""
    state: str = "loaded"
    size: int = 0
    declared: int = 0
    in_use: int = 0
    used_at: float = 0.0
    load_s: float = 0.0
    functions: tuple[str, ...] = ()
    reason: str = ""


class DeviceStanding(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a device the models of a runner may take together, and take, in bytes."""

    device: str
    budget: int
    used: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All that a runner tells of itself.

    Args:
        functions: by name.
        models: in each executor.
        devices: of the runner.
    """

    functions: dict[str, Capacity] = {}
    models: tuple[ModelStanding, ...] = ()
    devices: tuple[DeviceStanding, ...] = ()


def encoded(report: Report, most_bytes: int) -> bytes:
    """The report as JSON of at most so many bytes: without what is least needed, where it would be longer."""
    functions = {name: msgspec.structs.replace(one, by_cost=()) for name, one in report.functions.items()}
    for shorter in (
        report,
        msgspec.structs.replace(report, functions=functions),
        msgspec.structs.replace(report, functions=functions, models=()),
        Report(devices=report.devices),
    ):
        text = msgspec.json.encode(shorter)
        if len(text) <= most_bytes:
            return text
    return msgspec.json.encode(Report())
