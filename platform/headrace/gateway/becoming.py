"""What the ledger is given of a call: of one that asks for a job, or becomes one in the time that is left."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from headrace.domain import WEIGHTS, Manifest
from headrace.gateway import preferences, strict_json
from headrace.gateway.asked import Asked, ToJob
from headrace.gateway.digest import digest_of
from headrace.gateway.exchange import Exchange
from headrace.gateway.preferences import Wishes
from headrace.gateway.problems import Problem
from headrace.keys import KeyRow
from headrace.ledger.retrying import bounds_of
from headrace.ledger.submission import NewJob
from headrace.settings import Settings

_LEAST_S: Final = 1e-3


def weight_of(wishes: Wishes, key: KeyRow) -> float:
    """The weight of a job; of one whose call doesn't ask for a class, at most that of `normal`."""
    if wishes.priority is not None:
        return WEIGHTS[wishes.priority]
    return min(WEIGHTS[key.highest_priority], WEIGHTS["normal"])


def asked_for(
    exchange: Exchange,
    manifest: Manifest,
    content: tuple[bytes, Any],
    key: KeyRow,
    wishes: Wishes,
    settings: Settings,
    waiter: str | None,
) -> NewJob:
    """What the ledger is given of a call that asks for a job.

    Args:
        exchange: the request.
        manifest: the function's.
        content: the input as it came, and decoded.
        key: the caller's.
        wishes: what it asked for.
        settings: the gateway's.
        waiter: the gateway that will wait for the end.
    """
    body, value = content
    budget = manifest.budget
    total_s = budget.total if wishes.deadline is None else min(budget.total, wishes.deadline)
    return NewJob(
        job_id=exchange.job_id,
        owner_id=key.owner_id,
        key_id=key.key_id,
        function=manifest.name,
        interface=manifest.interface,
        input=body,
        digest=digest_of(value),
        cost=manifest.cost.of(value),
        attempts=manifest.attempts,
        queue_s=min(budget.queue, total_s),
        total_s=total_s,
        **msgspec.structs.asdict(bounds_of(settings, key.most_outstanding)),
        weight=weight_of(wishes, key),
        idempotency_key=wishes.idempotency_key,
        request_id=exchange.request_id,
        traceparent=preferences.trace_of(exchange.headers),
        waiter=waiter,
        place=wishes.place,
    )


def new_job(
    asked: Asked, elapsed: float, given_up: ToJob | None, settings: Settings, waiter: str | None
) -> NewJob:
    """What the ledger is given of a call of the direct path, under its id; its input goes over to the job.

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
