"""What a claim reads, in pages: time would say more about the machine."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from harness import postgres
from harness.ledger import LANE, Runner, make_owner, new_job, opened
from harness.postgres import query
from psycopg import sql

from headrace.database import Database
from headrace.ledger.submission import submit

CLAIM = (
    "SELECT job_id FROM claim_v1(%s::uuid, %s::uuid, ARRAY[%s], ARRAY['i1'], ARRAY[1], ARRAY[0.0],"
    " ARRAY[%s], 30.0, %s)"
)
PAGES = 220
"""A claim of one job reads about 100; one that looks at 5,000 others reads over 10,000."""


@pytest.fixture
def database_url(clones: postgres.Clones) -> Iterator[str]:
    """A database of the test's own, in which statistics are as the test makes them."""
    with clones.migrated() as url:
        for table in ("job", "procrastinate_jobs", "job_event", "lane"):
            # It would also keep what is dead in an index from being marked.
            alter = sql.SQL("ALTER TABLE {} SET (autovacuum_enabled = false)").format(sql.Identifier(table))
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(alter)
        yield url


class Session:
    """A connection whose plans were made when the tables were as good as empty, and are never made again."""

    def __init__(self, url: str) -> None:
        asyncio.run(self._fill(url))
        self._connection = psycopg.connect(url, autocommit=True)
        for _ in range(12):  # more than Postgres tries before it keeps a plan
            self.claim(1)

    async def _fill(self, url: str) -> None:
        async with opened(url) as database:
            await fill(database, await make_owner(database), 10, cost=0.0)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def claim(self, free: int, lane: str = LANE, alone: int = 1) -> tuple[int, int]:
        """How many jobs it got, and the pages that this took."""
        statement = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + CLAIM
        parameters = (str(uuid.uuid4()), str(uuid.uuid4()), lane, free, alone)
        explained = self._connection.execute(statement, parameters).fetchone()  # type: ignore[arg-type]
        assert explained is not None
        plan: dict[str, Any] = explained[0][0]["Plan"]
        return plan["Actual Rows"], plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


async def fill(database: Database, owner_id: str, count: int, **changes: Any) -> None:
    for _ in range(0, count, 500):
        await submit(database, [new_job(owner_id, **changes) for _ in range(min(500, count))])


async def retrying(database: Database, owner_id: str, count: int) -> None:
    """Jobs at the head of the lane that wait for their retry."""
    await fill(database, owner_id, count, cost=0.0)
    await database.execute(
        "UPDATE job SET due_at = clock_timestamp() + interval '1 minute', attempt = 1, charged = 1,"
        " settle_at = deadline_at WHERE state = 'queued'"
    )
    await database.execute(
        "UPDATE procrastinate_jobs SET scheduled_at = clock_timestamp() + interval '1 minute'"
    )


@pytest.mark.parametrize("before", ["old interface", "another lane", "waiting for a retry", "behind"])
def test_claim_reads_little_whatever_else_waits(database_url: str, before: str) -> None:
    with Session(database_url) as session:

        async def scenario() -> None:
            async with opened(database_url) as database:
                owner, other = await make_owner(database), await make_owner(database)
                if before == "old interface":
                    await fill(database, owner, 5000, interface="old", cost=0.0)
                elif before == "another lane":
                    await fill(database, owner, 5000, function="other")
                elif before == "waiting for a retry":
                    await retrying(database, owner, 5000)
                else:
                    await fill(database, owner, 5000)
                await fill(database, other, 60)

        asyncio.run(scenario())
        if before == "waiting for a retry":
            session.claim(1)  # passes what the update left in the index
        got, pages = session.claim(1)
        assert got == 1
        assert pages < PAGES
        query(database_url, "ANALYZE")
        session.claim(1)  # plans anew
        assert session.claim(1)[1] < PAGES
        got, pages = session.claim(10)
        assert got == 10
        assert pages < 10 * PAGES


def test_claim_reads_little_past_many_that_run_alone(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            await fill(database, await make_owner(database), 5000, cost=0.0)
            await database.execute(
                "UPDATE job SET alone = true, attempt = 1, charged = 1, settle_at = deadline_at"
                " WHERE state = 'queued'"
            )
            await fill(database, await make_owner(database), 60)

    with Session(database_url) as session:
        asyncio.run(scenario())
        session.claim(1, alone=0)  # passes what the update left in the index
        for alone in (0, 1):
            got, pages = session.claim(1, alone=alone)
            assert got == 1
            assert pages < PAGES
        got, pages = session.claim(10, alone=0)
        assert got == 10
        assert pages < 10 * PAGES


def test_claim_reads_little_after_many_claims(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            await fill(database, await make_owner(database), 3000)
            assert len(await Runner(database).claim(2990)) == 2990

    with Session(database_url) as session:
        asyncio.run(scenario())
        # The first one finds what is dead in the index, and marks it.
        session.claim(1)
        got, pages = session.claim(1)
        assert got == 1
        assert pages < PAGES


def test_session_would_notice(database_url: str) -> None:
    # That the measure measures: without an index to follow, all is read.
    async def scenario(url: str) -> None:
        async with opened(url) as database:
            await fill(database, await make_owner(database), 5000, interface="old")
            await database.execute("DROP INDEX job_claim")

    with Session(database_url) as session:
        asyncio.run(scenario(database_url))
        assert session.claim(1)[1] > PAGES
