"""What jobs yield on its way into the ledger: in groups, before their outcomes, and never too much of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import chain

import pytest
from bench import MODULES
from job_bench import JobBench, a_job, job_bench

from gpu_runner.frames import CREDIT_BYTES, Credit, Run, Streamed
from gpu_runner.jobs import streaming as module
from gpu_runner.jobs.unwritten import CREDIT, Unwritten
from headrace.errors import DatabaseError, DatabaseUnavailable
from headrace.ledger.execution import Claimed
from headrace.ledger.items import Group

AWAY = DatabaseUnavailable("away")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVERY_S", 0.02)
    monkeypatch.setattr(module, "_SHORTEST_PAUSE_S", 0.001)


def run(scenario: Callable[[JobBench], Awaitable[None]]) -> None:
    async def limited() -> None:
        modules = (*MODULES, "yielding_functions")
        async with asyncio.timeout(20), job_bench("feed", "finish", "stream", modules=modules) as bench:
            await scenario(bench)

    asyncio.run(limited())


async def running(bench: JobBench, number: int = 1) -> list[Claimed]:
    jobs = [a_job("letters") for _ in range(number)]
    bench.submit(*jobs)
    await bench.ledger.until(lambda: len(bench.starts()) == number)
    return jobs


def say(bench: JobBench, job: Claimed, first: int, *items: bytes) -> None:
    for number, item in enumerate(items, first):
        bench.executors[0].say(Streamed(job.job_id, number, item))


def written(bench: JobBench, job: Claimed) -> list[tuple[int, list[bytes]]]:
    """Each group of a job: what came before it, and its items."""
    groups = chain.from_iterable(bench.ledger.groups)
    return [(group.before, list(group.items)) for group in groups if group.job_id == job.job_id]


def granted(bench: JobBench, job: Claimed) -> int:
    frames = [frame for frame in bench.executors[0].sent if isinstance(frame, Credit)]
    return sum(frame.items for frame in frames if frame.job_id == job.job_id)


def test_only_jobs_of_functions_that_yield_are_given_credit() -> None:
    async def scenario(bench: JobBench) -> None:
        await running(bench)
        plain = a_job("together")
        bench.submit(plain)
        await bench.started(plain)
        assert [frame.credit for frame in bench.executors[0].sent if isinstance(frame, Run)] == [CREDIT, 0]

    run(scenario)


def test_what_comes_while_others_are_on_their_way_makes_the_next_group() -> None:
    async def scenario(bench: JobBench) -> None:
        one, other = await running(bench, 2)
        bench.ledger.open["add_items"].clear()
        say(bench, one, 0, b"1")
        await bench.settled()
        say(bench, one, 1, b"2", b"3")
        say(bench, other, 0, b"4")
        assert granted(bench, one) == 0
        bench.ledger.open["add_items"].set()
        await bench.ledger.until(lambda: len(bench.ledger.groups) == 2)
        await bench.settled()
        assert written(bench, one) == [(0, [b"1"]), (1, [b"2", b"3"])]
        assert written(bench, other) == [(0, [b"4"])]
        assert bench.ledger.groups[0][0][:3] == (one.job_id, one.token, 1)
        assert (granted(bench, one), granted(bench, other)) == (3, 1)

    run(scenario)


def test_a_body_that_is_about_to_wait_is_not_kept_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVERY_S", 600)

    async def scenario(bench: JobBench) -> None:
        (job,) = await running(bench)
        say(bench, job, 0, b"first")
        await bench.ledger.until(lambda: bench.ledger.groups)
        say(bench, job, 1, *[b"1"] * (CREDIT // 2 - 1))
        await bench.settled()
        assert len(bench.ledger.groups) == 1
        say(bench, job, CREDIT // 2, b"1")
        await bench.ledger.until(lambda: len(bench.ledger.groups) == 2)
        await bench.settled()
        assert granted(bench, job) == CREDIT // 2 + 1
        say(bench, job, CREDIT // 2 + 1, b'"%b"' % (b"x" * CREDIT_BYTES * CREDIT))
        await bench.ledger.until(lambda: len(bench.ledger.groups) == 3)
        await bench.settled()
        assert granted(bench, job) == CREDIT // 2 + 1 + CREDIT + 1

    run(scenario)


def test_an_outcome_comes_after_all_that_was_yielded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVERY_S", 600)

    async def scenario(bench: JobBench) -> None:
        order: list[str] = []
        bench.ledger.trouble["add_items"] = lambda _: order.append("items")
        bench.ledger.trouble["finish"] = lambda _: order.append("finish")
        job, silent = await running(bench, 2)
        say(bench, job, 0, b"1")
        await bench.ledger.until(lambda: bench.ledger.groups)
        bench.ledger.open["add_items"].clear()
        say(bench, job, 1, b"2")
        bench.executors[0].finish(job.job_id)
        await bench.settled()
        assert bench.streaming.count() == 1
        bench.executors[0].finish(silent.job_id)  # which has yielded nothing, and waits for nobody
        await bench.ledger.until(lambda: silent.job_id in bench.ledger.outcomes)
        flushing = asyncio.create_task(bench.streaming.flush())
        await bench.settled()
        assert not flushing.done()
        assert job.job_id not in bench.ledger.outcomes
        bench.ledger.open["add_items"].set()
        await bench.ledger.until(lambda: job.job_id in bench.ledger.outcomes)
        await flushing
        assert order == ["items", "finish", "items", "finish"]
        assert written(bench, job) == [(0, [b"1"]), (1, [b"2"])]
        assert bench.held.named() == []

    run(scenario)


def test_while_postgres_is_away_the_body_is_held_back(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(bench: JobBench) -> None:
        (job,) = await running(bench)
        tries: list[int] = []

        def refuse(groups: Sequence[Group]) -> Exception:
            tries.append(len(groups[0].items))
            return AWAY

        bench.ledger.trouble["add_items"] = refuse
        say(bench, job, 0, *[b"1"] * CREDIT)
        await bench.ledger.until(lambda: len(tries) >= 3)
        assert granted(bench, job) == 0
        assert caplog.text.count("writing items of 1 jobs failed") == 1
        bench.ledger.trouble.clear()
        await bench.ledger.until(lambda: bench.ledger.groups)
        await bench.settled()
        assert written(bench, job) == [(0, [b"1"] * CREDIT)]
        assert granted(bench, job) == CREDIT

    run(scenario)


def test_what_postgres_refuses_of_one_job_holds_up_no_other() -> None:
    async def scenario(bench: JobBench) -> None:
        bad, *good = await running(bench, 3)
        bench.ledger.trouble["add_items"] = lambda groups: (
            DatabaseError("odd") if any(group.job_id == bad.job_id for group in groups) else None
        )
        for job in (bad, *good):
            say(bench, job, 0, b"1")
        await bench.ledger.until(lambda: all(written(bench, job) for job in good))
        assert not written(bench, bad)
        bench.ledger.trouble.clear()
        await bench.ledger.until(lambda: written(bench, bad))

    run(scenario)


def test_a_locked_job_is_written_later() -> None:
    async def scenario(bench: JobBench) -> None:
        (job,) = await running(bench)
        bench.ledger.verdicts[job.job_id] = "busy"
        say(bench, job, 0, b"1")
        bench.executors[0].finish(job.job_id)
        await bench.ledger.until(lambda: len(bench.ledger.groups) >= 3)
        assert granted(bench, job) == 0
        assert not bench.ledger.outcomes
        bench.ledger.verdicts.clear()
        await bench.ledger.until(lambda: job.job_id in bench.ledger.outcomes)
        assert {before for before, _ in written(bench, job)} == {0}

    run(scenario)


def test_a_start_that_is_not_heard_any_more_yields_to_nobody() -> None:
    """Its body isn't held up by that: it is stopped by whoever learns why."""

    async def scenario(bench: JobBench) -> None:
        (job,) = await running(bench)
        bench.ledger.verdicts[job.job_id] = "lost"
        say(bench, job, 0, b"1")
        await bench.ledger.until(lambda: granted(bench, job) == 1)
        say(bench, job, 1, b"2", b"3")
        await bench.ledger.until(lambda: granted(bench, job) == 3)
        assert len(bench.ledger.groups) == 1
        bench.executors[0].finish(job.job_id)
        await bench.ledger.until(lambda: job.job_id in bench.ledger.outcomes)

    run(scenario)


