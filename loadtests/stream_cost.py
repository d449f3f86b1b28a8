"""What the items of a stream cost the ledger: written in groups of several sizes, read in pages, deleted.

    python loadtests/stream_cost.py [--items 1000] [--bytes 100]

Makes a database on an embedded Postgres with default settings, and takes one job after the other through its
life: claimed, its items written, read by a late follower, finished, its result and items pruned. Prints, for
each size of the groups, what writing all items takes a caller, with what `EXPLAIN (ANALYZE, BUFFERS)` says of
the server's part of one group, and the rest of the job's life beside that of a job without items.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Awaitable
from pathlib import Path
from typing import Final, TypeVar

from ledger_cost import INPUT, LANE, NEW, Explained, Filling, Ledger, new_job, open_ledger

from headrace.embedded import EmbeddedPostgres
from headrace.ledger import execution, items, retention, submission
from headrace.ledger.execution import Claimed
from headrace.ledger.items import Group

T = TypeVar("T")

SIZES: Final = (1, 5, 25, 64)
"""Items in a group: of 10, 50 or 250 a second, and of a body that is as quick as it may."""


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description="what the items of a stream cost the ledger")
    arguments.add_argument("--items", type=int, default=1000, help="items of one job")
    arguments.add_argument("--bytes", type=int, default=100, help="bytes of one item")
    arguments.add_argument("--rounds", type=int, default=10, help="jobs for each size of the groups")
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="hr-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        with EmbeddedPostgres(Path(folder, "home")) as postgres:
            asyncio.run(_measure(postgres.url, options.items, options.bytes, options.rounds))


async def _measure(url: str, count: int, size: int, rounds: int) -> None:
    ledger = await open_ledger(url, 0, Filling("empty"))
    item = b'"%b"' % (b"x" * (size - 2))
    try:
        print(
            f"\n{count} items of {size} bytes\n"
            "in groups of   all ms   group: ms  server ms  pages   read ms   finish ms   prune ms"
        )
        await _one_job(ledger, count, item, SIZES[-1])  # plans are made
        for group in (0, *SIZES):
            lives = [await _one_job(ledger, count, item, group) for _ in range(rounds)]
            _print(group, lives)
    finally:
        await ledger.database.close()
        await ledger.explained.close()


async def _one_job(ledger: Ledger, count: int, item: bytes, size: int) -> dict[str, list[float]]:
    """A job's life, with how long each of its commands takes; `size` 0: it yields nothing."""
    taken: defaultdict[str, list[float]] = defaultdict(list)
    session, database = str(uuid.uuid4()), ledger.database

    async def timed(name: str, command: Awaitable[T]) -> T:
        began = time.perf_counter()
        answer = await command
        taken[name].append(time.perf_counter() - began)
        return answer

    await submission.submit(database, [new_job(ledger.owner_id)])
    lane = execution.Lane(LANE, NEW, 0)
    claim_id = str(uuid.uuid4())
    [job] = await execution.claim(
        database, session_id=session, claim_id=claim_id, lanes=[lane], free=[1], lease_s=600
    )
    for before in range(0, count if size else 0, size or 1):
        group = _group(job, before, [item] * min(size, count - before))
        if before == size * 3:  # one of them for its plan
            await _explained(ledger.explained, group, taken)
        else:
            verdicts = await timed("group", items.add(database, [group]))
            assert verdicts == {job.job_id: "written"}, verdicts
    await timed("read", _read(ledger, job.job_id, count if size else 0))
    outcome = execution.Outcome(
        job_id=job.job_id, token=job.token, attempt=job.attempt, kind="succeeded", output=INPUT
    )
    finish = execution.finish(database, session_id=session, outcomes=[outcome], result_ttl_s=0)
    await timed("finish", finish)
    assert await timed("prune", retention.prune_results(database, 10)) == 1
    return taken


def _group(job: Claimed, before: int, given: list[bytes]) -> Group:
    return Group(job.job_id, job.token, job.attempt, before, given)


async def _explained(database: Explained, group: Group, taken: defaultdict[str, list[float]]) -> None:
    await items.add(database, [group])
    milliseconds, pages = database.last
    taken["server"].append(milliseconds / 1000)
    taken["pages"].append(pages)


async def _read(ledger: Ledger, job_id: str, count: int) -> None:
    after, found = 0, 0
    while True:
        parts, is_full = await items.story(ledger.database, job_id, after)
        found += sum(len(part.items) for part in parts if isinstance(part, items.Items))
        if not is_full:
            break
        after = parts[-1].sequence
    assert found == count, found


def _print(size: int, lives: list[dict[str, list[float]]]) -> None:
    def median(name: str) -> float:
        found = [value for life in lives for value in life.get(name, [])]
        return statistics.median(found) * (1 if name == "pages" else 1000) if found else 0.0

    total = statistics.median(sum(life.get("group", [])) for life in lives) * 1000
    print(
        f"{size or '(none)':>12}  {total:7.1f}  {median('group'):10.2f} {median('server'):10.2f}"
        f" {median('pages'):6.0f}  {median('read'):8.2f}  {median('finish'):10.2f}  {median('prune'):9.2f}"
    )


if __name__ == "__main__":
    main()
