"""Running calls whose hold ends: what their runners are asked, and what comes of it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from harness.scripted_calls import asked, flexible, in_turn, lost, problem, result, run, site
from harness.scripted_runner import HANG_UP
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import DatabaseUnavailable
from headrace.gateway import calling
from headrace.gateway.asked import Asked, Handed, ToJob
from headrace.gateway.call_stream import CallStream
from headrace.gateway.calling import ClientLeft
from headrace.gateway.handover import Handovers, Lead
from headrace.gateway.metrics import GatewayMetrics
from headrace.gateway.pending import PendingCall
from headrace.gateway.problems import Problem
from headrace.link import frames
from headrace.link.frames import Call, Error, Fenced, Handover, Lost, Started, Stop

HOLD = 0.2


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calling, "_BACKOFF_S", 0.005)


def started(call: Call) -> Started:
    return Started(call.job_id, call.attempt)


def recorded(frame: Handover) -> frames.Handed:
    return frames.Handed(frame.job_id)


def held(attempts: int = 1, **more: Any) -> Asked:
    """A call that may become a job and whose hold ends soon."""
    return flexible(attempts, HOLD, **more)


def answers(known: bool) -> Callable[[str, str], Any]:
    async def asks(job_id: str, owner_id: str) -> bool:
        assert (job_id[:4], owner_id) == ("job-", "owner")
        return known

    return asks


def assert_named(found: Problem, call: Asked) -> None:
    """It is told that the call may be a job all the same, and which."""
    assert (found.extra["job_id"], found.headers["Headrace-Job-Id"]) == (call.job_id, call.job_id)
    assert f"isn't known. `GET /jobs/{call.job_id}` tells" in found.detail


# ---------------------------------------------------------------------- what the runner is asked


def test_a_running_call_is_handed_over_before_its_hold_ends(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path, started, on_handover=recorded) as here:
            call = held(total=100)
            call.charged, call.uncharged, call.attempt = 1, 1, 3
            assert await here.caller.answer(call) == Handed(call.job_id)
            frame = await here.runners[0].hears(Handover)
            digest = hashlib.sha256(b'{"text":"hello"}').digest()
            assert frame == Handover(call.job_id, "key", digest, 3.5, 2.0, 60.0, 1, frame.accepted_ms)
            assert frame.accepted_ms >= HOLD * 1000 - 50  # earlier by the lead
            assert here.counted("headrace_handovers_total", end="handed") == 1
            assert here.counted("headrace_handover_seconds_count") == 1
            assert here.counted("headrace_calls_became_jobs_total", function="echo", reason="handed") == 1
            (serving,) = here.caller._links.serving("echo", "1234")
            assert serving.load == 1  # it goes on there

    run(scenario)


def test_nothing_is_asked_of_a_call_that_is_answered_in_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path, result, on_handover=recorded) as here:
            call = held()
            assert (await here.caller.answer(call)).output == b"{}"
            assert not call.is_handed_over
            assert here.counted("headrace_handovers_total", end="answered") == 0

    run(scenario)


@pytest.mark.parametrize("why", ["unwilling", "no-record", "no-such-runner", "followed", "deadline"])
def test_a_call_that_cannot_be_handed_over_is_stopped_at_the_end_of_its_hold(
    tmp_path: Path, why: str
) -> None:
    def unwilling() -> Asked:
        return asked(hold=HOLD)

    def no_record() -> Asked:
        call = held()
        call.record = None
        return call

    calls: dict[str, Callable[[], Asked]] = {
        "unwilling": unwilling,
        "no-record": no_record,
        "no-such-runner": held,
        "followed": lambda: held(stream=CallStream()),
        "deadline": lambda: held(total=HOLD),
    }

    async def scenario() -> None:
        on_handover = None if why == "no-such-runner" else recorded
        async with site(tmp_path, started, on_handover=on_handover) as here:
            call = calls[why]()
            code = "deadline-exceeded" if why == "deadline" else "hold-exceeded"
            assert (await problem(here.caller, call)).code == code
            assert (await here.runners[0].hears(Stop)).job_id == call.job_id
            assert not call.is_handed_over

    run(scenario)


# ---------------------------------------------------------------------- what comes of it


@pytest.mark.parametrize(
    ("answer", "outcome", "end"),
    [
        (recorded, Handed, "handed"),
        (lambda frame: Fenced(frame.job_id), Handed, "fenced"),
        (lambda frame: result(frame, b"1"), frames.Result, "answered"),
        (lambda frame: frames.Handed(frame.job_id, withdrawn=True), ToJob(0, 0, "withdrawn"), "withdrawn"),
        (lambda frame: frames.Refused(frame.job_id, "full"), ToJob(0, 0, "full"), "withdrawn"),
        (lambda frame: frames.Refused(frame.job_id, "cold"), ToJob(0, 0, "cold"), "withdrawn"),
        (lambda frame: Lost(frame.job_id, 1, charged=True), ToJob(1, 1, "lost", alone=True), "lost"),
        (
            lambda frame: Lost(frame.job_id, 1, charged=False, suspect=False),
            ToJob(1, 0, "lost"),
            "lost",
        ),
        (lambda frame: HANG_UP, ToJob(1, 1, "lost"), "cut"),
        (
            lambda frame: Error(frame.job_id, "transient", "", 1, 0, 0, retryable=True),
            ToJob(1, 1, "failed-for-now"),
            "answered",
        ),
    ],
)
def test_what_a_handover_can_end_in(tmp_path: Path, answer: Any, outcome: Any, end: str) -> None:
    async def scenario() -> None:
        async with site(tmp_path, started, on_handover=answer) as here:
            call = held(attempts=2)
            found = await here.caller.answer(call)
            if isinstance(outcome, type):
                assert isinstance(found, outcome)
            else:
                assert found == outcome
            assert len(here.calls) == 1
            assert here.counted("headrace_handovers_total", end=end) == 1
            has_let_go = end == "withdrawn"
            assert call.is_handed_over
            assert call.may_be_recorded is not has_let_go

    run(scenario)


def test_a_failure_that_was_on_its_way_is_the_answer(tmp_path: Path) -> None:
    async def scenario() -> None:
        def fails(frame: Handover) -> Error:
            return Error(frame.job_id, "function-failed", "It broke.", 1, 0.0, 1.0)

        async with site(tmp_path, started, on_handover=fails) as here:
            assert (await problem(here.caller, held(attempts=2))).code == "function-failed"

    run(scenario)


def test_a_withdrawn_call_keeps_the_starts_that_it_has_had(tmp_path: Path) -> None:
    async def scenario() -> None:
        script = in_turn(lambda call: lost(call, charged=True), lambda call: None)

        def withdraws(frame: Handover) -> frames.Handed:
            assert frame.charged == 1
            return frames.Handed(frame.job_id, withdrawn=True)

        async with site(tmp_path, script, on_handover=withdraws) as here:
            found = await here.caller.answer(held(attempts=2))
            assert found == ToJob(1, 1, "lost", alone=True)

    run(scenario)


def test_a_call_that_may_be_recorded_is_sent_to_no_other_runner(tmp_path: Path) -> None:
    """Even where a shorter lead by then would leave time for another start."""

    async def scenario() -> None:
        def hangs_up(frame: Handover) -> Any:
            here.caller._handovers._lead_s = lambda asked, now: 0.0  # type: ignore[method-assign]
            return HANG_UP

        async with site(tmp_path, started, started, on_handover=hangs_up) as here:
            here.caller._handovers._lead_s = lambda asked, now: 9.9  # type: ignore[method-assign]
            found = await here.caller.answer(flexible(attempts=2, hold=10))
            assert found == ToJob(1, 1, "lost")
            assert len(here.calls) == 1

    run(scenario)


# ---------------------------------------------------------------------- no start is left


@pytest.mark.parametrize("loss", [lambda frame: HANG_UP, lambda frame: Lost(frame.job_id, 1, charged=True)])
def test_without_a_start_left_the_ledger_is_asked_whether_it_was_recorded(tmp_path: Path, loss: Any) -> None:
    async def scenario() -> None:
        async with site(tmp_path, started, on_handover=loss, recorded=answers(True)) as here:
            call = held()
            assert await here.caller.answer(call) == Handed(call.job_id)
        async with site(tmp_path, started, on_handover=loss, recorded=answers(False)) as here:
            assert (await problem(here.caller, held())).code == "worker-lost"

    run(scenario)


def test_where_the_ledger_does_not_answer_the_call_is_lost(tmp_path: Path) -> None:
    async def away(job_id: str, owner_id: str) -> bool:
        raise DatabaseUnavailable("no")

    async def scenario() -> None:
        async with site(tmp_path, started, on_handover=lambda frame: HANG_UP, recorded=away) as here:
            call = held()
            found = await problem(here.caller, call)
            assert (found.code, found.extra["attempt"]) == ("worker-lost", 1)
            assert_named(found, call)

    run(scenario)


def test_the_ledger_is_not_asked_for_a_call_that_was_not_handed_over(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path, lambda call: HANG_UP, on_handover=recorded) as here:
            found = await problem(here.caller, held())
            assert (found.code, found.extra, found.headers) == ("worker-lost", {"attempt": 1}, {})

    run(scenario)


# ---------------------------------------------------------------------- time, and clients that leave


def test_a_handover_that_takes_long_is_waited_for_beyond_the_hold(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path, started, on_handover=lambda frame: None) as here:
            call = held(total=100)
            loop = asyncio.get_running_loop()
            began = loop.time()
            answering = asyncio.ensure_future(here.caller.answer(call))
            frame = await here.runners[0].hears(Handover)
            await asyncio.sleep(2 * HOLD)
            assert loop.time() - began > HOLD
            assert not answering.done()
            assert here.counted("headrace_handovers_pending") == 1
            here.runners[0].say(recorded(frame))
            assert await answering == Handed(call.job_id)
            assert here.counted("headrace_handovers_pending") == 0
            due_after = here.caller._handovers.due_after
            assert due_after(flexible(hold=100, total=200), loop.time()) <= 100 - 2 * HOLD  # learned from it
            other = flexible(hold=100, total=200)
            other.manifest = msgspec.structs.replace(other.manifest, name="other")
            assert due_after(other, loop.time()) == 100 - 0.05  # but of this function only

    run(scenario)


def test_a_handover_that_waited_out_an_outage_is_not_what_the_next_one_should_take() -> None:
    async def never(job_id: str, owner_id: str) -> bool:
        return False

    handovers, call, nothing = Handovers(GatewayMetrics(), never), flexible(hold=20), cast("Any", None)
    for _ in range(3):
        pending = PendingCall(nothing, nothing)
        pending.handover_at = 5.0
        handovers.ended(pending, call, 15.0, frames.Handed(call.job_id))
    assert handovers.due_after(call, 15.0) == 19


def test_a_handover_that_is_never_answered_ends_with_the_deadline(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path, started, on_handover=lambda frame: None) as here:
            call = held(total=3 * HOLD)
            found = await problem(here.caller, call)
            assert (found.code, found.status) == ("deadline-exceeded", 504)
            assert_named(found, call)
            assert (await here.runners[0].hears(Stop)).job_id == call.job_id
            assert here.counted("headrace_handovers_total", end="deadline") == 1

    run(scenario)


def test_a_client_that_leaves_meanwhile_is_noticed_and_the_runner_decides(tmp_path: Path) -> None:
    async def scenario() -> None:
        gone = asyncio.Event()

        async def receive() -> Any:
            await gone.wait()
            return {"type": "http.disconnect"}

        async with site(tmp_path, started, on_handover=lambda frame: None) as here:
            call = held(receive=receive)
            answering = asyncio.ensure_future(here.caller.answer(call))
            await here.runners[0].hears(Handover)
            gone.set()
            with pytest.raises(ClientLeft):
                await answering
            assert (await here.runners[0].hears(Stop)).job_id == call.job_id
            here.runners[0].say(frames.Handed(call.job_id))  # it had begun to record it: nobody is told
            assert here.counted("headrace_handovers_total", end="left") == 1
            assert here.counted("headrace_calls_became_jobs_total", function="echo", reason="handed") == 0

    run(scenario)


def test_a_call_is_handed_over_while_postgres_is_away(tmp_path: Path) -> None:
    """The runner tries until it succeeds; until then the call may still be answered."""

    async def scenario() -> None:
        async with site(tmp_path, started, on_handover=result, away=lambda: 60.0) as here:
            assert isinstance(await here.caller.answer(held()), frames.Result)

    run(scenario)


def test_a_call_that_is_lost_after_its_handover_needs_the_ledger(tmp_path: Path) -> None:
    """It may be a job by now: no other start is made on the direct path, whether Postgres answers or not."""

    async def scenario() -> None:
        async with site(tmp_path, started, on_handover=lambda frame: HANG_UP, away=lambda: 60.0) as here:
            assert await here.caller.answer(held(attempts=2)) == ToJob(1, 1, "lost")
            assert len(here.calls) == 1

    run(scenario)


# ---------------------------------------------------------------------- when it begins


def test_the_lead_is_the_99th_percentile_of_recent_handovers() -> None:
    lead = Lead()
    assert lead.seconds(0, 60) == 0.05
    for number in range(100):
        lead.observe(number, 0.1 + number / 1000)
    assert lead.seconds(100, 60) == pytest.approx(0.198)  # of 0.1 to 0.199
    lead.observe(101, 30.0)
    assert lead.seconds(101, 60) == pytest.approx(0.199)  # one in a hundred may take longer
    lead.observe(102, 30.0)
    assert lead.seconds(102, 60) == 30.0
    assert lead.seconds(102, 8) == 4.0  # half of the hold is the function's
    assert lead.seconds(102 + 601, 60) == 0.05  # long ago


@given(st.lists(st.floats(0, 1000), max_size=300), st.floats(0, 60))
def test_a_lead_is_never_negative_nor_more_than_half_of_the_hold(took: list[float], hold_s: float) -> None:
    lead = Lead()
    for seconds in took:
        lead.observe(0.0, seconds)
    found = lead.seconds(0.0, hold_s)
    assert min(0.05, hold_s / 2) <= found <= hold_s / 2
