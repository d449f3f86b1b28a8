"""How long a job is this runner's, and what happens when it isn't any more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from job_bench import JobBench, a_job, job_bench

from gpu_runner.frames import Failed
from gpu_runner.jobs import leases as module
from gpu_runner.jobs.leases import ClaimIds
from headrace.errors import DatabaseUnavailable
from headrace.ledger.execution import Claimed, Held

CLAIMING = 8


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "boot_time", lambda: made.now)
    monkeypatch.setattr("gpu_runner.jobs.feed.boot_time", lambda: made.now)
    return made


class Clock:
    now = 1000.0


def run(scenario: Callable[[JobBench], Awaitable[None]], *works: str, **options: Any) -> None:
    async def limited() -> None:
        async with asyncio.timeout(20), job_bench("feed", "finish", *works, **options) as bench:
            await scenario(bench)

    asyncio.run(limited())


async def running(bench: JobBench, function: str = "many") -> Claimed:
    job = a_job(function)
    bench.submit(job)
    await bench.started(job)
    return job


def obey(bench: JobBench, job: Claimed) -> None:
    """The function does as it is told."""
    bench.executors[0].say(Failed(job.job_id, "stopped", "The call was stopped.", 0.1))


def test_a_renewal_lists_all_that_is_held_until_its_end_is_confirmed() -> None:
    async def scenario(bench: JobBench) -> None:
        (executor,) = bench.executors
        one, other = await running(bench), await running(bench)
        bench.ledger.open["finish"].clear()
        executor.finish(one.job_id)
        await bench.settled()
        await bench.leases.renew()
        held, claiming = bench.ledger.renewals[-1]
        assert held == [
            Held(one.job_id, one.token, one.attempt),
            Held(other.job_id, other.token, other.attempt),
        ]
        assert len(claiming) == CLAIMING
        bench.ledger.open["finish"].set()
        await bench.settled()
        await bench.leases.renew()
        assert bench.ledger.renewals[-1][0] == [Held(other.job_id, other.token, other.attempt)]
        executor.finish(other.job_id)

    run(scenario)


def test_what_is_lost_is_stopped_and_what_comes_of_it_discarded(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(bench: JobBench) -> None:
        (executor,) = bench.executors
        job = await running(bench)
        bench.ledger.lost = [job.job_id]
        await bench.leases.renew()
        await bench.leases.renew()
        assert executor.stops == [job.job_id]
        assert bench.held.named() == []
        executor.finish(job.job_id)
        await bench.settled()
        assert bench.ledger.batches == []
        assert caplog.text.count("is not held any more") == 1
        assert bench.count("headrace_runner_jobs_fenced_total", function="many") == 1

    run(scenario)


def test_of_what_has_ended_the_answer_to_its_outcome_decides() -> None:
    """Its end may have been recorded before the renewal looked."""

    async def scenario(bench: JobBench) -> None:
        (executor,) = bench.executors
        job = await running(bench)
        bench.ledger.open["finish"].clear()
        executor.finish(job.job_id)
        bench.ledger.lost = [job.job_id]
        await bench.leases.renew()
        assert len(bench.held.named()) == 1
        bench.ledger.open["finish"].set()
        await bench.settled()
        assert bench.ledger.outcomes[job.job_id].kind == "succeeded"
        assert bench.count("headrace_runner_jobs_fenced_total", function="many") == 0

    run(scenario)


def test_a_cancel_that_a_renewal_tells_of_stops_the_job_once() -> None:
    async def scenario(bench: JobBench) -> None:
        (executor,) = bench.executors
        job = await running(bench)
        bench.ledger.cancelled = [job.job_id]
        await bench.leases.renew()
        await bench.leases.renew()
        assert executor.stops == [job.job_id]
        obey(bench, job)
        await bench.settled()
        outcome = bench.ledger.outcomes[job.job_id]
        assert (outcome.kind, outcome.category) == ("failed", "cancelled")

    run(scenario)


def test_a_job_that_is_given_again_replaces_its_earlier_start() -> None:
    async def scenario(bench: JobBench) -> None:
        (executor,) = bench.executors
        first = await running(bench)
        again = a_job("many", job_id=first.job_id, attempt=2)
        bench.submit(again)
        await bench.settled()
        again = a_job("many", job_id=first.job_id, attempt=3)
        bench.submit(again)
        await bench.settled()
        assert executor.runs == [first.job_id]  # never two at once
        assert executor.stops == [first.job_id]
        assert bench.count("headrace_runner_jobs_fenced_total", function="many") == 2
        assert [held for held, _ in bench.held.named()] == [Held(again.job_id, again.token, again.attempt)]
        executor.finish(first.job_id)  # too late to be worth anything
        await bench.settled()
        assert bench.ledger.batches == []
        assert [frame.attempt for frame in executor.sent if hasattr(frame, "soft_s")] == [1, 3]
        executor.finish(again.job_id)
        await bench.settled()
        assert bench.ledger.outcomes[again.job_id].token == again.token

    run(scenario)


def test_without_renewals_jobs_are_stopped_before_the_lease_ends_and_then_killed(clock: Clock) -> None:
    async def scenario(bench: JobBench) -> None:
        (executor,) = bench.executors
        bench.ledger.trouble["renew"] = lambda _: DatabaseUnavailable("away")
        obedient, deaf = await running(bench), await running(bench)
        call = bench.gateway.send("together")
        began = clock.now
        clock.now = began + 0.79  # a fifth of so short a lease isn't relied on
        await asyncio.sleep(0.06)  # the guard has looked
        assert executor.stops == []
        clock.now = began + 0.81
        await bench.ledger.until(lambda: executor.stops)
        assert executor.stops == [obedient.job_id, deaf.job_id]
        obey(bench, obedient)
        clock.now = began + 0.94
        await asyncio.sleep(0.06)
        assert executor.is_ready
        clock.now = began + 0.96
        await bench.ledger.until(lambda: not executor.is_ready)
        executor.lose()
        await bench.settled()
        for job in (obedient, deaf):
            assert (
                bench.ledger.outcomes[job.job_id].kind == "returned"
            )  # whether it still may be is decided there
        assert bench.told(call).charged is False

    run(scenario, "renew", "guard", lease_s=1.0)


def test_a_lease_is_relied_on_from_before_the_renewal_was_sent(clock: Clock) -> None:
    async def scenario(bench: JobBench) -> None:
        job = await running(bench)
        ((_, held),) = bench.held.named()
        assert held.lease_until == 1000 + 30 - 2  # from the claim
        clock.now = 1010.0
        bench.ledger.open["renew"].clear()
        renewing = asyncio.create_task(bench.leases.renew())
        await bench.settled()
        clock.now = 1017.0
        bench.ledger.open["renew"].set()
        await renewing
        assert held.lease_until == 1010 + 30 - 2
        bench.executors[0].finish(job.job_id)

    run(scenario)


def test_a_result_that_comes_in_time_is_recorded_whatever_the_lease(clock: Clock) -> None:
    async def scenario(bench: JobBench) -> None:
        (executor,) = bench.executors
        job = await running(bench)
        clock.now += 0.9
        await bench.ledger.until(lambda: executor.stops)
        executor.finish(job.job_id)
        await bench.settled()
        assert bench.ledger.outcomes[job.job_id].kind == "succeeded"

    run(scenario, "guard", lease_s=1.0)


def test_renewals_go_on_through_trouble() -> None:
    async def scenario(bench: JobBench) -> None:
        bench.ledger.trouble["renew"] = lambda _: DatabaseUnavailable("away")
        await bench.ledger.until(lambda: len(bench.ledger.renewals) > 2)
        bench.ledger.trouble.clear()
        before = len(bench.ledger.renewals)
        await bench.ledger.until(lambda: len(bench.ledger.renewals) > before + 1)

    run(scenario, "renew", lease_s=0.12)


def test_a_renewal_can_be_hurried() -> None:
    async def scenario(bench: JobBench) -> None:
        assert len(bench.ledger.renewals) == 1
        bench.leases.hurry()
        await bench.settled()
        assert len(bench.ledger.renewals) == 2

    run(scenario, "renew", lease_s=3600.0)


def test_renewals_alone_show_life_while_the_lock_is_not_held() -> None:
    """Maintenance takes a runner for lost after a second without either."""

    async def scenario(bench: JobBench) -> None:
        renewals = bench.ledger.renewals
        began = asyncio.get_running_loop().time()
        bench.leases.seen(False)
        await bench.ledger.until(lambda: len(renewals) >= 4)
        assert asyncio.get_running_loop().time() - began < 30 / 6  # two would take so long otherwise
        bench.leases.seen(True)
        sent = len(renewals)
        await bench.ledger.until(lambda: len(renewals) > sent)
        await asyncio.sleep(1)
        assert len(renewals) == sent + 1

    run(scenario, "renew")


def test_a_claim_begins_under_a_name_that_the_renewal_on_its_way_lists() -> None:
    async def scenario() -> None:
        claims = ClaimIds()
        first = await claims.take()
        with claims.listed() as listed:
            assert first in listed
            for _ in range(CLAIMING):
                name = await claims.take()
                assert name in listed
                claims.done(name)
            late = asyncio.create_task(claims.take())
            await asyncio.sleep(0)
            assert not late.done()
        name = await late
        assert name not in listed
        with claims.listed() as listed:
            assert {first, name} <= set(listed)
        claims.done(first)
        claims.done(name)
        with claims.listed() as listed:
            assert not {first, name} & set(listed)

    asyncio.run(scenario())


def test_a_claim_that_failed_is_no_longer_named() -> None:
    """What it may have brought is to be given back."""

    async def scenario(bench: JobBench) -> None:
        bench.ledger.trouble["claim"] = lambda _: DatabaseUnavailable("away")
        bench.submit(a_job())
        await bench.settled()
        await bench.leases.renew()
        claimed = {claim_id for claim_id, _, _ in bench.ledger.claims}
        assert claimed
        assert not claimed & set(bench.ledger.renewals[-1][1])

    run(scenario)


def test_a_job_whose_row_is_locked_is_neither_renewed_nor_lost(clock: Clock) -> None:
    async def scenario(bench: JobBench) -> None:
        busy, free = await running(bench), await running(bench)
        held = {name.job_id: job for name, job in bench.held.named()}
        clock.now = 1010.0
        bench.ledger.busy = [busy.job_id]
        await bench.leases.renew()
        assert held[busy.job_id].lease_until == 1000 + 30 - 2
        assert held[free.job_id].lease_until == 1010 + 30 - 2
        assert bench.executors[0].stops == []
        bench.ledger.busy = []
        await bench.leases.renew()
        assert held[busy.job_id].lease_until == 1010 + 30 - 2
        for job in (busy, free):
            bench.executors[0].finish(job.job_id)

    run(scenario)


def test_a_start_whose_outcome_nobody_wants_is_fenced_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(bench: JobBench) -> None:
        (executor,) = bench.executors
        first = await running(bench)
        bench.ledger.open["finish"].clear()
        executor.finish(first.job_id)
        await bench.settled()  # its outcome is on its way
        again = a_job("many", job_id=first.job_id, attempt=2)
        bench.submit(again)
        await bench.settled()
        bench.ledger.fenced = {first.job_id}
        bench.ledger.open["finish"].set()
        await bench.settled()
        assert bench.count("headrace_runner_jobs_fenced_total", function="many") == 1
        assert caplog.text.count("is not held any more") == 1
        assert [held for held, _ in bench.held.named()] == [Held(again.job_id, again.token, again.attempt)]
        bench.ledger.fenced = set()
        executor.finish(again.job_id)

    run(scenario)


def test_a_job_that_is_lost_is_not_waited_for() -> None:
    async def scenario(bench: JobBench) -> None:
        job = await running(bench)
        ending = asyncio.create_task(bench.held.all_ended())
        await bench.settled()
        assert not ending.done()
        bench.ledger.lost = [job.job_id]
        await bench.leases.renew()
        await ending
        obey(bench, job)

    run(scenario)
