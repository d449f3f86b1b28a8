"""Places in line over several connections at once, as several gateways have them."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

from harness.ledger import LANE, Runner, check_ledger, make_owner, new_job, opened, submit_many
from harness.places import come, elapse_places, places, refused, set_rate

from headrace.database import Database
from headrace.ledger import lanes
from headrace.ledger.submission import NewJob, Receipt, submit

BOUND = 20
LANES = (LANE, "bird")
WAITING = "SELECT count(*) AS waiting FROM job WHERE function = %s AND state = 'queued'"


async def waiting(database: Database, lane: str = LANE) -> int:
    return (await database.fetch(WAITING, [lane]))[0]["waiting"]


def test_a_place_that_is_used_everywhere_at_once_counts_once(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url, connections=8) as database:
            owner = await make_owner(database)
            await set_rate(database, 2.0)
            for _ in range(5):
                await submit_many(database, owner, BOUND - await waiting(database), most_waiting=BOUND)
                told = await refused(database, owner, most_waiting=BOUND)
                await Runner(database).claim(1)
                await elapse_places(database, told.due_s or 0)
                receipts = await asyncio.gather(
                    *(come(database, owner, most_waiting=BOUND, place=told.place) for _ in range(8))
                )
                assert sum(receipt.is_placed for receipt in receipts) == 1
                assert Counter(one.outcome for one in receipts) == {"accepted": 1, "backlog-full": 7}
                await Runner(database).claim(BOUND)
                await database.execute("DELETE FROM place")

    asyncio.run(scenario())


class Crowd:
    """Callers over many connections, in two lanes and of three owners, fresh ones and those with places."""

    def __init__(self, database: Database, owners: list[str]) -> None:
        self.database = database
        self.owners = owners
        self.held: list[tuple[NewJob, str]] = []
        self.outcomes: Counter[tuple[str, bool]] = Counter()
        self.is_over = asyncio.Event()

    async def gateway(self, number: int) -> None:
        """Submissions of one gateway, one after the other."""
        dice = random.Random(number)
        for _ in range(15):
            jobs = [self._fresh(dice) for _ in range(6)]
            for _ in range(min(len(self.held), 4)):
                job, place = self.held.pop(0)
                jobs.append(new_job(job.owner_id, function=job.function, most_waiting=BOUND, place=place))
            dice.shuffle(jobs)
            for job, receipt in zip(jobs, await submit(self.database, jobs), strict=True):
                self.outcomes[receipt.outcome, receipt.is_placed] += 1
                if receipt.place is not None:
                    self.held.append((job, receipt.place))
            for lane in LANES:
                assert await waiting(self.database, lane) <= BOUND

    def _fresh(self, dice: random.Random) -> NewJob:
        return new_job(
            dice.choice(self.owners),
            function=dice.choice(LANES),
            most_waiting=BOUND,
            idempotency_key=dice.choice([None, str(dice.random())]),
        )

    async def runner(self) -> None:
        """A runner, maintenance, and time that passes."""
        runner = Runner(self.database)
        while not self.is_over.is_set():
            for lane in LANES:
                await runner.claim(2, function=lane)
            await elapse_places(self.database, 0.3)
            await lanes.refresh(self.database, every_s=0)
            for lane in LANES:
                await set_rate(self.database, 50.0, lane)


def test_bounds_hold_however_many_come_at_once(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url, connections=8) as database:
            for lane in LANES:
                await set_rate(database, 50.0, lane)
            crowd = Crowd(database, [await make_owner(database) for _ in range(3)])
            running = asyncio.create_task(crowd.runner())
            await asyncio.gather(*(crowd.gateway(number) for number in range(6)))
            crowd.is_over.set()
            await running
            await check_ledger(database)
            assert crowd.outcomes["accepted", True] > 10, crowd.outcomes
            assert crowd.outcomes["backlog-full", False] > 10, crowd.outcomes

    asyncio.run(scenario())


def test_maintenance_waits_for_no_line(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner = await make_owner(database)
            await set_rate(database, 2.0)
            await submit_many(database, owner, BOUND, most_waiting=BOUND)
            told = await refused(database, owner, most_waiting=BOUND)
            await elapse_places(database, (told.due_s or 0) + 6)
            async with database.transaction(within=30) as transaction:
                await transaction.fetch("SELECT pg_advisory_xact_lock(line_lock_v1(%s))", [LANE])
                blocked: asyncio.Task[Receipt] = asyncio.create_task(
                    come(database, owner, most_waiting=BOUND)
                )
                assert await lanes.refresh(database, every_s=0)
                assert len(await places(database)) == 1
                assert not blocked.done()
            await blocked
            assert await lanes.refresh(database, every_s=0)
            assert told.place not in {row["id"] for row in await places(database)}

    asyncio.run(scenario())


def test_nobody_waits_where_there_is_room(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner = await make_owner(database)
            await set_rate(database, 2.0)
            async with database.transaction(within=30) as transaction:
                await transaction.fetch("SELECT pg_advisory_xact_lock(line_lock_v1(%s))", [LANE])
                assert (await come(database, owner, most_waiting=10_000)).outcome == "accepted"

    asyncio.run(scenario())
