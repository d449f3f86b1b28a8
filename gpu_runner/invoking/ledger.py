"""Calls that calls make, in the ledger: each is a job that is submitted, waited for, and read.

A job's id follows from who asks for what (`identity`), so a call's next attempt meets the jobs of the one
before: it takes the results of those that have succeeded, and joins those that still run. Those that came to
nothing in a way that passes, or whose results aren't kept any longer, are done again.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from gpu_runner.calls import LocalCall
from gpu_runner.frames import Invoke, Invoked
from gpu_runner.invoking.ends import Ends
from gpu_runner.invoking.identity import actor_of, callers_in, child_id
from headrace.database import Database
from headrace.domain import FINAL, Manifest
from headrace.errors import DatabaseBusy, DatabaseError, DatabaseUnavailable
from headrace.ledger import cancelling, invoking, reading, submission
from headrace.ledger.invoking import Invoker
from headrace.ledger.reading import Job
from headrace.ledger.retrying import bounds_of
from headrace.ledger.submission import NewJob, Receipt
from headrace.sdk import Function
from headrace.settings import Settings

log = logging.getLogger(__name__)

DEEPEST: Final = 8
"""Functions above one that is called, the first of which a client has called."""

_AT_ONCE: Final = 2  # queries: claims and renewals use the same connections
_CANCELS_AT_ONCE: Final = 1  # besides: two queries that hang mustn't keep work going that nobody waits for
_PAUSE_S: Final = 0.25  # after Postgres didn't answer
_QUOTA_PAUSE_S: Final = 0.25  # the first one; each is twice the one before
_LONGEST_QUOTA_PAUSE_S: Final = 4.0
_CANCEL_WITHIN_S: Final = 30.0
_KEPT_MANIFEST_S: Final = 2.0
_WHY_REFUSED: Final = {
    "quota-exceeded": "The owner has as many unfinished jobs as it may have.",
    "no-capacity": "No runner has room for it.",
}

T = TypeVar("T")


class Refused(Exception):
    """There is no output; with what the executor is told."""

    def __init__(
        self,
        category: str,
        message: str,
        *,
        is_passing: bool = False,
        retry_after_s: float = 0.0,
        child_id: str = "",
        errors: tuple[tuple[str, str], ...] = (),
    ) -> None:
        super().__init__(message)
        self.category = category
        self.message = message
        self.is_passing = is_passing
        self.retry_after_s = retry_after_s
        self.child_id = child_id
        self.errors = errors


class Ledger:
    """Makes the jobs that running calls ask for.

    Args:
        database: the ledger's.
        session_id: this runner's.
        settings: its settings, which should have the site's bounds.
        functions: what it serves itself, by name.
    """

    def __init__(
        self,
        database: Database,
        session_id: str,
        settings: Settings,
        functions: Mapping[str, Function[Any, Any]],
    ) -> None:
        self.ends = Ends(database, session_id)
        self._database = database
        self._session_id = session_id
        self._settings = settings
        self._functions = functions
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._cancels = asyncio.Semaphore(_CANCELS_AT_ONCE)
        self._manifests: dict[str, tuple[float, Manifest]] = {}

    async def output(self, asked: Invoke, call: LocalCall, made: list[str]) -> Invoked:
        """What has become of what a running call has asked for.

        Args:
            asked: what it has asked for.
            call: that has.
            made: gets the id of each job that may be in the ledger, before it is.
        """
        try:
            job_id, output = await self._called(asked, call, made)
        except Refused as why:
            return Invoked(
                asked.job_id,
                asked.attempt,
                asked.number,
                None,
                why.category,
                why.message,
                why.child_id,
                why.is_passing,
                why.retry_after_s,
                why.errors,
            )
        except DatabaseError as error:
            log.error("job %s can't call %s: %s", asked.job_id, asked.function, error)
            message = "The ledger could not be used."
            return Invoked(
                *(asked.job_id, asked.attempt, asked.number),
                category="database-unavailable",
                message=message,
                is_passing=True,
            )
        return Invoked(asked.job_id, asked.attempt, asked.number, output, child_id=job_id)

    async def cancel(self, job_id: str, parent: LocalCall) -> None:
        """Cancel a job that nobody waits for any more; one that isn't there, or has ended, is left alone."""
        until = time.monotonic() + _CANCEL_WITHIN_S
        actor = f"call:{parent.job_id}"
        while time.monotonic() < until:
            try:
                async with self._cancels:
                    await cancelling.cancel(self._database, job_id, parent.frame.owner, actor)
            except (DatabaseUnavailable, DatabaseBusy):
                await asyncio.sleep(_PAUSE_S)
            except DatabaseError as error:
                log.error("job %s, which nobody waits for, can't be cancelled: %s", job_id, error)
                return
            else:
                return
        log.warning("job %s, which nobody waits for, could not be cancelled", job_id)

    # ------------------------------------------------------------------ the job

    async def _called(self, asked: Invoke, call: LocalCall, made: list[str]) -> tuple[str, bytes]:
        """The id of the job for it, which has succeeded, and its output."""
        manifest = await self._manifest(asked)
        if len(asked.input) > manifest.limits.input:
            size, limit = len(asked.input), manifest.limits.input
            raise Refused("payload-too-large", f"The input has {size} bytes, the limit is {limit}.")
        owner = call.frame.owner
        known = await self._repeated(lambda: invoking.invoker(self._database, call.job_id, owner))
        if known is None:
            raise Refused("unknown-owner", "The call's owner doesn't exist any more.")
        chain = (*callers_in(known.actor), call.frame.function)
        _check_chain(chain, asked.function)
        again = 0
        while True:  # past at most one job for each attempt before, as none makes a second one
            job_id = child_id(asked, again)
            made.append(job_id)
            with self.ends.watch(job_id) as ended:
                is_own = await self._submit(job_id, asked, call, manifest, known, chain)
                if not is_own:
                    await self._repeated(
                        lambda job_id=job_id: reading.watch(
                            self._database, job_id, self._session_id, follow=False
                        )
                    )
                    ended.set()  # it may have ended already
                job = await self._final(job_id, ended)
            output = await self._output_of(job)
            if output is not None:
                return job_id, output
            if is_own or not _may_fare_better(job):
                raise _refusal(job)
            again += 1

    async def _submit(
        self,
        job_id: str,
        asked: Invoke,
        call: LocalCall,
        manifest: Manifest,
        known: Invoker,
        chain: tuple[str, ...],
    ) -> bool:
        """Have the job in the ledger; returns whether this attempt has put it there."""
        place = None
        quota_pause_s = _QUOTA_PAUSE_S
        bounds = bounds_of(self._settings, known.most_outstanding)
        # Past its owner's quota there is one place more for each level, or callers that fill it would keep
        # each other from ever getting what they wait for.
        jobs_above = len(chain) if known.is_job else len(chain) - 1
        while True:
            left_s = call.deadline_at - time.monotonic()
            if left_s <= 0:
                raise Refused("deadline-exceeded", "The calling call's deadline has passed.")
            total_s = min(left_s, manifest.budget.total)
            new = NewJob(
                job_id=job_id,
                owner_id=call.frame.owner,
                function=manifest.name,
                interface=manifest.interface,
                input=asked.input,
                digest=asked.digest,
                cost=manifest.cost.of(msgspec.json.decode(asked.input) if manifest.cost.varies else None),
                attempts=manifest.attempts,
                queue_s=min(manifest.budget.queue, total_s),
                total_s=total_s,
                most_outstanding=bounds.most_outstanding + jobs_above,
                most_waiting=bounds.most_waiting,
                most_cost=bounds.most_cost,
                most_age_s=bounds.most_age_s,
                weight=known.childs_weight,
                request_id=call.frame.request_id,
                traceparent=call.frame.traceparent,
                actor=actor_of(call.job_id, chain),
                waiter=self._session_id,
                place=place,
            )
            receipt, is_in_doubt = await self._sent(new)
            if receipt.outcome == "accepted":
                return True
            if receipt.outcome == "replayed":
                return is_in_doubt and receipt.created_at is not None and receipt.created_at >= known.now
            if receipt.outcome == "quota-exceeded":
                await _wait_for_quota(quota_pause_s, left_s)
                quota_pause_s = min(2 * quota_pause_s, _LONGEST_QUOTA_PAUSE_S)
            else:
                place = await self._wait_for_room(receipt, left_s)

    async def _sent(self, new: NewJob) -> tuple[Receipt, bool]:
        """What the ledger says of a new job, and whether it may have been told of it before, in vain."""
        times = 0

        async def send() -> list[Receipt]:
            nonlocal times
            times += 1
            return await submission.submit(self._database, [new])

        (receipt,) = await self._repeated(send)
        return receipt, times > 1

    async def _wait_for_room(self, receipt: Receipt, left_s: float) -> str:
        """Come back when there should be room, with the place that is kept until then."""
        due_s = receipt.due_s
        if receipt.place is None or due_s is None or due_s >= left_s:
            why = _WHY_REFUSED.get(receipt.outcome, "Too much waits for the function already.")
            raise Refused(receipt.outcome, why, is_passing=True, retry_after_s=due_s or 0.0)
        await asyncio.sleep(due_s)
        return receipt.place

    async def _final(self, job_id: str, ended: asyncio.Event) -> Job:
        """The job when it has ended."""
        while True:
            await ended.wait()
            ended.clear()
            job = await self._repeated(lambda: reading.find(self._database, job_id, None))
            if job is None:
                message = "The job isn't kept any longer."
                raise Refused("result-expired", message, is_passing=True, child_id=job_id)
            if job.state in FINAL:
                return job

    async def _output_of(self, job: Job) -> bytes | None:
        """What a job has brought; None: nothing, or it isn't kept any longer."""
        if job.state != "succeeded" or job.small_result is not None:
            return job.small_result
        return await self._repeated(lambda: reading.result(self._database, job.job_id, None))

    async def _manifest(self, asked: Invoke) -> Manifest:
        """What is known of the function by the interface that the caller's code has."""
        own = self._functions.get(asked.function)
        if own is not None and own.manifest.interface == asked.interface:
            return own.manifest
        read_at, manifest = self._manifests.get(asked.function, (0.0, None))
        if manifest is None or time.monotonic() > read_at + _KEPT_MANIFEST_S:
            manifest = await self._repeated(lambda: invoking.manifest(self._database, asked.function))
            if manifest is None:
                raise Refused("unknown-function", f"No function {asked.function} is registered.")
            self._manifests[asked.function] = time.monotonic(), manifest
        if manifest.interface != asked.interface:
            message = f"The site serves {asked.function} with other types than the calling code has."
            raise Refused("unknown-interface", message, is_passing=True)  # as during a deployment
        return manifest

    async def _repeated(self, ask: Callable[[], Awaitable[T]]) -> T:
        """What Postgres answers, in the end: who waits is cut off at the call's own deadline."""
        while True:
            try:
                async with self._turns:
                    return await ask()
            except (DatabaseUnavailable, DatabaseBusy):
                await asyncio.sleep(_PAUSE_S)


