"""A database for each file of tests, emptied before each test: a clone takes longer than most of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness import postgres
from harness.postgres import query

EMPTY = (
    "TRUNCATE owner, lane, audit, job, job_event, batch, idempotency, gateway, function, runner,"
    " job_items, procrastinate_jobs, usage_expired, usage_minute, usage_changed, lane_started,"
    " lane_pace, lane_look, line, place CASCADE"
)


@pytest.fixture(scope="module")
def shared_url(clones: postgres.Clones) -> Iterator[str]:
    with clones.migrated() as url:
        yield url


@pytest.fixture
def database_url(shared_url: str) -> str:
    """The URL of a migrated database without rows."""
    query(shared_url, EMPTY)
    return shared_url
