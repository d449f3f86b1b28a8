"""A lot that has its slot may wait there for more calls, where they come fast."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from bench import Bench
from bench import run as run_bench
from lot_bench import end, joined, lots, running


def run(scenario: Any) -> None:
    run_bench(scenario, modules=["joined_functions"])


def send(bench: Bench, function: str = "join") -> str:
    return bench.gateway.send(function, text="x")


def come_fast(bench: Bench) -> None:
    """Calls come one right after the other; one runs at last, by itself, and two wait."""
    (executor,) = bench.executors
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
        waiting = send(bench, function="plain")
        assert not executor.runs  # behind it
        send(bench)
        assert len(joined(executor)[-1]) == 3  # as the lot before had one call
        end(executor)
        executor.finish(waiting)

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
