"""What the table of jobs itself refuses."""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from harness.ledger import (
    opened,
    row,
)
from harness.ledger_states import STATES, placed

from headrace.domain import State

WRONG: dict[State, list[tuple[str, str]]] = {
    "queued": [
        ("job_retried", "retried_as = gen_random_uuid()"),
        ("job_state_check", "state = 'lost'"),
        ("job_interface_check", "interface = ''"),
        ("job_digest_check", "digest = 'short'"),
        ("job_idempotency_key_check", "idempotency_key = ''"),
        ("job_idempotency_key_check", "idempotency_key = repeat('k', 256)"),
        ("job_attempts_check", "attempts = 0"),
        ("job_cost_check", "cost = -1"),
        ("job_cost_check", "cost = 'NaN'"),
        ("job_weight_check", "weight = 0"),
        ("job_weight_check", "weight = 'infinity'"),
        ("job_tag_check", "tag = -1"),
        ("job_tag_check", "tag = 'NaN'"),
        ("job_progress_check", "progress = 1.5"),
        ("job_progress_check", "progress = 'NaN'"),
        ("job_result_place_check", "result_place = 'moon'"),
        ("job_error_category_check", "error_category = ''"),
        ("job_error_errors_check", "error_errors = '{}'"),
        ("job_deadlines", "queue_deadline_at = created_at - interval '1 s'"),
        ("job_deadlines", "deadline_at = queue_deadline_at - interval '1 s'"),
        ("job_charges", "charged = -1, attempt = 0"),
        ("job_charges", "charged = 3, attempt = 3"),
        ("job_charges", "charged = 1, attempt = 0"),
        ("job_charges", "charged = 0, attempt = 4"),
        ("job_alone", "alone = true"),
        ("job_batch", "batch_index = 0"),
        ("job_queued", "charged = attempts, attempt = attempts"),
        ("job_queued", "entry_id = NULL"),
        ("job_queued", "token = gen_random_uuid()"),
        ("job_queued", "settle_at = NULL"),
        ("job_lease", "claim_id = gen_random_uuid()"),
        ("job_lease", "session_id = gen_random_uuid(), lease_expires_at = created_at"),
        ("job_session", "session_id = gen_random_uuid()"),
        ("job_final", "finished_at = created_at"),
        ("job_result", "result = 'x'"),
        ("job_result", "result_expires_at = created_at"),
        ("job_error", "error_category = 'broken', error_message = ''"),
        ("job_error", "error_message = ''"),
    ],
    "running": [
        ("job_retried", "retried_as = gen_random_uuid()"),
        ("job_entry", "entry_id = 1"),
        ("job_entry", "due_at = created_at"),
        ("job_running", "charged = 0"),
        ("job_running", "token = NULL"),
        ("job_running", "started_at = NULL"),
        ("job_running", "settle_at = NULL"),
        ("job_running", "session_id = NULL, lease_expires_at = NULL, claim_id = NULL"),
        ("job_session", "session_id = NULL"),
        ("job_result", "result_place = 'row', result = 'x', result_expires_at = created_at"),
        ("job_final", "state = 'succeeded'"),
        ("job_error", "error_category = 'broken', error_message = ''"),
    ],
    "cancel_requested": [
        ("job_retried", "retried_as = gen_random_uuid()"),
        ("job_running", "token = NULL"),
        ("job_final", "finished_at = created_at"),
        ("job_entry", "entry_id = 1"),
    ],
    "succeeded": [
        ("job_retried", "retried_as = gen_random_uuid()"),
        ("job_result", "result = NULL"),
        ("job_result", "result_place = NULL"),
        ("job_result", "result_place = 'gone'"),
        ("job_result", "result_expires_at = NULL"),
        ("job_settled", "settle_at = created_at"),
        ("job_final", "finished_at = NULL"),
        ("job_lease", "session_id = gen_random_uuid(), lease_expires_at = created_at"),
        ("job_entry", "entry_id = 1"),
        ("job_error", "error_category = 'broken', error_message = ''"),
    ],
    "failed": [
        ("job_error", "error_category = NULL"),
        ("job_error", "error_message = NULL"),
        ("job_result", "result_place = 'row', result = 'x', result_expires_at = created_at"),
        ("job_settled", "settle_at = created_at"),
        ("job_final", "state = 'queued'"),
        ("job_never_started", "state = 'expired'"),
    ],
    "expired": [
        ("job_never_started", "attempt = 1, charged = 1"),
        ("job_error", "error_category = NULL, error_message = NULL"),
    ],
    "cancelled": [
        ("job_error", "error_category = NULL, error_message = NULL"),
        ("job_final", "finished_at = NULL"),
    ],
}


@pytest.mark.parametrize("state", STATES)
def test_rows_of_the_wrong_shape_are_refused(database_url: str, state: State) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            made = await placed(database, state)
            before = await row(database, made.job.job_id)
            async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
                for constraint, change in WRONG[state]:
                    with pytest.raises(psycopg.errors.CheckViolation) as refused:
                        await connection.execute(f"UPDATE job SET {change}".encode())
                    # A wrong row may break several; which one says so first isn't promised.
                    broken = await broken_by(connection, change)
                    assert constraint in broken, f"{change} breaks {broken}"
                    assert refused.value.diag.constraint_name in broken
            assert await row(database, made.job.job_id) == before

    asyncio.run(scenario())


async def broken_by(connection: psycopg.AsyncConnection, change: str) -> set[str]:
    """All constraints of its table that a change breaks, found by leaving out one after the other."""
    broken: set[str] = set()
    await connection.execute("BEGIN")
    while True:
        await connection.execute("SAVEPOINT before")
        try:
            await connection.execute(f"UPDATE job SET {change}".encode())
        except psycopg.errors.CheckViolation as error:
            name = error.diag.constraint_name
            assert name is not None
            broken.add(name)
            await connection.execute("ROLLBACK TO before")
            await connection.execute(f"ALTER TABLE job DROP CONSTRAINT {name}".encode())
        else:
            break
    await connection.execute("ROLLBACK")
    return broken


def test_every_constraint_is_tried(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            rows = await database.fetch(
                "SELECT conname FROM pg_constraint WHERE conrelid = 'job'::regclass AND contype = 'c'"
            )
            tried = {constraint for changes in WRONG.values() for constraint, _ in changes}
            assert {found["conname"] for found in rows} == tried

    asyncio.run(scenario())