def _check_chain(chain: tuple[str, ...], function: str) -> None:
    path = " -> ".join((*chain, function))
    if function in chain:
        raise Refused("recursion", f"{path}: {function} can't be called, as it waits for this very call.")
    if len(chain) >= DEEPEST:
        raise Refused("too-deep", f"{path}: calls may be {DEEPEST} deep.")


async def _wait_for_quota(pause_s: float, left_s: float) -> None:
    """Nobody tells when another job of the owner ends: try again a little later, if there is time."""
    pause_s *= random.uniform(0.5, 1)  # noqa: S311 - no secret: callers are to come one by one
    if pause_s >= left_s:
        raise Refused("quota-exceeded", _WHY_REFUSED["quota-exceeded"], is_passing=True)
    await asyncio.sleep(pause_s)


def _refusal(job: Job) -> Refused:
    """Why there is no output of a job that has ended."""
    if job.state == "succeeded":
        message = "The result isn't kept any longer."
        return Refused("result-expired", message, is_passing=True, child_id=job.job_id)
    return Refused(
        _category(job),
        job.error_message or f"The job is {job.state}.",
        is_passing=job.state == "expired" or job.error_category == "worker-lost",
        child_id=job.job_id,
        errors=tuple((str(one["path"]), str(one["message"])) for one in job.error_errors),
    )


def _category(job: Job) -> str:
    return job.error_category or ("job-cancelled" if job.state == "cancelled" else "function-failed")


def _may_fare_better(job: Job) -> bool:
    """Whether a job of an earlier attempt has no output for a reason that may be gone."""
    if job.state == "succeeded":  # its result isn't kept any longer
        return True
    return job.state in ("expired", "cancelled") or job.error_category == "worker-lost"
