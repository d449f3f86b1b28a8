"""`POST /fn/{name}/batch`: many inputs, a job each, accepted all or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from headrace.database import Database
from headrace.domain import Manifest
from headrace.errors import DatabaseBusy, DatabaseUnavailable
from headrace.gateway import becoming, preferences
from headrace.gateway.auth import Authenticator, require_call, require_priority
from headrace.gateway.batch_upload import Upload
from headrace.gateway.call_problems import no_runner
from headrace.gateway.directory import Directory, ServedFunction
from headrace.gateway.exchange import ClientLeft
from headrace.gateway.metrics import GatewayMetrics
from headrace.gateway.outage import require_postgres
from headrace.gateway.preferences import Wishes
from headrace.gateway.problems import Problem
from headrace.gateway.quotas import Headers, Quotas, jobs_headers, merged, told
from headrace.gateway.refusals import batch_refused, never_fits, no_room
from headrace.gateway.requests import AnyRequest, headers_of, request_id_of
from headrace.gateway.shared_room import SharedRoom
from headrace.gateway.submitter import PATIENCE_S
from headrace.gateway.waking import departure
from headrace.ids import uuid7
from headrace.keys import KeyRow
from headrace.ledger import batches, submission
from headrace.ledger.batches import Batch, BatchReceipt, NewBatch, Room
from headrace.ledger.retrying import bounds_of
from headrace.settings import Settings

if TYPE_CHECKING:
    from litestar.types import Receive

AT_ONCE: Final = 4
"""Batches that are being recorded, each over a connection to Postgres."""

UPLOADS: Final = 16
"""Batches on their way in or waiting to be recorded, each with a file on disk."""

_RECORDED_OF_ONE_OWNER: Final = 2
_UPLOADS_OF_ONE_OWNER: Final = 4
_UPLOAD_ROOM_S: Final = 5.0
_RECORD_ROOM_S: Final = 60.0  # all of it has been sent by then
_PAUSE_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Accepted:
    """A batch that stands for the request, and the headers that tell more of it."""

    batch: Batch
    is_new: bool
    headers: dict[str, str]


class BatchCalls:
    """Takes batches from the head of the request to the commit.

    Args:
        settings: the gateway's.
        directory: what can be called.
        authenticator: who may.
        quotas: how often.
        database: the ledger's.
        recordings: the same, over `AT_ONCE` connections that only batches use.
        metrics: where batches and their jobs are counted.
        database_away: seconds since Postgres last answered.
    """

    def __init__(
        self,
        settings: Settings,
        directory: Directory,
        authenticator: Authenticator,
        quotas: Quotas,
        database: Database,
        recordings: Database,
        metrics: GatewayMetrics,
        database_away: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._directory = directory
        self._authenticator = authenticator
        self._quotas = quotas
        self._database = database
        self._recordings = recordings
        self._metrics = metrics
        self._database_away = database_away
        # Apart, or clients with slow lines would keep those waiting whose batches are there.
        self._uploads = SharedRoom(UPLOADS, _UPLOADS_OF_ONE_OWNER, _UPLOAD_ROOM_S, "batches on their way in")
        self._records = SharedRoom(AT_ONCE, _RECORDED_OF_ONE_OWNER, _RECORD_ROOM_S, "batches being recorded")

    async def accept(self, request: AnyRequest, name: str) -> Accepted:
        """The batch that the request's body becomes, or that its idempotency key stands for already.

        Raises:
            Problem: it isn't accepted, and nothing of it is recorded.
            ClientLeft: the client is gone before its body was complete.
        """
        headers = headers_of(request)
        require_postgres(self._database_away())
        key = await self._authenticator.owner(headers.get(b"authorization"))
        require_call(key, name)
        function = self._directory.find(name)
        rate = self._quotas.take(key)
        with told(rate):
            preferences.check_accept(headers.get(b"accept"))
            preferences.check_content_encoding(headers.get(b"content-encoding"))
            wishes = preferences.wishes(headers)
            if wishes.priority is not None:
                require_priority(key, wishes.priority)
            wanted = _Wanted(function, key, wishes, headers, request_id_of(request), rate)
            room = await self._require_room(wanted)
            async with self._uploads.take(key.owner_id):
                with Upload(function, self._settings.batch_bytes) as upload:
                    await upload.read(request.receive, headers)
                    batch = self._new(upload, wanted)
                    if room is not None and (problem := never_fits(batch, room)):
                        raise problem
                    async with self._records.take(key.owner_id):
                        if room is not None:
                            self._directory.gate.require(name)  # intake may have been paused while it came
                        receipt = await self._recorded(batch, upload, request.receive)
            return await self._accepted(batch, receipt, wanted)

    async def _require_room(self, wanted: _Wanted) -> Room | None:
        """What there is before the batch, where it may be accepted, so that its body is worth being read.

        Returns:
            None where its idempotency key is remembered: it isn't a new one, then.

        Raises:
            Problem: nothing new is taken, no runner could execute it, or there isn't room for a single job.
        """
        manifest, key, again = wanted.function.manifest, wanted.key, wanted.wishes.idempotency_key
        if again is not None and await submission.remembered(
            self._database, key.owner_id, f"{manifest.name}/batch", again
        ):
            return None
        self._directory.gate.require(manifest.name)
        queue_s, _ = self._seconds(manifest, wanted.wishes)
        if not self._directory.was_served(manifest.name, manifest.interface, queue_s):
            detail = f"No runner of {manifest.name} was seen while its jobs may wait."
            raise no_runner(detail, self._directory.away_s(manifest.name, manifest.interface))
        bounds = bounds_of(self._settings, key.most_outstanding)
        room = await batches.room(self._database, key.owner_id, manifest.name, bounds)
        if problem := no_room(manifest.name, bounds, room):
            raise problem
        return room

    def _seconds(self, manifest: Manifest, wishes: Wishes) -> tuple[float, float]:
        """How long each job may wait for its start, and for its end."""
        total = self._settings.batch_queue + manifest.budget.hard + manifest.budget.margin
        if wishes.deadline is not None:
            total = min(total, wishes.deadline)
        return min(self._settings.batch_queue, total), total

    async def _accepted(self, batch: NewBatch, receipt: BatchReceipt, wanted: _Wanted) -> Accepted:
        """What the receipt says.

        Raises:
            Problem: that it isn't accepted.
        """
        if receipt.refusal is not None:
            raise batch_refused(batch, receipt)
        if receipt.created_at is None:
            return await self._replayed(batch, receipt, wanted)
        size = len(batch.costs)
        self._metrics.batches.inc()
        self._metrics.batch_jobs.inc(size)
        recorded = Batch(
            batch_id=batch.batch_id,
            function=batch.function,
            size=size,
            created_at=receipt.created_at,
            is_running=True,
        )
        jobs = jobs_headers(batch.most_outstanding, receipt.outstanding + size)
        return Accepted(recorded, True, merged({}, (*wanted.rate, *jobs)))

    def _new(self, upload: Upload, wanted: _Wanted) -> NewBatch:
        manifest, settings, key = wanted.function.manifest, self._settings, wanted.key
        queue_s, total_s = self._seconds(manifest, wanted.wishes)
        return NewBatch(
            batch_id=uuid7(),
            owner_id=key.owner_id,
            key_id=key.key_id,
            function=manifest.name,
            interface=manifest.interface,
            digest=upload.digest,
            costs=upload.costs,
            size=upload.size,
            attempts=manifest.attempts,
            queue_s=queue_s,
            total_s=total_s,
            **msgspec.structs.asdict(bounds_of(settings, key.most_outstanding)),
            weight=becoming.weight_of(wanted.wishes, key),
            request_id=wanted.request_id,
            traceparent=preferences.trace_of(wanted.headers),
            idempotency_key=wanted.wishes.idempotency_key,
            key_ttl_s=settings.key_ttl,
        )

    async def _recorded(self, batch: NewBatch, upload: Upload, receive: Receive) -> BatchReceipt:
        """The receipt. Without a key, nobody could find what is recorded once the client has left.

        Raises:
            Problem: `database-unavailable`; whether it was recorded isn't known.
            ClientLeft: the client is gone, and took a batch without a key along.
        """
        recording = asyncio.ensure_future(self._repeated(batch, upload))
        try:
            if batch.idempotency_key is None:
                with departure(receive, lambda: None) as leaving:
                    await asyncio.wait({recording, leaving}, return_when=asyncio.FIRST_COMPLETED)
                if not recording.done():
                    raise ClientLeft
            return await recording
        finally:
            recording.cancel()
            await asyncio.wait({recording})  # it reads the upload
            _ = recording.cancelled() or recording.exception()  # nobody else may ask

    async def _repeated(self, batch: NewBatch, upload: Upload) -> BatchReceipt:
        """The receipt, through a short outage too: what was recorded before is found by the batch's id."""
        loop = asyncio.get_running_loop()
        job_ids = [uuid7() for _ in batch.costs]
        longest = batches.longest_s(batch)
        ends_at = loop.time() + longest + PATIENCE_S  # all tries together: others wait for the place
        away_since: float | None = None
        while True:
            within = min(longest, ends_at - loop.time())
            try:
                return await batches.submit_batch(
                    self._recordings, self._database, batch, upload.parts(job_ids), within=within
                )
            except (DatabaseUnavailable, DatabaseBusy):
                now = loop.time()
                away_since = away_since or now
                if now - away_since > PATIENCE_S or now + _PAUSE_S > ends_at:
                    raise _unknown(batch) from None
                await asyncio.sleep(_PAUSE_S)

    async def _replayed(self, batch: NewBatch, receipt: BatchReceipt, wanted: _Wanted) -> Accepted:
        """The batch that was there already: recorded by the same key, or by this request before an outage."""
        found = await batches.find(
            self._database, receipt.batch_id, batch.owner_id, actor=f"key:{wanted.key.key_id}"
        )
        if found is None:
            raise Problem("unknown-batch", "The batch was made before, and isn't kept any longer.")
        headers = {"Idempotent-Replayed": "true"} if receipt.is_replay else {}
        return Accepted(found, False, merged(headers, wanted.rate))


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Who asks for what, and how."""

    function: ServedFunction
    key: KeyRow
    wishes: Wishes
    headers: dict[bytes, bytes]
    request_id: str
    rate: Headers


def _unknown(batch: NewBatch) -> Problem:
    return Problem(
        "database-unavailable",
        "Postgres did not answer while the batch was being recorded, so whether it was accepted isn't known. "
        f"Once Postgres is back, `GET /batches/{batch.batch_id}` tells; `unknown-batch`: it wasn't.",
        headers={"Headrace-Batch-Id": batch.batch_id},
        batch_id=batch.batch_id,
    )
