"""Calls that wait for what they have called: who starts meanwhile, who is charged, what is left of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from bench import Bench, Scripted
from bench import run as run_bench
from callee import Callee
from rig import Gateway

from gpu_runner.frames import BatchEnded, Failed, Invoke, Invoked, Uninvoke
from gpu_runner.invoking import resting
from headrace.link.frames import Call, Error, Lost

Scenario = Callable[[Bench, Callee], Coroutine[Any, Any, None]]


def run(scenario: Scenario, **options: Any) -> None:
    async def with_callee(bench: Bench) -> None:
        callee = Callee()
        bench.supervisor.invoking.callee = callee
        await scenario(bench, callee)

    run_bench(with_callee, modules=["invoked_functions"], **options)


async def asks(executor: Scripted, callee: Callee, job_id: str, number: int = 0) -> None:
    """A running call asks, and a job is made for it."""
    count = len(callee.asked)
    executor.say(Invoke(job_id, 1, number, "plain", "", b"1", b"digest", number))
    await callee.until_asked(count + 1)


def answered(executor: Scripted) -> list[tuple[str, int]]:
    """What the executor has been told: whose questions, and which."""
    return [(one.job_id, one.number) for one in executor.sent if isinstance(one, Invoked)]


def lost(bench: Bench, job_id: str) -> tuple[bool, bool]:
    """Whether the start of a lost call counts, and whether its next one is alone."""
    answer = bench.told(job_id)
    assert isinstance(answer, Lost), answer
    return answer.charged, answer.suspect


# ---------------------------------------------------------------------- who is charged


@pytest.mark.parametrize("function", ["plain", "asks_joined"])
def test_what_crashes_alone_is_charged_and_what_rests_there_is_not(function: str) -> None:
    async def scenario(bench: Bench, callee: Callee) -> None:
        (executor,) = bench.executors
        resting = [bench.gateway.send("asks", alone=True)]
        await asks(executor, callee, resting[0])
        joined = bench.gateway.send("asks_joined")
        resting.append(joined)
        await asks(executor, callee, joined)
        crashing = bench.gateway.send(function, alone=True)
        assert executor.closed_for is not None
        executor.lose()
        assert lost(bench, crashing) == (True, True)
        assert [lost(bench, one) for one in resting] == [(False, True)] * 2

    run(scenario)


def test_what_crashes_beside_others_charges_all() -> None:
    async def scenario(bench: Bench, callee: Callee) -> None:
        (executor,) = bench.executors
        calls = [bench.gateway.send("asks", alone=True)]
        await asks(executor, callee, calls[0])
        calls.append(bench.gateway.send("plain"))
        executor.lose()
        assert [lost(bench, one) for one in calls] == [(True, True)] * 2

    run(scenario)


def test_what_runs_alone_does_so_where_nothing_rests() -> None:
    async def scenario(bench: Bench, callee: Callee) -> None:
        first, second = bench.executors
        waiting = bench.gateway.send("asks")
        await asks(first, callee, waiting)
        running = [bench.gateway.send("asks_beside") for _ in range(3)]
        assert len(second.runs) == 2  # more than rest in the first
        alone = bench.gateway.send("plain", alone=True)
        first.finish(running[1])
        assert alone not in first.runs
        for one in (running[0], running[2]):
            second.finish(one)
        assert alone in second.runs

    run(scenario, executors=2)


# ---------------------------------------------------------------------- what is left of it


@pytest.mark.parametrize("is_again", [False, True])
def test_what_a_call_of_a_lost_link_has_called_is_left_for_its_next_start(is_again: bool) -> None:
    async def scenario(bench: Bench, callee: Callee) -> None:
        (executor,) = bench.executors
        call = bench.gateway.send("asks")
        await asks(executor, callee, call)
        if is_again:
            interface = bench.supervisor._functions["asks"].manifest.interface
            other = Gateway(bench.supervisor)
            other.answers[call] = asyncio.get_running_loop().create_future()
            bench.supervisor.take(Call(call, "asks", interface, b"1", "o", 2, 9000, 9000), other)
        else:
            bench.supervisor.caller_lost(bench.gateway)
        executor.say(Failed(call, "stopped", "The call was stopped.", 0.1))
        await ended(bench)
        assert callee.cancelled == []

    run(scenario)


def test_a_job_takes_over_what_its_direct_call_has_called() -> None:
    async def scenario(bench: Bench, callee: Callee) -> None:
        (executor,) = bench.executors
        call = bench.gateway.send("asks")
        await asks(executor, callee, call)
        interface = bench.supervisor._functions["asks"].manifest.interface
        keeper = Gateway(bench.supervisor)
        keeper.answers[call] = asyncio.get_running_loop().create_future()
        bench.supervisor.take_job(Call(call, "asks", interface, b"1", "o", 2, 9000, 0), keeper)
        executor.say(Failed(call, "stopped", "The call was stopped.", 0.1))
        await ended(bench)
        assert callee.cancelled == []

    run(scenario)


@pytest.mark.parametrize("function", ["asks", "asks_beside"])
def test_what_nobody_takes_over_is_cancelled(function: str) -> None:
    """A client has left before the link was lost; or the call has had its only start."""

    async def scenario(bench: Bench, callee: Callee) -> None:
        (executor,) = bench.executors
        call = bench.gateway.send(function)
        await asks(executor, callee, call)
        if function == "asks":
            bench.gateway.stop(call)
        bench.supervisor.caller_lost(bench.gateway)
        executor.say(Failed(call, "stopped", "The call was stopped.", 0.1))
        await callee.until_cancelled(1)

    run(scenario)


@pytest.mark.parametrize("function", ["asks", "asks_joined"])
def test_what_a_call_that_is_killed_at_its_limit_has_called_is_cancelled(function: str) -> None:
    async def scenario(bench: Bench, callee: Callee) -> None:
        (executor,) = bench.executors
        killed = bench.gateway.send(function)
        await asks(executor, callee, killed)
        beside = bench.gateway.send("asks_beside")
        await asks(executor, callee, beside)
        executor.kill(next(iter(executor.calls.values())))
        executor.lose()
        assert isinstance(bench.told(killed), Error)
        assert lost(bench, beside) == (False, True)
        await callee.until_cancelled(1)
        await ended(bench)
        assert callee.cancelled == ["child-0"]  # the other one starts again

    run(scenario)


def test_what_the_calls_of_a_killed_lot_have_called_is_left_as_each_runs_again() -> None:
    async def scenario(bench: Bench, callee: Callee) -> None:
        (executor,) = bench.executors
        before = bench.gateway.send("asks_joined")
        joined = [bench.gateway.send("asks_joined") for _ in range(2)]
        executor.say(Failed(before, "function-failed", "", 0.1))
        lot = next(iter(executor.calls))
        executor.say(BatchEnded(lot, 0.1, (1,)))
        for number, one in enumerate(joined):
            await asks(executor, callee, one, number)
        executor.kill(next(iter(executor.calls.values())))
        executor.lose()
        assert [lost(bench, one) for one in joined] == [(False, True)] * 2
        await ended(bench)
        assert callee.cancelled == []

    run(scenario)


async def ended(bench: Bench) -> None:
    """All questions are settled, and what is to be cancelled for them is."""
    invoking = bench.supervisor.invoking
    assert not invoking.open
    while invoking._cancelling:
        await asyncio.wait(invoking._cancelling)


# ---------------------------------------------------------------------- slots


def test_an_answer_that_is_not_waited_for_any_more_takes_no_slot() -> None:
    """It is there in the turn in which the body gives up: the other one is the last, and takes one slot."""

    async def scenario(bench: Bench, callee: Callee) -> None:
        (executor,) = bench.executors
        call = bench.gateway.send("asks_at_once")
        await asks(executor, callee, call)
        await asks(executor, callee, call, 1)
        other = bench.gateway.send("asks_at_once")
        callee.answer(0)
        executor.say(Uninvoke(call, 1, 0))
        await callee.until_cancelled(1)
        callee.answer(1)
        await bench.until(lambda: bench.supervisor.placing.resting.woken)
        executor.finish(other)
        await bench.turn()
        assert answered(executor) == [(call, 1)]
        assert (executor.busy["asks_at_once"], executor.resting) == (1, set())
        executor.finish(call)
        assert executor.busy["asks_at_once"] == 0

    run(scenario)


def test_no_more_start_where_many_of_the_function_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resting, "MOST", 2)

    async def scenario(bench: Bench, callee: Callee) -> None:
        (executor,) = bench.executors
        calls = [bench.gateway.send("asks_beside") for _ in range(6)]
        for call in calls[:3]:
            await asks(executor, callee, call)
        assert executor.runs == calls[:3]  # the third had its slot before
        others = [bench.gateway.send("asks"), bench.gateway.send("plain")]
        assert executor.runs == [*calls[:3], *others]  # as those which rest may wait for them
        for number in range(2):
            callee.answer(number)
            await bench.until(lambda number=number: len(answered(executor)) > number)
            executor.finish(calls[number])
        assert executor.runs[5:] == calls[3:5]  # two slots were free
        for call in (*calls[3:5], *others):
            executor.finish(call)
        callee.answer(2)
        await bench.until(lambda: len(answered(executor)) > 2)
        for call in (calls[5], calls[2]):
            executor.finish(call)

    run(scenario)


def test_no_more_start_either_where_their_number_on_the_device_is_capped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resting, "MOST", 2)

    async def scenario(bench: Bench, callee: Callee) -> None:
        (executor,) = bench.executors
        calls = [bench.gateway.send("asks_and_uses") for _ in range(3)]
        for call in calls[:2]:
            await asks(executor, callee, call)
        called = bench.gateway.send("uses_it")
        assert executor.runs == [*calls[:2], called]
        executor.finish(called)
        callee.answer(0)
        await bench.until(lambda: answered(executor))
        executor.finish(calls[0])
        assert executor.runs == [*calls[:2], called, calls[2]]
        for call in (calls[2], calls[1]):
            executor.finish(call)

    run(scenario, device_cap=1)


def test_whoever_asks_rests_however_many_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """They had started before so many rested."""
    monkeypatch.setattr(resting, "MOST", 1)

    async def scenario(bench: Bench, callee: Callee) -> None:
        (executor,) = bench.executors
        calls = [bench.gateway.send("asks_beside") for _ in range(2)]
        for call in calls:
            await asks(executor, callee, call)
        assert executor.busy["asks_beside"] == 0
        for call in calls:
            executor.finish(call)

    run(scenario)


# ---------------------------------------------------------------------- the end


def test_nothing_is_asked_any_more_when_the_process_ends() -> None:
    async def scenario(bench: Bench, callee: Callee) -> None:
        (executor,) = bench.executors
        calls = [bench.gateway.send("asks_beside") for _ in range(2)]
        await asks(executor, callee, calls[0])
        (question,) = bench.supervisor.invoking.open[calls[0]].values()
        await bench.supervisor.invoking.close()
        assert question.task is not None
        assert question.task.done()
        executor.say(Invoke(calls[1], 1, 0, "plain", "", b"1", b"digest"))
        assert not bench.supervisor.invoking.open
        assert (len(callee.asked), callee.cancelled, answered(executor)) == (1, [], [])

    run(scenario)
