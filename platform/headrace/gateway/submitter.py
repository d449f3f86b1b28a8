"""Jobs on their way into the ledger: what arrives while a submit is under way goes together with the next."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple, cast

from headrace.database import Database
from headrace.errors import DatabaseBusy, DatabaseError, DatabaseUnavailable
from headrace.gateway.metrics import GatewayMetrics
from headrace.gateway.problems import Problem
from headrace.ledger import submission
from headrace.ledger.submission import NewJob, Receipt

log = logging.getLogger(__name__)

IN_FLIGHT: Final = 2
"""Submits under way at once: one commits while the other is gathered. More would wait for each other."""

PATIENCE_S: Final = 5.0
"""How long Postgres may be away before those who wait for it are told."""

MOST_JOBS: Final = 500
MOST_BYTES: Final = 8 * 2**20
"""Inputs in one batch; a single job may be larger."""

MOST_WAITING_BYTES: Final = 256 * 2**20
"""Inputs that may wait in memory for their turn."""

_PAUSE_S: Final = 0.1


class _Waiting(NamedTuple):
    job: NewJob
    receipt: asyncio.Future[Receipt]


class Submitter:
    """Submits jobs in batches without ever waiting for a batch to fill.

    A submit that Postgres didn't answer is repeated: whether it was committed isn't known, but a job that is
    in the ledger already is answered as it stands.

    Args:
        database: at most two connections of it are used at once.
        metrics: where submits and their jobs are counted.
        key_ttl_s: how long an idempotency key is remembered.
    """

    def __init__(
        self, database: Database, metrics: GatewayMetrics, key_ttl_s: float = submission.KEY_TTL_S
    ) -> None:
        self._database = database
        self._metrics = metrics
        self._key_ttl_s = key_ttl_s
        self._waiting: deque[_Waiting] = deque()
        self._senders: set[asyncio.Task[None]] = set()
        self._closed = False
        self._waiting_bytes = 0
        self._away_since: float | None = None

    async def submit(self, job: NewJob) -> Receipt:
        """Record a job; returns when it is committed or was refused.

        Raises:
            Problem: `database-unavailable`; whether the job was recorded isn't known.
            DatabaseError: Postgres refused the job itself.
        """
        if self._closed:
            raise _unknown(job)
        if self._waiting and self._waiting_bytes + len(job.input) > MOST_WAITING_BYTES:
            raise Problem("busy", "Too many large inputs wait to be recorded.")
        self._waiting_bytes += len(job.input)
        receipt: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(job, receipt))
        if len(self._senders) < IN_FLIGHT:
            # It begins in the loop's next iteration: whatever came in this one goes along.
            self._senders.add(asyncio.create_task(self._send_all()))
        return await receipt

    async def close(self) -> None:
        """Let what is under way end, and take no more."""
        self._closed = True
        if self._senders:
            await asyncio.wait(self._senders)

    async def _send_all(self) -> None:
        try:
            while self._waiting:
                await self._send(self._take())
        finally:
            # Here, not in a callback of the task: a job that comes before that ran would count on this one.
            self._senders.discard(cast("asyncio.Task[None]", asyncio.current_task()))

    def _take(self) -> list[_Waiting]:
        batch = [self._waiting.popleft()]
        size = len(batch[0].job.input)
        while self._waiting and len(batch) < MOST_JOBS:
            size += len(self._waiting[0].job.input)
            if size > MOST_BYTES:
                break
            batch.append(self._waiting.popleft())
        self._waiting_bytes -= sum(len(waiting.job.input) for waiting in batch)
        return batch

    async def _repeated(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        """The receipts, through a short outage too."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                receipts = await submission.submit(self._database, jobs, key_ttl_s=self._key_ttl_s)
            except (DatabaseUnavailable, DatabaseBusy):
                self._away_since = self._away_since or loop.time()
                if self._closed or loop.time() - self._away_since > PATIENCE_S:
                    raise
                await asyncio.sleep(_PAUSE_S)
            except DatabaseError:
                self._away_since = None  # it answers
                raise
            else:
                self._away_since = None
                return receipts

    async def _send(self, batch: Sequence[_Waiting]) -> None:
        try:
            receipts = await self._repeated([waiting.job for waiting in batch])
        except (DatabaseUnavailable, DatabaseBusy):
            _fail(batch, None)
        except DatabaseError as error:
            await self._send_one_by_one(batch, error)
        except Exception as error:
            log.exception("a submit broke")
            _fail(batch, error)
        except BaseException:
            _fail(batch, None)
            raise
        else:
            self._metrics.submits.inc()
            self._metrics.submitted_jobs.inc(len(batch))
            for waiting, receipt in zip(batch, receipts, strict=True):
                if not waiting.receipt.done():
                    waiting.receipt.set_result(receipt)

    async def _send_one_by_one(self, batch: Sequence[_Waiting], error: DatabaseError) -> None:
        """Postgres refused a batch: let no job fail for another's sake."""
        if len(batch) == 1:
            _fail(batch, error)
            return
        log.warning("a batch of %d jobs was refused, submitting them one by one: %s", len(batch), error)
        for waiting in batch:
            await self._send([waiting])


def _fail(batch: Sequence[_Waiting], error: Exception | None) -> None:
    for waiting in batch:
        if not waiting.receipt.done():
            waiting.receipt.set_exception(error or _unknown(waiting.job))


def _unknown(job: NewJob) -> Problem:
    again = "" if job.idempotency_key is None else " The call may be made again with its `Idempotency-Key`."
    return Problem(
        "database-unavailable",
        "Postgres did not answer while the job was being recorded, so whether it was accepted isn't known. "
        f"Once Postgres is back, `GET /jobs/{job.job_id}` tells; `unknown-job` means that it wasn't.{again}",
        headers={"Headrace-Job-Id": job.job_id},
        job_id=job.job_id,
    )
