"""Calls that calls make, in the ledger: made once for all attempts, waited for, refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from harness.asking import Site, called, run, submitted
from harness.ledger import elapse, outcome, row, story
from harness.postgres import query

from gpu_runner.invoking.ledger import DEEPEST
from headrace.errors import DatabaseUnavailable
from headrace.ids import uuid7
from headrace.ledger import settling, submission

WAITED_FOR = "SELECT 1 FROM job WHERE %s = ANY (waiters::text[])"


def test_what_has_succeeded_is_not_done_again(database_url: str) -> None:
    async def scenario(site: Site) -> None:
        call = site.call()
        asking = site.ask(call)
        job = await site.claim()
        await site.runner.end(job, output=b"2")
        first = await site.told(asking)
        assert (first.output, first.child_id) == (b"2", job.job_id)

        again = await site.told(site.ask(call, attempt=2, number=5))
        assert (again.output, again.child_id, again.number) == (b"2", job.job_id, 5)
        assert query(database_url, "SELECT count(*) FROM job") == [(1,)]
        assert (await story(site.database, job.job_id))[0][2] == f"call:{call.job_id}:caller"

    run(database_url, scenario)


def test_what_still_runs_is_joined(database_url: str) -> None:
    async def scenario(site: Site) -> None:
        call = site.call()
        first = site.ask(call)
        job = await site.claim()
        second = site.ask(call, attempt=2)
        await site.runner.end(job, output=b"2")
        assert (await site.told(first)).output == (await site.told(second)).output == b"2"

    run(database_url, scenario)


def test_what_expired_for_an_earlier_attempt_is_done_again(database_url: str) -> None:
    async def scenario(site: Site) -> None:
        call = site.call()
        first = site.ask(call)
        async with asyncio.timeout(20):
            while not query(database_url, "SELECT 1 FROM job"):
                await asyncio.sleep(0.005)
        await elapse(site.database, 61)
        await settling.settle(site.database, "test")
        expired = await site.told(first)
        assert (expired.output, expired.category) == (None, "queue-deadline-exceeded")
        assert expired.is_passing

        second = site.ask(call, attempt=2)
        job = await site.claim()
        assert job.job_id != expired.child_id
        await site.runner.end(job, output=b"2")
        assert (await site.told(second)).output == b"2"

    run(database_url, scenario)


def test_what_failed_for_good_is_not_done_again(database_url: str) -> None:
    async def scenario(site: Site) -> None:
        call = site.call()
        first = site.ask(call)
        await site.runner.end(await site.claim(), "failed", category="invalid-input", message="No.")
        for told in (await site.told(first), await site.told(site.ask(call, attempt=2))):
            assert (told.category, told.message, told.is_passing) == ("invalid-input", "No.", False)
        assert query(database_url, "SELECT count(*) FROM job") == [(1,)]

    run(database_url, scenario)


def test_it_has_its_callers_deadline_owner_and_weight(database_url: str) -> None:
    async def scenario(site: Site) -> None:
        parent = (await submitted(site, weight=4.0)).job_id
        asking = site.ask(site.call(job_id=parent, left=20))
        job = await site.claim()
        made = await row(site.database, job.job_id)
        assert (made["owner_id"], made["weight"], made["request_id"]) == (site.owner, 4.0, "r")
        assert (made["deadline_at"] - made["created_at"]).total_seconds() <= 20
        assert made["queue_deadline_at"] <= made["deadline_at"]
        asking.cancel()

    run(database_url, scenario)


def test_a_chain_neither_closes_nor_grows_for_ever(database_url: str) -> None:
    async def scenario(site: Site) -> None:
        own = await site.told(site.ask(site.call(manifest=called.manifest)))
        assert (own.category, own.is_passing) == ("recursion", False)
        assert own.message.startswith("called -> called: ")

        chain = [f"f{number}" for number in range(DEEPEST - 1)]
        parent = (await submitted(site, actor=f"call:{uuid7()}:{'/'.join(chain)}")).job_id
        deep = await site.told(site.ask(site.call(job_id=parent)))
        assert deep.category == "too-deep"
        parent = (await submitted(site, actor=f"call:{uuid7()}:called")).job_id
        closed = await site.told(site.ask(site.call(job_id=parent)))
        assert closed.message.startswith("called -> caller -> called: ")
        assert query(database_url, "SELECT count(*) FROM job WHERE function = 'called'") == [(0,)]

    run(database_url, scenario)


def test_what_is_not_served_so_is_refused(database_url: str) -> None:
    async def scenario(site: Site) -> None:
        unknown = await site.told(site.ask(site.call(), function="unheard-of"))
        assert (unknown.category, unknown.is_passing) == ("unknown-function", False)
        other = await site.told(site.ask(site.call(), interface="older"))
        assert (other.category, other.is_passing) == ("unknown-interface", True)
        late = await site.told(site.ask(site.call(left=0)))
        assert late.category == "deadline-exceeded"
        large = await site.told(site.ask(site.call(), input=b" " * (2**20 + 1)))
        assert large.category == "payload-too-large"

    run(database_url, scenario)


def test_a_fifth_attempt_does_again_what_all_before_had_cancelled(database_url: str) -> None:
    async def scenario(site: Site) -> None:
        call = site.call()
        for attempt in range(1, 6):
            asking = site.ask(call, attempt=attempt)
            job = await site.claim()
            await site.ledger.cancel(job.job_id, call)
            await site.runner.end(job, "failed", category="cancelled")
            assert (await site.told(asking)).category == "job-cancelled"

        last = site.ask(call, attempt=6)
        await site.runner.end(await site.claim(), output=b"2")
        assert (await site.told(last)).output == b"2"
        assert query(database_url, "SELECT count(*) FROM job") == [(6,)]

    run(database_url, scenario)


def test_what_is_not_kept_any_longer_is_done_again(database_url: str) -> None:
    async def scenario(site: Site) -> None:
        call = site.call()
        first = site.ask(call)
        job = await site.claim()
        await site.runner.end(job, output=b"2")
        await site.told(first)
        query(database_url, "UPDATE job SET result_expires_at = now() - interval '1 second'")

        second = site.ask(call, attempt=2)
        once_more = await site.claim()
        assert once_more.job_id != job.job_id
        await site.runner.end(once_more, output=b"3")
        assert (await site.told(second)).output == b"3"

    run(database_url, scenario)


def test_an_own_result_that_is_gone_may_be_asked_for_again(database_url: str) -> None:
    async def scenario(site: Site) -> None:
        asking = site.ask(site.call())
        job = await site.claim()
        await site.runner.finish(outcome(job, output=b"2"), result_ttl_s=0)
        told = await site.told(asking)
        assert (told.category, told.is_passing) == ("result-expired", True)
        assert query(database_url, "SELECT count(*) FROM job") == [(1,)]

    run(database_url, scenario)


@pytest.mark.parametrize("is_from_before", [False, True])
def test_a_job_whose_receipt_was_lost_is_this_attempts(
    database_url: str, monkeypatch: pytest.MonkeyPatch, is_from_before: bool
) -> None:
    """Somebody cancels it: it is done again where an earlier attempt has made it."""

    async def scenario(site: Site) -> None:
        call = site.call()
        if is_from_before:
            before = site.ask(call)
            await site.claim()
            before.cancel()
        submit = submission.submit
        lost: list[object] = []

        async def lose_one(*given: Any) -> Any:
            receipts = await submit(*given)
            if not lost:
                lost.append(receipts)
                raise DatabaseUnavailable("the connection is lost")
            return receipts

        monkeypatch.setattr(submission, "submit", lose_one)
        asking = site.ask(call, attempt=2)
        if not is_from_before:
            await site.claim()
        async with asyncio.timeout(20):
            while not query(database_url, WAITED_FOR, site.session_id):
                await asyncio.sleep(0.005)
        ((job_id,),) = query(database_url, "SELECT id::text FROM job")
        await site.ledger.cancel(job_id, call)
        query(database_url, "UPDATE job SET lease_expires_at = now() - interval '1 hour', settle_at = now()")
        await settling.settle(site.database, "test")
        if is_from_before:
            await site.runner.end(await site.claim(), output=b"2")
            assert (await site.told(asking)).output == b"2"
        else:
            assert (await site.told(asking)).category == "job-cancelled"
        assert len(lost) == 1

    run(database_url, scenario)
