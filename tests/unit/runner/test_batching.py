"""Calls of a batched function are joined, run as one, and answered one by one."""

from __future__ import annotations

import asyncio
from typing import Any

from bench import Bench
from bench import run as run_bench
from lot_bench import answer, end, joined, lots, running

from gpu_runner.frames import Reported, Stop
from headrace.link.frames import Call, Lost, Refused, Result

MODULES = ["joined_functions"]


def run(scenario: Any, **options: Any) -> None:
    run_bench(scenario, modules=MODULES, **options)


def send(bench: Bench, text: str = "x", function: str = "join", **options: Any) -> str:
    return bench.gateway.send(function, text=text, **options)


def test_an_idle_executor_runs_one_call_and_what_comes_meanwhile_is_joined() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        calls = [send(bench) for _ in range(6)]
        assert joined(executor) == [calls[:1]]
        end(executor)
        assert joined(executor) == [calls[:1], calls[1:]]
        assert [bench.told(call) is None for call in calls] == [False, True, True, True, True, True]
        answer(executor, calls[1])
        assert isinstance(bench.told(calls[1]), Result)  # before the others
        end(executor)
        assert [isinstance(bench.told(call), Result) for call in calls] == [True] * 6
        assert not bench.supervisor._calls
        assert bench.load("join") == 0
        assert executor.busy["(main)"] == 0

    run(scenario)


def test_lots_cost_less_for_a_while_where_memory_ran_out() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        send(bench)
        for _ in range(8):
            send(bench)
        end(executor)
        assert len(joined(executor)[-1]) == 8
        for _ in range(8):
            send(bench)
        end(executor, too_many=4)
        assert len(joined(executor)[-1]) == 8  # it was full before
        for _ in range(100):
            while len(bench.supervisor._calls) < 20:
                send(bench)
            end(executor)
        sizes = [len(lot) for lot in joined(executor)[3:]]
        assert sizes == sorted(sizes)
        assert (sizes[0], sizes[-1]) == (2, 8)
        assert sizes.count(2) > 15

    run(scenario)


def test_a_call_that_is_refused_leaves_the_lot_before_it_open() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        running_one, waiting = send(bench), send(bench)
        bench.supervisor.slots_of("join").running_s = 60.0  # longer than anybody waits by now
        assert bench.told(send(bench, "x" * 8)).reason == "full"
        bench.supervisor.slots_of("join").running_s = 0.0
        last = send(bench)
        end(executor)
        assert joined(executor) == [[running_one], [waiting, last]]
        end(executor)

    run(scenario)


def test_what_is_joined_stays_within_its_cost_and_order_is_kept() -> None:
    """A dear call runs by itself, and no cheap one passes it."""

    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        texts = ["first", "xxxx", "xxx", "xx", "x" * 20, "x", "xxxxxxxx", "x"]
        calls = [send(bench, text) for text in texts]
        while running(executor):
            bench.supervisor.joining.hurry()  # the last one lingers
            end(executor)
        sizes = [len(lot) for lot in joined(executor)]
        assert sizes == [1, 2, 1, 1, 1, 1, 1]
        assert [call for lot in joined(executor) for call in lot] == calls

    run(scenario)


def test_others_in_the_main_thread_take_turns_with_lots_as_they_came() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        first = send(bench)
        second, plain, third = send(bench), send(bench, function="plain"), send(bench)
        assert bench.load("plain") == 3
        end(executor)
        assert joined(executor) == [[first], [second, third]]
        assert not executor.runs
        end(executor)
        assert executor.runs == [plain]
        executor.finish(plain)

    run(scenario)


def test_the_plain_path_is_as_before_beside_a_batched_function() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        executor.finish(send(bench, function="plain"), seconds=0.0001)
        calls = [send(bench, function="plain") for _ in range(4)]
        assert executor.runs[1:] == calls  # handed ahead
        waiting = send(bench)
        for call in calls:
            executor.finish(call, seconds=0.0001)
        assert joined(executor) == [[waiting]]
        late = send(bench, function="plain")
        assert late not in executor.runs  # nothing is handed ahead behind a lot
        end(executor)
        executor.finish(late)

    run(scenario)


