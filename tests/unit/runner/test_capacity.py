"""What a runner tells of what it can do, in real executors."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from rig import Rig, runner

from gpu_runner import capacity
from gpu_runner.operators.models import load, unload
from headrace.capacity import Capacity, ModelStanding
from headrace.link import frames
from headrace.link.frames import Result

FIRST = "resident_functions:first"
MIB = 2**20


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look is a new one."""
    monkeypatch.setattr(capacity, "_FRESH_S", 0.0)


def run(module: str, scenario: Callable[[Rig], Awaitable[None]], **options: Any) -> None:
    async def limited() -> None:
        async with asyncio.timeout(60), runner(module, **options) as rig:
            await scenario(rig)

    asyncio.run(limited())


def told(rig: Rig, function: str) -> Capacity:
    """As a gateway hears it."""
    state = frames.decode(frames.encode(rig.supervisor.state()))
    assert isinstance(state, frames.Pong)
    return state.capacity[function]


def standing(rig: Rig, model: str) -> list[ModelStanding]:
    return [one for one in rig.supervisor.report().models if one.model == model]


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


def test_slots_and_what_waits_for_them_are_told(device: str) -> None:
    async def scenario(rig: Rig) -> None:
        await until(lambda: told(rig, "echo").free == 2)  # the second executor comes later
        idle = told(rig, "echo")
        assert (idle.slots, idle.free, idle.busy, idle.waiting, idle.warmth) == (2, 2, 0, 0, "warm")
        running = [rig.gateway.send("obey", wait=10, text="/dev/null") for _ in range(2)]
        waiting = [rig.gateway.send("echo", wait=10, text="x") for _ in range(3)]
        busy = told(rig, "echo")
        assert (busy.slots, busy.free, busy.busy, busy.waiting) == (2, 0, 2, 3)
        assert told(rig, "obey").waiting == 0
        for job_id in running:
            rig.gateway.stop(job_id)
        for job_id in waiting:
            await rig.gateway.answer_to(job_id)
        assert told(rig, "echo").mean_s > 0
        assert told(rig, "echo").p95_s > 0
        await until(rig.idle)  # one executor may run them all, before the other has stopped its body

    run("executor_functions", scenario, executors=2, brief_wait=10.0, device=device)


def test_a_runner_without_a_ready_executor_has_nothing_free() -> None:
    async def scenario(rig: Rig) -> None:
        rig.executor.is_ready = False
        told_now = told(rig, "echo")
        assert (told_now.slots, told_now.free, told_now.warmth) == (1, 0, "none")
        rig.executor.is_ready = True

    run("executor_functions", scenario)


def test_answers_say_how_long_executions_take_by_now() -> None:
    async def scenario(rig: Rig) -> None:
        first = await rig.gateway.call("echo", text="x")
        assert isinstance(first, Result)
        assert first.mean_s == pytest.approx(first.exec_ms / 1000)
        assert first.cost_s == 0.0
        usage = {series: seen.number for series, seen in rig.metrics.usage._present.items()}
        assert usage == {("echo", "queue", "", 0): 1, ("echo", "execution", "", 0): 1}
        assert rig.metrics.device == "cpu"

    run("executor_functions", scenario)


def test_models_are_told_of_as_they_come_and_go(device: str) -> None:
    async def scenario(rig: Rig) -> None:
        assert (told(rig, "with_first").warmth, told(rig, "with_first").memory) == ("cold", 0)
        assert told(rig, "without").warmth == "warm"
        (absent,) = standing(rig, FIRST)
        assert (absent.state, absent.executor, absent.size, absent.declared) == (
            "unloaded",
            -1,
            0,
            40 * MIB,
        )
        assert {"beside", "with_both", "with_first"} <= set(absent.functions)
        assert "without" not in absent.functions

        models = rig.supervisor.models
        assert load(models, FIRST).outcome == "loading"
        assert standing(rig, FIRST)[0].state == "waiting"
        await until(lambda: told(rig, "with_first").warmth == "warm")
        (held,) = standing(rig, FIRST)
        assert (held.state, held.executor, held.device) == ("loaded", 0, rig.supervisor.device)
        assert told(rig, "with_first").memory == held.size >= 39 * MIB
        (device_now,) = rig.supervisor.report().devices
        assert device_now.used >= held.size
        assert load(models, FIRST).outcome == "loaded"

        running = rig.gateway.send("with_first", seconds=0.3)
        await until(lambda: standing(rig, FIRST)[0].in_use == 1)
        in_use = unload(models, FIRST)
        assert (in_use.outcome, in_use.users) == ("in-use", 1)
        assert isinstance(await rig.gateway.answer_to(running), Result)
        await until(lambda: standing(rig, FIRST)[0].state == "unloaded")
        assert unload(models, FIRST).outcome == "absent"

    run("resident_functions", scenario, device=device)


def test_what_cannot_be_loaded_is_told() -> None:
    async def scenario(rig: Rig) -> None:
        models = rig.supervisor.models
        assert load(models, "fish:fish").outcome == unload(models, "fish:fish").outcome == "unknown"
        answer = load(models, "resident_functions:boundless")
        assert answer.outcome == "too-large"
        assert "HEADRACE_MEMORY allows" in answer.reason
        assert load(models, "resident_functions:broken").outcome == "loading"
        await until(lambda: standing(rig, "resident_functions:broken")[0].state == "failed")
        assert "no weights here" in standing(rig, "resident_functions:broken")[0].reason

    run("resident_functions", scenario)
