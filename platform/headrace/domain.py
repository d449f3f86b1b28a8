"""The platform's words as frozen types: no I/O, no transport, no database.

Durations are float seconds, sizes are bytes.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

import msgspec

FOREVER: Final = -1.0
"""A `keep_alive` that never unloads a model."""

LANE_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,39}")
"""A function's name is its lane's name, and Procrastinate refuses queue names over 40 bytes."""

State = Literal["queued", "running", "succeeded", "failed", "expired", "cancel_requested", "cancelled"]
"""Where a job stands."""

FINAL: Final[frozenset[State]] = frozenset({"succeeded", "failed", "expired", "cancelled"})
"""No transition leads out of these."""

TRANSITIONS: Final[frozenset[tuple[State | None, State]]] = frozenset(
    {
        (None, "queued"),
        (None, "running"),
        ("queued", "queued"),
        ("queued", "running"),
        ("queued", "failed"),
        ("queued", "expired"),
        ("queued", "cancelled"),
        ("running", "queued"),
        ("running", "succeeded"),
        ("running", "failed"),
        ("running", "cancel_requested"),
        ("cancel_requested", "cancelled"),
    }
)
"""From where a job may go where; None: it is born. `docs/job_lifecycle.md` says by whom and when."""

Priority = Literal["low", "normal", "high"]
"""How urgent a job is, beside others of its function."""

WEIGHTS: Final[Mapping[Priority, float]] = {"low": 0.25, "normal": 1.0, "high": 4.0}
"""The classes from the least urgent on, with the shares that a lane's flows get of its starts. None stands
strictly above another."""

LARGEST_PAYLOAD: Final = 128 * 2**20
"""Bytes of JSON; frames between gateway, runner and executor carry no more."""

_SIZE: Final = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)\s*(B|KiB|MiB|GiB|KB|MB|GB)?", re.IGNORECASE)
_LARGEST_COST: Final = 1e18
_MOST_COST: Final = 1e15
"""JSON's integers have no end, floats do."""

_UNITS: Final = {
    "b": 1,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
}


