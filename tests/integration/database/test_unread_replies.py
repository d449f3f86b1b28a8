"""A reply that nobody reads keeps nobody from his jobs for long."""

from __future__ import annotations

import asyncio
import logging

import psycopg
import pytest
from harness.ledger import Runner, check_ledger, make_owner, new_job
from harness.site import eventually
from psycopg import pq
from psycopg.conninfo import make_conninfo

from headrace.database import Database
from headrace.ledger.submission import submit
from headrace.maintenance.unread import end_unread

CLAIM = """
    SELECT input
    FROM claim_v1(gen_random_uuid(), gen_random_uuid(), '{fish}', '{i1}', '{1}', '{0}', '{9}', 30, 1)
"""
STUCK = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event = 'ClientWrite' AND backend_xid IS NOT NULL
"""


def stuck(url: str) -> bool:
    with psycopg.connect(url, autocommit=True) as connection:
        (count,) = connection.execute(STUCK).fetchone() or (0,)
        return count == 1


def test_claimed_jobs_are_free_again(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with await Database.open(database_url, application_name="headrace-test") as database:
            owner = await make_owner(database)
            await submit(database, [new_job(owner, input=b"x" * 2**20) for _ in range(9)])
            conninfo = make_conninfo(database_url, application_name="headrace-frozen")
            silent = pq.PGconn.connect(conninfo.encode())
            silent.send_query(CLAIM.encode())
            try:
                await asyncio.to_thread(eventually, lambda: stuck(database_url), "its reply is stuck")
                assert await Runner(database).claim(9) == []

                assert await end_unread(database, older_s=3600) == 0
                with caplog.at_level(logging.WARNING):
                    assert await end_unread(database, older_s=0) == 1
                assert "whose reply was not read" in caplog.text
                await asyncio.to_thread(eventually, lambda: not stuck(database_url), "it is gone")
                assert len(await Runner(database).claim(9)) == 9
                await check_ledger(database)
            finally:
                silent.finish()

    asyncio.run(scenario())
