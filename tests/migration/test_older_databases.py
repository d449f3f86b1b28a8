"""What is in a database of an older release stays, and works, when it is brought up to date."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from harness.ledger import LANE, Runner, elapse, make_owner, opened, state, submit_one
from harness.postgres import query

from headrace import owners
from headrace.database import Database
from headrace.ids import uuid7
from headrace.keys import find_owner, hash_key, list_keys
from headrace.ledger.settling import settle
from headrace.migrations import check, load, migrate
from headrace.usage import storing

SUBMIT_AS_THEN = (
    "SELECT outcome FROM submit_v1(p_ids => ARRAY[%s::uuid], p_owner_ids => ARRAY[%s::uuid],"
    " p_key_ids => ARRAY[NULL::uuid], p_functions => ARRAY['fish'], p_interfaces => ARRAY['i1'],"
    " p_inputs => ARRAY['{}'::bytea], p_digests => ARRAY[sha256('{}')], p_costs => ARRAY[3.0],"
    " p_weights => ARRAY[1.0], p_attempts => ARRAY[2], p_started => ARRAY[0], p_charged => ARRAY[0],"
    " p_queue_s => ARRAY[60.0], p_total_s => ARRAY[600.0], p_most_outstanding => ARRAY[NULL::integer],"
    " p_most_waiting => ARRAY[NULL::integer], p_most_costs => ARRAY[NULL::float8],"
    " p_most_ages_s => ARRAY[NULL::float8], p_request_ids => ARRAY[''], p_traceparents => ARRAY[''],"
    " p_idempotency_keys => ARRAY[NULL::text], p_retries_of => ARRAY[NULL::uuid],"
    " p_actors => ARRAY['key:k'], p_waiters => ARRAY[NULL::text], p_key_ttl_s => 60)"
)


@pytest.fixture
def before_scopes(tmp_path: Path) -> Path:
    """The migrations of the release in which keys had no scopes."""
    for migration in load()[:2]:
        (tmp_path / f"{migration.label}.sql").write_text(migration.sql)
    return tmp_path


def test_keys_without_scopes_may_call_and_read(empty_database_url: str, before_scopes: Path) -> None:
    url = empty_database_url
    migrate(url, before_scopes)
    create = "SELECT create_key_v1('ada', 'laptop', %s, %s)"
    for prefix in ("hr_abcdefgh", "hr_ijklmnop"):
        query(url, create, prefix, hash_key(prefix))
    query(url, "SELECT revoke_key_v1('hr_ijklmnop')")

    assert migrate(url) == [migration.label for migration in load()[2:]]
    check(url)

    async def scenario() -> None:
        async with await Database.open(url, application_name="headrace-test") as database:
            found = await find_owner(database, hash_key("hr_abcdefgh"))
            assert found is not None
            assert (found.owner, found.scopes, found.functions) == ("ada", {"call", "read"}, None)
            assert (found.most_outstanding, found.rate, found.burst) == (None, None, None)
            assert await find_owner(database, hash_key("hr_ijklmnop")) is None
            assert [key.scopes for key in await list_keys(database)] == [["call", "read"]] * 2
            (ada,) = await owners.list_owners(database)
            assert (ada.name, ada.keys, ada.outstanding) == ("ada", 1, 0)

    asyncio.run(scenario())


FINISH_AS_THEN = (
    "SELECT state FROM finish_v1(p_session_id => %s::uuid, p_ids => ARRAY[%s::uuid],"
    " p_tokens => ARRAY[%s::uuid], p_attempts => ARRAY[%s], p_kinds => ARRAY['retry'],"
    " p_outputs => ARRAY[NULL::bytea], p_categories => ARRAY['attempts-exhausted'],"
    " p_messages => ARRAY['No.'], p_errors => ARRAY[NULL::jsonb], p_execution_s => ARRAY[0.5],"
    " p_result_ttl_s => 60)"
)


def test_runners_of_the_last_release_end_starts_as_they_did(database_url: str) -> None:
    """They don't know how to say when the next one may come, and a new runner goes on with their jobs."""

    async def scenario() -> None:
        async with opened(database_url) as database:
            old, new = Runner(database), Runner(database)
            await submit_one(database, await make_owner(database), attempts=3)
            job = await old.claim_one()
            told = (old.session_id, job.job_id, job.token, job.attempt)
            assert query(database_url, FINISH_AS_THEN, *told) == [("queued",)]
            await elapse(database, 1)
            again = await new.claim_one()
            assert (again.job_id, again.attempt) == (job.job_id, 2)
            assert await new.end(again, "retry", not_before=time.monotonic() + 30) == "queued"
            await elapse(database, 33)
            assert (await old.claim_one()).attempt == 3

    asyncio.run(scenario())


@pytest.fixture
def before_expired_jobs(tmp_path: Path) -> Path:
    """The migrations of the release in which jobs that expired weren't counted."""
    for migration in load()[:18]:
        (tmp_path / f"{migration.label}.sql").write_text(migration.sql)
    return tmp_path


def test_jobs_from_before_count_when_they_expire_beside_processes_of_the_last_release(
    empty_database_url: str, before_expired_jobs: Path
) -> None:
    """A job that one of those ends isn't counted, and is ended as it was."""
    url = empty_database_url
    assert migrate(url, before_expired_jobs)[-1] == "0018_capacity"

    async def scenario() -> None:
        async with opened(url) as database:
            owner = await make_owner(database)
            before, theirs, ours = (uuid7() for _ in range(3))
            for job_id in (before, theirs, ours):
                assert query(url, SUBMIT_AS_THEN, job_id, owner) == [("accepted",)]
            await elapse(database, 60, before)
            assert query(url, "SELECT expired FROM settle_v1('gateway:old', NULL, 500)") == [(1,)]

            assert migrate(url) == [migration.label for migration in load()[18:]]
            check(url)
            await elapse(database, 60)
            assert query(url, "SELECT settle_job_v1(%s, 'gateway:old')", theirs) == [(True,)]
            settled = await settle(database, "gateway:new")
            assert settled is not None
            assert settled.expired == 1
            assert query(url, "SELECT expired FROM settle_v1('gateway:old', NULL, 500)") == [(0,)]
            assert [await state(database, job) for job in (before, theirs, ours)] == ["expired"] * 3
            assert await storing.add_expired(database, 500) == 1
            counted = "SELECT function, kind, reason, device, cost, number FROM usage_minute"
            assert query(url, counted) == [(LANE, "expired", "queue-deadline-exceeded", "", 4, 1)]

    asyncio.run(scenario())
