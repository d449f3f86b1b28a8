"""Steps of the ledger's state machine: calls that run and become jobs, heard of, sent again or raced."""

from __future__ import annotations

import asyncio
import uuid

from harness.ledger import new_call, row, start_of, submission_of
from harness.ledger_model import Model
from headrace.ledger.handover import HandedOver
from headrace.ledger.submission import submit


class Handovers(Model):
    """Each call is handed over by one of the runners, which holds it from then on."""

    async def do_hand_over(
        self, *, alone: bool, runner: int, owner: int, lane: str, charged: int, is_heard: bool
    ) -> None:
        """The reply of one that isn't heard is lost, so its runner doesn't name it in renewals."""
        call = self.call(owner, lane, charged)
        claim_id = str(uuid.uuid4())
        if is_heard:
            self.in_flight[runner].add(claim_id)
        record = (await self.runners[runner].hand_over(call, claim_id=claim_id))[call.job_id]
        self.in_flight[runner].discard(claim_id)
        assert record.verdict == "committed"
        await self.recorded(call, runner, is_heard=is_heard)
        if alone:
            assert record.state == "running"

    async def do_hand_over_again(self, *, alone: bool, places: list[int]) -> None:
        """Late, maybe: the start may be lost by now, and the job be another runner's or ended."""
        known = [one for one in self.handed if one[0].job_id not in self.forgotten]
        known = [one for one in known if one[0].job_id not in self.final]
        before = await self.jobs()
        for call, runner in [known[place % len(known)] for place in places if known]:
            record = (await self.runners[runner].hand_over(call))[call.job_id]
            was = before.get(call.job_id)
            if alone and was is not None:
                is_mine = was["token"] == call.token
                assert record.verdict == ("committed" if is_mine else "fenced")
                assert record.state == was["state"]

    async def do_hand_over_and_submit(
        self, *, alone: bool, runner: int, owner: int, lane: str, charged: int, first: bool
    ) -> None:
        """The link is lost meanwhile: the gateway submits the same call, at the same moment."""
        call = self.call(owner, lane, charged)
        job = submission_of(call)
        handing = self.runners[runner].hand_over(call)
        submitting = submit(self.database, [job])
        if first:
            records, (receipt,) = await asyncio.gather(handing, submitting)
        else:
            (receipt,), records = await asyncio.gather(submitting, handing)
        verdict = records[call.job_id].verdict
        assert (verdict, receipt.outcome) in {("committed", "replayed"), ("fenced", "accepted")}
        self.offered[job.job_id] = job
        if verdict == "committed":
            await self.recorded(call, runner, is_heard=True)
            self.reserved_in_vain += job.cost
        self.answers.append((job, receipt))

    def call(self, owner: int, lane: str, charged: int) -> HandedOver:
        return new_call(
            self.owners[owner], function=lane, attempt=charged, charged=charged, attempts=3, cost=2.0
        )

    async def recorded(self, call: HandedOver, runner: int, *, is_heard: bool) -> None:
        """A call is a job now. It has its lane's time for a tag, and took its flow no further."""
        start = start_of(call)
        self.handed.append((call, runner))
        self.accepted[call.job_id] = call.attempt - 1
        self.claims.append((start, runner))
        if is_heard:
            self.held[runner][call.token] = start
        placed = await row(self.database, call.job_id)
        self.places[call.job_id] = (placed["function"], placed["tag"])
