"""A lot that has its slot may wait there for more calls, where they come fast."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from bench import Bench
from bench import run as run_bench
from lot_bench import end, joined, lots, running

from gpu_runner.batching import joining
from gpu_runner.jobs.recording import Recording
from headrace.link.frames import Handover


def run(scenario: Any, **options: Any) -> None:
    run_bench(scenario, modules=["joined_functions"], **options)


def send(bench: Bench, function: str = "join") -> str:
    return bench.gateway.send(function, text="x")


def be_patient(bench: Bench, max_wait: float = 30.0) -> None:
    """Have lots linger for seconds, so that a busy machine ends no test's lingering."""
    pace = bench.supervisor.joining._paces["join"]
    pace.batch = replace(pace.batch, max_wait=max_wait)


def come_and_go(bench: Bench, times: int = 30) -> None:
    """A single client calls again as soon as it is answered, and never waits."""
    (executor, *_) = bench.executors
    for _ in range(times):
        before = len(lots(executor))
        call = send(bench)
        assert joined(executor)[before:] == [[call]]
        end(executor)


def come_fast(bench: Bench) -> None:
    """Calls come one right after the other; one runs at last, by itself, and two wait."""
    be_patient(bench)
    come_and_go(bench)
    for _ in range(3):
        send(bench)
    assert len(joined(bench.executors[0])[-1]) == 1


def come_together(bench: Bench) -> None:
    """Calls come one right after the other; the last three ran as one and were answered."""
    (executor, *_) = bench.executors
    come_fast(bench)
    end(executor)
    send(bench)
    assert len(joined(executor)[-1]) == 3
    end(executor)


def hurry(bench: Bench) -> None:
    bench.supervisor.joining.hurry()


def follow(bench: Bench) -> None:
    """A lot of two has the slot of the one before it, and lingers."""
    come_fast(bench)
    end(bench.executors[0])


def come_back(bench: Bench) -> None:
    """The first two of three who were answered together find the slot free, and linger for the third."""
    come_together(bench)
    send(bench)
    send(bench)


two_linger = pytest.mark.parametrize("linger", [follow, come_back])


class Clock:
    """What takes the place of `time` where lots are looked at."""

    def __init__(self) -> None:
        self.at = 0.0
        """The instant that it shows; 0: the true one."""

    def monotonic(self) -> float:
        return self.at or time.monotonic()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(joining, "time", clock)
    return clock


def look(bench: Bench) -> None:
    """What lingers is looked at, as a timer would."""
    for lot, (executor, _) in list(bench.supervisor.joining._lingering.items()):
        bench.supervisor.joining._look(lot, executor)


def test_a_lot_lingers_where_calls_come_fast_until_as_many_as_were_answered_have_come() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        come_fast(bench)
        before = len(lots(executor))
        end(executor)
        (lot,) = running(executor)
        assert (len(lots(executor)), len(lot.calls)) == (before, 2)  # it has the slot, and waits there
        bench.supervisor._tick()  # its limits don't count yet
        assert not executor.killed_for
        assert not bench.gateway.started
        send(bench)
        assert len(joined(executor)[-1]) == 3  # as the lot before had one call
        end(executor)

    run(scenario)


@two_linger
@pytest.mark.parametrize(
    "other", [{"function": "plain"}, {"function": "hang_together"}, {"text": "x" * 8}, {"alone": True}]
)
def test_a_lot_lingers_no_longer_once_others_wait_for_the_slot(linger: Any, other: dict[str, Any]) -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        linger(bench)
        before = len(lots(executor))
        (lot,) = running(executor)
        assert not lot.started_at
        waiting = bench.gateway.send(**{"function": "join", "text": "x", **other})
        assert len(lots(executor)) == before + 1
        assert len(joined(executor)[-1]) == 2
        end(executor)
        if running(executor):
            end(executor)
        else:
            executor.finish(waiting)
        assert not bench.supervisor._calls

    run(scenario)


@two_linger
def test_a_lot_lingers_no_longer_once_another_call_starts_beside_it(linger: Any) -> None:
    async def scenario(bench: Bench) -> None:
        first, second = bench.executors
        first.become_ready()
        linger(bench)
        before = len(lots(first))
        second.become_ready()
        assert len(lots(first)) == before
        dear = bench.gateway.send("join", text="x" * 8)
        assert joined(second) == [[dear]]
        assert len(lots(first)) == before + 1
        end(first)
        end(second)

    run(scenario, executors=2, ready=False)


@two_linger
def test_a_lot_that_lingers_is_not_started_where_its_executor_has_ended(linger: Any) -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        linger(bench)
        before = len(lots(executor))
        (lot,) = running(executor)
        executor.is_ready = False  # which is noticed later
        slots = bench.supervisor.slots_of("join")
        slots._waiting_bytes += 2**30  # it has no slot any more, so this counts
        assert bench.told(send(bench)).reason == "cold"
        slots._waiting_bytes -= 2**30
        while lot.may_come > 0:
            send(bench)  # until none is waited for
        bench.supervisor.joining._look(lot, executor)
        hurry(bench)
        assert len(lots(executor)) == before
        calls = list(lot.calls)
        assert len(calls) > 2
        executor.lose()
        executor.become_ready()
        assert joined(executor)[before:] == [calls]
        assert not [call for call in calls if bench.told(call)]
        end(executor)

    run(scenario)