def test_a_call_that_is_stopped_while_it_waits_is_left_out() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        first, second, third, alone = (send(bench, "xxx") for _ in range(4))
        bench.gateway.stop(second)
        bench.gateway.stop(alone)  # the only one of its lot
        end(executor)
        assert joined(executor) == [[first], [third]]
        end(executor)
        assert bench.told(second) is bench.told(alone) is None
        assert not bench.supervisor._calls
        assert not running(executor)

    run(scenario)


def test_a_running_call_that_is_stopped_is_answered_at_once_and_the_others_go_on() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        first = send(bench)
        calls = [send(bench) for _ in range(3)]
        end(executor)
        bench.gateway.stop(calls[1])
        assert executor.sent[-1] == Stop(calls[1], 1)
        assert bench.told(calls[1]).category == "cancelled"
        again = bench.gateway
        (lot,) = running(executor)
        assert not lot.stopped
        assert bench.supervisor.call_of(calls[1]) is not None  # its body is at work on it
        bench.gateway.answers.pop(calls[1])
        again.send("join", job_id=calls[1])
        assert bench.told(calls[1]).reason == "full"  # never two at once
        for call in (calls[0], calls[2]):
            bench.gateway.stop(call)
        assert lot.stopped
        assert lot.kill_at < lot.started_at + lot.manifest.budget.hard
        await bench.until(lambda: lot.job_id in executor.interrupted)
        end(executor, **dict.fromkeys(calls, "stopped"))
        assert bench.told(first) is not None
        assert not bench.supervisor._calls

    run(scenario)


def test_a_deadline_that_passes_is_told_at_once_and_the_others_go_on() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        send(bench)
        late, other = send(bench, left=0.1), send(bench)
        end(executor)
        await bench.until(lambda: bench.told(late))
        assert bench.told(late).category == "deadline-exceeded"
        assert Stop(late, 1) in executor.sent
        assert executor.interrupted == []
        end(executor, **{late: "stopped"})
        assert isinstance(bench.told(other), Result)
        assert len(bench.gateway.order) == 3

    run(scenario)


def test_each_call_waits_as_long_as_it_may_itself() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        send(bench)
        hasty, patient = send(bench, wait=0.02), send(bench)
        await bench.until(lambda: bench.told(hasty))
        assert bench.told(hasty).reason == "full"
        assert bench.told(patient) is None
        end(executor)
        assert joined(executor)[1:] == [[patient]]
        end(executor)

    run(scenario)


def test_a_wait_is_predicted_by_what_lots_of_that_cost_took() -> None:
    """The lot that a call joins is no wait of its own: only what runs, and the lots before, are."""

    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        send(bench, "x" * 8)
        end(executor, seconds=4.0)
        send(bench, "x" * 8)
        waiting = [send(bench, "xxxx") for _ in range(2)]  # behind 4 s
        refused = bench.told(send(bench, "xxxx"))  # behind a full lot, too
        assert (refused.reason, refused.retry_after_s) == ("full", 8.0)
        assert refused.load == bench.load("join")
        end(executor, seconds=4.0)
        assert joined(executor)[-1] == waiting
        end(executor, seconds=4.0)

    run(scenario, brief_wait=5.0)


def test_a_lost_executor_charges_all_and_one_that_was_killed_for_a_lot_charges_nobody() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        send(bench)
        calls = [send(bench) for _ in range(3)]
        end(executor)
        executor.lose()
        assert [bench.told(call) for call in calls] == [
            Lost(call, 1, charged=True, load=bench.told(call).load) for call in calls
        ]
        executor.become_ready()
        send(bench, function="hang_together")
        several = [send(bench, function="hang_together") for _ in range(3)]
        end(executor)
        (lot,) = running(executor)
        assert len(lot.calls) == 3
        executor.kill(lot)
        executor.lose()
        for call in several:
            told = bench.told(call)
            assert (told.charged, told.suspect) == (False, True)
        executor.become_ready()
        single = send(bench, function="hang_together", alone=True)
        (lot,) = running(executor)
        executor.kill(lot)
        executor.lose()
        assert bench.told(single).category == "hard-limit-exceeded"
        assert not bench.supervisor._calls

    run(scenario)


