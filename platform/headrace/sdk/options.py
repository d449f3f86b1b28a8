"""The options of a declaration, and their checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Literal, TypedDict

from headrace import pools
from headrace.domain import LANE_NAME, Batch, Budget, Cost, Limits
from headrace.sdk.places import Place

MAX_ATTEMPTS: Final = 20
MAX_RESERVE: Final = 64


class FunctionOptions(TypedDict, total=False):
    """Options of every kind of function, all of them optional.

    budget: how long each layer of a call may take.
    limits: the largest input and output.
    attempts: how often a call may start, 2 by default; 1 for what must not run twice.
    concurrency: bodies at once in one executor, 1 by default.
    cost: what an input costs, as data.
    openai: the OpenAI route that the function serves.
    reserve: slots of each runner that nothing but this function may take, 0 by default.
    pool: the runners that serve it, by the name of their pool or by labels, `key=value,key=value`.
    name: its name in URLs, the Python function's by default.
    examples: inputs that work, shown to callers.
    """

    budget: Budget
    limits: Limits
    attempts: int
    concurrency: int
    cost: Cost
    openai: Literal["embeddings", "chat"] | None
    reserve: int
    pool: str
    name: str | None
    examples: Sequence[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """`FunctionOptions` with the defaults filled in."""

    budget: Budget = field(default_factory=Budget)
    limits: Limits = field(default_factory=Limits)
    attempts: int = 2
    concurrency: int = 1
    cost: Cost = field(default_factory=Cost)
    openai: str | None = None
    reserve: int = 0
    pool: str = pools.DEFAULT
    name: str | None = None
    examples: Sequence[Any] = ()


def read_options(given: FunctionOptions, place: Place) -> Options:
    """Check what was given, before anything is made of it.

    Raises:
        DeclarationError: an option is unknown, of a wrong type, or out of range.
    """
    known = {one.name for one in fields(Options)}
    for unknown in given.keys() - known:
        raise place.error(unknown, f"there is no such option; there are {', '.join(sorted(known))}")
    options = Options(**given)
    for name, expected in (("budget", Budget), ("limits", Limits), ("cost", Cost)):
        value = getattr(options, name)
        if not isinstance(value, expected):
            raise place.error(name, f"must be a {expected.__name__}, not {value!r}")
    _check_count("attempts", options.attempts, 1, MAX_ATTEMPTS, place)
    _check_count("concurrency", options.concurrency, 1, 10_000, place)
    _check_count("reserve", options.reserve, 0, MAX_RESERVE, place)
    if options.openai is not None:
        raise place.not_yet("openai=")
    return replace(options, pool=_pool(options.pool, place))


def check_reserve(options: Options, place: Place, *, is_async: bool) -> None:
    """Refuse a reserve where nobody else could take the function's slots.

    Raises:
        DeclarationError: the function is async, or its concurrency is over 1.
    """
    if options.reserve and (is_async or options.concurrency > 1):
        why = "is async" if is_async else f"has a concurrency of {options.concurrency}"
        raise place.error("reserve", f"the function {why}, so it has slots of its own: leave out reserve=")


def check_batch(batch: Batch, options: Options, place: Place) -> None:
    """Refuse a batch that can't do what it is for, with the rest of the declaration as it is.

    Raises:
        DeclarationError: no two calls fit into it, or they might wait longer for others than they may wait.
    """
    queue, least = options.budget.queue, options.cost.least
    if batch.max_wait > queue:
        raise place.error(
            "batch", f"max_wait ({batch.max_wait:g} s) must not be over the queue budget ({queue:g} s)"
        )
    if batch.max_cost < 2 * least:
        raise place.error(
            "batch",
            f"max_cost ({batch.max_cost:g}) has no room for two calls, as each costs {least:g} at least: "
            f"make it {2 * least:g} or more, or leave out batch=",
        )


def check_function_name(name: object, place: Place) -> str:
    """The name, if it can be a lane's."""
    if not isinstance(name, str) or LANE_NAME.fullmatch(name) is None:
        raise place.error(
            "name",
            f"{name!r} is not allowed: 1 to 40 characters, a to z, 0 to 9, - and _, with a letter first",
        )
    return name


def _pool(value: object, place: Place) -> str:
    if not isinstance(value, str):
        raise place.error("pool", f"must be a text, not {value!r}")
    try:
        return pools.read_wish(value)
    except ValueError as error:
        raise place.error("pool", str(error)) from None


def _check_count(field: str, value: object, least: int, largest: int, place: Place) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= largest:
        raise place.error(field, f"must be a whole number from {least} to {largest:,}, not {value!r}")
