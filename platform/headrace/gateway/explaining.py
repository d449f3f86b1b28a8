"""`POST /fn/{name}?explain=1`: what would become of a call now, and why. Nothing is executed or recorded."""

from __future__ import annotations

from typing import Literal
from urllib.parse import parse_qsl

import msgspec

from headrace.admission import Decision, Job, Predicted, Refused, Snapshot, Span, Sync, retry_after
from headrace.gateway.lanes import Lane
from headrace.gateway.problems import Problem

_encode = msgspec.json.Encoder().encode


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """What a call should take that came now, as in `headrace.admission.Predicted`."""

    wait_s: float
    load_s: float
    exec_s: float
    exec_p95_s: float
    is_known: bool
    has_room: bool
    is_cold: bool
    knows_wait: bool


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """The answer.

    Args:
        decision: where the call would go.
        reason: why: `room`, or of a job or a refusal the rule's own word.
        hold_s: how long its connection would be held.
        deadline_s: until its deadline.
        brief_wait_s: the longest wait for a slot on the direct path.
        retry_after: of a refusal, unless the same call would never be taken.
        predicted: what it should take; null where no linked runner could run it.
        lane: what waits for the function in the ledger; null where nothing is known of that.
    """

    decision: Literal["runner", "job", "refused"]
    reason: str
    hold_s: float
    deadline_s: float
    brief_wait_s: float
    retry_after: int | None
    predicted: Prediction | None
    lane: Lane | None


def is_asked_for(query: bytes) -> bool:
    """Whether a call's query string asks for an explanation.

    Raises:
        Problem: `bad-request`: it says something else of it, and who expects no execution shall have none.
    """
    values = [
        value
        for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True)
        if name == "explain"
    ]
    if values and values != ["1"]:
        raise Problem("bad-request", "`explain` takes `1`.")
    return bool(values)


def prediction_of(predicted: Predicted | None) -> Prediction | None:
    """The same for JSON, to the microsecond."""
    if predicted is None:
        return None
    told = predicted._asdict()
    return Prediction(
        **{name: round(value, 6) if name.endswith("_s") else value for name, value in told.items()}
    )


def explanation(span: Span, snapshot: Snapshot, decision: Decision, lane: Lane | None = None) -> bytes:
    """The answer in JSON.

    Args:
        span: what the call would get.
        snapshot: how the function stands.
        decision: the rule's.
        lane: what waits for the function in the ledger.
    """
    hold, seconds = span.hold, None
    match decision:
        case Sync():
            way, reason = "runner", "room"
        case Job():
            way, reason, hold = "job", decision.reason, decision.hold
        case Refused():
            way, reason, again = "refused", decision.code, decision.retry_after_s
            seconds = None if again is None else retry_after(again)
    return _encode(
        Explanation(
            decision=way,
            reason=reason,
            hold_s=hold,
            deadline_s=span.total,
            brief_wait_s=snapshot.brief_wait,
            retry_after=seconds,
            predicted=prediction_of(snapshot.predicted),
            lane=lane,
        )
    )
