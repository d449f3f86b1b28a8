"""What our SQL and Procrastinate have in common, held against the pinned version."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, LiteralString

import psycopg
import pytest
from harness.postgres import query
from procrastinate.psycopg_connector import PsycopgConnector
from procrastinate.worker import Worker as ProcrastinateWorker

from headrace import queue
from headrace.database import Database
from headrace.domain import LANE_NAME
from headrace.ids import uuid7
from headrace.ledger import execution, settling, submission
from headrace.ledger.submission import NewJob
from headrace.queue import worker
from headrace.queue.worker import Chore, Worker, make_app

LANE = "fish"
NAME = "headrace-test"

# By name and type; where a ROW() is built, by position too.
COLUMNS = {
    # submit_v3 and enqueue_v1 build rows of it.
    "procrastinate_job_to_defer_v1": [
        ("queue_name", "character varying"),
        ("task_name", "character varying"),
        ("priority", "integer"),
        ("lock", "text"),
        ("queueing_lock", "text"),
        ("args", "jsonb"),
        ("scheduled_at", "timestamp with time zone"),
    ],
    # claim_v1 locks and deletes its rows (id, status, scheduled_at), conclude_v1 deletes them (id), sweep_v1
    # compares them with the ledger (id, task_name, status).
    "procrastinate_jobs": [
        ("id", "bigint"),
        ("queue_name", "character varying(128)"),
        ("task_name", "character varying(128)"),
        ("priority", "integer"),
        ("lock", "text"),
        ("queueing_lock", "text"),
        ("args", "jsonb"),
        ("status", "procrastinate_job_status"),
        ("scheduled_at", "timestamp with time zone"),
        ("attempts", "integer"),
        ("abort_requested", "boolean"),
        ("worker_id", "bigint"),
    ],
    # Its rows go with the entry's.
    "procrastinate_events": [
        ("id", "bigint"),
        ("job_id", "bigint"),
        ("type", "procrastinate_job_event_type"),
        ("at", "timestamp with time zone"),
    ],
}
# submit_v3 and enqueue_v1 call it; submit_v3 counts on ids in the order of the array.
DEFERRING = [("jobs procrastinate_job_to_defer_v1[]", "bigint[]")]
TRIGGERS = {
    # An entry wakes the runners of its lane.
    "procrastinate_jobs_notify_queue_job_inserted_v1": (
        "AFTER INSERT ON public.procrastinate_jobs FOR EACH ROW"
        " WHEN ((new.status = 'todo'::procrastinate_job_status))"
        " EXECUTE FUNCTION procrastinate_notify_queue_job_inserted_v1()"
    ),
    # An entry's events are written with it, ...
    "procrastinate_trigger_status_events_insert_v1": (
        "AFTER INSERT ON public.procrastinate_jobs FOR EACH ROW"
        " WHEN ((new.status = 'todo'::procrastinate_job_status))"
        " EXECUTE FUNCTION procrastinate_trigger_function_status_events_insert_v1()"
    ),
    "procrastinate_trigger_scheduled_events_v1": (
        "AFTER INSERT OR UPDATE ON public.procrastinate_jobs FOR EACH ROW"
        " WHEN (((new.scheduled_at IS NOT NULL) AND (new.status = 'todo'::procrastinate_job_status)))"
        " EXECUTE FUNCTION procrastinate_trigger_function_scheduled_events_v1()"
    ),
    # ... and this is all that happens when a claim deletes it.
    "procrastinate_trigger_delete_jobs_v1": (
        "BEFORE DELETE ON public.procrastinate_jobs FOR EACH ROW"
        " EXECUTE FUNCTION procrastinate_unlink_periodic_defers_v1()"
    ),
    # Ours never update an entry.
    "procrastinate_jobs_notify_queue_job_aborted_v1": (
        "AFTER UPDATE OF abort_requested ON public.procrastinate_jobs FOR EACH ROW"
        " WHEN (((old.abort_requested = false) AND (new.abort_requested = true)"
        " AND (new.status = 'doing'::procrastinate_job_status)))"
        " EXECUTE FUNCTION procrastinate_notify_queue_abort_job_v1()"
    ),
    "procrastinate_trigger_abort_requested_events_v1": (
        "AFTER UPDATE OF abort_requested ON public.procrastinate_jobs FOR EACH ROW"
        " WHEN ((new.abort_requested = true))"
        " EXECUTE FUNCTION procrastinate_trigger_abort_requested_events_procedure_v1()"
    ),
    "procrastinate_trigger_status_events_update_v1": (
        "AFTER UPDATE OF status ON public.procrastinate_jobs FOR EACH ROW"
        " EXECUTE FUNCTION procrastinate_trigger_function_status_events_update_v1()"
    ),
}
REFERENCES = [
    ("procrastinate_events", "FOREIGN KEY (job_id) REFERENCES procrastinate_jobs(id) ON DELETE CASCADE"),
    ("procrastinate_periodic_defers", "FOREIGN KEY (job_id) REFERENCES procrastinate_jobs(id)"),
]
STATUSES = ["todo", "doing", "succeeded", "failed", "cancelled", "aborting", "aborted"]

ENTRIES = (
    "SELECT queue_name, task_name, priority, lock, queueing_lock, args - 'job_id',"
    " jsonb_typeof(args -> 'job_id'), status::text, scheduled_at, attempts, abort_requested, worker_id"
    " FROM procrastinate_jobs ORDER BY id"
)
EVENTS = (
    "SELECT j.args ->> 'job_id', e.type::text, e.at <= clock_timestamp()"
    " FROM procrastinate_events e JOIN procrastinate_jobs j ON j.id = e.job_id ORDER BY e.id"
)


def new_job(owner_id: str, **fields: Any) -> NewJob:
    return NewJob(
        **{
            "job_id": uuid7(),
            "owner_id": owner_id,
            "function": LANE,
            "interface": "i1",
            "input": b"{}",
            "digest": hashlib.sha256(b"{}").digest(),
            "cost": 1.0,
            "attempts": 2,
            "queue_s": 600.0,
            "total_s": 600.0,
            "most_outstanding": 100,
            "most_waiting": 100,
            **fields,
        }
    )


@pytest.fixture
def owner_id(database_url: str) -> str:
    statement = "INSERT INTO owner (id, name) VALUES (gen_random_uuid(), 'ann') RETURNING id::text"
    return query(database_url, statement)[0][0]


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Database]:
    async with await Database.open(url, application_name=NAME) as database:
        yield database


async def ask(url: str, statement: LiteralString) -> list[tuple[Any, ...]]:
    return await asyncio.to_thread(query, url, statement)


@pytest.mark.parametrize("relation", COLUMNS)
def test_columns_are_those_that_our_sql_knows(database_url: str, relation: str) -> None:
    found = query(
        database_url,
        "SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute"
        " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
        relation,
    )
    assert found == COLUMNS[relation]


def test_function_that_defers_is_the_one_that_our_sql_calls(database_url: str) -> None:
    found = query(
        database_url,
        "SELECT pg_get_function_arguments(oid), pg_get_function_result(oid) FROM pg_proc"
        " WHERE proname = 'procrastinate_defer_jobs_v1'",
    )
    assert found == DEFERRING


def test_triggers_and_references_of_entries_are_those_that_we_count_on(database_url: str) -> None:
    found = query(
        database_url,
        "SELECT tgname::text, pg_get_triggerdef(oid) FROM pg_trigger"
        " WHERE tgrelid = 'procrastinate_jobs'::regclass AND NOT tgisinternal",
    )
    assert {name: text.removeprefix(f"CREATE TRIGGER {name} ") for name, text in found} == TRIGGERS
    references = query(
        database_url,
        "SELECT conrelid::regclass::text, pg_get_constraintdef(oid) FROM pg_constraint"
        " WHERE confrelid = 'procrastinate_jobs'::regclass ORDER BY 1",
    )
    assert references == REFERENCES


def test_statuses_are_those_that_our_sql_names(database_url: str) -> None:
    labels = query(
        database_url,
        "SELECT enumlabel::text FROM pg_enum WHERE enumtypid = 'procrastinate_job_status'::regtype"
        " ORDER BY enumsortorder",
    )
    assert [label for (label,) in labels] == STATUSES


def test_ids_come_in_the_order_of_the_array(database_url: str, owner_id: str) -> None:
    """A job's entry is found by its place, so the wrong order would give jobs each other's entries."""

    async def scenario() -> None:
        async with opened(database_url) as database:
            await submission.submit(database, [new_job(owner_id) for _ in range(50)])

    asyncio.run(scenario())
    mixed = "SELECT count(*) FROM job j JOIN procrastinate_jobs e ON e.id = j.entry_id"
    assert query(database_url, mixed + " WHERE e.args ->> 'job_id' = j.id::text") == [(50,)]


def test_python_api_and_our_submit_make_the_same(database_url: str, owner_id: str) -> None:
    by_api, by_submit = uuid7(), uuid7()

    async def scenario() -> list[tuple[str, str]]:
        app = make_app(PsycopgConnector(conninfo=database_url, min_size=1, max_size=1))
        with psycopg.connect(database_url, autocommit=True) as ear:
            ear.execute(f'LISTEN "{queue.channel(LANE)}"')  # type: ignore[arg-type]
            ear.execute("LISTEN procrastinate_any_queue_v1")
            async with app.open_async():
                entry = app.configure_task(queue.TASK, queue=LANE)
                await entry.defer_async(**queue.entry_arguments(by_api))
            async with opened(database_url) as database:
                receipts = await submission.submit(database, [new_job(owner_id, job_id=by_submit)])
                assert [receipt.outcome for receipt in receipts] == ["accepted"]
            return [(heard.channel, heard.payload) for heard in ear.notifies(timeout=5, stop_after=4)]

    heard = asyncio.run(scenario())
    entries = query(database_url, ENTRIES)
    assert len(entries) == 2
    assert entries[0] == entries[1]
    assert query(database_url, EVENTS) == [(by_api, "deferred", True), (by_submit, "deferred", True)]
    ids = query(database_url, "SELECT id FROM procrastinate_jobs ORDER BY id")
    assert heard == [
        (channel, f'{{"type" : "job_inserted", "job_id" : {entry_id}}}')
        for (entry_id,) in ids
        for channel in ("procrastinate_queue_v1#fish", "procrastinate_any_queue_v1")
    ]


def test_claim_leaves_nothing_of_an_entry(database_url: str, owner_id: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            await submission.submit(database, [new_job(owner_id)])
            lanes = [execution.Lane(LANE, "i1", 0)]
            claimed = await execution.claim(
                database, session_id=uuid7(), claim_id=uuid7(), lanes=lanes, free=[1], lease_s=30
            )
            assert len(claimed) == 1

    asyncio.run(scenario())
    assert query(database_url, ENTRIES) == query(database_url, EVENTS) == []


def test_worker_never_takes_entries(
    database_url: str, owner_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "POLL_EVERY", 0.05)

    async def scenario() -> None:
        done = asyncio.Queue[None]()

        async def chore() -> None:
            await done.put(None)

        async with opened(database_url) as database:
            await submission.submit(database, [new_job(owner_id) for _ in range(3)])
            before = await ask(database_url, "SELECT * FROM procrastinate_jobs ORDER BY id")
            working = asyncio.create_task(Worker(database, [Chore("chore", "* * * * * *", chore)]).run())
            async with asyncio.timeout(20):
                for _ in range(3):
                    await done.get()
            working.cancel()
            await asyncio.wait({working})
        entries = "SELECT * FROM procrastinate_jobs WHERE task_name = 'headrace.run' ORDER BY id"
        assert await ask(database_url, entries) == before

    asyncio.run(scenario())


def test_what_a_foreign_worker_takes_is_queued_again(database_url: str, owner_id: str) -> None:
    """A Worker of Procrastinate that names no queue takes everything, and can't do anything with it."""

    async def scenario() -> None:
        app = make_app(PsycopgConnector(conninfo=database_url, min_size=1, max_size=2))
        async with opened(database_url) as database, app.open_async():
            await submission.submit(database, [new_job(owner_id)])
            await ProcrastinateWorker(app, wait=False, install_signal_handlers=False).run()
            assert [row[7] for row in await ask(database_url, ENTRIES)] == ["failed"]
            swept = await settling.sweep(database)
            assert (swept.entries_deleted, swept.entries_made) == (0, 1)
        assert [row[7] for row in await ask(database_url, ENTRIES)] == ["todo"]

    asyncio.run(scenario())


def test_queue_of_the_chores_is_no_lane() -> None:
    assert LANE_NAME.fullmatch(LANE)
    assert LANE_NAME.fullmatch(queue.MAINTENANCE_QUEUE) is None
