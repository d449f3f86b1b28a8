"""Whether the ledger's tables stay compact under a steady load with everything that ends up being pruned.

    python loadtests/bloat.py [--minutes 60] [--rate 60]

Makes a database of its own on an embedded Postgres with default settings. Jobs of several owners and weights
are submitted (a third with an idempotency key), claimed, tell of their progress, and end: most succeed, some
fail, are retried, lost or cancelled. Results are kept for 60 s, jobs and keys for 120 s; the chores that
prune run each 15 s. So as many rows come as go, and what grows is bloat.

Each 5 minutes, and at the end for all of it, prints live and dead rows, the sizes of tables and of their
indexes, bytes for each live row, and the p50 of submitting and claiming.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import logging
import os
import random
import statistics
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import msgspec

from headrace.database import Database, Row, queries
from headrace.embedded import EmbeddedPostgres
from headrace.ids import uuid7
from headrace.ledger import cancelling, execution, settling, submission
from headrace.maintenance import Maintenance
from headrace.maintenance.pruning import Pruning
from headrace.migrations import migrate
from headrace.queue.worker import Chore, Worker

T = TypeVar("T")

_SQL: Final = queries("bloat")
_TICK_S: Final = 0.2
_LEASE_S: Final = 30.0
_RUN_S: Final = 1.0
_RESULT_TTL_S: Final = 60.0
_JOB_TTL_S: Final = 120.0
_KEY_TTL_S: Final = 120.0
_LANES: Final = [execution.Lane("small", "i1", 0), execution.Lane("large", "i1", 0)]
_WEIGHTS: Final = (0.25, 1.0, 1.0, 1.0, 4.0)
_OWNERS: Final = 8
_ENDS: Final[tuple[tuple[execution.Kind, float], ...]] = (
    ("succeeded", 85),
    ("failed", 5),
    ("retry", 7),
    ("lost", 2),
    ("returned", 1),
)


class Sample(NamedTuple):
    """What was found at one moment."""

    minute: float
    tables: dict[str, Row]
    submit_s: float
    claim_s: float
    counts: Counter[str]


@dataclass
class Load:
    """Everything that the ledger is asked to do, in ticks."""

    database: Database
    owners: Sequence[str]
    rate: float
    counts: Counter[str] = field(default_factory=Counter[str])
    took: dict[str, list[float]] = field(default_factory=lambda: {"submit": [], "claim": []})
    _session: str = field(default_factory=lambda: str(uuid.uuid4()))
    _held: dict[str, tuple[float, execution.Claimed]] = field(
        default_factory=dict[str, "tuple[float, execution.Claimed]"]
    )
    _failed: list[submission.NewJob] = field(default_factory=list[submission.NewJob])
    _keyed: list[submission.NewJob] = field(default_factory=list[submission.NewJob])
    _submitted: dict[str, submission.NewJob] = field(default_factory=dict[str, submission.NewJob])
    _due: float = 0.0
    _renewed_at: float = 0.0

    async def run(self, seconds: float) -> None:
        """Work for so long."""
        clock = asyncio.get_running_loop().time
        next_at = clock()
        ends_at = next_at + seconds
        while (now := clock()) < ends_at:
            await self._tick(now)
            next_at = max(next_at + _TICK_S, clock() - _TICK_S)
            await asyncio.sleep(max(0.0, next_at - clock()))

    async def _tick(self, now: float) -> None:
        self._due += self.rate * _TICK_S
        jobs = [self._new_job() for _ in range(int(self._due))]
        self._due -= len(jobs)
        await self._submit(jobs)
        for job in jobs:
            if random.random() < 0.02:
                await cancelling.cancel(self.database, job.job_id, job.owner_id, "key:bloat")
                self.counts["cancelled"] += 1
        await self._claim(now)
        await self._progress()
        await self._finish(now)
        if now - self._renewed_at > _LEASE_S / 6:
            self._renewed_at = now
            await self._renew()

    async def _submit(self, jobs: list[submission.NewJob]) -> None:
        receipts = await self._timed("submit", submission.submit(self.database, jobs, key_ttl_s=_KEY_TTL_S))
        for job, receipt in zip(jobs, receipts, strict=True):
            self.counts[receipt.outcome] += 1
            if receipt.outcome == "accepted":
                self._submitted[job.job_id] = job
        self._keyed = [*self._keyed, *(job for job in jobs if job.idempotency_key)][-50:]

    async def _claim(self, now: float) -> None:
        free = max(0, int(2 * self.rate * _RUN_S) - len(self._held))
        claimed = await self._timed(
            "claim",
            execution.claim(
                self.database,
                session_id=self._session,
                claim_id=str(uuid.uuid4()),
                lanes=random.sample(_LANES, len(_LANES)),
                free=[free],
                lease_s=_LEASE_S,
            ),
        )
        for job in claimed:
            self._held[job.job_id] = (now + _RUN_S * random.uniform(0.5, 1.5), job)

    async def _progress(self) -> None:
        some = [job for _, job in self._held.values() if random.random() < 0.2]
        reports = [
            execution.Report(job.job_id, job.token, job.attempt, random.random(), "on its way")
            for job in some
        ]
        if reports:
            await execution.progress(self.database, reports)

    async def _finish(self, now: float) -> None:
        done = [job for ends_at, job in self._held.values() if ends_at <= now]
        if not done:
            return
        outcomes = [_outcome(job) for job in done]
        states = await execution.finish(
            self.database, session_id=self._session, outcomes=outcomes, result_ttl_s=_RESULT_TTL_S
        )
        for outcome in outcomes:
            del self._held[outcome.job_id]
            state = states.get(outcome.job_id, "gone")
            self.counts[f"ended {state}"] += 1
            if state != "queued":
                submitted = self._submitted.pop(outcome.job_id, None)
                if state == "failed" and submitted is not None:
                    self._failed = [*self._failed, submitted][-50:]

    async def _renew(self) -> None:
        held = [execution.Held(job.job_id, job.token, job.attempt) for _, job in self._held.values()]
        renewal = await execution.renew(
            self.database, session_id=self._session, held=held, claiming=[], lease_s=_LEASE_S
        )
        for job_id in renewal.lost:
            self._held.pop(job_id, None)

    def _new_job(self) -> submission.NewJob:
        if self._keyed and random.random() < 0.02:
            return _copy(random.choice(self._keyed))  # its key is known already
        if self._failed and random.random() < 0.02:
            failed = self._failed.pop()
            return _copy(failed, failed.job_id)
        body = b'{"text": "%b"}' % os.urandom(random.randint(50, 500)).hex().encode()
        return submission.NewJob(
            job_id=uuid7(),
            owner_id=random.choice(self.owners),
            function=random.choice(_LANES).function,
            interface="i1",
            input=body,
            digest=hashlib.sha256(body).digest(),
            cost=random.choice((1.0, 1.0, 8.0)),
            attempts=2,
            queue_s=60.0,
            total_s=90.0,
            most_outstanding=20_000,
            most_waiting=100_000,
            weight=random.choice(_WEIGHTS),
            idempotency_key=str(uuid.uuid4()) if random.random() < 1 / 3 else None,
            waiter="bloat" if random.random() < 1 / 3 else None,
        )

    async def _timed(self, name: str, command: Awaitable[T]) -> T:
        began = time.perf_counter()
        try:
            return await command
        finally:
            self.took[name].append(time.perf_counter() - began)


def main() -> None:
    """Load, measure and print."""
    arguments = argparse.ArgumentParser(description="whether the ledger's tables stay compact")
    arguments.add_argument("--minutes", type=float, default=60, help="how long")
    arguments.add_argument("--rate", type=float, default=60, help="jobs a second")
    arguments.add_argument("--every", type=float, default=5, help="minutes between two looks")
    options = arguments.parse_args()
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    # Short, for the socket's path, and open, for the user that Postgres runs as under root.
    with tempfile.TemporaryDirectory(prefix="hr-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        with EmbeddedPostgres(Path(folder, "home")) as postgres:
            migrate(postgres.url)
            samples = asyncio.run(_measure(postgres.url, options.minutes, options.rate, options.every))
    _print_all(samples)


async def _measure(url: str, minutes: float, rate: float, every: float) -> list[Sample]:
    samples: list[Sample] = []
    async with await Database.open(url, application_name="bloat") as database:
        rows = await database.fetch(_SQL["owners"], {"count": _OWNERS})
        load = Load(database, [row["owner_id"] for row in rows], rate)
        behind = [
            asyncio.create_task(_chores(database).run()),
            asyncio.create_task(Maintenance(url, "operator:bloat", lease_s=_LEASE_S).run()),
        ]
        try:
            left = minutes
            while left > 0:
                await load.run(60 * min(every, left))
                left -= every
                samples.append(await _look(load, minutes - max(0.0, left)))
                _print(samples[-1])
        finally:
            for task in behind:
                task.cancel()
            await asyncio.wait(behind)
    return samples


def _chores(database: Database) -> Worker:
    pruning = Pruning(database, job_ttl_s=_JOB_TTL_S, key_ttl_s=_KEY_TTL_S, audit_ttl_s=_JOB_TTL_S)

    async def sweep() -> None:
        await settling.sweep(database)

    return Worker(
        database,
        [
            Chore("prune_jobs", "* * * * * */15", pruning.often),
            Chore("prune_rest", "*/5 * * * *", pruning.seldom),
            Chore("sweep", "* * * * *", sweep),
        ],
    )


async def _look(load: Load, minute: float) -> Sample:
    tables = {row["name"]: row for row in await load.database.fetch(_SQL["sizes"])}
    submit_s, claim_s = (statistics.median(load.took[name]) for name in ("submit", "claim"))
    sample = Sample(minute, tables, submit_s, claim_s, load.counts)
    load.took = {"submit": [], "claim": []}
    load.counts = Counter()
    return sample


def _outcome(job: execution.Claimed) -> execution.Outcome:
    [(kind, _)] = random.choices(_ENDS, [weight for _, weight in _ENDS])
    # One in twenty is too large for its row.
    size = random.randint(5_000, 50_000) if random.random() < 0.05 else random.randint(50, 500)
    succeeded = kind == "succeeded"
    return execution.Outcome(
        job_id=job.job_id,
        token=job.token,
        attempt=job.attempt,
        kind=kind,
        output=b'"%b"' % os.urandom(size // 2).hex().encode() if succeeded else None,
        category="" if succeeded else "function-failed",
        message="" if succeeded else "It failed.",
    )


def _copy(job: submission.NewJob, retry_of: str | None = None) -> submission.NewJob:
    key = job.idempotency_key if retry_of is None else None
    return msgspec.structs.replace(job, job_id=uuid7(), retry_of=retry_of, idempotency_key=key)


def _print(sample: Sample) -> None:
    told = ", ".join(f"{count:,} {what}" for what, count in sorted(sample.counts.items()))
    print(f"\nafter {sample.minute:g} minutes: since the last look {told}")
    print(f"p50 of a submission {sample.submit_s * 1000:.2f} ms, of a claim {sample.claim_s * 1000:.2f} ms")
    print(f"{'table':22}{'live':>9}{'dead':>9}{'vacuums':>9}{'KiB':>9}{'indexes':>9}{'bytes a live row':>18}")
    for name, row in sample.tables.items():
        print(
            f"{name:22}{row['live']:>9,}{row['dead']:>9,}{row['vacuums']:>9,}{row['table_bytes'] // 1024:>9,}"
            f"{row['index_bytes'] // 1024:>9,}{_bytes_a_row(row):>18,}",
            flush=True,
        )


def _print_all(samples: Sequence[Sample]) -> None:
    """All looks, a line for each: KiB of each table with its indexes."""
    names = list(samples[0].tables)
    print("\nKiB with indexes")
    print(f"{'minute':>7}{'submit ms':>11}{'claim ms':>10}" + "".join(f"{name:>22}" for name in names))
    for sample in samples:
        sizes = [(row["table_bytes"] + row["index_bytes"]) // 1024 for row in sample.tables.values()]
        print(
            f"{sample.minute:>7g}{sample.submit_s * 1000:>11.2f}{sample.claim_s * 1000:>10.2f}"
            + "".join(f"{size:>22,}" for size in sizes)
        )


def _bytes_a_row(row: Row) -> int:
    return (row["table_bytes"] + row["index_bytes"]) // max(1, row["live"])


if __name__ == "__main__":
    main()
