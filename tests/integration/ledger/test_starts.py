"""How often a job may be started, whatever becomes of its starts."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import product

import pytest
from harness.ledger import Runner, check_ledger, elapse, make_owner, new_job, opened, outcome

from headrace.ledger import settling
from headrace.ledger.execution import Kind
from headrace.ledger.submission import submit

FATES = ("retry", "lost", "free", "lease")
FREE: tuple[Kind, Kind] = ("displaced", "returned")
"""The two that aren't charged, in turn: all mixtures of five would be three times as many."""


@pytest.mark.parametrize(("attempts", "one_in"), [(1, 1), (2, 7), pytest.param(2, 1, marks=pytest.mark.slow)])
def test_executions_never_exceed_attempts_by_more_than_three(
    database_url: str, attempts: int, one_in: int
) -> None:
    most = attempts + 3

    async def scenario() -> None:
        async with opened(database_url) as database:
            owner, runner = await make_owner(database), Runner(database)
            stories = list(product(FATES, repeat=most))[::one_in]
            jobs = [new_job(owner, attempts=attempts, total_s=1e6) for _ in stories]
            await submit(database, jobs)
            fates = dict(zip((job.job_id for job in jobs), stories, strict=True))
            starts: Counter[str] = Counter()
            while claimed := await runner.claim(5000):
                ends = []
                for job in claimed:
                    starts[job.job_id] += 1
                    assert job.attempt == starts[job.job_id] <= most
                    fate = fates[job.job_id][job.attempt - 1]
                    if fate != "lease":
                        ends.append(outcome(job, FREE[job.attempt % 2] if fate == "free" else fate))
                await runner.finish(*ends)
                await elapse(database, 300)
                await settling.settle(database, "gateway:g", limit=5000)
            ended = await check_ledger(database)
            for job_id, story in fates.items():
                job = ended[job_id]
                assert (job["state"], job["error_category"]) == ("failed", "attempts-exhausted")
                assert job["charged"] == attempts
                # The first three of them are free, the others count.
                used = story[: job["attempt"]]
                assert job["attempt"] == attempts + min(3, used.count("free"))
            assert max(starts.values()) == most
            assert min(starts.values()) == attempts

    asyncio.run(scenario())