def test_large_items_go_in_several_statements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_BYTES", 5)

    async def scenario(bench: JobBench) -> None:
        one, other = await running(bench, 2)
        bench.ledger.open["add_items"].clear()
        say(bench, one, 0, b"1")
        await bench.settled()
        say(bench, one, 1, b"12", b"123", b"1234567")
        say(bench, other, 0, b"1", b"1")
        for job in (one, other):
            bench.executors[0].finish(job.job_id)
        bench.ledger.open["add_items"].set()
        await bench.ledger.until(lambda: len(bench.ledger.outcomes) == 2)
        assert written(bench, one) == [(0, [b"1"]), (1, [b"12"]), (2, [b"123"]), (3, [b"1234567"])]
        assert written(bench, other) == [(0, [b"1", b"1"])]
        assert [len(groups) for groups in bench.ledger.groups] == [1, 2, 1, 1]

    run(scenario)


def test_items_that_wait_for_their_writing() -> None:
    unwritten = Unwritten()
    assert (bool(unwritten), unwritten.fitting(10), unwritten.close()) == (False, 0, 0)
    for item in (b"1", b"22", b"x" * (CREDIT_BYTES + 1)):
        unwritten.add(item)
    assert [unwritten.fitting(size) for size in (0, 1, 2, 3, 10**6)] == [0, 1, 1, 2, 3]
    assert (unwritten.take(2), unwritten.before) == (2, 2)
    assert (unwritten.close(), unwritten.before, unwritten.is_closed) == (2, 3, True)
