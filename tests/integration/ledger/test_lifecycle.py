"""The transitions of `docs/job_lifecycle.md`: each of them happens, and no other can."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from itertools import product

import psycopg
from harness.documents import ROOT, table
from harness.ledger import (
    INTERFACE,
    LANE,
    OFTEN_RETRIED,
    Runner,
    elapse,
    make_owner,
    new_call,
    new_job,
    opened,
)
from harness.ledger_commands import COMMANDS
from harness.ledger_states import STATES, Placed, forget, placed, placed_again

from headrace.database import Database
from headrace.domain import FINAL, TRANSITIONS
from headrace.ids import uuid7
from headrace.ledger import reading
from headrace.ledger.batches import NewBatch, Part, submit_batch
from headrace.ledger.submission import submit

PAGE = "docs/job_lifecycle.md"
_, *ROWS = table(PAGE, "from")
MOVES, *MOVES_ROWS = table(PAGE, "given")

_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_WORDS = (
    (rf"(job|batch) {_UUID}", r"\1 ID"),
    (rf"runner {_UUID}", "runner RUNNER"),
    (r"lane \S+ to \S+", "lane LANE to LANE"),
    (r"\([a-z-]+\)$", "(CATEGORY)"),
)
_LAST_START = {"attempt": 4, "charged": 1, "attempts": 2}
"""Of a new job: whatever its next start comes to is charged, and is the last."""

Told = set[tuple[str, str, str, str]]
"""From where, to where, by which SQL function, and why."""


def listed(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell) or [cell]


def test_the_page_has_the_transitions_of_the_domain() -> None:
    in_table = {(None if was == "-" else was.strip("`"), is_now.strip("`")) for was, is_now, *_ in ROWS}
    assert in_table == TRANSITIONS
    picture = (ROOT / PAGE).read_text().split("```")[1]
    drawn = {
        (None if was == "[*]" else was, is_now)
        for was, is_now in re.findall(r"^    (\S+) --> ([^\s:]+)", picture, re.MULTILINE)
    }
    assert drawn == TRANSITIONS | {(state, "[*]") for state in FINAL}


def test_the_database_refuses_every_other_transition(database_url: str) -> None:
    async def scenario() -> None:
        allowed: set[tuple[str | None, str]] = set()
        refusals: set[str | None] = set()
        async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
            for was, is_now in product([None, *STATES, "lost"], [*STATES, "lost"]):
                try:
                    await connection.execute(
                        "INSERT INTO job_event"
                        " (job_id, sequence, at, from_state, state, attempt, actor, reason)"
                        " VALUES (gen_random_uuid(), 1, clock_timestamp(), %s, %s, 0, 'test', 'test')",
                        [was, is_now],
                    )
                except psycopg.errors.CheckViolation as error:
                    refusals.add(error.diag.constraint_name)
                else:
                    allowed.add((was, is_now))
        assert (allowed, refusals) == (TRANSITIONS, {"job_event_transition"})

    asyncio.run(scenario())


async def told(database: Database, job_id: str, function: str, after: int = 0) -> Told:
    """What a job's events behind a number say."""
    found: Told = set()
    for event in await reading.events(database, job_id, after):
        reason = event.reason
        for pattern, word in _WORDS:
            reason = re.sub(pattern, word, reason)
        found.add((event.from_state or "-", event.state, function, reason))
    return found


async def given(database: Database, made: Placed, name: str) -> Told:
    """What the events say of a command that is given to a job."""
    (*_, newest) = await reading.events(database, made.job.job_id)
    await COMMANDS[name].give(database, made)
    found = await told(database, made.job.job_id, COMMANDS[name].function, newest.sequence)
    await forget(database)
    return found


async def births(database: Database, url: str) -> Told:
    owner = await make_owner(database)
    failed = await placed(database, "failed")
    jobs = [
        new_job(owner),
        new_job(owner, attempt=1, charged=1),
        new_job(owner, attempt=1, charged=1, alone=True),
        new_job(failed.job.owner_id, retry_of=failed.job.job_id),
    ]
    await submit(database, jobs)
    found: Told = set()
    for job in jobs:
        found |= await told(database, job.job_id, "submit_v3")
    calls = [new_call(owner), new_call(owner, attempt=2, alone=True)]
    await Runner(database).hand_over(*calls)
    for call in calls:
        found |= await told(database, call.job_id, "handover_v1")
    member = uuid7()

    async def parts() -> AsyncIterator[Part]:
        yield Part([member], [b"{}"], [bytes(32)])

    async with opened(url) as admissions:
        batch = NewBatch(
            batch_id=uuid7(),
            owner_id=owner,
            function=LANE,
            interface=INTERFACE,
            digest=bytes(32),
            costs=[1.0],
            size=2,
            attempts=2,
            queue_s=60.0,
            total_s=600.0,
            most_outstanding=100,
            most_waiting=100,
            key_ttl_s=60.0,
        )
        await submit_batch(database, admissions, batch, parts())
    return found | await told(database, member, "fill_batch_v1")


async def moves(database: Database) -> Told:
    """All that the page's other table says to be moved."""
    found: Told = set()
    for name, *cells in MOVES_ROWS:
        for head, cell in zip(MOVES[1:], cells, strict=True):
            if cell.startswith("→ `") or cell == "moved":
                state = next(state for state in STATES if f"`{state}`" in head)
                made = await (placed_again(database) if "again" in head else placed(database, state))
                found |= await given(database, made, name)
    return found


async def last_starts(database: Database) -> Told:
    """Starts that come to nothing where no other one is left, or no time for it."""
    found: Told = set()
    for name, before, at_last in (
        ("finish: `retry`", 95, True),
        ("finish: `lost`", 95, True),
        ("reap its runner", 95, True),
        ("settle, past a lease", 64, True),
        ("finish: `displaced`", 100, True),
        ("finish: `returned`", 100, True),
        ("renew, without it in the list", 100, True),
        ("finish: `succeeded`", 100, False),
    ):
        late = await placed(database, "running", **OFTEN_RETRIED)
        await elapse(database, before, late.job.job_id)
        found |= await given(database, late, name)
        if at_last:
            found |= await given(database, await placed(database, "running", **_LAST_START), name)
    return found


def test_every_transition_of_the_page_happens_and_nothing_else(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            found = await births(database, database_url)
            await forget(database)
            found |= await moves(database)
            found |= await last_starts(database)
        by_reason: set[tuple[str, str, str]] = set()
        by_function: set[tuple[str, str, str]] = set()
        for was, is_now, function, _, _, reason in ROWS:
            move = was.strip("`"), is_now.strip("`")
            by_reason |= {(*move, one) for one in listed(reason)}
            by_function |= {(*move, one) for one in listed(function)}
        assert {(was, is_now, reason) for was, is_now, _, reason in found} == by_reason
        assert {(was, is_now, function) for was, is_now, function, _ in found} == by_function

    asyncio.run(scenario())
