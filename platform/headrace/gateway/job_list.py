"""What `GET /jobs` was asked for: filters, and where the list goes on."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final, cast, get_args
from urllib.parse import urlencode

from headrace.domain import State
from headrace.gateway.problem_kinds import KINDS
from headrace.gateway.problems import Problem

MOST: Final = 200
DEFAULT: Final = 50

_STATES: Final[tuple[State, ...]] = get_args(State)
_PARAMETERS: Final = ("batch", "category", "cursor", "dead", "function", "limit", "status")
JOB_ID: Final = re.compile("[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_LIMIT: Final = re.compile("0*[1-9][0-9]{0,2}")


@dataclass(frozen=True, slots=True)
class Wanted:
    """One page of the list.

    Args:
        limit: at most so many jobs.
        before: only jobs older than this one.
        status: only jobs in this state.
        function: only jobs of this function.
        batch: only jobs of this batch.
        category: only jobs whose error is of it.
        dead: only jobs that failed or expired, and weren't retried.
    """

    limit: int = DEFAULT
    before: str | None = None
    status: State | None = None
    function: str | None = None
    batch: str | None = None
    category: str | None = None
    dead: bool = False

    def query(self, cursor: str) -> str:
        """The query that asks for what follows this page, with the same filters."""
        given = {
            "status": self.status,
            "function": self.function,
            "batch": self.batch,
            "category": self.category,
            "dead": "true" if self.dead else None,
            "limit": self.limit,
            "cursor": cursor,
        }
        return urlencode({name: value for name, value in given.items() if value is not None})


def is_job_id(text: str) -> bool:
    """Whether it can be the id of a job."""
    return JOB_ID.fullmatch(text) is not None


def read_query(pairs: Iterable[tuple[str, str]], functions: Collection[str]) -> Wanted:
    """What a query string asks for.

    Args:
        pairs: its parameters.
        functions: the names that there are, or were.

    Raises:
        Problem: `bad-request`, saying what is allowed.
    """
    given: dict[str, str] = {}
    for name, value in pairs:
        if name not in _PARAMETERS:
            raise _wrong(f"There is no parameter of that name; there are {_listed(_PARAMETERS)}.")
        if name in given:
            raise _wrong(f"The parameter `{name}` is given twice.")
        given[name] = value
    known = f"one of {_listed(sorted(functions))}" if functions else "left out: none is registered"
    for name, is_right, must in (
        ("limit", _is_limit, f"a whole number from 1 to {MOST}"),
        ("status", _STATES.__contains__, f"one of {_listed(_STATES)}"),
        ("function", functions.__contains__, known),
        ("batch", is_job_id, "the id of a batch"),
        ("category", KINDS.__contains__, "the code of a problem, as in the `error` of a job"),
        ("dead", "true".__eq__, "`true`, or left out"),
        ("cursor", is_job_id, "what `next` was in the page before"),
    ):
        if name in given and not is_right(given[name]):
            raise _wrong(f"`{name}` must be {must}.")
    return Wanted(
        limit=int(given.get("limit", DEFAULT)),
        before=given.get("cursor"),
        status=cast("State | None", given.get("status")),
        function=given.get("function"),
        batch=given.get("batch"),
        category=given.get("category"),
        dead="dead" in given,
    )


def _is_limit(text: str) -> bool:
    return _LIMIT.fullmatch(text) is not None and int(text) <= MOST


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _wrong(detail: str) -> Problem:
    return Problem("bad-request", detail)
