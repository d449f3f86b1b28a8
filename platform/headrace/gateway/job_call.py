"""Calls that become jobs: by `Prefer: respond-async`, by an `Idempotency-Key`, or for want of room or time.

A key and the job that it stands for are recorded in one transaction before anything is executed. Whoever
makes the call again joins that job, as it is answered to the first. Where a stream is wanted, the answer is
the job's events.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any, Final

from headrace.admission import Predicted, span
from headrace.admission.deciding import Reason
from headrace.database import Database
from headrace.domain import FINAL, Manifest
from headrace.errors import DatabaseError
from headrace.gateway import job_view
from headrace.gateway.asked import Asked, ToJob
from headrace.gateway.becoming import asked_for, new_job
from headrace.gateway.call_problems import no_runner, perhaps_recorded, recorded
from headrace.gateway.directory import Directory
from headrace.gateway.exchange import ClientLeft, Exchange, server_timing
from headrace.gateway.job_asked import JobCall
from headrace.gateway.job_events import EventStream, goes_on_after
from headrace.gateway.metrics import GatewayMetrics
from headrace.gateway.outage import answers, require_postgres
from headrace.gateway.preferences import Wishes
from headrace.gateway.problems import Problem, to_problem
from headrace.gateway.quotas import Headers, jobs_headers
from headrace.gateway.refusals import conflict, refused, still_runs
from headrace.gateway.submitter import Submitter
from headrace.gateway.waking import LOOKED_AT_WITHIN_S, Watch, Watcher
from headrace.keys import KeyRow
from headrace.ledger import reading, submission
from headrace.ledger.reading import Job
from headrace.ledger.submission import Receipt
from headrace.settings import Settings

_NO_STORE: Final = (b"cache-control", b"no-store")
_BRIEFLY_S: Final = 1.0  # what Postgres gets where the hold is over: a proxy may cut the connection soon


class JobCalls:
    """Submits calls as jobs and answers them.

    Args:
        settings: the gateway's.
        directory: where runners were seen.
        submitter: the way into the ledger.
        watcher: who hears of a job's end.
        database: the ledger's.
        database_away: seconds since Postgres last answered.
        metrics: where the calls are counted that become jobs.
        predict: what a call of a function should take, for an input of that cost.
    """

    def __init__(
        self,
        settings: Settings,
        directory: Directory,
        submitter: Submitter,
        watcher: Watcher,
        database: Database,
        database_away: Callable[[], float],
        metrics: GatewayMetrics,
        predict: Callable[[Manifest, float], Predicted | None],
    ) -> None:
        self._settings = settings
        self._directory = directory
        self._submitter = submitter
        self._watcher = watcher
        self._database = database
        self._database_away = database_away
        self._metrics = metrics
        self._predict = predict

    def prepare(
        self,
        exchange: Exchange,
        manifest: Manifest,
        content: tuple[bytes, Any],
        key: KeyRow,
        wishes: Wishes,
    ) -> JobCall:
        """A call whose input was checked, ready to be submitted.

        Args:
            exchange: the request.
            manifest: the function's.
            content: the input as it came, and decoded.
            key: the caller's.
            wishes: what it asked for.
        """
        prefer, settings = wishes.prefer, self._settings
        budget = manifest.budget
        is_async = prefer.respond_async and wishes.takes_job
        if is_async:
            hold = min(prefer.wait or 0, settings.max_hold)
            exchange.applied = b"respond-async" + (b", " + exchange.applied if exchange.applied else b"")
        else:
            # Not up to its own deadline: that ends the job, and the end of the job is the answer.
            hold = span(budget, wait=prefer.wait, deadline=None, max_hold=settings.max_hold).hold
        waiter = self._watcher.gateway_id if hold > 0 else None
        new = asked_for(exchange, manifest, content, key, wishes, settings, waiter)
        is_priced = manifest.batch is not None or manifest.cost.varies
        return JobCall(
            new,
            hold,
            budget.queue,
            is_async,
            wishes.takes_job,
            predicted=self._predict(manifest, new.cost if is_priced else 0.0),
        )

    def become(self, asked: Asked, elapsed: float, hold: float, why: ToJob | Reason) -> JobCall:
        """A call of the direct path, ready to be submitted under its id.

        Args:
            asked: the call; its input goes over to the job.
            elapsed: seconds since it was accepted.
            hold: how long its connection is held from now on.
            why: as the direct path gave it up, with the starts that it has had; or as the rule has decided
                before that was tried.

        Raises:
            Problem: `deadline-exceeded` or `queue-deadline-exceeded`, no time is left.
        """
        waiter = self._watcher.gateway_id if hold > 0 else None
        given_up = why if isinstance(why, ToJob) else None
        try:
            new = new_job(asked, elapsed, given_up, self._settings, waiter)
        except Problem as problem:
            raise perhaps_recorded(problem, asked.job_id) if asked.may_be_recorded else problem from None
        return JobCall(
            new,
            hold,
            asked.manifest.budget.queue,
            is_async=False,
            reason=why.reason if isinstance(why, ToJob) else why,
            may_be_recorded=asked.may_be_recorded,
            attempt=new.attempt,
            predicted=self._predict(asked.manifest, asked.cost),
        )

    async def answer(self, exchange: Exchange, call: JobCall) -> None:
        """Submit it, and answer: within the wait with what became of it, else 202.

        Raises:
            Problem: the job wasn't accepted, or ended without a result. Where it is in the ledger, or a
                runner may have recorded it, it names the job.
            ClientLeft: the client is gone; the job goes on.
        """
        try:
            await self._answer(exchange, call)
        except (Problem, DatabaseError) as error:
            problem = to_problem(error)
            if "job_id" in problem.extra:
                raise
            if call.is_accepted and isinstance(error, DatabaseError):
                raise recorded(problem, call.job_id) from error
            if call.may_be_recorded:
                raise perhaps_recorded(problem, call.job_id) from error
            raise

    async def _answer(self, exchange: Exchange, call: JobCall) -> None:
        require_postgres(self._database_away())
        receipt = job = None
        if not self._may_be_served(call):
            await self._recall(call)
        elif call.hold > 0:
            receipt, job = await self._submit_and_wait(exchange, call)
        else:
            receipt = await self._submit(call)
            if receipt.outcome == "replayed" and call.joined is None:
                job = await self._read(call.job_id, call.new.owner_id)
        if call.joined is not None:
            job = await self._join(exchange, call)
        if job is not None:
            call.note(job)
            if (call.hold > 0 or not call.is_async) and await self._answer_final(exchange, job):
                return
            body = job_view.encode_job(job, exchange.root)
        else:
            assert receipt is not None
            body = job_view.encode_accepted(call.new, receipt, exchange.root)
        if not call.takes_job:
            raise still_runs(call)
        await self._accepted(exchange, call.job_id, body, *_quota(call, receipt))

    async def _submit_and_wait(self, exchange: Exchange, call: JobCall) -> tuple[Receipt, Job | None]:
        """Submit it, and wait for its end where that may come in time; not for that of another call's job."""
        began = time.monotonic()
        with self._watcher.watch(call.new.job_id) as watch:
            receipt = await self._submit(call)
            submitted_at = time.monotonic()
            if call.joined is not None or not call.may_end_within(call.hold - (submitted_at - began)):
                return receipt, None
            if receipt.outcome == "replayed":
                await self._notice(watch)
            job = await self._awaited(watch, None, exchange, call)
        if job is None or not job.attempt:
            looked_at = time.monotonic() - LOOKED_AT_WITHIN_S - self._database_away()
            call.unstarted_s = max(0.0, looked_at - submitted_at)
        return receipt, job

    async def handed(self, exchange: Exchange, asked: Asked, job_id: str) -> None:
        """Answer a direct call that its runner has recorded as a job, which goes on or has just ended.

        Raises:
            Problem: the job has ended without a result.
        """
        job = await self._read(job_id, asked.owner_id)
        if job is None:  # Postgres fell silent since; the job is there
            body = job_view.encode_handed(job_id, asked.manifest.name, asked.attempt, exchange.root)
        else:
            asked.attempt = job.attempt
            asked.queue_ms, asked.exec_ms = job.waited_s * 1000, job.execution_s * 1000
            if await self._answer_final(exchange, job, within=_BRIEFLY_S):
                return
            body = job_view.encode_job(job, exchange.root)
        await self._accepted(exchange, job_id, body)

    async def _accepted(
        self, exchange: Exchange, job_id: str, body: bytes, *more: tuple[bytes, bytes]
    ) -> None:
        await exchange.answer(
            202,
            body,
            (b"location", job_view.job_url(exchange.root, job_id).encode("ascii")),
            (b"retry-after", b"%d" % job_view.retry_after()),
            (b"headrace-job-id", job_id.encode("ascii")),
            _NO_STORE,
            *more,
        )

    async def stream(self, exchange: Exchange, call: JobCall) -> str:
        """Submit it, and answer with its events; those of the job of an earlier call from the first one on.

        They can be had again under `/jobs`, or by the same call, from wherever the client left off. A call
        that names an event is only looked up, and never submitted: that would execute it again.

        Returns:
            How the stream ended: `result`, the code of the job's error, `client-left` or `cut-off`.

        Raises:
            Problem: the job wasn't accepted, or its result isn't kept any longer.
        """
        after = goes_on_after(exchange, call.new.idempotency_key)
        require_postgres(self._database_away())
        receipt = job = None
        if not after and self._may_be_served(call):
            receipt = await self._submit(call)
        else:
            await self._recall(call, is_begun=after > 0)
        if call.joined is not None:
            job = await self._joined(exchange, call)
            if job.result_expired:
                raise job_view.expired_result(job)
        events = EventStream(self._database, self._watcher, job or call.job_id, exchange.root, after=after)
        await events.answer(exchange, *_quota(call, receipt))
        if events.job is not None:
            call.note(events.job)
        return events.end

    async def _submit(self, call: JobCall) -> Receipt:
        call.receipt = receipt = await self._submitter.submit(call.new)
        if not call.is_accepted:
            raise refused(call.new, receipt)
        if call.reason:
            self._metrics.became_job(call.new.function, call.reason)
        call.forget_input()
        if receipt.job_id != call.new.job_id:
            call.joined = receipt.job_id
        return receipt

    def _may_be_served(self, call: JobCall) -> bool:
        """Whether a runner could execute it, or may have recorded it: then only the ledger can tell."""
        new = call.new
        return call.may_be_recorded or self._directory.was_served(
            new.function, new.interface, call.queue_budget
        )

    async def _recall(self, call: JobCall, *, is_begun: bool = False) -> None:
        """Join the job of a call that was made before, and make none.

        Args:
            call: as no runner could execute it; or its client has some of its events.
            is_begun: the latter.

        Raises:
            Problem: it isn't known to have been made before: `no-runner`, or `result-expired` where it was;
                or `key-conflict`.
        """
        new = call.new
        if new.idempotency_key is not None:
            known = await submission.remembered(
                self._database, new.owner_id, new.function, new.idempotency_key
            )
            if known is not None and known.digest != new.digest:
                raise conflict(known.job_id)
            call.joined = None if known is None else known.job_id
            call.forget_input()
        if call.joined is None and is_begun:
            raise Problem("result-expired", "No call is known by this key: there is nothing to go on with.")
        if call.joined is None:
            detail = f"No runner of {new.function} was seen within its queue budget."
            raise no_runner(detail, self._directory.away_s(new.function, new.interface))

    async def _joined(self, exchange: Exchange, call: JobCall) -> Job:
        """The job of the call that was made before."""
        job = await reading.find(self._database, call.job_id, call.new.owner_id, actor=self._watcher.actor)
        exchange.is_replay = True
        if job is None:
            raise Problem("result-expired", "The call was made before, and its job isn't kept any longer.")
        return job

    async def _join(self, exchange: Exchange, call: JobCall) -> Job:
        """The same, waited for as this call asks."""
        job = await self._joined(exchange, call)
        if job.state in FINAL or call.hold == 0:
            return job
        with self._watcher.watch(job.job_id) as watch:
            await self._notice(watch)
            return await self._awaited(watch, job, exchange, call) or job

    async def _notice(self, watch: Watch) -> None:
        """Have the end told of a job that was submitted without this waiter.

        The call is accepted: where Postgres doesn't answer, the look at all watched jobs tells of its end.
        """
        with contextlib.suppress(DatabaseError):
            await self._watcher.begin(watch, follow=False)
        watch.stir()  # it is to be read again now that its end will be told

    async def _read(self, job_id: str, owner_id: str) -> Job | None:
        """A job that is in the ledger; None where Postgres doesn't answer at once."""
        if not answers(self._database_away()):
            return None
        try:
            return await reading.find(
                self._database, job_id, owner_id, actor=self._watcher.actor, within=_BRIEFLY_S
            )
        except DatabaseError:
            return None

    async def _awaited(self, watch: Watch, job: Job | None, exchange: Exchange, call: JobCall) -> Job | None:
        job = await self._watcher.until_final(watch, job, call.hold, exchange.receive)
        if watch.has_left:
            raise ClientLeft
        return job

    async def _answer_final(self, exchange: Exchange, job: Job, within: float | None = None) -> bool:
        """Answer with what became of the job; False where that isn't known yet, or can't be had in time.

        Args:
            exchange: the request.
            job: as it was read.
            within: seconds that Postgres gets for a large result; its own limit by default.
        """
        if job_view.fault_of(job) is not None:
            raise job_view.problem_of(job)
        if job.state != "succeeded":
            return False
        output = job_view.inline_result(job)
        if output is None:
            try:
                output = await reading.result(self._database, job.job_id, job.owner_id, within=within)
            except DatabaseError:
                return False
        if output is None:
            raise job_view.expired_result(job)
        await exchange.answer(
            200,
            output,
            server_timing(job.waited_s * 1000, job.execution_s * 1000),
            (b"headrace-job-id", job.job_id.encode("ascii")),
        )
        return True


def _quota(call: JobCall, receipt: Receipt | None) -> Headers:
    if receipt is None:
        return ()
    return jobs_headers(call.new.most_outstanding, receipt.outstanding + (call.joined is None))
