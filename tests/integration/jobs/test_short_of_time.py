"""A retry that would come to nothing, as less time is left than executions take, isn't started."""

from __future__ import annotations

import uuid

from harness.job_runner import run, runner, submitter
from harness.postgres import query

from headrace.ledger import execution
from headrace.ledger.execution import Lane, Outcome

_TAKES_S = 2.5
_LATER = (
    "WITH j AS (UPDATE job SET due_at = clock_timestamp() + %s * interval '1 second' WHERE id = %s::uuid"
    " RETURNING entry_id, due_at)"
    " UPDATE procrastinate_jobs e SET scheduled_at = j.due_at FROM j WHERE e.id = j.entry_id"
)
_SHORT = (
    "UPDATE job j SET deadline_at = t.at, settle_at = t.at, queue_deadline_at = j.created_at"
    " FROM (SELECT clock_timestamp() + %s * interval '1 second' AS at) AS t WHERE j.id = %s::uuid"
)


def test_a_retry_with_less_time_left_than_the_median_is_not_executed(database_url: str) -> None:
    async def scenario() -> None:
        async with submitter(database_url) as jobs:
            job = jobs.job("wait_together", seconds=0.0, attempts=2)
            job_id = await jobs.send("wait_together", seconds=0.0, attempts=2)
            session_id, claim_id = str(uuid.uuid4()), str(uuid.uuid4())
            (start,) = await execution.claim(
                jobs.database,
                session_id=session_id,
                claim_id=claim_id,
                lanes=[Lane(job.function, job.interface, 0)],
                free=[1],
                lease_s=30,
            )
            failed = Outcome(
                job_id=job_id,
                token=start.token,
                attempt=start.attempt,
                kind="retry",
                category="attempts-exhausted",
                message="Not now.",
            )
            states = await execution.finish(
                jobs.database, session_id=session_id, outcomes=[failed], result_ttl_s=60
            )
            assert states == {job_id: "queued"}
            query(database_url, _LATER, 3600, job_id)

            async with runner(database_url):
                others = [await jobs.send("wait_together", seconds=_TAKES_S) for _ in range(5)]
                assert {(await jobs.end(one)).state for one in others} == {"succeeded"}
                query(database_url, _SHORT, _TAKES_S, job_id)
                query(database_url, _LATER, 0, job_id)
                ended = await jobs.end(job_id)

            assert (ended.state, ended.error_category) == ("failed", "deadline-exceeded")
            assert (ended.attempt, ended.error_message) == (1, "The deadline left no time for another start.")
            assert (await jobs.events(job_id))[-1].reason == "less time was left than an execution takes"

    run(scenario)
