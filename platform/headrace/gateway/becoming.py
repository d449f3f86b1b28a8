"""The job that a call of the direct path becomes where the gateway submits it, in the time that is left."""

from __future__ import annotations

from typing import Final

import msgspec

from headrace.gateway import strict_json
from headrace.gateway.asked import Asked, ToJob
from headrace.gateway.digest import digest_of
from headrace.gateway.problems import Problem
from headrace.ledger.retrying import bounds_of
from headrace.ledger.submission import NewJob
from headrace.settings import Settings

_LEAST_S: Final = 1e-3


def new_job(
    asked: Asked, elapsed: float, given_up: ToJob | None, settings: Settings, waiter: str | None
) -> NewJob:
    """What the ledger is given, under the id of the call, whose input goes over to it.

    Args:
        asked: the call.
        elapsed: seconds since it was accepted.
        given_up: why the direct path gave it up, with the starts that it has had; None: it wasn't tried.
        settings: the gateway's.
        waiter: the gateway that will wait for the end.

    Raises:
        Problem: `deadline-exceeded` or `queue-deadline-exceeded`, no time is left.
    """
    manifest, record = asked.manifest, asked.record
    assert record is not None
    started, charged, alone = (
        (0, 0, False) if given_up is None else (given_up.attempt, given_up.charged, given_up.alone)
    )
    total_s, queue_s = asked.span.total - elapsed, record.queue_s - elapsed
    if total_s <= 0:
        message = f"The call was not finished within its {asked.span.total:g} s."
        raise Problem("deadline-exceeded", message)
    if queue_s <= 0 and not started:
        raise Problem("queue-deadline-exceeded")
    content, asked.input = asked.input, b""  # a wait for the job may be long: it needn't be here twice
    return NewJob(
        job_id=asked.job_id,
        owner_id=asked.owner_id,
        key_id=record.key_id,
        function=manifest.name,
        interface=manifest.interface,
        input=content,
        digest=digest_of(strict_json.decode(content)),
        cost=record.cost,
        attempts=manifest.attempts,
        queue_s=max(queue_s, _LEAST_S),
        total_s=total_s,
        **msgspec.structs.asdict(bounds_of(settings, asked.most_outstanding)),
        weight=record.weight,
        request_id=asked.request_id,
        traceparent=asked.traceparent,
        waiter=waiter,
        place=record.place,
        attempt=started,
        charged=charged,
        alone=alone and started > 0,
    )
