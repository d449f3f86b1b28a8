"""What one job costs the ledger: submitted, claimed, read, finished; and whether other jobs make it dearer.

    python loadtests/ledger_cost.py [--rounds 300]      # --help: how much is there

Makes a database for each kind of ledger on one embedded Postgres with default settings, and measures them in
turn, one job at a time, so that the machine's moods fall on all alike. Nothing is analysed in between:
autovacuum does what the migrations let it. Prints, for each command, the p50 seen by its caller with its
ratio to that of an empty ledger, and what `EXPLAIN (ANALYZE, BUFFERS)` says of the server's part: planning
and execution, without the commit, and pages touched.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, LiteralString, TypeVar, cast
from urllib.parse import urlsplit

from headrace.database import Database, Row, queries
from headrace.embedded import EmbeddedPostgres
from headrace.ids import uuid7
from headrace.ledger import execution, reading, settling, submission
from headrace.migrations import migrate

T = TypeVar("T")

COMMANDS: Final = ("submit", "claim", "read", "finish")
INPUT: Final = b'{"text": "' + b"water " * 83 + b'"}'  # half a kilobyte
LANE: Final = "measured"
NEW: Final = "new-interface"

_SQL: Final = queries("ledger_cost")
_CHUNK: Final = 20_000
_WARM_UP: Final = 32  # a plpgsql statement has its lasting plan after five executions in a session


class Explained(Database):
    """A database that explains what it is asked, and keeps time and pages of the last statement."""

    last: tuple[float, int] = (0.0, 0)

    async def fetch(self, query: Any, params: Any = None, *, within: float | None = None) -> list[Row]:
        """Run the query for its plan; no rows come back."""
        [row] = await super().fetch(_filled_in("explain", query=query), params, within=within)
        [plan] = row["QUERY PLAN"]
        pages = sum(plan["Plan"][f"Shared {what} Blocks"] for what in ("Hit", "Read"))
        self.last = (plan["Planning Time"] + plan["Execution Time"], pages)
        return []


@dataclass(frozen=True)
class Filling:
    """What is in a ledger before anything is measured."""

    name: str
    kind: str = ""
    count: int = 0
    function: str = LANE
    interface: str = NEW
    owners: tuple[int, int] = (1, 99)  # the first one's number, and how many


@dataclass
class Ledger:
    """A ledger under measurement."""

    filling: Filling
    database: Database
    explained: Explained
    owner_id: str
    seconds: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    server: defaultdict[str, list[tuple[float, int]]] = field(default_factory=lambda: defaultdict(list))


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description="what one job costs the ledger")
    arguments.add_argument("--rounds", type=int, default=300, help="jobs in each ledger, at least 20")
    arguments.add_argument("--waiting", type=int, default=100_000, help="jobs that wait, in either lane")
    arguments.add_argument("--finished", type=int, default=1_000_000, help="jobs that are finished")
    arguments.add_argument("--old", type=int, default=10_000, help="jobs for an interface nobody serves")
    arguments.add_argument("--own", type=int, default=9_000, help="jobs of the owner that submits")
    options = arguments.parse_args()
    fillings = [
        Filling("empty"),
        Filling(f"{options.waiting:,} waiting in the lane", "waiting", options.waiting),
        Filling(f"{options.waiting:,} waiting in another", "waiting", options.waiting, function="another"),
        Filling(f"{options.finished:,} finished", "finished", options.finished),
        Filling(f"{options.old:,} of an old interface first", "waiting", options.old, interface="old"),
        Filling(f"{options.own:,} of its own owner", "waiting", options.own, owners=(0, 1)),
    ]
    # Short, for the socket's path, and open, for the user that Postgres runs as under root.
    with tempfile.TemporaryDirectory(prefix="hr-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        with EmbeddedPostgres(Path(folder, "home")) as postgres:
            asyncio.run(_measure(postgres.url, fillings, options.rounds))


async def _measure(url: str, fillings: Sequence[Filling], rounds: int) -> None:
    ledgers = [await open_ledger(url, number, filling) for number, filling in enumerate(fillings)]
    try:
        for number in range(-_WARM_UP, rounds):
            turn = number % len(ledgers)  # nobody is always the first
            is_explained = number < 0 or number % 5 == 0
            command = COMMANDS[number // (1 if number < 0 else 5) % len(COMMANDS)]
            for ledger in ledgers[turn:] + ledgers[:turn]:
                await _one_job(ledger, command if is_explained else "")
                if number < 0:
                    ledger.seconds.clear()
                    ledger.server.clear()
    finally:
        for ledger in ledgers:
            await ledger.database.close()
            await ledger.explained.close()
    for command in COMMANDS:
        _print(command, ledgers)


async def open_ledger(url: str, number: int, filling: Filling) -> Ledger:
    """A migrated database of its own on the server at `url`, filled."""
    began = time.monotonic()
    name = f"ledger_{number}"
    async with await Database.open(url, application_name="ledger-cost") as admin:
        await admin.execute(_filled_in("create_database", database=name))
    own = urlsplit(url)._replace(path=f"/{name}").geturl()
    await asyncio.to_thread(migrate, own)
    database = await Database.open(own, application_name="ledger-cost", max_size=1)
    await _fill(database, filling)
    # As maintenance does, four times a second.
    await settling.settle(database, "operator:ledger-cost")
    await settling.count(database, with_cost=False)
    [row] = await database.fetch(_SQL["owner"])
    explained = await Explained.open(own, application_name="ledger-cost", max_size=1)
    print(f"filled: {filling.name} ({time.monotonic() - began:.0f} s)", flush=True)
    return Ledger(filling, database, explained, row["owner_id"])


async def _fill(database: Database, filling: Filling) -> None:
    await database.execute(_SQL["prepare"])
    await database.execute(_SQL["owners"])
    for function in {LANE, filling.function}:
        await database.execute(_SQL["lanes"], {"function": function})
    first_owner, owners = filling.owners
    values = {
        "function": filling.function,
        "interface": filling.interface,
        "input": INPUT,
        "first_owner": first_owner,
        "owners": owners,
    }
    for first in range(0, filling.count, _CHUNK):
        last = min(first + _CHUNK, filling.count) - 1
        await database.execute(_SQL[filling.kind], {**values, "first": first, "last": last})
    if filling.kind == "waiting":
        await database.execute(_SQL["lane_owners"], {**values, "tag": filling.count / 100})


async def _one_job(ledger: Ledger, explained: str) -> None:
    """Submit a job, claim one, read the first and finish the second, which may be another."""
    session, job = str(uuid.uuid4()), new_job(ledger.owner_id)

    async def run(name: str, command: Callable[[Database], Awaitable[T]]) -> T | None:
        if name == explained:  # it has its effect, but what comes back is the plan
            await command(ledger.explained)
            ledger.server[name].append(ledger.explained.last)
            return None
        began = time.perf_counter()
        answer = await command(ledger.database)
        ledger.seconds[name].append(time.perf_counter() - began)
        return answer

    receipts = await run("submit", lambda database: submission.submit(database, [job]))
    assert receipts is None or receipts[0].outcome == "accepted", receipts
    claimed = await run("claim", lambda database: _claim(database, session))
    await run("read", lambda database: reading.find(database, job.job_id, ledger.owner_id))
    if claimed is None:
        return
    [held] = claimed
    outcome = execution.Outcome(
        job_id=held.job_id, token=held.token, attempt=held.attempt, kind="succeeded", output=INPUT
    )
    await run(
        "finish",
        lambda database: execution.finish(
            database, session_id=session, outcomes=[outcome], result_ttl_s=86_400
        ),
    )


async def _claim(database: Database, session: str) -> list[execution.Claimed]:
    return await execution.claim(
        database,
        session_id=session,
        claim_id=str(uuid.uuid4()),
        lanes=[execution.Lane(LANE, NEW, 0)],
        free=[1],
        lease_s=600,
    )


def new_job(owner_id: str) -> submission.NewJob:
    """A job for whoever measures to claim."""
    job_id = uuid7()
    return submission.NewJob(
        job_id=job_id,
        owner_id=owner_id,
        function=LANE,
        interface=NEW,
        input=INPUT,
        digest=uuid.UUID(job_id).bytes * 2,
        cost=1.0,
        attempts=2,
        queue_s=3600,
        total_s=7200,
        most_outstanding=10_000,
        most_waiting=10_000_000,
    )


def _filled_in(name: str, **parts: str) -> LiteralString:
    return cast(LiteralString, _SQL[name].format(**parts))


def _print(command: str, ledgers: Sequence[Ledger]) -> None:
    width = max(len(ledger.filling.name) for ledger in ledgers)
    least = statistics.median(ledgers[0].seconds[command])
    print(f"\n{command.ljust(width)}   p50 ms  ratio   server ms  pages")
    for ledger in ledgers:
        p50 = statistics.median(ledger.seconds[command])
        times, pages = zip(*ledger.server[command], strict=True)
        print(
            f"{ledger.filling.name.ljust(width)}  {p50 * 1000:7.2f}  {p50 / least:5.2f}"
            f"  {statistics.median(times):10.2f}  {statistics.median(pages):5.0f}"
        )


if __name__ == "__main__":
    main()
