"""A call whose process was lost runs alone; slots that are reserved are free for whom they are reserved."""

from __future__ import annotations

import asyncio

import pytest
from bench import MODULES, Bench, Scripted, run
from rig import Gateway

from gpu_runner.frames import Stop
from headrace.link.frames import Call, Lost, Refused, Result

RESERVED = {"modules": [*MODULES, "reserved_functions"]}


def test_a_call_that_runs_alone_waits_until_its_executor_is_empty_and_keeps_it_so() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        beside = [bench.gateway.send("together"), bench.gateway.send("many")]
        suspect = bench.gateway.send("together", alone=True)
        later = bench.gateway.send("together")
        executor.finish(beside[0])
        assert executor.runs == beside
        executor.finish(beside[1])
        assert executor.runs == [*beside, suspect]
        assert list(executor.calls) == [suspect]
        executor.finish(suspect)
        assert executor.runs == [*beside, suspect, later]
        executor.finish(later)
        assert all(isinstance(bench.told(call), Result) for call in [*beside, suspect, later])

    run(scenario)


def test_others_go_on_beside_an_executor_that_is_closed() -> None:
    async def scenario(bench: Bench) -> None:
        first, second = bench.executors
        suspects = [bench.gateway.send("together", alone=True) for _ in range(2)]
        others = [bench.gateway.send("together") for _ in range(4)]
        assert (first.runs, second.runs) == (suspects[:1], others)
        first.finish(suspects[0])
        assert first.runs == suspects  # while others run only in the second
        first.finish(suspects[1])
        assert first.closed_for is None
        again = bench.gateway.send("together")
        assert first.runs == [*suspects, again]
        for call in others:
            second.finish(call)
        first.finish(again)

    run(scenario, executors=2)


def test_a_call_that_waits_to_run_alone_can_be_stopped_and_reopens_its_executor() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        before = bench.gateway.send("together")
        suspect = bench.gateway.send("together", alone=True)
        later = bench.gateway.send("together")
        bench.gateway.stop(suspect)
        assert executor.runs == [before, later]
        assert executor.closed_for is None
        for call in (before, later):
            executor.finish(call)
        assert bench.told(suspect) is None

    run(scenario)


def test_a_call_that_can_not_run_alone_in_time_is_refused() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        before = bench.gateway.send("together")
        suspect = await bench.gateway.call("together", alone=True, wait=0.1)
        assert (suspect.reason, executor.closed_for) == ("full", None)
        executor.finish(before)

    run(scenario)


def test_an_executor_that_is_lost_while_it_empties_is_replaced_by_another() -> None:
    async def scenario(bench: Bench) -> None:
        first, second = bench.executors
        calls = [bench.gateway.send("together") for _ in range(2)]
        suspect = bench.gateway.send("together", alone=True)
        assert first.closed_for is not None
        first.lose()
        assert isinstance(bench.told(calls[0]), Lost)
        second.finish(calls[1])
        assert second.runs == [calls[1], suspect]
        second.finish(suspect)
        first.become_ready()

    run(scenario, executors=2)


def test_a_job_that_was_lost_runs_alone_and_is_given_back_when_it_is_stopped() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        before = bench.gateway.send("together")
        keeper = Gateway(bench.supervisor)
        interface = bench.supervisor._functions["together"].manifest.interface
        for number in range(2):
            frame = Call(f"job-{number}-alone", "together", interface, b"{}", "o", 2, 9000, 0, alone=True)
            keeper.answers[frame.job_id] = bench.gateway.answers[before].get_loop().create_future()
            bench.supervisor.take_job(frame, keeper)
        keeper.stop("job-1-alone")
        lost = keeper.answers["job-1-alone"].result()
        assert isinstance(lost, Lost)
        assert (lost.charged, lost.suspect) == (False, False)
        executor.finish(before)
        assert executor.runs == [before, "job-0-alone"]
        executor.finish("job-0-alone")

    run(scenario)


def test_calls_that_a_kill_takes_along_were_started_and_are_not_charged() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        culprit, bystander = bench.gateway.send("together"), bench.gateway.send("together")
        executor.kill(executor.calls[culprit])
        executor.lose()
        lost = bench.told(bystander)
        assert isinstance(lost, Lost)
        assert (lost.charged, lost.suspect) == (False, True)
        executor.become_ready()

    run(scenario)


