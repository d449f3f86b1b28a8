"""A lane under too many calls, in a time of its own: what is accepted starts in time, and places hold."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter

import pytest
from harness.ledger import Runner, elapse, make_owner, new_job, opened, outcome
from harness.places import elapse_places, set_rate

from headrace.database import Database
from headrace.ledger import settling
from headrace.ledger.submission import NewJob, submit

STEP_S = 1.0
QUEUE_S = 10.0
RATE = 8.0
_STATES = "SELECT state, count(*) AS jobs FROM job GROUP BY state"


class Site:
    """Time goes on in steps of a second, or of as long as one takes: in each jobs start, and callers come."""

    def __init__(self, database: Database, owners: list[str]) -> None:
        self.database = database
        self.owners = owners
        self.now = 0.0
        self.began = time.monotonic()
        self.started = self.asked = 0.0
        self.coming: list[tuple[float, NewJob]] = []
        self.outcomes: Counter[tuple[str, bool]] = Counter()

    async def go_on(self, seconds: float, load: float) -> None:
        """So long, at so many times what the lane can do."""
        end = self.now + seconds
        while self.now < end:
            wall_s = time.monotonic() - self.began
            self.began = time.monotonic()
            step_s = max(STEP_S, wall_s)
            for elapsing in (elapse, elapse_places):
                await elapsing(self.database, step_s - wall_s)
            self.now += step_s
            await self._start(step_s)
            await self._come(step_s, load)
            await settling.settle(self.database, "operator:test")

    async def _start(self, step_s: float) -> None:
        self.started = min(self.started, 1) + RATE * step_s
        runner = Runner(self.database)
        claimed = await runner.claim(int(self.started))
        self.started -= len(claimed)
        await runner.finish(*(outcome(job) for job in claimed))

    async def _come(self, step_s: float, load: float) -> None:
        self.asked += load * RATE * step_s
        jobs = [job for at, job in self.coming if at <= self.now]
        self.coming = [(at, job) for at, job in self.coming if at > self.now]
        while self.asked >= 1:
            self.asked -= 1
            jobs.append(new_job(random.choice(self.owners), queue_s=QUEUE_S))
        random.shuffle(jobs)
        for job, receipt in zip(jobs, await submit(self.database, jobs), strict=True):
            if job.place is not None:
                self.outcomes[receipt.outcome, receipt.is_placed] += 1
            if receipt.due_s is not None:
                again = new_job(job.owner_id, queue_s=QUEUE_S, place=receipt.place)
                self.coming.append((self.now + receipt.due_s, again))


@pytest.mark.parametrize(("owners", "most_expired"), [(1, 0.0), (2, 0.03)])
def test_what_is_accepted_starts_in_time_and_who_comes_when_told_is_let_in(
    database_url: str, owners: int, most_expired: float
) -> None:
    """Of several owners one may come in between who had nothing waiting before: few expire then."""

    async def scenario() -> None:
        async with opened(database_url) as database:
            # As it is measured: a little lower than the truth.
            await set_rate(database, RATE * 0.95)
            site = Site(database, [await make_owner(database) for _ in range(owners)])
            await site.go_on(20, load=3)
            await site.go_on(50, load=0.5)
            states = {row["state"]: row["jobs"] for row in await database.fetch(_STATES)}
            assert set(states) <= {"queued", "succeeded", "expired"}, states
            assert states.get("expired", 0) <= most_expired * states["succeeded"], states
            assert sum(site.outcomes.values()) > 200, site.outcomes
            let_in = site.outcomes["accepted", True] / sum(site.outcomes.values())
            assert let_in > 0.9, site.outcomes

    asyncio.run(scenario())
