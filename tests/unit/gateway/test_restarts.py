"""When a call starts again, how often, and where."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

import pytest
from harness.scripted_calls import asked, error, in_turn, lost, problem, refused, result, run, site
from harness.scripted_runner import HANG_UP

from headrace.gateway import calling
from headrace.link.frames import Call, Error, Lost


def charged(call: Call) -> Lost:
    return lost(call, charged=True)


def displaced(call: Call) -> Lost:
    """Its process was killed for another call."""
    return lost(call, charged=False)


def given_back(call: Call) -> Lost:
    """Its body hadn't begun."""
    return lost(call, charged=False, suspect=False)


def passing(call: Call) -> Error:
    return error(call, "transient", retryable=True)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calling, "_BACKOFF_S", 0.005)


def test_a_retryable_failure_runs_again_as_often_as_allowed(tmp_path: Path) -> None:
    async def scenario() -> None:
        script = in_turn(
            lambda call: error(call, "transient", retryable=True),
            lambda call: error(call, "out-of-memory", retryable=True),
            result,
        )
        async with site(tmp_path, script) as here:
            call = asked(attempts=3)
            await here.caller.answer(call)
            assert [sent.attempt for sent in here.calls] == [1, 2, 3]
            assert {sent.job_id for sent in here.calls} == {call.job_id}
            assert here.restarts() == 2

    run(scenario)


@pytest.mark.parametrize("attempts", [1, 2, 3])
def test_a_failure_that_stays_exhausts_its_attempts(tmp_path: Path, attempts: int) -> None:
    async def scenario() -> None:
        async with site(tmp_path, lambda call: error(call, "transient", retryable=True)) as here:
            found = await problem(here.caller, asked(attempts=attempts))
            assert (found.code, found.extra["attempt"]) == ("attempts-exhausted", attempts)
            assert [sent.attempt for sent in here.calls] == list(range(1, attempts + 1))

    run(scenario)


@pytest.mark.parametrize("attempts", [1, 2])
def test_what_was_busy_at_the_last_start_is_told_with_when_it_should_not_be(
    tmp_path: Path, attempts: int
) -> None:
    async def scenario() -> None:
        def busy(call: Call) -> Error:
            return error(call, "transient", retryable=True, retry_after_s=29.2)

        async with site(tmp_path, busy) as here:
            found = await problem(here.caller, asked(attempts=attempts))
            assert (found.code, found.status, found.extra["attempt"]) == ("upstream-busy", 503, attempts)
            assert found.headers["Retry-After"] == "30"
            assert len(here.calls) == attempts

    run(scenario)


def test_what_says_for_how_long_may_be_free_at_the_next_start(tmp_path: Path) -> None:
    async def scenario() -> None:
        def busy(call: Call) -> Error:
            return error(call, "transient", retryable=True, retry_after_s=30)

        async with site(tmp_path, in_turn(busy, result)) as here:
            await here.caller.answer(asked(attempts=2))
            assert len(here.calls) == 2

    run(scenario)


@pytest.mark.parametrize("attempts", [1, 2, 3])
def test_a_start_that_is_charged_counts(tmp_path: Path, attempts: int) -> None:
    async def scenario() -> None:
        async with site(tmp_path, lambda call: lost(call, charged=True)) as here:
            found = await problem(here.caller, asked(attempts=attempts))
            assert (found.code, found.status) == ("worker-lost", 502)
            assert len(here.calls) == attempts

    run(scenario)


def test_starts_lost_through_no_fault_of_the_call_are_free_three_times(tmp_path: Path) -> None:
    async def scenario() -> None:
        free = [lambda call: lost(call, charged=False)] * 3
        async with site(tmp_path, in_turn(*free, result)) as here:
            await here.caller.answer(asked(attempts=1))
            assert [sent.attempt for sent in here.calls] == [1, 2, 3, 4]
        async with site(tmp_path, in_turn(*free, free[0], result)) as here:
            assert (await problem(here.caller, asked(attempts=1))).code == "worker-lost"
            assert len(here.calls) == 4

    run(scenario)


