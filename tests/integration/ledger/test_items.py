"""What jobs yield while they run: fenced, in order, written once, read in pages, gone with the attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, LiteralString

import pytest
from harness.ledger import Runner, check_ledger, elapse, make_owner, opened, submit_many, submit_one
from harness.ledger_states import forget
from harness.listening import hearing

from headrace.database import Database, queries
from headrace.ids import uuid7
from headrace.ledger import cancelling, execution, items, reading, retention
from headrace.ledger.execution import Claimed, Report
from headrace.ledger.items import Group, Items
from headrace.ledger.reading import JobEvent

_COUNT = "SELECT count(*)::integer AS count FROM job_items"
WRITING: LiteralString = (
    "SELECT * FROM add_items_v1(ARRAY[%(job_id)s]::uuid[], ARRAY[%(token)s]::uuid[],"
    " '{1}', '{8}', '{1}', '{9}')"
)
_LOCK = "SELECT id FROM job WHERE id = %s::uuid FOR UPDATE"


def run(url: str, scenario: Callable[[Database, Runner], Awaitable[None]]) -> None:
    async def opened_first() -> None:
        async with opened(url) as database, asyncio.timeout(30):
            await scenario(database, Runner(database))
            await check_ledger(database)

    asyncio.run(opened_first())


async def started(database: Database, runner: Runner, **changes: Any) -> Claimed:
    await submit_one(database, await make_owner(database), **changes)
    return await runner.claim_one()


def a_group(job: Claimed, before: int, *given: bytes) -> Group:
    return Group(job.job_id, job.token, job.attempt, before, given)


async def told(database: Database, job_id: str, after: int = 0, **limits: int) -> list[tuple[int, Any]]:
    """All that a reader sees: the state of each step, and each item; page by page."""
    found: list[tuple[int, Any]] = []
    while True:
        parts, is_full = await items.story(database, job_id, after, **limits)
        for part in parts:
            if isinstance(part, Items):
                found += part.after(after)
            else:
                found.append((part.sequence, part.state))
            after = part.sequence
        if not is_full:
            return found


async def pages(database: Database, statement: LiteralString, parameters: dict[str, Any]) -> int:
    """How many a statement touches."""
    (explained,) = await database.fetch(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", parameters)
    plan = explained["QUERY PLAN"][0]["Plan"]
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


async def count(database: Database) -> int:
    return (await database.fetch(_COUNT))[0]["count"]


def test_items_have_their_numbers_among_the_events(database_url: str) -> None:
    async def scenario(database: Database, runner: Runner) -> None:
        job = await started(database, runner)
        assert await runner.add_items(job, 0, b"1", b"2") == "written"
        await execution.progress(database, [Report(job.job_id, job.token, job.attempt, 0.5, "")])  # takes 5
        assert await runner.add_items(job, 2, b"3") == "written"
        await runner.end(job)
        all_of_it = [
            (1, "queued"), (2, "running"), (3, b"1"), (4, b"2"), (6, b"3"), (7, "succeeded"),
        ]  # fmt: skip
        assert await told(database, job.job_id) == all_of_it
        for after in range(8):
            assert await told(database, job.job_id, after) == [one for one in all_of_it if one[0] > after]

    run(database_url, scenario)


def test_only_the_present_start_is_heard(database_url: str) -> None:
    async def scenario(database: Database, runner: Runner) -> None:
        job = await started(database, runner)
        (other,) = await submit_many(database, job.owner_id, 1)
        others = await runner.claim_one()
        forged = [
            Group(job.job_id, others.token, 1, 0, [b"1"]),
            Group(job.job_id, job.token, 2, 0, [b"1"]),
            Group(other, job.token, 1, 0, [b"1"]),
        ]
        for group in forged:
            assert await items.add(database, [group]) == {group.job_id: "lost"}
        assert await runner.end(job, "returned") == "queued"
        assert await runner.add_items(job, 0, b"1") == "lost"
        again = await runner.claim_one()
        assert again.attempt == 2
        assert await runner.add_items(job, 0, b"1") == "lost"
        await cancelling.cancel(database, other, job.owner_id, "key:k")
        assert await runner.add_items(others, 0, b"1") == "lost"
        await runner.end(again)
        assert await runner.add_items(again, 0, b"1") == "lost"
        assert await count(database) == 0
        await forget(database)
        assert await runner.add_items(again, 0, b"1") == "lost"

    run(database_url, scenario)


def test_what_is_sent_again_is_written_once(database_url: str) -> None:
    """The reply to a write may be lost, and more may have come meanwhile."""

    async def scenario(database: Database, runner: Runner) -> None:
        job = await started(database, runner)
        for before, given in ((0, [b"1", b"2"]), (0, [b"1", b"2"]), (1, [b"2"]), (0, [b"1", b"2", b"3"])):
            assert await runner.add_items(job, before, *given) == "written"
        assert await told(database, job.job_id, 2) == [(3, b"1"), (4, b"2"), (5, b"3")]
        assert await runner.add_items(job, 4, b"5") == "lost"  # the fourth is missing
        assert await count(database) == 2

    run(database_url, scenario)


def test_many_jobs_are_written_at_once_and_a_locked_one_waits(database_url: str) -> None:
    async def scenario(database: Database, runner: Runner) -> None:
        owner = await make_owner(database)
        await submit_many(database, owner, 3)
        one, other, locked = await runner.claim(3)
        groups = [
            a_group(one, 0, b"1"), a_group(locked, 0, b"2"), a_group(other, 0, b"3", b"4"),
        ]  # fmt: skip
        async with database.transaction() as transaction:
            await transaction.fetch(_LOCK, [locked.job_id])
            verdicts = await items.add(database, groups)
        assert verdicts == {one.job_id: "written", other.job_id: "written", locked.job_id: "busy"}
        assert await items.add(database, groups) == dict.fromkeys(verdicts, "written")
        seen = [await told(database, job.job_id, 2) for job in (one, locked, other)]
        assert seen == [[(3, b"1")], [(3, b"2")], [(3, b"3"), (4, b"4")]]

    run(database_url, scenario)


def test_another_start_begins_anew(database_url: str) -> None:
    """Whoever reads sees none while the job waits, and then those of the new start only."""

    async def scenario(database: Database, runner: Runner) -> None:
        job = await started(database, runner)
        await runner.add_items(job, 0, b"1", b"2", b"3")
        assert (await told(database, job.job_id))[-1] == (5, b"3")
        await runner.end(job, "returned")
        steps = [(1, "queued"), (2, "running"), (6, "queued")]
        assert await told(database, job.job_id) == steps
        again = await runner.claim_one()
        steps.append((7, "running"))
        assert await told(database, job.job_id) == steps
        await runner.add_items(again, 0, b"4")
        assert await told(database, job.job_id) == [*steps, (8, b"4")]
        assert await told(database, job.job_id, 4) == [*steps[2:], (8, b"4")]
        assert await count(database) == 1

    run(database_url, scenario)


def test_what_a_failed_job_has_yielded_stays_until_it_is_forgotten(database_url: str) -> None:
    async def scenario(database: Database, runner: Runner) -> None:
        job = await started(database, runner)
        await runner.add_items(job, 0, b"1")
        assert await runner.end(job, "failed") == "failed"
        assert await told(database, job.job_id, 2) == [(3, b"1"), (4, "failed")]
        await elapse(database, 5000)
        await retention.prune_results(database, 9)
        assert await count(database) == 1
        assert await retention.prune_jobs(database, 4999, 9) == 1
        assert await count(database) == 0

    run(database_url, scenario)


def test_items_that_a_gateway_of_the_last_release_leaves_behind_are_swept_up(database_url: str) -> None:
    """Its `prune_jobs_v1` knows nothing of them."""
    hour = 3600.0

    async def scenario(database: Database, runner: Runner) -> None:
        kept = await started(database, runner)
        await runner.add_items(kept, 0, b"1")
        orphans = [made(2 * hour) for _ in range(3)]
        young = made(hour / 2)
        for group in range(1, 4):
            for job_id in (*orphans, young):
                await database.execute(
                    "INSERT INTO job_items (job_id, sequence, attempt, number, bytes, items)"
                    " VALUES (%s::uuid, %s, 1, %s, 1, '{1}')",
                    [job_id, group, group],
                )
        assert await retention.prune_items(database, 3 * hour, 9) == 0
        assert [await retention.prune_items(database, hour, 2) for _ in range(3)] == [2, 1, 0]
        assert await count(database) == 1 + 3
        await asyncio.sleep(0.002)  # ids are of milliseconds
        assert await retention.prune_items(database, 0, 9) == 1
        assert await told(database, kept.job_id, 2) == [(3, b"1")]

    run(database_url, scenario)


def made(ago_s: float) -> str:
    """The id of a job that was made so long ago."""
    now = uuid7()
    milliseconds = int(now.replace("-", "")[:12], 16) - int(ago_s * 1000)
    return f"{milliseconds:012x}{now.replace('-', '')[12:]}"


def test_items_go_with_the_result(database_url: str) -> None:
    async def scenario(database: Database, runner: Runner) -> None:
        job, kept = await started(database, runner), await started(database, runner)
        for one in (job, kept):
            await runner.add_items(one, 0, b"1")
            await runner.end(one)
        await elapse(database, 3601, job.job_id)
        assert await told(database, job.job_id, 2) == [(4, "succeeded")]  # though nobody has pruned it
        assert await retention.prune_results(database, 9) == 1
        assert await count(database) == 1
        assert await told(database, kept.job_id, 2) == [(3, b"1"), (4, "succeeded")]

    run(database_url, scenario)


@pytest.mark.parametrize("limits", [{"most_bytes": 1}, {"most_bytes": 12}, {"most_groups": 1}, {}])
def test_pages_leave_nothing_out(database_url: str, limits: dict[str, int]) -> None:
    """Not even where steps come after items that are still to be read."""

    async def scenario(database: Database, runner: Runner) -> None:
        job = await started(database, runner)
        for before in range(0, 12, 2):
            await runner.add_items(job, before, b"%d" % before, b"%5d" % (before + 1))
        await runner.end(job)
        found = await told(database, job.job_id, 0, **limits)
        assert [number for number, _ in found] == list(range(1, 16))
        first, is_full = await items.story(database, job.job_id, **limits)
        assert is_full == bool(limits)
        assert not limits or not any(isinstance(part, JobEvent) and part.sequence > 2 for part in first)

    run(database_url, scenario)


def test_a_page_is_bounded_and_a_large_item_is_a_page_of_its_own(database_url: str) -> None:
    async def scenario(database: Database, runner: Runner) -> None:
        job = await started(database, runner)
        large = b'"%b"' % (b"x" * 2 * items.PAGE_BYTES)
        await runner.add_items(job, 0, b"1")
        await runner.add_items(job, 1, large)
        for number in range(2, 20):
            await runner.add_items(job, number, b'"%b"' % (b"y" * (items.PAGE_BYTES // 8)))
        pages, after = [], 2
        while True:
            parts, is_full = await items.story(database, job.job_id, after)
            pages.append([len(item) for part in parts if isinstance(part, Items) for item in part.items])
            if not is_full:
                break
            after = parts[-1].sequence
        assert [len(page) for page in pages] == [2, 8, 8, 2]
        assert sum(map(len, pages)) == 20

    run(database_url, scenario)


@pytest.mark.parametrize("others", [0, 2000])
def test_neither_writing_nor_reading_gets_dearer_with_what_is_there(database_url: str, others: int) -> None:
    """In pages: time would say more about the machine."""

    async def scenario(database: Database, runner: Runner) -> None:
        job = await started(database, runner)
        for number in range(8):  # more often than Postgres tries before it keeps a plan
            await runner.add_items(job, number, b"%d" % number)
            await items.story(database, job.job_id, 8)
        await database.execute(
            "INSERT INTO job_items (job_id, sequence, attempt, number, bytes, items)"
            " SELECT gen_random_uuid(), n, 1, n, 1, '{1}' FROM generate_series(1, %s) AS n",
            [others],
        )
        one = {"job_id": job.job_id, "token": job.token}
        for statement, parameters in (
            (WRITING, one),
            (queries("items")["story"], {**one, "after": 8, "most_bytes": 99, "most_groups": 9}),
        ):
            assert await pages(database, statement, parameters) < 100
        await database.execute("DELETE FROM job_items i WHERE i.job_id <> %s::uuid", [job.job_id])

    run(database_url, scenario)


def test_followers_are_told_once_for_each_write(database_url: str) -> None:
    async def scenario(database: Database, runner: Runner) -> None:
        job = await started(database, runner)
        gateway = "a" * 32
        await reading.watch(database, job.job_id, gateway, follow=True)
        async with hearing(database_url, f"headrace_jobs_{gateway}") as heard:
            await runner.add_items(job, 0, *(b"%d" % number for number in range(50)))
            await runner.add_items(job, 0, b"0")  # nothing new
            await database.execute("SELECT pg_notify(%s, 'that was all')", [f"headrace_jobs_{gateway}"])
            assert [await heard.get() for _ in range(2)] == [job.job_id, "that was all"]
        assert (await reading.standings(database, [job.job_id]))[job.job_id] == ("running", 52)

    run(database_url, scenario)
