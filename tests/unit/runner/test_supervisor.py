"""The supervisor's bookkeeping, one event at a time."""

from __future__ import annotations

import asyncio

import pytest
from bench import Bench, run
from rig import Gateway

from gpu_runner import enforcement
from gpu_runner.frames import Failed, Reported
from headrace.link.frames import Call, Lost, Refused, Result


def test_calls_start_in_the_order_in_which_they_came() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        jobs = [bench.gateway.send(name) for name in ("echo", "whoami", "one", "echo")]
        for position, job in enumerate(jobs):
            assert executor.runs == jobs[: position + 1]
            assert bench.load() == len(jobs) - position
            executor.finish(job)
            assert isinstance(bench.told(job), Result)
            assert bench.told(job).load == bench.load()
        assert executor.stops == []

    run(scenario)


def test_what_is_not_served_here_is_refused() -> None:
    async def scenario(bench: Bench) -> None:
        assert bench.told(bench.gateway.send("unheard_of")).reason == "unknown-interface"
        frame = Call("old", "echo", "another", b"{}", "o", 1, 1000, 250)
        bench.gateway.answers["old"] = asyncio.get_running_loop().create_future()
        bench.supervisor.take(frame, bench.gateway)
        assert bench.told("old").reason == "unknown-interface"
        assert bench.load() == 0

    run(scenario)


def test_a_full_runner_refuses_with_the_predicted_wait() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        executor.finish(bench.gateway.send("echo"), seconds=4.0)  # so long does it take
        running = bench.gateway.send("echo")
        refused = bench.told(bench.gateway.send("echo"))
        assert (refused.reason, refused.load, refused.retry_after_s) == ("full", 1, 4.0)
        assert bench.load() == 1
        executor.finish(running)

    run(scenario, brief_wait=1.0)


def test_a_wait_is_brief_and_never_longer_than_the_connection() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        running = bench.gateway.send("echo")
        for wait in (0.0, 0.02):
            refused = await bench.gateway.call("echo", wait=wait)
            assert (refused.reason, bench.load()) == ("full", 1)
        refused = await bench.gateway.call("echo", wait=100)  # the brief wait ends it
        assert refused.reason == "full"
        executor.finish(running)

    run(scenario, brief_wait=0.05)


def test_while_nothing_is_ready_calls_wait_as_long_as_their_connection() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        patient, hasty = bench.gateway.send("echo", wait=100), bench.gateway.send("echo", wait=0.01)
        refused = await bench.gateway.answer_to(hasty)
        assert (refused.reason, refused.load) == ("cold", 1)
        assert refused.retry_after_s > 0
        assert not bench.supervisor.ready.is_set()
        executor.become_ready()
        assert bench.supervisor.ready.is_set()
        assert executor.runs == [patient]
        executor.finish(patient)

    run(scenario, brief_wait=0.0, ready=False)


def test_a_stop_of_a_waiting_call_forgets_it() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        running, waiting, last = (bench.gateway.send("echo") for _ in range(3))
        bench.gateway.stop(waiting)
        bench.gateway.stop("unknown")
        assert bench.load() == 2
        executor.finish(running)
        assert executor.runs == [running, last]
        assert bench.told(waiting) is None
        assert executor.stops == []
        executor.finish(last)

    run(scenario)


def test_a_lost_gateway_stops_its_own_calls_only() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        other = Gateway(bench.supervisor)
        mine, waiting, theirs = bench.gateway.send("many"), bench.gateway.send("echo"), other.send("many")
        queued = bench.gateway.send("echo")
        bench.supervisor.caller_lost(bench.gateway)
        assert executor.stops == [mine, waiting]
        assert bench.load() == 1  # the queued one is gone
        executor.finish(theirs)
        assert isinstance(other.answers[theirs].result(), Result)
        for job in (mine, waiting):
            executor.say(Failed(job, "stopped", "", 0.1))
            assert bench.told(job).category == "cancelled"
        assert bench.told(queued) is None
        assert not bench.supervisor._calls

    run(scenario)


def test_the_same_job_a_second_time_stops_the_first_and_is_refused() -> None:
    """A gateway that lost the link comes back before this end has noticed the loss."""

    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        bench.gateway.send("echo", job_id="job")
        again = Gateway(bench.supervisor)
        again.send("echo", job_id="job")
        assert isinstance(again.answers["job"].result(), Refused)
        assert executor.stops == ["job"]
        executor.say(Failed("job", "stopped", "", 0.1))
        assert not bench.supervisor._calls
        again.send("echo", job_id="job")
        executor.finish("job")
        assert isinstance(again.answers["job"].result(), Result)

    run(scenario)


