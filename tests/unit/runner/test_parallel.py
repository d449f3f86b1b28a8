from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from rig import Rig, runner

from headrace.link.frames import Lost, Refused, Result


def run(scenario: Any, **options: Any) -> None:
    async def limited() -> None:
        async with asyncio.timeout(40), runner("parallel_functions", **options) as rig:
            await scenario(rig)

    asyncio.run(limited())


async def outputs(rig: Rig, jobs: list[str]) -> list[int]:
    return [int((await rig.gateway.answer_to(job)).output) for job in jobs]


def test_concurrency_1_never_overlaps_even_between_functions() -> None:
    async def scenario(rig: Rig) -> None:
        jobs = [rig.gateway.send(name, seconds=0.01) for name in ("one", "other") * 5]
        assert set(await outputs(rig, jobs)) == {1}
        assert {slots.name: slots.per_executor for slots in rig.supervisor.groups()}["(main)"] == 1

    run(scenario, brief_wait=10)


def test_synchronous_functions_of_a_higher_concurrency_overlap_up_to_it() -> None:
    async def scenario(rig: Rig) -> None:
        jobs = [rig.gateway.send("many", seconds=0.05) for _ in range(9)]
        assert max(await outputs(rig, jobs)) == 3

    run(scenario, brief_wait=10)


def test_asynchronous_bodies_wait_together() -> None:
    async def scenario(rig: Rig) -> None:
        jobs = [rig.gateway.send("together", seconds=0.5) for _ in range(8)]
        began = time.monotonic()
        for job in jobs:
            assert isinstance(await rig.gateway.answer_to(job), Result)
        assert time.monotonic() - began < 3  # one by one it would be 4

    run(scenario)


def test_the_kinds_do_not_take_each_others_slots() -> None:
    async def scenario(rig: Rig) -> None:
        held = [rig.gateway.send("one", seconds=0.2), *(rig.gateway.send("forever") for _ in range(8))]
        assert await rig.gateway.value("many", seconds=0) >= 1
        assert await rig.gateway.value("main", text="mine") == "mine"
        refused = await rig.gateway.call("forever")
        assert isinstance(refused, Refused)
        assert (refused.reason, refused.load) == ("full", 8)
        for job in held[1:]:
            rig.gateway.stop(job)
        assert {(await rig.gateway.answer_to(job)).category for job in held[1:]} == {"cancelled"}
        await rig.gateway.answer_to(held[0])

    run(scenario, brief_wait=0.05)


def test_a_function_may_be_called_main() -> None:
    """Its slots aren't those of the main thread."""

    async def scenario(rig: Rig) -> None:
        services = {service.function: service.slots for service in rig.supervisor.services()}
        assert (services["main"], services["one"], services["many"]) == (4, 1, 3)
        jobs = [rig.gateway.send("main", seconds=0.2, text="x") for _ in range(4)]
        assert await rig.gateway.value("one", seconds=0) == 1
        assert not any(rig.gateway.answers[job].done() for job in jobs)
        for job in jobs:
            await rig.gateway.answer_to(job)

    run(scenario)


@pytest.mark.parametrize("function", ["forever", "obey_many"])
def test_a_stop_ends_one_call_and_no_other(function: str) -> None:
    async def scenario(rig: Rig) -> None:
        jobs = [rig.gateway.send(function) for _ in range(3)]
        async with asyncio.timeout(10):
            while not set(jobs) <= set(rig.gateway.started):
                await asyncio.sleep(0.005)
        rig.gateway.stop(jobs[1])
        assert (await rig.gateway.answer_to(jobs[1])).category == "cancelled"
        assert not rig.gateway.answers[jobs[0]].done()
        assert not rig.gateway.answers[jobs[2]].done()
        rig.supervisor.caller_lost(rig.gateway)
        for job in (jobs[0], jobs[2]):
            assert (await rig.gateway.answer_to(job)).category == "cancelled"
        assert rig.executor.restarts == 0

    run(scenario)


def test_a_stop_that_comes_with_its_call_is_heard() -> None:
    async def scenario(rig: Rig) -> None:
        for function in ("forever", "obey_many") * 10:
            job = rig.gateway.send(function)
            rig.gateway.stop(job)
            assert (await rig.gateway.answer_to(job)).category == "cancelled"

    run(scenario)


def test_neighbours_of_a_killed_call_are_lost_but_not_charged() -> None:
    async def scenario(rig: Rig) -> None:
        neighbours = [rig.gateway.send("obey_many"), rig.gateway.send("one", seconds=30)]
        answer = await rig.gateway.call("block")
        assert answer.category == "hard-limit-exceeded"
        for job in neighbours:
            assert await rig.gateway.answer_to(job) == Lost(job, 1, charged=False)
        assert await rig.gateway.value("one", seconds=0) == 1

    run(scenario)


def test_two_executors_share_the_work_and_one_outlives_the_other() -> None:
    async def scenario(rig: Rig) -> None:
        services = {service.function: service.slots for service in rig.supervisor.services()}
        assert (services["one"], services["many"], services["together"]) == (2, 6, 16)
        began = time.monotonic()
        jobs = [rig.gateway.send("one", seconds=1) for _ in range(2)]
        assert set(await outputs(rig, jobs)) == {1}  # each alone in its process
        assert time.monotonic() - began < 1.9
        long = [rig.gateway.send("one", seconds=0.3) for _ in range(2)]
        rig.executor.kill()
        answers = [await rig.gateway.answer_to(job) for job in long]
        assert sorted(type(answer).__name__ for answer in answers) == ["Lost", "Result"]
        await rig.ready()

    run(scenario, executors=2)
