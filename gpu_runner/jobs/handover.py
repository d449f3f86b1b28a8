"""Makes direct calls jobs while they run, when a gateway can't hold their connections any longer.

A call that hasn't started is simply given back. One that runs goes on, and is recorded meanwhile: from the
request on only this runner decides about it. What the gateway is told is the first of these to be known: that
the ledger has the job, that it has it under another token, or, where it doesn't answer, how the call ended.
docs/handover.md has the states and what each event does in them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict, deque
from typing import Final, NamedTuple

from gpu_runner.calls import LocalCall
from gpu_runner.clock import boot_time
from gpu_runner.jobs.held import HeldJobs, Runs
from gpu_runner.jobs.leases import ClaimIds, Leases
from gpu_runner.jobs.recording import Recording
from gpu_runner.jobs.session import Ledger
from gpu_runner.jobs.unsettled import Settling, Unsettled
from gpu_runner.metrics import RunnerMetrics
from headrace.database import ANSWER_WITHIN, within
from headrace.errors import DatabaseError, DatabaseNotReached, DatabaseUnavailable
from headrace.ledger.handover import Recorded
from headrace.link.frames import Answer, Fenced, Handed, Handover

log = logging.getLogger(__name__)

_MOST: Final = 256  # calls in one transaction
_MOST_BYTES: Final = 2**20  # of their inputs; a larger one goes alone
_SHORTEST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 2.0
_REFUSED_PAUSE_S: Final = 2.0  # of a call that Postgres refuses by itself: a lock may be in the way
_HELD_STATES: Final = ("running", "cancel_requested")
_FINAL: Final = ("succeeded", "failed")


class _Batch(NamedTuple):
    """What goes in one transaction; again under the same name when its reply was lost."""

    claim_id: str
    recordings: list[Recording]


class Handovers:
    """Records calls: one transaction at a time, and what is asked for meanwhile makes the next.

    Args:
        ledger: where they are recorded.
        runs: who runs them.
        held: takes those that are recorded.
        leases: knows how long they may be kept.
        claims: names of transactions, as of claims: what they bring isn't given back by a renewal.
        metrics: where handovers are counted.
    """

    def __init__(
        self,
        ledger: Ledger,
        runs: Runs,
        held: HeldJobs,
        leases: Leases,
        claims: ClaimIds,
        metrics: RunnerMetrics,
    ) -> None:
        self.settling = Settling(ledger, self._settled, metrics)
        """Of the calls that ended while it wasn't known whether they were recorded."""
        self._ledger = ledger
        self._runs = runs
        self._held = held
        self._leases = leases
        self._claims = claims
        self._metrics = metrics
        self._open: set[Recording] = set()
        self._new: OrderedDict[Recording, None] = OrderedDict()  # any of them may be taken out
        self._again: deque[_Batch] = deque()
        self._is_turn_of_again = False
        self._users: Counter[str] = Counter()
        """Of each claim's id: how many recordings and ends it may yet bring something of."""
        self._any = asyncio.Event()
        self._emptied = asyncio.Event()
        self._is_leaving = False

    def record(self, call: LocalCall, asked: Handover) -> None:
        """Make a call that runs, or was handed ahead, a job; when this runner leaves it stays what it is."""
        if self._is_leaving:
            return
        recording = Recording(call, asked, self._ended)
        self._open.add(recording)
        self._new[recording] = None
        self._any.set()

    def cancelled(self, job_id: str) -> None:
        """A job's cancel was requested, maybe before this runner knows that it is recorded."""
        for recording in self._open:
            if recording.job_id == job_id:
                recording.is_cancelled = True

    # ------------------------------------------------------------------ to the ledger

    async def run(self) -> None:
        """Record until cancelled, whatever becomes of Postgres meanwhile."""
        failures = 0
        while True:
            batch = await self._next()
            if not batch.recordings:
                continue
            asked_at = boot_time()
            for recording in batch.recordings:
                if recording.sent == "no":
                    recording.sent = "in flight"
                    recording.lease_until = self._leases.lasts_from(asked_at)
            calls = [recording.handed_over() for recording in batch.recordings]
            try:
                records = await self._ledger.hand_over(batch.claim_id, calls)
            except DatabaseError as error:
                if not failures:
                    log.warning("recording %d calls as jobs failed, trying on: %s", len(calls), error)
                failures += 1
                self._failed(batch, error)
                if isinstance(error, DatabaseUnavailable):
                    await asyncio.sleep(min(_LONGEST_PAUSE_S, _SHORTEST_PAUSE_S * 2 ** min(failures, 10)))
                continue
            failures = 0
            for recording in batch.recordings:
                if not recording.is_over:  # else its end is settled by itself
                    self._recorded(recording, records[recording.job_id], asked_at)

    async def _next(self) -> _Batch:
        while not (self._may_send_new or self._again):
            self._any.clear()
            await self._any.wait()
        if self._again and (self._is_turn_of_again or not self._may_send_new):
            self._is_turn_of_again = False
            claim_id, recordings = self._again.popleft()
            return _Batch(claim_id, [one for one in recordings if not one.is_over])
        self._is_turn_of_again = True
        claim_id = await self._claims.take()  # as long as a renewal hangs, maybe
        recordings = self._gather()
        if recordings:
            self._users[claim_id] = len(recordings)
            for recording in recordings:
                recording.claim_id = claim_id
        else:
            self._claims.done(claim_id)
        return _Batch(claim_id, recordings)

    @property
    def _may_send_new(self) -> bool:
        """Whether there are calls that may be sent: not while much is kept of others that may be recorded."""
        return bool(self._new) and not self.settling.is_full

    def _gather(self) -> list[Recording]:
        gathered: list[Recording] = []
        size = 0
        while self._new and len(gathered) < _MOST:
            recording = next(iter(self._new))
            if not recording.is_over:
                size += recording.call.size
                if gathered and size > _MOST_BYTES:
                    break
                gathered.append(recording)
            del self._new[recording]
        return gathered

    def _failed(self, batch: _Batch, error: DatabaseError) -> None:
        """Note what is known of the calls now; those that have ended may be answered for."""
        has_done_nothing = isinstance(error, DatabaseNotReached) or not isinstance(error, DatabaseUnavailable)
        for recording in batch.recordings:
            if recording.sent == "in flight":
                recording.sent = "no" if has_done_nothing else "unknown"
            if recording.reply is not None and not recording.is_over:
                self._ended(recording)
        left = [recording for recording in batch.recordings if not recording.is_over]
        if isinstance(error, DatabaseUnavailable):
            if left:  # behind the others: it may be their size that took too long
                self._again.append(_Batch(batch.claim_id, left))
        elif len(batch.recordings) > 1:  # Postgres has refused something: each goes alone now
            self._again.extend(_Batch(batch.claim_id, [recording]) for recording in left)
        elif left:
            loop = asyncio.get_running_loop()
            loop.call_later(_REFUSED_PAUSE_S, self._retry, _Batch(batch.claim_id, left))

    def _retry(self, batch: _Batch) -> None:
        self._again.append(batch)
        self._any.set()

    # ------------------------------------------------------------------ what comes of them

    def _recorded(self, recording: Recording, record: Recorded, asked_at: float) -> None:
        if record.verdict == "fenced" or record.state not in _HELD_STATES:
            self._fenced(recording)
            return
        job = self._held.adopt(recording.claimed(), self._leases.lasts_from(asked_at))
        job.ended_by = recording.ended_by
        if recording.reply is None:
            recording.call.caller = job
        self._metrics.handover_seconds.observe(boot_time() - recording.since)
        self._conclude(recording, "recorded", Handed(recording.job_id))
        if recording.news is not None:
            job.tell(recording.news)
        if recording.reply is not None:
            job.answer(recording.reply)
        elif recording.is_cancelled or record.state == "cancel_requested":
            self._held.cancel(job.job_id)

    def _fenced(self, recording: Recording) -> None:
        """The job is there, and this start isn't its present one: what runs here is of no use."""
        log.warning("job %s was recorded elsewhere: it is stopped here", recording.job_id)
        self._conclude(recording, "fenced", Fenced(recording.job_id))
        if recording.reply is None:
            self._runs.stop(recording.job_id, recording)

    def _ended(self, recording: Recording) -> None:
        """A call has ended before it is known to be recorded."""
        assert recording.reply is not None
        if recording.sent == "no":
            is_cut_off = recording.ended_by and recording.outcome().kind not in _FINAL
            self._conclude(recording, "answered", recording.lost() if is_cut_off else recording.reply)
        elif recording.sent == "unknown" or self._is_leaving:
            self._answer_if_final(recording, recording.reply)

    def _answer_if_final(self, recording: Recording, reply: Answer) -> None:
        """Tell how a call ended of which nobody knows when it will be known whether it is recorded.

        Not where another start is needed: that is the ledger's affair, which may have the job.
        """
        outcome = recording.outcome()
        if outcome.kind not in _FINAL:
            if not (recording.ended_by or self._is_leaving):
                return
            reply = recording.lost()
        most_bytes = max(_MOST_BYTES, recording.call.size)  # of a transaction that may be on its way
        until = boot_time() + self._ledger.lease_s + ANSWER_WITHIN + within(most_bytes)
        self._users[recording.claim_id] += 1
        self.settling.add(Unsettled(recording.function, outcome, recording.claim_id, until))
        self._conclude(recording, "answered", reply)

    def _conclude(self, recording: Recording, outcome: str, answer: Answer) -> None:
        recording.is_over = True
        self._open.discard(recording)
        if not recording.claim_id:
            del self._new[recording]  # it may be long until they are sent
        if not self._open:
            self._emptied.set()
        if recording.claim_id:
            self._release(recording.claim_id)
        self._metrics.handed_over(recording.function, outcome)
        recording.gateway.answer(answer)

    def _settled(self, claim_id: str) -> None:
        self._release(claim_id)
        self._any.set()  # what waits may be sent again

    def _release(self, claim_id: str) -> None:
        self._users[claim_id] -= 1
        if not self._users[claim_id]:
            del self._users[claim_id]
            self._claims.done(claim_id)

    # ------------------------------------------------------------------ leases

    def leases_until(self) -> list[float]:
        """Until which `boot_time` the leases are relied on that running calls may have."""
        return [one.lease_until for one in self._open if one.sent != "no" and one.reply is None]

    def guard(self, now: float) -> None:
        """End calls, at an instant of `boot_time`, that may be recorded and that another runner may start."""
        for recording in list(self._open):
            if recording.sent == "no" or recording.reply is not None or now < recording.lease_until:
                continue
            if self._leases.is_over(recording.lease_until, now):
                recording.ended_by = "lease"
                self._runs.kill(recording.job_id, recording)
            elif not recording.ended_by:
                recording.ended_by = "lease"
                log.warning("job %s may be recorded, and its lease runs out: it is stopped", recording.job_id)
                self._runs.stop(recording.job_id, recording)

    # ------------------------------------------------------------------ the end

    async def flush(self) -> None:
        """Return when it is known of all whether they are recorded."""
        while self._open:
            self._emptied.clear()
            await self._emptied.wait()

    def leave(self) -> None:
        """Record nothing more: what has ended is told as it is, and what runs is killed, uncharged."""
        self._is_leaving = True
        for recording in list(self._open):
            if recording.reply is not None:
                self._ended(recording)
            else:
                recording.ended_by = "leaving"
                self._runs.kill(recording.job_id, recording)
