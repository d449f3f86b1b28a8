"""A lot that has its slot may wait there for more calls, where they come fast."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from bench import Bench
from bench import run as run_bench
from lot_bench import end, joined, lots, running


def run(scenario: Any, **options: Any) -> None:
    run_bench(scenario, modules=["joined_functions"], **options)


def send(bench: Bench, function: str = "join") -> str:
    return bench.gateway.send(function, text="x")


def come_fast(bench: Bench) -> None:
    """Calls come one right after the other; one runs at last, by itself, and two wait."""
    executor = bench.executors[0]
    for _ in range(3):
        for _ in range(9):
            send(bench)
        while running(executor):
            end(executor)
    for _ in range(3):
        send(bench)
    assert len(joined(executor)[-1]) == 1


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


@pytest.mark.parametrize(
    "other", [{"function": "plain"}, {"function": "hang_together"}, {"text": "x" * 8}, {"alone": True}]
)
def test_a_lot_lingers_no_longer_once_others_wait_for_the_slot(other: dict[str, Any]) -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        come_fast(bench)
        before = len(lots(executor))
        end(executor)
        assert len(lots(executor)) == before
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


def test_a_lot_lingers_no_longer_once_another_call_starts_beside_it() -> None:
    async def scenario(bench: Bench) -> None:
        first, second = bench.executors
        first.become_ready()
        come_fast(bench)
        before = len(lots(first))
        end(first)
        second.become_ready()
        assert len(lots(first)) == before
        dear = bench.gateway.send("join", text="x" * 8)
        assert joined(second) == [[dear]]
        assert len(lots(first)) == before + 1
        end(first)
        end(second)

    run(scenario, executors=2, ready=False)


def test_a_lot_that_lingers_is_not_started_where_its_executor_has_ended() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        come_fast(bench)
        before = len(lots(executor))
        end(executor)
        (lot,) = running(executor)
        executor.is_ready = False  # which is noticed later
        slots = bench.supervisor.slots_of("join")
        slots._waiting_bytes += 2**30  # it has no slot any more, so this counts
        assert bench.told(send(bench)).reason == "cold"
        slots._waiting_bytes -= 2**30
        send(bench)  # one more, and none is waited for
        bench.supervisor.joining._look(lot, executor)
        bench.supervisor.joining.hurry()
        assert len(lots(executor)) == before
        calls = list(lot.calls)
        assert len(calls) == 3
        executor.lose()
        executor.become_ready()
        assert joined(executor)[before:] == [calls]
        assert not [call for call in calls if bench.told(call)]
        end(executor)

    run(scenario)


def test_a_lot_lingers_no_longer_than_max_wait() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        come_fast(bench)
        before = len(lots(executor))
        end(executor)
        await bench.until(lambda: len(lots(executor)) > before)
        end(executor)

    run(scenario)


@pytest.mark.parametrize("end_of_it", ["stopped", "lost"])
def test_a_lot_that_lingers_may_be_stopped_or_lost(end_of_it: str) -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        come_fast(bench)
        end(executor)
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


def test_nothing_lingers_where_calls_come_slowly_or_others_want_the_slot() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        send(bench)
        await asyncio.sleep(0.11)  # twice the longest wait
        waiting = send(bench)
        end(executor)
        assert joined(executor)[1:] == [[waiting]]
        end(executor)
        come_fast(bench)
        plain = send(bench, function="plain")
        end(executor)
        assert len(joined(executor)[-1]) == 2
        end(executor)
        executor.finish(plain)

    run(scenario)
