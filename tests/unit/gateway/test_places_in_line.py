"""What the gateway makes of places in line: what the ledger is given, and what a refused caller is told."""

from __future__ import annotations

import asyncio
import contextlib
import math
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from harness.receipts import receipt_of
from harness.scripted_calls import flexible, manifest
from hypothesis import given
from hypothesis import strategies as st

from headrace.admission import Predicted
from headrace.gateway import preferences
from headrace.gateway.exchange import Exchange
from headrace.gateway.job_asked import JobCall
from headrace.gateway.job_call import JobCalls
from headrace.gateway.metrics import GatewayMetrics
from headrace.gateway.preferences import Preferences, Wishes
from headrace.gateway.problems import Problem
from headrace.gateway.refusals import batch_refused, come_back_after, no_room, refused
from headrace.ids import uuid7
from headrace.keys import KeyRow
from headrace.ledger.batches import BatchReceipt, NewBatch, Room
from headrace.ledger.retrying import Bounds
from headrace.ledger.submission import NewJob, Receipt
from headrace.settings import load_settings

PLACE = "0c0f7a4e-6c1d-4a44-9f3a-3d3a5c3b7c11"
ASYNC = Preferences(respond_async=True)
HALF_A_SECOND = Predicted(0.0, 0.0, 0.4, 0.5)
nothing: Any = None


class Calls:
    """The gateway's way into a ledger that says what the test has it say."""

    def __init__(self, predicted: Predicted | None = HALF_A_SECOND, **receipt: Any) -> None:
        self.asked: list[tuple[Any, float]] = []
        self.submitted: list[NewJob] = []
        self.waits: list[float] = []
        self.messages: list[Any] = []

        class Submitter:
            async def submit(_, new: NewJob) -> Receipt:  # noqa: N805 - the test is meant
                self.submitted.append(new)
                return receipt_of(new.job_id, **{"outcome": "accepted", **receipt})

        class Watcher:
            gateway_id = actor = "g"

            def watch(_, _job_id: str) -> Any:  # noqa: N805
                return contextlib.nullcontext(SimpleNamespace(has_left=False, stir=lambda: None))

            async def begin(_, *_args: Any, **_more: Any) -> None: ...  # noqa: N805

            async def until_final(_, _watch: Any, _job: Any, seconds: float, *_args: Any) -> None:  # noqa: N805
                self.waits.append(seconds)

        def predict(manifest: Any, cost: float) -> Predicted | None:
            self.asked.append((manifest, cost))
            return predicted

        self.jobs = JobCalls(
            load_settings(),
            cast("Any", SimpleNamespace(was_served=lambda *_: True)),
            cast("Any", Submitter()),
            cast("Any", Watcher()),
            nothing,
            lambda: 0.0,
            GatewayMetrics(),
            predict,
        )

    def prepared(self, wishes: Wishes) -> JobCall:
        exchange = Exchange({}, uuid7(), "r", nothing, nothing, nothing)
        return self.jobs.prepare(exchange, manifest(), (b"{}", {}), KeyRow("k", "o", "o"), wishes)

    def answered(self, call: JobCall) -> int:
        """The status of its answer."""

        async def send(message: Any) -> None:
            self.messages.append(message)

        exchange = Exchange({}, call.new.job_id, "r", nothing, send, nothing)
        asyncio.run(self.jobs.answer(exchange, call))
        return self.messages[0]["status"]


# ---------------------------------------------------------------------- on the way in


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (PLACE.encode(), PLACE),
        (b" \t" + PLACE.upper().encode() + b" ", PLACE),
        (b"", None),
        (b"here", None),
        (PLACE.encode()[:-1], None),
        (PLACE.encode() + b"0", None),
        (PLACE.replace("-", "").encode(), None),
        (b"{" + PLACE.encode() + b"}", None),
        (PLACE.encode() + b", " + PLACE.encode(), None),
        (PLACE.encode() + b"\n", None),
        (b"\xff" * 36, None),
    ],
)
def test_what_is_no_place_is_none(value: bytes | None, expected: str | None) -> None:
    assert preferences.place(value) == expected
    given = {} if value is None else {b"headrace-place": value}
    assert preferences.wishes(given).place == expected


def test_every_way_to_a_job_takes_the_place_along() -> None:
    calls = Calls()
    assert calls.prepared(Wishes(ASYNC, place=PLACE)).new.place == PLACE
    assert calls.prepared(Wishes(idempotency_key="k", place=PLACE)).new.place == PLACE
    assert calls.prepared(Wishes(ASYNC)).new.place is None
    asked = flexible()
    assert asked.record is not None
    asked.record = type(asked.record)("key", 1.0, 1.0, 60.0, PLACE)
    assert calls.jobs.become(asked, 1.0, 0.0, "no-room").new.place == PLACE


# ---------------------------------------------------------------------- an answer at once


