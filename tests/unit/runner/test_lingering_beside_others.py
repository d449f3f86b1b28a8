"""A lot that lingers runs as soon as others come to wait for its slots, however they do."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from typing import Any

import pytest
from bench import Bench
from bench import run as run_bench
from lot_bench import end, joined, running
from rig import Gateway

from gpu_runner import ahead
from gpu_runner.lots import Lot
from headrace.link.frames import Call


def run(scenario: Any) -> None:
    async def all_linger(bench: Bench) -> None:
        have_all_linger(bench)
        await scenario(bench)

    run_bench(all_linger, modules=["joined_functions"], executors=2, ready=False)


def have_all_linger(bench: Bench) -> None:
    """Each lot that gets a slot waits there for seconds, until others want it."""
    joining: Any = bench.supervisor.joining
    for pace in joining._paces.values():
        pace.batch = replace(pace.batch, max_wait=30.0)
        pace.quiet_at = lambda _: math.inf
    joining._may_come = lambda lot, slots: 5


def linger(bench: Bench) -> Lot:
    """A lot of one call does in the first executor."""
    first = bench.executors[0]
    first.become_ready()
    bench.gateway.send("join", text="x")
    (lot,) = running(first)
    assert lot.lingers_until
    return lot


def take_job(bench: Bench, function: str, job_id: str, attempt: int = 1) -> None:
    keeper = Gateway(bench.supervisor)
    keeper.answers[job_id] = asyncio.get_running_loop().create_future()
    interface = bench.supervisor._functions[function].manifest.interface
    frame = Call(job_id, function, interface, b'{"text": "x"}', "o", attempt, 100_000, 0)
    bench.supervisor.take_job(frame, keeper)


def test_a_job_waits_whose_earlier_start_has_ended() -> None:
    async def scenario(bench: Bench) -> None:
        first, second = bench.executors
        second.become_ready()
        take_job(bench, "plain", "again")
        take_job(bench, "plain", "again", attempt=2)
        lot = linger(bench)
        second.finish("again")
        assert lot.started_at
        await bench.turn()
        second.finish("again")
        end(first)
        assert not bench.supervisor._calls

    run(scenario)


def test_a_call_waits_again_that_was_handed_to_an_executor_that_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ahead, "_WITHIN_S", 60.0)

    async def scenario(bench: Bench) -> None:
        first, second = bench.executors
        second.become_ready()
        second.finish(bench.gateway.send("plain"), 0.0001)
        bench.gateway.send("plain")
        waiting = bench.gateway.send("plain")
        assert len(second.ahead) == 1
        lot = linger(bench)
        second.lose()
        assert lot.started_at
        end(first)
        first.finish(waiting)
        assert not bench.supervisor._calls

    run(scenario)


def test_a_lot_waits_again_that_lingered_in_an_executor_that_is_lost() -> None:
    async def scenario(bench: Bench) -> None:
        first, second = bench.executors
        lot = linger(bench)
        second.become_ready()
        other = bench.gateway.send("hang_together", text="x")
        assert not lot.started_at
        second.lose()
        assert lot.started_at
        end(first)
        bench.supervisor.joining.hurry()
        assert joined(first)[-1] == [other]
        end(first)
        assert not bench.supervisor._calls

    run(scenario)


def test_jobs_join_it_and_it_runs_with_all_that_were_claimed_together() -> None:
    async def scenario(bench: Bench) -> None:
        first = bench.executors[0]
        lot = linger(bench)
        (call,) = lot.calls
        take_job(bench, "join", "one")
        take_job(bench, "join", "two")
        await bench.turn()
        assert joined(first) == [[call, "one", "two"]]
        end(first)
        assert not bench.supervisor._calls

    run(scenario)


@pytest.mark.parametrize("is_free_beside", [False, True])
def test_jobs_that_are_announced_hurry_it_unless_another_slot_is_free(is_free_beside: bool) -> None:
    async def scenario(bench: Bench) -> None:
        first, second = bench.executors
        lot = linger(bench)
        slots = bench.supervisor.slots_of("join")
        if is_free_beside:
            second.become_ready()
        bench.supervisor.placing.hear([slots])
        assert bool(lot.started_at) != is_free_beside
        assert slots.turns.reserved == is_free_beside  # there the job is going to start
        bench.supervisor.joining.hurry()
        end(first)
        assert not bench.supervisor._calls

    run(scenario)


def test_jobs_that_are_announced_for_other_slots_leave_it_alone() -> None:
    async def scenario(bench: Bench) -> None:
        first, _ = bench.executors
        lot = linger(bench)
        other = bench.supervisor.slots_of("pair")
        assert other is not bench.supervisor.slots_of("join")
        bench.supervisor.placing.hear([other])
        assert not lot.started_at
        bench.supervisor.joining.hurry()
        end(first)

    run(scenario)
