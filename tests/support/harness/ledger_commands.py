"""Every command of the ledger, given to a job in whatever state, and what it answers in a word."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final, NamedTuple

import msgspec

from harness.ledger import INTERFACE, LANE, Runner, elapse, new_call, row
from harness.ledger_states import Placed
from headrace.database import Database
from headrace.ids import uuid7
from headrace.ledger import batches, cancelling, execution, reading, retention, settling
from headrace.ledger.execution import Held, Kind, Lane, Report
from headrace.ledger.submission import submit

ACTOR = "gateway:g"
NOTHING = "-"


class Command(NamedTuple):
    """A command.

    Args:
        function: the SQL function that it calls.
        give: gives it to a job.
    """

    function: str
    give: Callable[[Database, Placed], Awaitable[str]]


async def submitted(database: Database, made: Placed) -> str:
    return (await submit(database, [made.job]))[0].outcome


async def submitted_with_its_key(database: Database, made: Placed) -> str:
    return (await submit(database, [msgspec.structs.replace(made.job, job_id=uuid7())]))[0].outcome


async def handed_over(database: Database, made: Placed) -> str:
    return await _handed_over(made, made.claimed.token)


async def handed_over_otherwise(database: Database, made: Placed) -> str:
    return await _handed_over(made, str(uuid.uuid4()))


async def _handed_over(made: Placed, token: str) -> str:
    call = new_call(made.job.owner_id, job_id=made.job.job_id, token=token)
    return (await made.runner.hand_over(call))[made.job.job_id].verdict


async def to_be_done_again(database: Database, made: Placed) -> str:
    again = msgspec.structs.replace(made.job, job_id=uuid7(), retry_of=made.job.job_id)
    return (await submit(database, [again]))[0].outcome


def claimed(expected_s: float = 0.0) -> Callable[[Database, Placed], Awaitable[str]]:
    async def give(_: Database, made: Placed) -> str:
        await made.runner.claim_lanes([Lane(LANE, INTERFACE, 0, expected_s)], [9])
        return NOTHING

    return give


async def renewed(_: Database, made: Placed) -> str:
    renewal = await made.runner.renew(made.claimed)
    return "lost" if renewal.lost else "cancelled" if renewal.cancelled else "renewed"


async def renewed_without_it(_: Database, made: Placed) -> str:
    await made.runner.renew()
    return NOTHING


async def renewed_by_another(database: Database, made: Placed) -> str:
    held = Held(made.job.job_id, made.claimed.token, made.claimed.attempt)
    return "lost" if (await Runner(database).renew(held)).lost else "renewed"


async def reported(database: Database, made: Placed) -> str:
    report = Report(made.job.job_id, made.claimed.token, made.claimed.attempt, 0.5, "half")
    await execution.progress(database, [report])
    return "noted" if (await row(database, made.job.job_id))["progress"] else NOTHING


async def yielded(_: Database, made: Placed) -> str:
    verdict = await made.runner.add_items(made.claimed, 0, b"1")
    return "noted" if verdict == "written" else verdict


def finished(kind: Kind) -> Callable[[Database, Placed], Awaitable[str]]:
    async def give(_: Database, made: Placed) -> str:
        return await made.runner.end(made.claimed, kind) or NOTHING

    return give


async def cancelled(database: Database, made: Placed) -> str:
    await cancelling.cancel(database, made.job.job_id, made.job.owner_id, "key:k")
    return NOTHING


async def cancelled_with_its_batch(database: Database, made: Placed) -> str:
    batch = {"batch": str(uuid.uuid4()), "job": made.job.job_id, "owner": made.job.owner_id, "lane": LANE}
    await database.execute(
        "INSERT INTO batch (id, owner_id, function, size) VALUES (%(batch)s, %(owner)s, %(lane)s, 1)", batch
    )
    await database.execute("UPDATE job SET batch_id = %(batch)s, batch_index = 0 WHERE id = %(job)s", batch)
    await batches.cancel_batch(database, batch["batch"], made.job.owner_id, "key:k")
    return NOTHING


async def cancelled_with_others(database: Database, made: Placed) -> str:
    await database.execute(
        "SELECT cancel_jobs_v1(ARRAY[%s]::uuid[], 'operator:o', %s)", [made.job.job_id, uuid.uuid4()]
    )
    return NOTHING


async def moved(database: Database, made: Placed) -> str:
    await database.execute(
        "INSERT INTO function (name, interface, revision, manifest) VALUES ('other', %s, 'r', '')"
        " ON CONFLICT DO NOTHING",
        [INTERFACE],
    )
    await database.execute(
        "SELECT move_v1(ARRAY[%s]::uuid[], %s, 'other', 'operator:o', %s)",
        [made.job.job_id, LANE, uuid.uuid4()],
    )
    return "moved" if (await row(database, made.job.job_id))["function"] == "other" else NOTHING


def settled(seconds: float, *, reap: bool = True) -> Callable[[Database, Placed], Awaitable[str]]:
    async def give(database: Database, made: Placed) -> str:
        await elapse(database, seconds)
        await settling.settle(database, ACTOR, reap=reap)
        return NOTHING

    return give


def read(seconds: float) -> Callable[[Database, Placed], Awaitable[str]]:
    async def give(database: Database, made: Placed) -> str:
        await elapse(database, seconds)
        await reading.find(database, made.job.job_id, made.job.owner_id)
        return NOTHING

    return give


async def reaped(database: Database, made: Placed) -> str:
    session_id = made.runner.session_id
    mark = (await settling.session_marks(database, [session_id]))[session_id]
    await settling.reap_session(database, session_id, mark or datetime.now(UTC), ACTOR)
    return NOTHING


async def reaped_too_late(database: Database, made: Placed) -> str:
    session_id = made.runner.session_id
    mark = (await settling.session_marks(database, [session_id]))[session_id]
    await made.runner.renew(made.claimed)
    await settling.reap_session(database, session_id, mark or datetime.now(UTC), ACTOR)
    return NOTHING


async def swept(database: Database, _: Placed) -> str:
    await settling.sweep(database)
    return NOTHING


async def watched(database: Database, made: Placed) -> str:
    gateway = str(uuid.uuid4())
    await reading.watch(database, made.job.job_id, gateway, follow=True)
    return "noted" if gateway in (await row(database, made.job.job_id))["waiters"] else NOTHING


def pruned(after_s: float) -> Callable[[Database, Placed], Awaitable[str]]:
    async def give(database: Database, _: Placed) -> str:
        await elapse(database, 86_400)
        await retention.prune_jobs(database, after_s, 9)
        return NOTHING

    return give


async def result_pruned(database: Database, made: Placed) -> str:
    await elapse(database, 86_400)
    await retention.prune_results(database, 9)
    return (
        "its result is gone" if (await row(database, made.job.job_id))["result_place"] == "gone" else NOTHING
    )


COMMANDS: Final[dict[str, Command]] = {
    "submit it again": Command("submit_v3", submitted),
    "submit another with its key": Command("submit_v3", submitted_with_its_key),
    "submit another that does it again": Command("submit_v3", to_be_done_again),
    "hand it over again": Command("handover_v1", handed_over),
    "hand it over under another token": Command("handover_v1", handed_over_otherwise),
    "claim": Command("claim_v2", claimed()),
    "claim, where an execution takes longer than is left": Command("claim_v2", claimed(1e6)),
    "renew": Command("renew_v1", renewed),
    "renew, without it in the list": Command("renew_v1", renewed_without_it),
    "renew, by another runner": Command("renew_v1", renewed_by_another),
    "report progress": Command("progress_v1", reported),
    "add items": Command("add_items_v1", yielded),
    "finish: `succeeded`": Command("finish_v2", finished("succeeded")),
    "finish: `failed`": Command("finish_v2", finished("failed")),
    "finish: `retry`": Command("finish_v2", finished("retry")),
    "finish: `lost`": Command("finish_v2", finished("lost")),
    "finish: `displaced`": Command("finish_v2", finished("displaced")),
    "finish: `returned`": Command("finish_v2", finished("returned")),
    "cancel": Command("cancel_v1", cancelled),
    "cancel its batch": Command("cancel_batch_v1", cancelled_with_its_batch),
    "cancel many": Command("cancel_jobs_v1", cancelled_with_others),
    "move to another lane": Command("move_v1", moved),
    "settle, in time": Command("settle_v2", settled(0)),
    "settle, past a lease": Command("settle_v2", settled(31)),
    "settle, past a lease while leases don't count": Command("settle_v2", settled(31, reap=False)),
    "settle, past the queue deadline": Command("settle_v2", settled(50, reap=False)),
    "settle, past the deadline": Command("settle_v2", settled(100, reap=False)),
    "read, past a lease": Command("settle_job_v2", read(31)),
    "read, past the queue deadline": Command("settle_job_v2", read(50)),
    "read, past the deadline": Command("settle_job_v2", read(100)),
    "reap its runner": Command("reap_session_v1", reaped),
    "reap its runner, which has renewed since": Command("reap_session_v1", reaped_too_late),
    "sweep": Command("sweep_v1", swept),
    "watch": Command("watch", watched),
    "prune results, past their time": Command("prune_results_v2", result_pruned),
    "prune jobs, before their time": Command("prune_jobs_v2", pruned(1e6)),
    "prune jobs, past their time": Command("prune_jobs_v2", pruned(3600)),
}