def test_a_job_that_should_not_end_within_its_hold_is_no_reason_to_wait() -> None:
    hold = manifest().budget.sync
    late = Calls(wait_s=hold - 0.45)
    assert late.answered(late.prepared(Wishes(idempotency_key="k"))) == 202
    assert late.waits == []

    soon = Calls(wait_s=hold - 1)
    assert soon.answered(soon.prepared(Wishes(idempotency_key="k"))) == 202
    assert soon.waits == [hold]


@pytest.mark.parametrize("predicted", [HALF_A_SECOND, None])
def test_what_is_not_known_sends_nobody_away(predicted: Predicted | None) -> None:
    calls = Calls(predicted, wait_s=None)
    calls.answered(calls.prepared(Wishes(idempotency_key="k")))
    assert len(calls.waits) == 1


def test_the_wait_alone_may_be_too_long() -> None:
    calls = Calls(None, wait_s=1000.0)
    assert calls.answered(calls.prepared(Wishes(idempotency_key="k"))) == 202
    assert calls.waits == []


def test_who_has_said_how_long_to_wait_is_waited_with() -> None:
    calls = Calls(wait_s=1000.0)
    assert calls.answered(calls.prepared(Wishes(Preferences(respond_async=True, wait=5)))) == 202
    assert calls.waits == [5]


def test_who_can_do_nothing_with_a_job_is_waited_with() -> None:
    calls = Calls(wait_s=1000.0)
    with pytest.raises(Problem) as caught:
        calls.answered(calls.prepared(Wishes(idempotency_key="k", takes_job=False)))
    assert caught.value.code == "hold-exceeded"
    assert len(calls.waits) == 1


def test_a_call_that_lost_its_slot_is_answered_in_what_is_left_of_its_hold() -> None:
    calls = Calls(wait_s=1.0)
    assert calls.answered(calls.jobs.become(flexible(), 1.0, 1.4, "no-room")) == 202
    assert calls.waits == []
    calls.jobs.become(flexible(), 1.0, 1.6, "no-room")
    calls = Calls(wait_s=1.0)
    calls.answered(calls.jobs.become(flexible(), 1.0, 30, "no-room"))
    assert calls.waits == [30]


# ---------------------------------------------------------------------- a refusal


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        ("backlog-full", "backlog-full"),
        ("backlog-costly", "backlog-full"),
        ("backlog-old", "backlog-full"),
        ("no-capacity", "no-capacity"),
    ],
)
def test_a_refused_caller_is_told_its_place_and_when_that_is(outcome: Any, code: str) -> None:
    calls = Calls(outcome=outcome, place=PLACE, due_s=29.4)
    call = calls.prepared(Wishes(ASYNC))
    with pytest.raises(Problem) as caught:
        calls.answered(call)

    problem = caught.value
    assert (problem.code, problem.status, call.place) == (code, 503, "given")
    assert problem.headers["Retry-After"] == "30"
    document = msgspec.json.decode(problem.body())
    assert document["place"] == problem.headers["Headrace-Place"] == PLACE
    assert "come back in 30 s" in document["detail"]


def test_without_a_place_the_time_is_told_alone() -> None:
    problem = refused(Calls().prepared(Wishes(ASYNC)).new, receipt_of("j0", "no-capacity", due_s=900.0))
    assert problem.headers == {"Retry-After": "600"}
    assert "place" not in msgspec.json.decode(problem.body())


def test_a_place_that_was_used_is_told_of_in_the_log() -> None:
    calls = Calls(is_placed=True)
    used, fresh = calls.prepared(Wishes(ASYNC, place=PLACE)), Calls()
    assert used.place == ""
    calls.answered(used)
    assert used.place == "used"
    call = fresh.prepared(Wishes(ASYNC))
    fresh.answered(call)
    assert call.place == ""


def test_a_batch_is_told_when_it_should_fit() -> None:
    new: Any = SimpleNamespace(costs=[1.0] * 7, function="f")
    receipt = BatchReceipt(batch_id="b", refusal="backlog-full", due_s=90.0)
    problem = batch_refused(cast("NewBatch", new), receipt)
    assert 90 <= int(problem.headers["Retry-After"]) <= 91
    assert "Headrace-Place" not in problem.headers
    assert "7 more would be more" in problem.detail


def test_without_room_for_a_single_job_a_batch_is_told_the_same_way() -> None:
    room = Room(outstanding=0, refusal="backlog-full", most_waiting=5, most_cost=None, due_s=90.0)
    problem = no_room("f", Bounds(most_outstanding=9, most_waiting=5), room)
    assert problem is not None
    assert 90 <= int(problem.headers["Retry-After"]) <= 91


@given(st.floats(0, 1e6))
def test_nobody_is_told_to_come_before_its_place_or_much_later(due_s: float) -> None:
    told = come_back_after(due_s)
    assert 1 <= told <= 600
    assert told >= min(due_s, 600)
    assert told <= max(1, math.ceil(due_s + min(1.0, due_s / 20)))


def test_those_who_are_told_at_once_do_not_come_at_once() -> None:
    assert {come_back_after(100.5) for _ in range(1000)} == {101, 102}