def test_executors_that_ended_as_this_process_was_frozen_say_nothing_about_their_calls() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        call = bench.gateway.send("together")
        executor.was_frozen = True
        executor.lose()
        lost = bench.told(call)
        assert isinstance(lost, Lost)
        assert (lost.charged, lost.suspect) == (False, False)
        executor.become_ready()

    run(scenario)


def test_what_is_reserved_stays_free_for_whom_it_is_reserved() -> None:
    async def scenario(bench: Bench) -> None:
        first, second = bench.executors
        long = bench.gateway.send("long")
        waiting = bench.gateway.send("echo")
        assert first.runs == [long]
        assert not second.runs
        short = bench.gateway.send("short")
        assert second.runs == [short]
        second.finish(short)
        assert second.runs == [short]  # free again, and kept so
        first.finish(long)
        assert first.runs == [long, waiting]
        first.finish(waiting)
        assert {service.function: service.slots for service in bench.supervisor.services()}["long"] == 1

    run(scenario, executors=2, **RESERVED)


def test_a_function_with_a_reserve_also_takes_what_others_leave() -> None:
    async def scenario(bench: Bench) -> None:
        calls = [bench.gateway.send("short") for _ in range(3)]
        long = bench.gateway.send("long")
        assert [executor.runs for executor in bench.executors] == [calls[:1], calls[1:2]]
        bench.executors[0].finish(calls[0])
        bench.executors[0].finish(calls[2])
        bench.executors[0].finish(long)
        bench.executors[1].finish(calls[1])

    run(scenario, executors=2, **RESERVED)


@pytest.mark.parametrize("cap", [1, 2])
def test_no_more_calls_use_models_at_once_than_the_device_may_take(cap: int) -> None:
    async def scenario(bench: Bench) -> None:
        calls = [bench.gateway.send(name) for name in ("measure_many", "measure", "measure_many", "long")]

        def running() -> list[tuple[Scripted, str]]:
            return [(executor, call) for executor in bench.executors for call in executor.calls]

        assert {call for _, call in running()} >= {calls[0]}
        while some := running():
            assert len([call for _, call in some if call in calls[:3]]) <= cap
            executor, call = some[0]
            executor.finish(call)
        assert all(isinstance(bench.told(call), Result) for call in calls)

    run(scenario, executors=2, device_cap=cap, **RESERVED)


def test_a_function_that_one_of_two_executors_can_not_run_runs_in_the_other() -> None:
    async def scenario(bench: Bench) -> None:
        first, second = bench.executors
        first.become_ready(echo="no memory")
        second.become_ready()
        assert not bench.supervisor.degraded
        calls = [bench.gateway.send("echo") for _ in range(2)]
        assert second.runs == calls[:1]
        other = bench.gateway.send("whoami")
        assert first.runs == [other]
        second.finish(calls[0])
        assert second.runs == calls
        second.finish(calls[1])
        first.finish(other)
        second.become_ready(echo="no memory either")
        assert bench.supervisor.degraded == {"echo": "no memory"}
        refused = await bench.gateway.call("echo")
        assert isinstance(refused, Refused)
        assert refused.reason == "degraded"

    run(scenario, executors=2, ready=False)


def test_calls_that_wait_to_run_alone_are_each_refused_or_started_never_both() -> None:
    async def scenario(bench: Bench) -> None:
        first, second = bench.executors
        before = [bench.gateway.send("together") for _ in range(2)]
        suspects = [bench.gateway.send("together", alone=True, wait=0.05) for _ in range(2)]
        second.finish(before[1])
        await bench.until(lambda: bench.told(suspects[1]) is not None or second.calls)
        await asyncio.sleep(0.1)  # both have waited as long as they may
        first.finish(before[0])
        for executor in bench.executors:
            for call in list(executor.calls):
                executor.finish(call)
        assert all(bench.told(call) is not None for call in suspects)

    run(scenario, executors=2)


def test_between_two_that_run_alone_others_have_their_turn() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        suspects = [bench.gateway.send("together", alone=True) for _ in range(2)]
        waiting = bench.gateway.send("echo")
        executor.finish(suspects[0])
        assert list(executor.calls) == [waiting]
        executor.finish(waiting)
        assert list(executor.calls) == [suspects[1]]
        executor.finish(suspects[1])

    run(scenario)


