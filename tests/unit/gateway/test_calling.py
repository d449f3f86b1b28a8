"""What one call is answered: results, failures, refusals, and the end of its time or of its client."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from harness.scripted_calls import (
    asked,
    error,
    flexible,
    in_turn,
    lost,
    manifest,
    problem,
    refused,
    result,
    run,
    site,
)
from msgspec.structs import replace

from headrace.domain import Manifest
from headrace.gateway import calling
from headrace.gateway.asked import ToJob
from headrace.gateway.calling import ClientLeft
from headrace.link.frames import Call, Error, Result, Started, Stop


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calling, "_BACKOFF_S", 0.005)


# ---------------------------------------------------------------------- one start


def test_a_result_and_what_the_runner_was_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path, lambda call: [Started(call.job_id, 1), result(call, b'"hi"')]) as here:
            call = asked(hold=10, total=100)
            answer = await here.caller.answer(call)
            assert answer.output == b'"hi"'
            assert (call.queue_ms, call.exec_ms, call.attempt) == (1.5, 2.5, 1)
            (sent,) = here.calls
            assert (sent.job_id, sent.function, sent.interface, sent.attempt) == (
                *(call.job_id, "echo", "1234"),
                1,
            )
            assert (sent.input, sent.owner) == (b'{"text": "hello"}', "owner")
            assert (sent.request_id, sent.traceparent) == ("request", "00-trace")
            assert 99_000 < sent.remaining_ms <= 100_000
            assert 9_000 < sent.wait_ms <= 10_000
            assert here.restarts() == 0

    run(scenario)


def test_a_call_waits_at_a_runner_until_its_queue_budget_ends(tmp_path: Path) -> None:
    """One that starts again has had its first start in time."""

    async def scenario() -> None:
        async with site(tmp_path, in_turn(partial(lost, charged=True), result)) as here:
            call = flexible(attempts=2)
            assert call.record is not None
            call.record = replace(call.record, queue_s=3.0)
            await here.caller.answer(call)
            first, second = here.calls
            assert 2_000 < first.wait_ms <= 3_000
            assert 9_000 < second.wait_ms <= 10_000

    run(scenario)


@pytest.mark.parametrize(
    ("category", "code"),
    [
        ("function-failed", "function-failed"),
        ("invalid-output", "invalid-output"),
        ("soft-limit-exceeded", "soft-limit-exceeded"),
        ("hard-limit-exceeded", "hard-limit-exceeded"),
        ("deadline-exceeded", "deadline-exceeded"),
        ("a-category-of-a-later-runner", "function-failed"),
    ],
)
def test_a_failure_is_a_problem_and_not_tried_again(tmp_path: Path, category: str, code: str) -> None:
    async def scenario() -> None:
        async with site(tmp_path, lambda call: error(call, category)) as here:
            found = await problem(here.caller, asked(attempts=3))
            assert (found.code, found.detail, found.extra["attempt"]) == (code, "It broke.", 1)
            assert len(here.calls) == 1

    run(scenario)


def test_an_invalid_input_says_where(tmp_path: Path) -> None:
    async def scenario() -> None:
        def script(call: Call) -> Error:
            return Error(
                call.job_id, "invalid-input", "odd", 1, 0.0, 0.0, errors=(("/number", "odd"), ("", "wrong"))
            )

        async with site(tmp_path, script) as here:
            found = await problem(here.caller, asked(attempts=3))
            assert (found.code, found.status) == ("invalid-input", 422)
            assert found.extra["errors"] == [
                {"path": "/number", "message": "odd"},
                {"path": "", "message": "wrong"},
            ]

    run(scenario)


# ---------------------------------------------------------------------- refusals


def test_every_runner_is_asked_before_a_refusal(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(
            tmp_path,
            lambda call: refused(call, seconds=7.2),
            lambda call: refused(call, seconds=2.1),
            lambda call: refused(call, "draining", 9.0),
        ) as here:
            found = await problem(here.caller, asked(attempts=2))
            assert (found.code, found.headers["Retry-After"]) == ("busy", "3")  # the one that ends first
            assert [len(runner.calls) for runner in here.runners] == [1, 1, 1]
            here.runners[1].script = result
            await here.caller.answer(asked())

    run(scenario)


@pytest.mark.parametrize(
    ("reason", "code", "seconds"),
    [
        ("full", "busy", "4"),
        ("cold", "busy", "4"),
        ("degraded", "function-degraded", "10"),  # when the runner tries again
        ("draining", "no-runner", "4"),
        ("unknown-interface", "no-runner", "4"),
        ("a-reason-of-a-later-runner", "no-runner", "4"),
    ],
)
def test_the_reason_of_a_refusal_becomes_a_503(tmp_path: Path, reason: str, code: str, seconds: str) -> None:
    async def scenario() -> None:
        async with site(tmp_path, lambda call: refused(call, reason, 4.0)) as here:
            found = await problem(here.caller, asked())
            assert (found.code, found.status, found.headers["Retry-After"]) == (code, 503, seconds)
            assert (f"try again in {seconds} s" in found.detail) == (reason == "cold")

    run(scenario)


def test_a_runner_that_is_only_full_counts_before_one_that_is_broken(tmp_path: Path) -> None:
    async def scenario() -> None:
        broken = lambda call: refused(call, "degraded", 1.0)  # noqa: E731
        full = lambda call: refused(call, "full", 4.0)  # noqa: E731
        async with site(tmp_path, broken, full) as here:
            found = await problem(here.caller, asked())
            assert (found.code, found.headers["Retry-After"]) == ("busy", "4")
            here.runners[1].script = broken
            here.caller._links.serving("echo", "1234")[1]._full_until = 0.0
            found = await problem(here.caller, asked())
            assert (found.code, found.headers["Retry-After"]) == ("function-degraded", "10")

    run(scenario)


def test_of_several_runners_the_prediction_is_for_the_one_that_gets_the_call(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path, result, refused, slots=1) as here:
            first, second = here.caller._links.serving("echo", "1234")
            first.mean_s, second.mean_s = 1.0, 0.1
            first.load = 2
            call = flexible()
            assert isinstance(await here.caller.answer(call), Result)
            assert [len(runner.calls) for runner in here.runners] == [1, 1]  # the better one had no room
            assert call.predicted is not None
            assert call.predicted.wait_s == 2.0

    run(scenario)


def test_where_jobs_wait_a_refused_call_is_to_come_when_none_does(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path, lambda call: refused(call, seconds=4.0)) as here:
            call = asked()
            call.clear_s = 40.0
            found = await problem(here.caller, call)
            assert (found.code, found.headers["Retry-After"]) == ("busy", "40")

    run(scenario)


def test_a_new_runner_is_not_overrun_by_what_others_have_refused(tmp_path: Path) -> None:
    """As many calls are on their way to it as it has slots: what more comes is a job, or comes again."""

    async def scenario() -> None:
        async with site(tmp_path, result, refused, slots=2) as here:
            (new, full) = here.caller._links.serving("echo", "1234")
            full.mean_s = 0.1
            new.load = 2
            became = await here.caller.answer(flexible())
            assert isinstance(became, ToJob)
            assert became.reason == "full"
            assert [len(runner.calls) for runner in here.runners] == [0, 1]
            here.runners[1].script = lambda call: refused(call, "draining")
            assert isinstance(await here.caller.answer(flexible()), Result)  # there is nobody else
            here.runners[1].script = refused
            new.load = 1
            assert isinstance(await here.caller.answer(flexible()), Result)

    run(scenario)


def test_without_a_runner_the_answer_comes_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path) as here:
            found = await problem(here.caller, asked(hold=1000))
            assert (found.code, found.status) == ("no-runner", 503)
            assert int(found.headers["Retry-After"]) >= 1

    run(scenario)


@pytest.mark.parametrize(
    ("pool", "whose"),
    [("default", ""), ("gpu", " of pool gpu"), ("gpu=h200,zone=a", " with labels gpu=h200,zone=a")],
)
def test_without_a_runner_the_answer_says_which_are_needed(tmp_path: Path, pool: str, whose: str) -> None:
    async def scenario() -> None:
        async with site(tmp_path) as here:
            call = asked()
            call.manifest = manifest(pool=pool)
            detail = (await problem(here.caller, call)).detail
            assert detail == f"No runner{whose} that serves echo is connected."

    run(scenario)


def test_another_interface_is_not_called(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path, result) as here:
            call = asked()
            call.manifest = manifest()
            call.manifest = Manifest(**{**_fields(call.manifest), "interface": "5678"})
            assert (await problem(here.caller, call)).code == "no-runner"
            assert here.calls == []

    run(scenario)


def _fields(of: Manifest) -> dict[str, Any]:
    return {name: getattr(of, name) for name in of.__struct_fields__}


# ---------------------------------------------------------------------- time, and clients that leave


def test_the_end_of_the_hold_stops_the_work(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path, lambda call: Started(call.job_id, 1)) as here:
            call = asked(hold=0.15, total=100)
            found = await problem(here.caller, call)
            assert (found.code, found.status) == ("hold-exceeded", 504)
            assert "0.15 s" in found.detail
            assert (await here.runners[0].hears(Stop)).job_id == call.job_id

    run(scenario)


def test_the_deadline_is_told_from_the_hold(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path, lambda call: None) as here:
            found = await problem(here.caller, asked(hold=0.05, total=0.05))
            assert (found.code, found.status) == ("deadline-exceeded", 504)

    run(scenario)


def test_a_client_that_leaves_stops_the_work(tmp_path: Path) -> None:
    async def scenario() -> None:
        gone = asyncio.Event()

        async def receive() -> Any:
            await gone.wait()
            return {"type": "http.disconnect"}

        async with site(tmp_path, lambda call: Started(call.job_id, 1)) as here:
            call = asked(hold=1000, receive=receive)
            answering = asyncio.ensure_future(here.caller.answer(call))
            await here.runners[0].hears(Call)
            gone.set()
            with pytest.raises(ClientLeft):
                await answering
            assert (await here.runners[0].hears(Stop)).job_id == call.job_id

    run(scenario)


def test_an_answer_that_comes_after_a_while_still_counts(tmp_path: Path) -> None:
    async def scenario() -> None:
        watched = asyncio.Event()

        async def receive() -> Any:
            watched.set()
            await asyncio.Event().wait()

        async with site(tmp_path, lambda call: None) as here:
            answering = asyncio.ensure_future(here.caller.answer(asked(hold=1000, receive=receive)))
            call = await here.runners[0].hears(Call)
            await watched.wait()  # it is long enough for somebody to look whether the client is there
            here.runners[0].say(result(call, b"1"))
            assert (await answering).output == b"1"

    run(scenario)


def test_a_cancelled_request_stops_the_work(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path, lambda call: None) as here:
            answering = asyncio.ensure_future(here.caller.answer(asked()))
            call = await here.runners[0].hears(Call)
            answering.cancel()
            with pytest.raises(asyncio.CancelledError):
                await answering
            assert (await here.runners[0].hears(Stop)).job_id == call.job_id

    run(scenario)


@pytest.mark.parametrize("hold", [0, -1])
def test_a_call_for_which_nobody_waits_is_not_sent(tmp_path: Path, hold: float) -> None:
    async def scenario() -> None:
        async with site(tmp_path, result) as here:
            found = await problem(here.caller, asked(hold=hold, total=100))
            assert (found.code, found.status) == ("hold-exceeded", 504)
            await here.caller.answer(asked())
            assert len(here.calls) == 1  # and the other is not on its way either

    run(scenario)