def test_an_answer_of_a_killed_executor_starts_nothing_on_it() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        held = [bench.gateway.send("many") for _ in range(3)]
        waiting = bench.gateway.send("many")
        executor.kill(bench.supervisor._calls[held[0]])
        executor.finish(held[1])  # on its way before the end
        assert executor.runs == held
        executor.lose()
        assert bench.told(held[0]).category in {"hard-limit-exceeded", "deadline-exceeded"}
        assert bench.told(held[2]) == Lost(held[2], 1, charged=False, load=bench.told(held[2]).load)
        executor.become_ready()
        assert executor.runs == [*held, waiting]
        executor.finish(waiting)

    run(scenario)


def test_a_crash_charges_all_and_the_waiting_are_given_to_the_next_life() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        jobs = [bench.gateway.send("many"), bench.gateway.send("echo")]
        waiting = bench.gateway.send("echo")
        executor.lose()
        for job in jobs:
            assert bench.told(job).charged
        assert bench.load() == 1
        executor.become_ready()
        assert executor.runs[-1] == waiting
        executor.finish(waiting)
        assert bench.load() == 0

    run(scenario)


def test_short_calls_are_handed_ahead_and_wait_again_when_the_executor_dies() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        executor.finish(bench.gateway.send("echo"), seconds=0.0001)
        jobs = [bench.gateway.send("echo") for _ in range(18)]
        assert executor.runs[1:] == jobs[:16]  # one that runs and fifteen ahead of it
        assert bench.load() == 18
        bench.gateway.stop(jobs[2])
        executor.finish(jobs[0], seconds=0.0001)
        assert bench.told(jobs[0]).load == 17
        executor.lose()
        assert bench.told(jobs[1]) == Lost(jobs[1], 1, charged=True, load=bench.told(jobs[1]).load)
        assert [bench.told(job) for job in jobs[2:]] == [None] * 16  # never started, never charged
        executor.sent.clear()
        executor.become_ready()
        assert executor.runs == [jobs[3]]
        for job in jobs[3:]:
            executor.finish(job, seconds=0.0001)
            assert isinstance(bench.told(job), Result)
        assert not bench.supervisor._calls
        assert bench.load() == 0

    run(scenario)


def test_what_is_handed_ahead_takes_two_milliseconds_at_most() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        executor.finish(bench.gateway.send("echo"), seconds=0.0006)
        jobs = [bench.gateway.send("echo") for _ in range(6)]
        assert executor.runs[1:] == jobs[:3]  # three take 1.8 ms
        executor.finish(jobs[0], seconds=0.0006)
        assert executor.runs[1:] == jobs[:4]
        executor.finish(jobs[1], seconds=0.0006)
        assert executor.runs[1:] == jobs[:5]

    run(scenario)


def test_a_slow_call_announces_itself_once() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        slow = bench.gateway.send("echo")
        async with asyncio.timeout(10):
            while not bench.gateway.started:
                await asyncio.sleep(0.005)
        quick = bench.gateway.send("many")
        executor.finish(quick)
        await asyncio.sleep(2.5 * enforcement.TICK_S)  # it would be said again by now
        assert bench.gateway.started == [slow]
        executor.finish(slow)

    run(scenario)


def test_progress_and_strangers_are_ignored() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        job = bench.gateway.send("echo")
        executor.say(Reported(job, 0.5, "half"))
        executor.finish("stranger")
        assert bench.told(job) is None
        executor.finish(job)
        executor.finish(job)  # twice: the second is a stranger
        assert bench.load() == 0

    run(scenario)


def test_what_is_degraded_is_told_and_may_recover() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        assert bench.changes == 0
        executor.lose()
        executor.become_ready(echo="no weights")
        executor.lose()
        executor.become_ready(echo="no weights")
        assert bench.changes == 1  # told once
        refused = bench.told(bench.gateway.send("echo"))
        assert (refused.reason, refused.detail) == ("degraded", "no weights")
        executor.lose()
        executor.become_ready()
        assert bench.changes == 2
        executor.finish(bench.gateway.send("echo"))

    run(scenario)


def test_draining_finishes_what_there_is_and_takes_nothing() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        await bench.supervisor.drain(0)  # nothing to do
        bench.supervisor.draining = False
        running, waiting = bench.gateway.send("echo"), bench.gateway.send("echo")
        draining = asyncio.ensure_future(bench.supervisor.drain(10))
        await asyncio.sleep(0)
        assert bench.told(bench.gateway.send("echo")).reason == "draining"
        executor.finish(running)
        await asyncio.sleep(0)
        assert not draining.done()
        executor.finish(waiting)
        await draining
        assert isinstance(bench.told(waiting), Result)

    run(scenario)


def test_draining_does_not_wait_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(bench: Bench) -> None:
        bench.gateway.send("echo")
        await bench.supervisor.drain(0.01)
        assert "1 calls are cut off" in caplog.text
        bench.executors[0].lose()

    run(scenario)
