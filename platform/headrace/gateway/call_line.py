"""The access line of a call."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType


class CallLine(msgspec.Struct):
    """What it tells, in this order; what a call doesn't have is left out.

    A dict with the same members costs 3 us more: they are packed as arguments, merged and looked up.

    Args:
        request_id: the call's, as its answer tells it.
        job_id: its name on links and in the ledger; empty where it wasn't accepted.
        function: the name, where there is such a function and its caller may know.
        owner: of the key.
        status: of the answer.
        code: of the problem that was the answer, or ended a stream.
        attempt: the number of its last start.
        bytes_in: of its body.
        queue_ms: how long the last start waited.
        exec_ms: how long it ran.
        total_ms: from its arrival to the end of its answer.
        predicted_wait_ms: what it was to wait.
        predicted_ms: what it was to take.
        place: its place in line, where it became a job.
        items: those of its stream that were written.
    """

    at: str
    level: str
    event: str
    request_id: str
    job_id: str
    function: str
    owner: str
    status: int
    code: str
    attempt: int
    bytes_in: int
    queue_ms: float
    exec_ms: float
    total_ms: float
    predicted_wait_ms: float | UnsetType = UNSET
    predicted_ms: float | UnsetType = UNSET
    place: str | UnsetType = UNSET
    items: int | UnsetType = UNSET
