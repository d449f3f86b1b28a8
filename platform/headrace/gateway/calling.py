"""A call from admission to its last answer: choosing a runner, waiting, starting again, becoming a job."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

from headrace.admission import choose, predict
from headrace.admission.returning import LATEST_S
from headrace.domain import Manifest
from headrace.gateway.alarms import Alarms
from headrace.gateway.asked import Asked, Handed, ToJob
from headrace.gateway.call_problems import failed, no_room, out_of_time, unreachable, worker_lost
from headrace.gateway.call_stream import WINDOW
from headrace.gateway.exchange import ClientLeft
from headrace.gateway.handover import Handovers, Recorded
from headrace.gateway.metrics import GatewayMetrics
from headrace.gateway.outage import answers
from headrace.gateway.pending import PendingCall
from headrace.gateway.problems import Problem
from headrace.gateway.runners import RunnerLinks
from headrace.gateway.serving import Serving
from headrace.link import frames
from headrace.link.frames import Answer, Call, Error, Fenced, Lost, Refused, Result

_MOST_UNCHARGED: Final = 3  # starts lost through no fault of the call
_WATCH_AFTER_S = 0.1  # a shorter call isn't worth a task that waits for its client to leave
_BACKOFF_S = 0.1


async def _never_recorded(_job_id: str, _owner_id: str) -> bool:
    return False


class Caller:
    """Gets calls answered by the runners, or says how they go on as jobs.

    Args:
        links: to the runners.
        metrics: where restarts and handovers are counted.
        database_away: seconds since Postgres last answered.
        recorded: asks the ledger whether it has a job of some owner; by default it has none.
        back_s: seconds until a runner of a function should be there, where none is.
    """

    def __init__(
        self,
        links: RunnerLinks,
        metrics: GatewayMetrics,
        database_away: Callable[[], float] = lambda: 0.0,
        recorded: Recorded = _never_recorded,
        back_s: Callable[[Manifest], float] = lambda _: LATEST_S,
    ) -> None:
        self._links = links
        self._metrics = metrics
        self._database_away = database_away
        self._back_s = back_s
        self._handovers = Handovers(metrics, recorded)
        self._loop = asyncio.get_running_loop()
        self._alarms = Alarms(_WATCH_AFTER_S, self._loop)

    async def answer(self, asked: Asked) -> Result | Handed | ToJob:
        """The function's output, or how the call goes on as a job.

        Raises:
            Problem: whatever else became of the call.
            ClientLeft: the client is gone and the work was stopped, unless it is recorded as a job by now.
        """
        accepted_at = self._loop.time()
        while True:
            elapsed = self._loop.time() - accepted_at
            serving = self._choose(asked)
            if serving is None or self._is_late(asked, elapsed):
                if (job := await self._unsent(serving, asked, elapsed)) is not None:
                    return job
                continue
            pending = self._send(serving, asked, elapsed)
            answer = await self._answer(pending, serving, asked, accepted_at)
            asked.note(answer)
            if isinstance(answer, Result):
                return answer
            if (outcome := await self._settle(answer, pending, serving, asked)) is not None:
                if isinstance(outcome, Handed):
                    self._metrics.became_job(asked.manifest.name, "handed")
                return outcome

    async def _settle(
        self, answer: Answer, pending: PendingCall, serving: Serving, asked: Asked
    ) -> Result | Handed | ToJob | None:
        """What becomes of a call by an answer that isn't its result; None: it is to start again.

        Raises:
            Problem: it failed, or no start is left.
        """
        match answer:
            case Refused():
                asked.refusals[serving] = answer
            case Lost():
                if await self._is_recorded(pending, asked, charged=answer.charged):
                    return Handed(asked.job_id)
                asked.was_lost, asked.setback = True, "lost"
                asked.alone = asked.alone or answer.suspect
                self._charge(asked, charged=answer.charged)
            case Error(retryable=True) if asked.charged + 1 < asked.manifest.attempts and not asked.has_items:
                asked.alone = False  # its process lived to tell
                asked.setback = "failed-for-now"
                self._charge(asked, charged=True)
                await asyncio.sleep(_BACKOFF_S * random.uniform(0.5, 1.5))  # noqa: S311
            case Error():
                raise failed(answer, asked)
            case frames.Handed(withdrawn=True):
                return asked.to_job(asked.setback)
            case frames.Handed() | Fenced():
                return Handed(asked.job_id)
            case Result():
                return answer
        return None

    # ------------------------------------------------------------------ sending

    async def _unsent(self, serving: Serving | None, asked: Asked, elapsed: float) -> ToJob | None:
        """How a call goes on that can't be sent now; None: as before, as something has changed meanwhile.

        Args:
            serving: who would take it, were it not too late.
            asked: the call.
            elapsed: seconds since its acceptance.

        Raises:
            Problem: there is no room for it, or no time.
        """
        if serving is not None:
            if self._may_become_job(asked) and asked.span.hold < asked.span.total:
                return asked.to_job(asked.setback)
            raise out_of_time(asked)
        if (job := self._without_room(asked)) is not None:
            return job
        if not asked.starts or not await self._room(asked, asked.span.hold - elapsed):
            raise no_room(asked, self._back_s(asked.manifest))
        return None

    def _choose(self, asked: Asked) -> Serving | None:
        """Who is to do it; of several it is said anew what it should take there."""
        manifest = asked.manifest
        candidates = self._links.serving(manifest.name, manifest.interface, asked.refusals)
        if len(candidates) == 1 and not asked.refusals:
            return candidates[0]
        sound = [serving for serving in candidates if not serving.degraded]
        flowing = [serving for serving in sound if not serving.link.is_congested]
        others_full = any(refusal.reason == "full" for refusal in asked.refusals.values())
        chosen = choose(flowing or sound or candidates, others_full=others_full)
        if chosen is not None:
            asked.predicted = predict((chosen,), manifest.budget, asked.cost, asked.jobs)
        return chosen

    def _is_late(self, asked: Asked, elapsed: float) -> bool:
        """Whether too little of the hold is left for another start: nobody would wait for what it makes."""
        if asked.is_handed_over:
            return True
        if elapsed < asked.span.hold / 2:  # no handover is begun before
            return False
        return elapsed >= self._handovers.due_after(asked, self._loop.time())

    def _send(self, serving: Serving, asked: Asked, elapsed: float) -> PendingCall:
        """Send the call to a runner.

        Raises:
            Problem: `deadline-unreachable`.
        """
        remaining = asked.span.total - elapsed
        expected = serving.expected_s(asked.cost)
        if remaining < expected and not serving.may_try():
            raise unreachable(asked.manifest.name, remaining, expected)
        return serving.link.call(_frame(asked, elapsed), asked.stream)

    # ------------------------------------------------------------------ waiting

    async def _answer(
        self, pending: PendingCall, serving: Serving, asked: Asked, accepted_at: float
    ) -> Answer:
        """What ends the call on its link; it is stopped there where nobody waits for that any longer."""
        answer: Answer | None = None
        has_left = False
        try:
            brief_s = accepted_at + asked.span.hold / 2 - self._loop.time()
            is_long = brief_s >= self._alarms.seconds
            answer = await (pending.wait_briefly(self._alarms) if is_long else pending.wait(brief_s))
            if answer is None:
                answer = await self._wait(pending, asked, accepted_at)
        except BaseException as error:
            has_left = not isinstance(error, Problem)
            serving.link.stop(asked.job_id)
            asked.note_left()
            raise
        else:
            return answer
        finally:
            if pending.handover_at:
                self._handovers.ended(pending, asked, self._loop.time(), answer, has_left=has_left)

    async def _wait(self, pending: PendingCall, asked: Asked, accepted_at: float) -> Answer:
        """An answer that didn't come at once; at the hold's end, or when the client leaves, an exception.

        A call that may become a job is handed over before its hold ends; from then on its answer is waited
        for until its deadline, as only the runner knows whether it will be a result or a job.
        """
        hold = asked.span.hold
        leaving = asyncio.ensure_future(asked.receive())
        leaving.add_done_callback(lambda _: pending.wake())
        try:
            due_after = self._handovers.due_after(asked, self._loop.time())
            answer = await pending.wait(accepted_at + due_after - self._loop.time())
            if answer is None and not leaving.done() and due_after < hold:
                now = self._loop.time()
                if self._handovers.begin(pending, asked, now, now - accepted_at):
                    hold = asked.span.total
                answer = await pending.wait(accepted_at + hold - self._loop.time())
            if answer is not None:
                return answer
            if leaving.done():
                raise ClientLeft
            raise out_of_time(asked, held=not pending.handover_at)
        finally:
            leaving.cancel()

    async def _room(self, asked: Asked, seconds: float) -> bool:
        """Wait until a call that has to start again may be taken; False when the time is up.

        That is when a link comes or goes, or when the first of those that refused said that it has room.
        """
        soonest = min((refusal.retry_after_s for refusal in asked.refusals.values()), default=seconds)
        pause = min(seconds, max(soonest, _BACKOFF_S))
        change = asyncio.ensure_future(self._links.next_change(pause))
        leaving = asyncio.ensure_future(asked.receive())
        try:
            await asyncio.wait((change, leaving), return_when=asyncio.FIRST_COMPLETED)
            if leaving.done():
                raise ClientLeft
            if not (change.result() or pause < seconds):
                return False
            asked.refusals.clear()  # else they are why there was no room
            return True
        finally:
            change.cancel()
            leaving.cancel()

    # ------------------------------------------------------------------ starting again, or becoming a job

    def _may_become_job(self, asked: Asked) -> bool:
        """While Postgres is away no call becomes one, but one that may be one already is sent to no other."""
        is_possible = asked.is_handed_over or answers(self._database_away())
        return asked.may_be_job and not asked.has_items and is_possible

    def _without_room(self, asked: Asked) -> ToJob | None:
        """How the call goes on where no runner takes it now: as a job, if one could be expected to do it."""
        if not self._may_become_job(asked):
            return None
        if asked.starts:
            return asked.to_job(asked.setback)
        reasons = {refusal.reason for refusal in asked.refusals.values()}
        if "full" in reasons:
            return asked.to_job("full")
        return asked.to_job("cold") if "cold" in reasons else None

    async def _is_recorded(self, pending: PendingCall, asked: Asked, *, charged: bool) -> bool:
        """Whether a call is a job though it was lost before its runner could say so.

        It is asked only where no start is left: any other call is submitted again under its id, and joins
        that job if there is one.
        """
        if not pending.handover_at or not _is_last(asked, charged=charged):
            return False
        return await self._handovers.is_recorded(pending, asked, self._loop.time())

    def _charge(self, asked: Asked, *, charged: bool) -> None:
        """Count a lost start; returns when the call may start again.

        Raises:
            Problem: `worker-lost`, no start is left.
        """
        is_last = _is_last(asked, charged=charged)
        if charged:
            asked.charged += 1
        else:
            asked.uncharged += 1
        if is_last or asked.has_items:
            raise worker_lost(asked)
        asked.attempt += 1
        asked.refusals.clear()
        self._metrics.retries.inc()


def _is_last(asked: Asked, *, charged: bool) -> bool:
    """Whether a call that has lost a start, which counts or doesn't, may not start again."""
    if charged:
        return asked.charged + 1 >= asked.manifest.attempts
    return asked.uncharged >= _MOST_UNCHARGED


def _frame(asked: Asked, elapsed: float) -> Call:
    manifest, waits_s = asked.manifest, asked.span.hold
    if asked.may_be_job and asked.record is not None and not asked.starts:
        waits_s = min(waits_s, asked.record.queue_s)  # then it is too late for its first start
    return Call(
        asked.job_id,
        manifest.name,
        manifest.interface,
        asked.input,
        asked.owner_id,
        asked.attempt,
        int((asked.span.total - elapsed) * 1000),
        max(0, int((waits_s - elapsed) * 1000)),
        asked.request_id,
        asked.traceparent,
        alone=asked.alone,
        cost=asked.cost,
        credit=0 if asked.stream is None else WINDOW,
    )