def test_a_hard_limit_kills_the_executor() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        send(bench, function="hang_together")
        await bench.until(lambda: executor.killed_for)
        executor.lose()
        assert bench.gateway.order[-1].category == "hard-limit-exceeded"  # type: ignore[union-attr]

    run(scenario)


def test_what_was_answered_before_the_loss_stays_answered() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        send(bench)
        done, left = send(bench), send(bench)
        end(executor)
        waiting = send(bench)
        answer(executor, done)
        executor.lose()
        assert isinstance(bench.told(done), Result)
        assert isinstance(bench.told(left), Lost)
        executor.become_ready()
        assert joined(executor)[-1] == [waiting]
        end(executor)

    run(scenario)


def test_what_runs_alone_joins_nobody() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        first = send(bench)
        alone = send(bench, alone=True)
        others = [send(bench) for _ in range(2)]
        end(executor)
        assert joined(executor) == [[first], [alone]]
        end(executor)
        assert joined(executor) == [[first], [alone], others]
        end(executor)
        before = send(bench)
        dropped = send(bench, alone=True)
        bench.gateway.stop(dropped)  # while it waits
        end(executor)
        assert joined(executor)[-1] == [before]
        assert not bench.supervisor._calls

    run(scenario)


def test_a_function_with_slots_of_its_own_has_a_lot_in_each() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        calls = [send(bench, function="pair") for _ in range(7)]
        assert joined(executor) == [calls[:1], calls[1:2]]
        assert bench.load("pair") == 7
        end(executor, running(executor)[1])
        assert joined(executor)[2:] == [calls[2:6]]
        end(executor)
        assert joined(executor)[3:] == [calls[6:]]
        end(executor)
        end(executor)
        services = {one.function: one.slots for one in bench.supervisor.services()}
        assert (services["pair"], services["plain"]) == (8, 1)

    run(scenario)


def test_progress_of_a_joined_call_is_told_to_its_caller() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        told: list[Any] = []
        bench.gateway.tell = told.append  # type: ignore[method-assign]
        interface = bench.supervisor._functions["join"].manifest.interface
        bench.gateway.answers["job"] = asyncio.get_running_loop().create_future()
        frame = Call("job", "join", interface, b"{}", "o", 1, 10_000, 1000, credit=1)
        bench.supervisor.take(frame, bench.gateway)
        executor.say(Reported("job", 0.5, ""))
        assert told == [Reported("job", 0.5, "")]
        end(executor)

    run(scenario)


def test_slow_calls_are_announced_once_each() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        send(bench)
        calls = [send(bench) for _ in range(2)]
        end(executor)
        await bench.until(lambda: bench.gateway.started)
        assert bench.gateway.started == calls
        end(executor)

    run(scenario)


def test_nothing_runs_where_none_is_ready_and_all_that_waits_is_joined_then() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        hasty = send(bench, wait=0.01)
        calls = [send(bench) for _ in range(3)]
        await bench.until(lambda: bench.told(hasty))
        assert bench.told(hasty).reason == "cold"
        executor.become_ready()
        assert joined(executor) == [calls]
        end(executor)

    run(scenario, ready=False, brief_wait=0.0)


def test_a_function_that_can_t_run_any_more_gives_up_what_waits() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        send(bench)
        waiting = send(bench)
        executor.lose()
        executor.become_ready(join="no weights")
        assert isinstance(bench.told(waiting), Refused)
        assert not lots(executor)[1:]
        assert not bench.supervisor._calls

    run(scenario)
