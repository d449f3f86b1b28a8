"""What streaming functions yield in jobs: written in groups by runners, read in pages by whoever follows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from headrace.database import Database, queries, within
from headrace.ledger.reading import JobEvent

PAGE_BYTES: Final = 256 * 2**10
"""Bytes of items after which a page ends; its last group may go beyond."""
PAGE_GROUPS: Final = 256
"""Groups of items in a page at most."""

_SQL: Final = queries("items")

Verdict = Literal["written", "lost", "busy"]
"""`lost`: the job isn't the runner's any more, or is being cancelled; `busy`: somebody has it locked."""


class Group(NamedTuple):
    """Items of one start of a job, as JSON and in order.

    Args:
        before: how many items of the start come before them.
    """

    job_id: str
    token: str
    attempt: int
    before: int
    items: Sequence[bytes]


class Items(NamedTuple):
    """Items that were written at once; `sequence` is the number of the last one among the job's events."""

    sequence: int
    items: list[bytes]

    def after(self, number: int) -> list[tuple[int, bytes]]:
        """Those with larger numbers, each with its own."""
        first = self.sequence - len(self.items) + 1
        return [(at, item) for at, item in enumerate(self.items, first) if at > number]


class Story(NamedTuple):
    """A page of what has happened to a job, in order; where it `is_full` there may be more."""

    parts: list[JobEvent | Items]
    is_full: bool


async def add(database: Database, groups: Sequence[Group]) -> dict[str, Verdict]:
    """Write items of running jobs.

    What is written is written once, however often it is sent.

    Args:
        database: an open one.
        groups: at most one of each job.

    Returns:
        What has become of each job's.
    """
    items = [item for group in groups for item in group.items]
    rows = await database.fetch(
        _SQL["add"],
        {
            "ids": [group.job_id for group in groups],
            "tokens": [group.token for group in groups],
            "attempts": [group.attempt for group in groups],
            "before": [group.before for group in groups],
            "counts": [len(group.items) for group in groups],
            "items": items,
        },
        within=within(sum(map(len, items))),
    )
    return {row["job_id"]: row["verdict"] for row in rows}


async def story(
    database: Database,
    job_id: str,
    after: int = 0,
    *,
    most_bytes: int = PAGE_BYTES,
    most_groups: int = PAGE_GROUPS,
) -> Story:
    """One page of the job's transitions and items with numbers over `after`.

    Whose job it is must be known already.

    Args:
        database: an open one.
        job_id: a UUID.
        after: the number of the last one that is known; of a group the rest is still to come.
        most_bytes: the page ends with the group that gets there.
        most_groups: so many at most.
    """
    rows = await database.fetch(
        _SQL["story"],
        {"job_id": job_id, "after": after, "most_bytes": most_bytes, "most_groups": most_groups},
    )
    groups = [Items(row["sequence"], row["items"]) for row in rows if row["items"] is not None]
    size = sum(len(item) for group in groups for item in group.items)
    is_full = size >= most_bytes or len(groups) >= most_groups
    parts: list[JobEvent | Items] = []
    for row in rows:
        if is_full and row["sequence"] > groups[-1].sequence:
            break  # there may be items before it
        if row["items"] is None:
            parts.append(msgspec.convert(row, JobEvent))
        else:
            parts.append(Items(row["sequence"], row["items"]))
    return Story(parts, is_full)
