"""A batch as its owner sees it: the JSON object and its addresses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from headrace.domain import State
from headrace.gateway.job_view import timestamp
from headrace.ledger.batches import Batch


class Counts(msgspec.Struct, frozen=True):
    """How many of its jobs are in each state."""

    queued: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    expired: int = 0
    cancelled: int = 0
    cancel_requested: int = 0


class BatchView(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON object."""

    batch_id: str
    function: str
    size: int
    created_at: str | None
    status: Literal["running", "finished"]
    counts: Counts | msgspec.UnsetType = msgspec.UNSET
    batch_url: str
    results_url: str


def batch_url(root: str, batch_id: str) -> str:
    """Where a batch is, as an absolute path."""
    return f"{root}/batches/{batch_id}"


def view(batch: Batch, counts: Mapping[State, int] | None, root: str) -> BatchView:
    """A batch to be encoded.

    Args:
        batch: as it was read.
        counts: jobs by state; None in lists, as counting takes long.
        root: what precedes the platform's paths.
    """
    url = batch_url(root, batch.batch_id)
    return BatchView(
        batch_id=batch.batch_id,
        function=batch.function,
        size=batch.size,
        created_at=timestamp(batch.created_at),
        status="running" if batch.is_running else "finished",
        counts=msgspec.UNSET if counts is None else Counts(**counts),
        batch_url=url,
        results_url=f"{url}/results",
    )


def encode_batch(batch: Batch, counts: Mapping[State, int], root: str) -> bytes:
    """A batch in JSON."""
    return msgspec.json.encode(view(batch, counts, root))