@two_linger
def test_a_lot_lingers_no_longer_than_max_wait(linger: Any, clock: Clock) -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        linger(bench)
        (lot,) = running(executor)
        until = lot.lingers_until
        bench.supervisor.joining._paces["join"].arrived(until - 1, 0.0)  # they go on to come fast
        clock.at = until - 0.5
        look(bench)
        assert not lot.started_at
        clock.at = until
        look(bench)
        assert lot.started_at
        end(executor)

    run(scenario)


@two_linger
def test_callers_who_do_not_come_back_cost_two_of_the_usual_pauses(linger: Any, clock: Clock) -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        linger(bench)
        (lot,) = running(executor)
        pace = bench.supervisor.joining._paces["join"]
        since = max(lot.lingers_until - pace.batch.max_wait, pace._last_at)
        clock.at = since + 1.9 * pace._pause_s
        look(bench)
        assert not lot.started_at
        clock.at = since + 2.1 * pace._pause_s
        assert clock.at < lot.lingers_until
        look(bench)
        assert lot.started_at
        end(executor)

    run(scenario)


def test_what_lingers_runs_in_time_though_nothing_else_happens() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        come_together(bench)
        pace = bench.supervisor.joining._paces["join"]
        pace._gap_s = pace._return_s = 0.05
        send(bench)
        (lot,) = running(executor)
        await bench.until(lambda: lot.started_at)  # long before its `max_wait` is over
        end(executor)

    run(scenario)


@two_linger
@pytest.mark.parametrize("end_of_it", ["stopped", "lost"])
def test_a_lot_that_lingers_may_be_stopped_or_lost(linger: Any, end_of_it: str) -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        linger(bench)
        (lot,) = running(executor)
        calls = list(lot.calls)
        if end_of_it == "stopped":
            for call in calls:
                bench.gateway.stop(call)
            assert not running(executor)
            assert executor.busy["(main)"] == 0
        else:
            executor.lose()
            assert [bench.told(call) for call in calls] == [None, None]  # never started, never charged
            executor.become_ready()
            assert joined(executor)[-1] == calls
            end(executor)
        assert not bench.supervisor._calls
        assert bench.load("join") == 0

    run(scenario)


def test_nothing_lingers_where_calls_come_slowly() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        come_together(bench)
        be_patient(bench, max_wait=1e-6)  # the next is expected later than that
        first, second = send(bench), send(bench)
        assert joined(executor)[-1] == [first]
        end(executor)
        assert joined(executor)[-1] == [second]
        end(executor)

    run(scenario)


def test_nobody_waits_for_those_whose_calls_became_jobs() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        come_fast(bench)
        ((call,),) = [list(lot.calls) for lot in running(executor)]
        Recording(bench.supervisor._calls[call], Handover(call), lambda _: None)
        end(executor)
        assert len(joined(executor)[-1]) == 2
        end(executor)

    run(scenario)


def test_nothing_lingers_where_others_want_the_slot() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        come_fast(bench)
        plain = send(bench, function="plain")
        end(executor)
        assert len(joined(executor)[-1]) == 2
        end(executor)
        executor.finish(plain)

    run(scenario)


def test_callers_who_were_answered_together_run_together_again() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        come_together(bench)
        for _ in range(3):
            before = joined(executor)
            calls = [send(bench) for _ in range(2)]
            assert joined(executor) == before
            assert not set(bench.gateway.started).intersection(calls)
            calls.append(send(bench))
            assert joined(executor) == [*before, calls]
            end(executor)
        assert not bench.supervisor._calls
        assert bench.load("join") == 0

    run(scenario)


def test_who_comes_when_all_are_back_waits_for_nobody() -> None:
    async def scenario(bench: Bench) -> None:
        first, second = bench.executors
        first.become_ready()
        come_together(bench)
        three = [send(bench) for _ in range(3)]
        second.become_ready()
        another = send(bench)
        assert joined(first)[-1] == three
        assert joined(second) == [[another]]
        end(first)
        end(second)

    run(scenario, executors=2, ready=False)


def test_callers_who_come_back_share_the_free_slots() -> None:
    async def scenario(bench: Bench) -> None:
        first, second = bench.executors
        first.become_ready()
        come_together(bench)
        second.become_ready()
        calls = [send(bench) for _ in range(3)]
        assert joined(first)[-1] == calls[:2]
        assert joined(second) == [calls[2:]]
        newcomer = send(bench)
        end(second)
        hurry(bench)
        assert joined(second)[-1] == [newcomer]
        end(first)
        end(second)

    run(scenario, executors=2, ready=False)


@pytest.mark.parametrize("executors", [1, 2])
def test_after_a_lot_of_one_call_no_call_that_finds_a_slot_free_waits(executors: int) -> None:
    """A single client never waits for others; two don't where each finds a slot free."""

    async def scenario(bench: Bench) -> None:
        be_patient(bench)
        come_and_go(bench)
        for _ in range(5):
            calls = [send(bench) for _ in range(executors)]
            assert [joined(executor)[-1] for executor in bench.executors] == [[call] for call in calls]
            for executor in bench.executors:
                end(executor)
        assert bench.supervisor.joining._paces["join"].comes_fast

    run(scenario, executors=executors)