@pytest.mark.parametrize("attempts", [1, 2, 4])
def test_executions_never_exceed_the_attempts_and_three(tmp_path: Path, attempts: int) -> None:
    """Whatever mixture of losses and passing failures there is."""
    kinds = [
        lambda call: lost(call, charged=True),
        lambda call: lost(call, charged=False),
        lambda call: error(call, "transient", retryable=True),
    ]

    async def scenario() -> None:
        worst = 0
        async with site(tmp_path, result) as here:
            for pattern in itertools.product(kinds, repeat=5):
                here.runners[0].calls.clear()
                here.runners[0].script = in_turn(*itertools.islice(itertools.cycle(pattern), 20))
                await problem(here.caller, asked(attempts=attempts))
                starts = [sent.attempt for sent in here.calls]
                assert starts == list(range(1, len(starts) + 1))  # numbered, never reused
                worst = max(worst, len(starts))
        assert worst == attempts + 3  # reached, never passed

    run(scenario)


def test_a_lost_link_counts_as_a_start_and_the_call_goes_to_another_runner(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path, lambda call: HANG_UP, lambda call: HANG_UP) as here:
            by_turn = in_turn(lambda call: HANG_UP, result)
            for runner in here.runners:
                runner.script = by_turn
            call = asked(attempts=2)
            await here.caller.answer(call)
            assert sorted(sent.attempt for sent in here.calls) == [1, 2]
            assert (call.charged, call.uncharged) == (1, 0)

    run(scenario)


@pytest.mark.parametrize(
    ("answers", "alone"),
    [
        ([charged], [False, True]),
        ([displaced], [False, True]),
        ([lambda call: HANG_UP], [False, False]),
        ([displaced, lambda call: HANG_UP], [False, True, True]),
        ([given_back], [False, False]),
        ([passing], [False, False]),
        ([charged, given_back], [False, True, True]),
        ([displaced, lambda call: refused(call, seconds=0.01)], [False, True, True]),
        ([displaced, passing, passing], [False, True, False, False]),
        ([passing, lambda call: HANG_UP], [False, False, False]),
    ],
)
def test_a_call_is_alone_after_a_start_that_ended_with_its_process(
    tmp_path: Path, answers: list[Any], alone: list[bool]
) -> None:
    """Until it answers, and so has left its process alive. The loss of a link says nothing of it."""

    async def scenario() -> None:
        async with site(tmp_path, in_turn(*answers, result)) as here:
            await here.caller.answer(asked(attempts=9))
            assert [sent.alone for sent in here.calls] == alone

    run(scenario)


def test_a_call_waits_for_the_only_runner_to_come_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path, in_turn(lambda call: HANG_UP, result)) as here:
            await here.caller.answer(asked(attempts=2))
            assert len(here.calls) == 2

    run(scenario)


def test_a_call_whose_runner_does_not_come_back_ends_with_its_hold(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path, lambda call: None) as here:

            def vanish(call: Call) -> None:
                here.runners[0].stop()

            here.runners[0].script = vanish
            found = await problem(here.caller, asked(attempts=2, hold=0.2))
            assert (found.code, found.extra["attempt"]) == ("worker-lost", 1)
            assert found.detail.endswith("at its only start. No runner could start it again in time.")
            assert len(here.calls) == 1

    run(scenario)


def test_a_call_that_has_to_start_again_waits_for_room(tmp_path: Path) -> None:
    async def scenario() -> None:
        script = in_turn(
            lambda call: lost(call, charged=True),
            lambda call: refused(call, seconds=0.01),
            lambda call: refused(call, seconds=0.01),
            result,
        )
        async with site(tmp_path, script) as here:
            await here.caller.answer(asked(attempts=2))
            assert [sent.attempt for sent in here.calls] == [1, 2, 2, 2]  # a refusal is no start

    run(scenario)


def test_the_clock_is_not_started_anew_by_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path, lambda call: None) as here:
            call = asked(attempts=2, hold=0.4, total=100)
            began = asyncio.get_running_loop().time()
            answering = asyncio.ensure_future(problem(here.caller, call))
            first = await here.runners[0].hears(Call)
            await asyncio.sleep(0.2)
            here.runners[0].say(lost(first, charged=True))
            second = await here.runners[0].hears(Call)
            assert second.remaining_ms <= first.remaining_ms - 200
            assert second.wait_ms <= first.wait_ms - 200
            assert (await answering).code == "hold-exceeded"
            assert asyncio.get_running_loop().time() - began < 0.8

    run(scenario)
