"""What is counted, and of what."""

from __future__ import annotations

from typing import Literal, NamedTuple

from headrace.histograms import Histogram

Kind = Literal[
    "queue",
    "execution",
    "failure",
    "joined",
    "served",
    "accepted",
    "refused",
    "abandoned",
    "expired",
    "failed",
]
"""What is counted.

By runners: `queue`, the wait of each start, and `execution`, the time of each execution that succeeded, in
seconds; `failure`, the time of each that didn't, by outcome; `joined`, how many calls an execution of a
batched function had. By gateways: `served`, calls answered with a result, by the seconds from arrival to
answer; and in the same way `accepted`, calls answered with a job or its events; `refused`, calls for which
there was no room, by problem; `abandoned`, calls whose client left; `expired`, calls whose hold or deadline
passed; `failed`, calls that failed, by problem. By the ledger: `expired`, with a reason, jobs that could not
be started in time, by the seconds that they waited. What a caller has done wrong isn't counted: it is no
demand.
"""

REFUSED_STATUSES = frozenset({429, 503})
_SUCCESS = {200: "served", 202: "accepted"}
_EXPIRED = frozenset({"deadline-exceeded", "hold-exceeded"})
_CLIENT_LEFT = "client-left"
_BY_LEDGER = "queue-deadline-exceeded"
"""Of a job that the call waited for: counted where that was decided, once for all that wait."""
_FAILED_FROM = 500


class Series(NamedTuple):
    """What a histogram is of.

    Args:
        function: its name.
        kind: what is counted.
        reason: why, where a kind has several.
        cost: the bucket of the input's cost; 0: it has none.
    """

    function: str
    kind: str
    reason: str = ""
    cost: int = 0


Minute = dict[Series, Histogram]
"""What was counted in one minute."""


def kind_of(status: int, code: str, *, was_job: bool = True) -> tuple[str, str] | None:
    """What an answer counts as, and why; None for one that is no demand.

    Args:
        status: of the answer; where a problem ended a stream, that of the problem.
        code: of its problem; empty where there is none.
        was_job: a job stood for the call. One that would have to be a job when its time to wait is over never
            is one, so no ledger counts it.
    """
    if not code:
        kind = _SUCCESS.get(status)
        return None if kind is None else (kind, "")
    if code == _CLIENT_LEFT:
        return "abandoned", ""
    if code == _BY_LEDGER and was_job:
        return None
    if code in _EXPIRED or code == _BY_LEDGER:
        return "expired", ""
    if status in REFUSED_STATUSES:
        return "refused", code
    return ("failed", code) if status >= _FAILED_FROM else None