def parse_size(value: int | str) -> int:
    """Bytes from an int or from text such as `"1MiB"` or `"64 KiB"`.

    Raises:
        ValueError: the text isn't a size, or the size isn't positive.
    """
    if isinstance(value, str):
        match = _SIZE.fullmatch(value.strip())
        if match is None:
            raise ValueError(f"{value!r} is not a size; write bytes as a number or text such as '1MiB'")
        size = int(float(match[1]) * _UNITS[(match[2] or "B").lower()])
    elif isinstance(cast("object", value), bool) or not isinstance(cast("object", value), int):
        raise ValueError(f"a size must be a whole number of bytes or text such as '1MiB', not {value!r}")
    else:
        size = value
    if size <= 0:
        raise ValueError(f"a size must be positive, not {value!r}")
    return size


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How long each layer of a call may take, in seconds.

    Args:
        sync: how long a connection may be held for an answer.
        queue: how long the call may wait before its first start; loading a model counts.
        soft: after this much execution `Call.check()` raises; two thirds of `hard` unless given.
        hard: after this much execution the executing process is killed.
        margin: what delivering the outcome may take on top.

    Raises:
        ValueError: a duration isn't a positive finite number, or `soft` is over `hard`.
    """

    sync: float = 10.0
    queue: float = 60.0
    soft: float | None = None
    hard: float = 30.0
    margin: float = 15.0

    def __post_init__(self) -> None:
        for field in ("sync", "queue", "hard", "margin"):
            _check_duration(field, getattr(self, field))
        if self.soft is not None:
            _check_duration("soft", self.soft)
            if self.soft > self.hard:
                raise ValueError(f"soft ({self.soft:g} s) must not be over hard ({self.hard:g} s)")

    @property
    def soft_limit(self) -> float:
        """The soft limit in force, in seconds."""
        return self.hard * 2 / 3 if self.soft is None else self.soft

    @property
    def total(self) -> float:
        """Seconds from acceptance to the deadline after which a result is worthless."""
        return self.queue + self.hard + self.margin


def _check_duration(field: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 10**9:
        raise ValueError(f"{field} must be a positive number of seconds, not {value!r}")


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class Limits:
    """The largest input and output of a call, in bytes of JSON.

    Raises:
        ValueError: a limit isn't a positive size.
    """

    input: int = 2**20
    output: int = 2**24

    def __init__(self, *, input: int | str = "1MiB", output: int | str = "16MiB") -> None:  # noqa: A002 - the field's public name
        for field, value in (("input", input), ("output", output)):
            try:
                size = parse_size(value)
            except ValueError as error:
                raise ValueError(f"{field}: {error}") from None
            if size > LARGEST_PAYLOAD:
                raise ValueError(f"{field}: a call carries at most {LARGEST_PAYLOAD} bytes, not {size}")
            object.__setattr__(self, field, size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """How calls are joined into one execution.

    Args:
        max_cost: the most cost in one batch.
        max_wait: how long the first call of a batch waits for others, in seconds.

    Raises:
        ValueError: `max_cost` isn't a positive finite number, or `max_wait` isn't one from 0.
    """

    max_cost: float
    max_wait: float = 0.005

    def __post_init__(self) -> None:
        if not _is_number(self.max_cost) or not 0 < self.max_cost < float("inf"):
            raise ValueError(f"max_cost must be a positive number, not {self.max_cost!r}")
        if not _is_number(self.max_wait) or not 0 <= self.max_wait < 10**9:
            raise ValueError(f"max_wait must be a number of seconds from 0, not {self.max_wait!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class CostTerm(msgspec.Struct, frozen=True):
    """One summand of a cost: what is counted, and where in the input (a dotted path)."""

    kind: Literal["items", "chars", "value", "constant"]
    path: str = ""
    weight: float = 1.0


class Cost(msgspec.Struct, frozen=True):
    """What an input costs, as data: gateways price an input without the function's code.

    Built by `Cost.items(path)`, `Cost.chars(path)` and `Cost.value(path)`; costs add up with `+`.
    A path that leads nowhere costs nothing.
    """

    terms: tuple[CostTerm, ...] = (CostTerm("constant"),)

    @classmethod
    def items(cls, path: str, weight: float = 1.0) -> Cost:
        """The length of the list at `path`."""
        return cls((CostTerm("items", path, weight),))

    @classmethod
    def chars(cls, path: str, weight: float = 1.0) -> Cost:
        """The characters of the text, or of all texts in the list, at `path`."""
        return cls((CostTerm("chars", path, weight),))

    @classmethod
    def value(cls, path: str, weight: float = 1.0) -> Cost:
        """The number at `path`."""
        return cls((CostTerm("value", path, weight),))

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.terms + other.terms)

    @property
    def least(self) -> float:
        """What every input costs at least: the constants, where no other term can be below zero."""
        if any(term.kind == "value" or term.weight < 0 for term in self.terms):
            return 0.0
        return sum(term.weight for term in self.terms if term.kind == "constant")

    @property
    def varies(self) -> bool:
        """Whether inputs can differ in their cost."""
        return any(term.kind != "constant" for term in self.terms)

    def of(self, input: Any) -> float:  # noqa: A002 - the platform's word for it
        """The cost of a decoded JSON input; from 0 to 1e18."""
        return min(_LARGEST_COST, max(0.0, sum(term.weight * _measure(term, input) for term in self.terms)))


def _measure(term: CostTerm, found: Any) -> float:
    if term.kind == "constant":
        return 1.0
    for part in filter(None, term.path.split(".")):
        found = cast("dict[str, Any]", found).get(part) if isinstance(found, dict) else None
    match term.kind:
        case "items":
            return len(cast("list[Any]", found)) if isinstance(found, list) else 0.0
        case "chars":
            texts = cast("list[Any]", found) if isinstance(found, list) else [found]
            return sum(len(text) for text in texts if isinstance(text, str))
        case _:
            if isinstance(found, bool) or not isinstance(found, int | float):
                return 0.0
            return float(max(-_MOST_COST, min(found, _MOST_COST)))


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """All that a gateway knows of a function: data, never code.

    `interface` is the hash of the schemas without titles, descriptions and examples; `revision` is the
    hash of everything else. A call is bound to an interface, never to a revision. `pool` is a name or labels
    (see `headrace.pools`); `reserve` counts the slots of each runner that nothing but the function may take.
    `batch` says how its calls are joined, if they are; `item_schema` describes the items of what streams.
    """

    name: str
    interface: str
    revision: str
    description: str
    input_schema: dict[str, Any]
    output_schema: dict[str, Any]
    budget: Budget
    limits: Limits
    attempts: int
    concurrency: int
    cost: Cost
    pool: str
    examples: list[Any]
    reserve: int = 0
    batch: Batch | None = None
    item_schema: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class RunnerInfo:
    """A runner as it registered itself.

    Args:
        runner_id: the runner process's own UUID, new at each start.
        address: where gateways dial it (`tcp://host:port` or `unix:/path`); None serves jobs only.
        pool: its name; `*` serves every pool.
        interfaces: interface hash by function name, for what it serves now.
        labels: by key; functions may ask for them in place of a pool.
    """

    runner_id: str
    address: str | None
    pool: str
    interfaces: dict[str, str]
    labels: dict[str, str] = dataclasses.field(default_factory=dict[str, str])