def test_a_call_moves_to_an_executor_that_is_empty_sooner() -> None:
    async def scenario(bench: Bench) -> None:
        first, second = bench.executors
        slow, quick = (bench.gateway.send("together") for _ in range(2))
        suspect = bench.gateway.send("together", alone=True)
        assert first.closed_for is not None
        second.finish(quick)
        assert second.runs == [quick, suspect]
        later = bench.gateway.send("together")
        assert first.runs == [slow, later]
        for executor, call in ((first, slow), (first, later), (second, suspect)):
            executor.finish(call)

    run(scenario, executors=2)


def test_what_runs_alone_leaves_to_others_what_is_reserved_for_them() -> None:
    async def scenario(bench: Bench) -> None:
        first, second = bench.executors
        long = bench.gateway.send("long")
        suspect = bench.gateway.send("together", alone=True)  # of a room of its own, but it closes all
        assert (first.runs, second.runs) == ([long], [])
        short = bench.gateway.send("short")
        assert second.runs == [short]
        first.finish(long)
        assert first.runs == [long, suspect]
        second.finish(short)
        first.finish(suspect)

    run(scenario, executors=2, **RESERVED)


def test_what_no_executor_can_run_any_more_is_given_back_or_refused() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        before = bench.gateway.send("echo")
        suspect, waiting = bench.gateway.send("echo", alone=True), bench.gateway.send("whoami")
        executor.lose()
        executor.become_ready(echo="no memory")
        assert isinstance(bench.told(before), Lost)
        assert bench.told(suspect).reason == "degraded"
        assert executor.runs == [before, waiting]
        executor.finish(waiting)

    run(scenario)


def test_a_refusal_tells_how_long_the_slots_are_taken_by_others() -> None:
    async def scenario(bench: Bench) -> None:
        for _ in range(3):
            bench.executors[0].finish(bench.gateway.send("long"), 20.0)
        first = bench.gateway.send("long")
        kept = bench.gateway.send("short")
        refused = await bench.gateway.call("short")
        assert (refused.reason, refused.load) == ("full", 2)
        assert refused.retry_after_s == pytest.approx(10, abs=1)
        bench.executors[0].finish(first)
        bench.executors[1].finish(kept)

    run(scenario, executors=2, brief_wait=0.25, **RESERVED)


# ---------------------------------------------------------------------- limits


def test_a_body_that_was_asked_to_end_is_interrupted_then_killed() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        job = bench.gateway.send("together")
        call = executor.calls[job]
        assert call.kill_at == call.started_at + call.manifest.budget.hard
        bench.gateway.stop(job)
        assert [frame for frame in executor.sent if isinstance(frame, Stop)] == [Stop(job, 1)]
        assert call.interrupt_at == pytest.approx(call.stopped_at + 0.25)
        assert call.kill_at == pytest.approx(call.stopped_at + 5)
        await bench.until(lambda: executor.interrupted)
        assert set(executor.interrupted) == {job}
        call.kill_at = 0.0
        await bench.until(lambda: executor.killed_for)
        assert executor.killed_for is call
        executor.lose()
        assert bench.told(job).category == "cancelled"

    run(scenario)


def test_a_call_that_is_stopped_before_its_turn_in_the_executor_ends_as_soon() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        executor.finish(bench.gateway.send("echo"), 0.0001)
        first = bench.gateway.send("echo")
        ahead = bench.gateway.send("echo")
        assert executor.runs[-1] == ahead
        bench.gateway.stop(ahead)
        executor.finish(first, 0.0001)
        call = executor.calls[ahead]
        assert call.interrupt_at == pytest.approx(call.started_at + 0.25)
        assert call.kill_at == pytest.approx(call.started_at + 5)
        executor.finish(ahead)

    run(scenario)


def test_a_deadline_interrupts_and_is_followed_by_a_kill_with_patience() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        job = bench.gateway.send("together", left=0.1)
        call = executor.calls[job]
        assert call.interrupt_at == pytest.approx(call.deadline_at + 0.25)
        assert call.kill_at == pytest.approx(call.deadline_at + 5)
        await bench.until(lambda: executor.interrupted)
        call.kill_at = 0.0
        await bench.until(lambda: executor.killed_for)
        executor.lose()
        assert bench.told(job).category == "deadline-exceeded"

    run(scenario)
