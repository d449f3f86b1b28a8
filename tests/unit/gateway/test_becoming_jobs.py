"""Direct calls that no runner takes, or not in time, and whose clients take a job for an answer."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.scripted_calls import (
    Site,
    asked,
    error,
    flexible,
    in_turn,
    lost,
    problem,
    refused,
    result,
    run,
    site,
)
from harness.scripted_runner import HANG_UP

from headrace.capacity import Capacity, CostTime
from headrace.gateway import calling
from headrace.gateway import serving as serving_module
from headrace.gateway.asked import ToJob
from headrace.gateway.call_stream import CallStream
from headrace.gateway.calling import ClientLeft
from headrace.gateway.problems import Problem
from headrace.link.frames import Call, Item, Pong, Result


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calling, "_BACKOFF_S", 0.005)


def full(call: Call) -> Any:
    return refused(call, seconds=0.01)


def cold(call: Call) -> Any:
    return refused(call, "cold", 0.01)


def degraded(call: Call) -> Any:
    return refused(call, "degraded", 0.01)


def draining(call: Call) -> Any:
    return refused(call, "draining", 0.01)


# ---------------------------------------------------------------------- no room


@pytest.mark.parametrize(
    ("scripts", "reason"),
    [
        ([full], "full"),
        ([cold], "cold"),
        ([cold, full, cold], "full"),
        ([degraded, full], "full"),
        ([draining, cold], "cold"),
    ],
)
def test_a_call_without_room_becomes_a_job(tmp_path: Path, scripts: Any, reason: str) -> None:
    async def scenario() -> None:
        async with site(tmp_path, *scripts) as here:
            assert await here.caller.answer(flexible(attempts=2)) == ToJob(0, 0, reason)  # type: ignore[arg-type]
            assert len(here.calls) == len(scripts)  # all were asked
            # It isn't one before it is accepted.
            assert here.counted("headrace_calls_became_jobs_total", function="echo", reason=reason) == 0

    run(scenario)


@pytest.mark.parametrize(
    ("scripts", "code"),
    [([degraded], "function-degraded"), ([draining], "no-runner"), ([], "no-runner")],
)
def test_where_no_runner_could_do_the_job_either_it_is_refused(
    tmp_path: Path, scripts: Any, code: str
) -> None:
    async def scenario() -> None:
        async with site(tmp_path, *scripts) as here:
            assert (await problem(here.caller, flexible())).code == code

    run(scenario)


def test_while_postgres_is_away_a_call_without_room_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path, full, away=lambda: 3.5) as here:
            assert (await problem(here.caller, flexible())).code == "busy"
        async with site(tmp_path, full, away=lambda: 2.5) as here:
            assert await here.caller.answer(flexible()) == ToJob(0, 0, "full")

    run(scenario)


def test_a_call_that_is_followed_becomes_a_job_too(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path, full) as here:
            call = flexible(hold=100, total=100, stream=CallStream())
            assert await here.caller.answer(call) == ToJob(0, 0, "full")

    run(scenario)


@pytest.mark.parametrize("hold", [0, -1])
def test_a_call_for_which_nobody_waits_becomes_a_job(tmp_path: Path, hold: float) -> None:
    async def scenario() -> None:
        async with site(tmp_path, result) as here:
            assert await here.caller.answer(flexible(hold=hold)) == ToJob(0, 0, "withdrawn")
            assert here.calls == []

    run(scenario)


# ---------------------------------------------------------------------- a start was lost


@pytest.mark.parametrize(
    ("loss", "job"),
    [
        (lambda call: lost(call, charged=True), ToJob(1, 1, "lost", alone=True)),
        (lambda call: lost(call, charged=False, suspect=False), ToJob(1, 0, "lost")),
        (lambda call: error(call, "transient", retryable=True), ToJob(1, 1, "failed-for-now")),
    ],
)
def test_a_call_that_has_to_start_again_does_so_where_there_is_room_and_else_as_a_job(
    tmp_path: Path, loss: Callable[[Call], Any], job: ToJob
) -> None:
    async def scenario() -> None:
        async with site(tmp_path, in_turn(loss, result)) as here:
            assert isinstance(await here.caller.answer(flexible(attempts=2)), Result)
            assert [sent.attempt for sent in here.calls] == [1, 2]
        async with site(tmp_path, in_turn(loss, full)) as here:
            assert await here.caller.answer(flexible(attempts=2)) == job

    run(scenario)


def test_a_call_whose_only_runner_is_lost_becomes_a_job_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path, lambda call: None) as here:

            def vanish(call: Call) -> None:
                here.runners[0].stop()

            here.runners[0].script = vanish
            assert await here.caller.answer(flexible(attempts=2, hold=1000)) == ToJob(1, 1, "lost")

    run(scenario)


def test_without_a_start_left_it_is_lost(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path, lambda call: HANG_UP) as here:
            assert (await problem(here.caller, flexible(attempts=1))).code == "worker-lost"

    run(scenario)


def test_a_start_that_would_come_after_the_hold_comes_as_a_job(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path, lambda call: None) as here:

            def after_a_while(call: Call) -> None:
                loop = asyncio.get_running_loop()
                loop.call_later(0.16, here.runners[0].say, lost(call, charged=True))

            here.runners[0].script = after_a_while
            found = await here.caller.answer(
                flexible(attempts=2, hold=0.2)
            )  # no handover comes: it takes none
            assert found == ToJob(1, 1, "lost", alone=True)
            assert len(here.calls) == 1

    run(scenario)


def test_while_postgres_is_away_a_call_that_was_lost_waits_for_room(tmp_path: Path) -> None:
    async def scenario() -> None:
        script = in_turn(lambda call: lost(call, charged=True), full, result)
        async with site(tmp_path, script, away=lambda: 60.0) as here:
            assert isinstance(await here.caller.answer(flexible(attempts=2)), Result)

    run(scenario)


def test_a_client_that_leaves_while_its_call_waits_for_room_is_noticed(tmp_path: Path) -> None:
    async def scenario() -> None:
        gone = asyncio.Event()

        async def receive() -> Any:
            await gone.wait()
            return {"type": "http.disconnect"}

        async with site(tmp_path, lambda call: None) as here:
            calls = 0

            def script(call: Call) -> Any:
                nonlocal calls
                calls += 1
                if calls == 2:
                    gone.set()
                return lost(call, charged=True) if calls == 1 else refused(call, seconds=1000)

            here.runners[0].script = script
            with pytest.raises(ClientLeft):
                await here.caller.answer(asked(attempts=2, hold=1000, receive=receive))

    run(scenario)


def test_a_stream_with_items_becomes_no_job(tmp_path: Path) -> None:
    async def scenario() -> None:
        def script(call: Call) -> Any:
            return [Item(call.job_id, 0, b"1"), lost(call, charged=True)]

        async with site(tmp_path, script) as here:
            call = flexible(attempts=3, stream=CallStream())
            assert (await problem(here.caller, call)).code == "worker-lost"

    run(scenario)


@pytest.mark.parametrize("attempts", [1, 2, 3])
def test_a_job_is_told_of_every_start_and_never_of_more_than_allowed(tmp_path: Path, attempts: int) -> None:
    """Whatever mixture of losses and passing failures comes before the refusal."""
    kinds = [
        lambda call: lost(call, charged=True),
        lambda call: lost(call, charged=False),
        lambda call: error(call, "transient", retryable=True),
    ]

    async def told(here: Site, pattern: Any) -> tuple[int, int] | None:
        here.runners[0].calls.clear()
        here.runners[0].script = in_turn(*pattern, full)
        try:
            found = await here.caller.answer(flexible(attempts))
        except Problem:  # no start was left
            return None
        assert isinstance(found, ToJob)
        assert found.attempt == len(pattern) == len(here.calls) - 1
        assert found.charged == sum(kind is not kinds[1] for kind in pattern) < attempts
        assert found.attempt - found.charged <= 3
        return found.attempt, found.charged

    async def scenario() -> None:
        async with site(tmp_path, result) as here:
            seen = {
                await told(here, pattern)
                for length in range(6)
                for pattern in itertools.product(kinds, repeat=length)
            }
            assert (attempts + 2, attempts - 1) in seen  # the most starts after which another is allowed

    run(scenario)


# ---------------------------------------------------------------------- deadlines that can't be met


async def told(here: Site, capacity: Capacity) -> None:
    here.runners[0].say(Pong(capacity={"echo": capacity}))
    (serving,) = here.caller._links.serving("echo", "1234")
    while serving.capacity != capacity:
        await asyncio.sleep(0)


def test_a_call_whose_deadline_comes_before_its_likely_end_is_not_sent(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path, result) as here:
            await told(here, Capacity(slots=4, p50_s=5.0, mean_s=6.0))
            found = await problem(here.caller, flexible(hold=4, total=4))
            assert (found.code, found.status) == ("deadline-unreachable", 504)
            assert found.detail.startswith(("4 s are left", "3.9"))
            assert "echo takes about 5 s" in found.detail
            assert here.calls == []
            await here.caller.answer(flexible(hold=6, total=6))
            await told(here, Capacity(slots=4, mean_s=6.0))  # too few executions for a median
            await here.caller.answer(flexible(hold=4, total=4))

    run(scenario)


def test_the_likely_end_is_that_of_inputs_of_its_cost(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path, result) as here:
            await told(
                here,
                Capacity(
                    slots=4,
                    p50_s=4.0,
                    mean_s=5.0,
                    cost_s=0.5,
                    by_cost=(CostTime(4, 1.0, 2.0), CostTime(64, 50.0, 60.0)),
                ),
            )
            (serving,) = here.caller._links.serving("echo", "1234")
            assert serving.expected_s(0) == 4.0
            assert serving.expected_s(3.5) == 4.0 * 1.0 / 5.0
            assert serving.expected_s(60) == 4.0 * 50.0 / 5.0
            assert serving.expected_s(20) == 4.0 * 10.0 / 5.0  # none of about that cost is known
            call = asked(hold=1, total=1)
            call.cost = 3.5
            await here.caller.answer(call)
            assert (await problem(here.caller, asked(hold=1, total=1))).code == "deadline-unreachable"

    run(scenario)


def test_one_is_sent_all_the_same_when_nothing_has_run_for_long(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path, result) as here:
            await told(here, Capacity(slots=4, p50_s=5.0, mean_s=6.0))
            assert (await problem(here.caller, asked(hold=1, total=1))).code == "deadline-unreachable"
            (serving,) = here.caller._links.serving("echo", "1234")
            serving._known_at -= serving_module._TRY_AFTER_S
            await here.caller.answer(asked(hold=1, total=1))
            assert (await problem(here.caller, asked(hold=1, total=1))).code == "deadline-unreachable"
            serving._known_at -= serving_module._TRY_AFTER_S
            await told(here, Capacity(slots=4, p50_s=5.0, mean_s=6.5))  # something has run
            assert (await problem(here.caller, asked(hold=1, total=1))).code == "deadline-unreachable"

    run(scenario)
