"""Models that don't all fit into the memory there is, in real executors, which they really fill."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from rig import Rig, runner

from gpu_runner.children import executors
from gpu_runner.residency import failures
from gpu_runner.residency.book import State
from headrace.link.frames import Refused, Result

MIB = 2**20
NAME = "resident_functions:"


@pytest.fixture(autouse=True)
def signs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder that the loaders look into; and short pauses."""
    monkeypatch.setattr(executors, "_BACKOFF_S", (0.0, 0.02, 0.1, 0.5, 1.5))
    monkeypatch.setattr(executors, "_BACKOFF_ONCE_READY_S", 0.05)
    return tmp_path


def run(scenario: Callable[[Rig], Awaitable[None]], room: int = 0, **options: Any) -> None:
    """Play a scenario in a runner with so many MiB of memory for models; 0: more than enough."""

    async def limited() -> None:
        async with asyncio.timeout(60), runner("resident_functions", **options) as rig:
            if room:
                book = rig.supervisor.models.book
                book.budget = book.used - held_bytes(rig) + room * MIB
            await scenario(rig)

    asyncio.run(limited())


def held_by(rig: Rig) -> list[str]:
    """All that is in executors, or still is, or will be."""
    return [held.model for _, held in rig.supervisor.models.book.all_held()]


def held_bytes(rig: Rig) -> int:
    return sum(held.bytes for _, held in rig.supervisor.models.book.all_held())


def resident(rig: Rig) -> set[str]:
    """The models that executors have, `always` aside."""
    held = [held for _, held in rig.supervisor.models.book.all_held() if held.state is State.RESIDENT]
    return {one.model.removeprefix(NAME) for one in held} - {"always"}


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


class Peak:
    """The most that the executors have in memory while it samples."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.bytes = 0

    async def sample(self) -> None:
        while True:
            taken = 0
            for executor in self.rig.supervisor.executors:
                if executor.pid is not None and psutil.pid_exists(executor.pid):
                    taken += psutil.Process(executor.pid).memory_info().rss
            self.bytes = max(self.bytes, taken)
            await asyncio.sleep(0.01)


async def peak_of(rig: Rig, work: Awaitable[None]) -> int:
    peak = Peak(rig)
    sampling = asyncio.create_task(peak.sample())
    await work
    sampling.cancel()
    return peak.bytes


# ---------------------------------------------------------------------- room


def test_two_that_do_not_fit_together_take_turns_and_memory_never_passes_the_budget(device: str) -> None:
    async def scenario(rig: Rig) -> None:
        async def use() -> None:
            assert resident(rig) == set()  # on first use, not at the start
            for name in ("first", "second", "first", "second"):
                assert await rig.gateway.value(f"with_{name}") == 40 * MIB
                assert resident(rig) == {name}

        peak = await peak_of(rig, use())
        book = rig.supervisor.models.book
        assert book.loads[0, NAME + "first"] == book.loads[0, NAME + "second"] == 2
        assert book.used <= book.budget
        if device == "cpu":
            assert peak <= book.budget
            assert 39 * MIB <= book.measured[NAME + "first"] <= 44 * MIB
        assert rig.executor.restarts == 0

    run(scenario, room=60, device=device)


def test_two_that_do_not_fit_together_and_are_called_at_once_are_both_served(device: str) -> None:
    async def scenario(rig: Rig) -> None:
        async def use() -> None:
            calls = [rig.gateway.call(f"with_{name}") for name in ("first", "second") * 3]
            answers = await asyncio.gather(*calls)
            assert all(isinstance(answer, Result) for answer in answers)

        peak = await peak_of(rig, use())
        book = rig.supervisor.models.book
        assert sum(book.loads.values()) - book.loads[0, NAME + "always"] <= 4
        if device == "cpu":
            assert peak <= book.budget
        assert rig.executor.restarts == 0

    run(scenario, room=60, device=device, brief_wait=10.0)


def test_a_call_that_cannot_wait_for_a_load_is_told_when_to_come_and_the_load_goes_on() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.gateway.call("with_second")
        await rig.gateway.call("with_first")  # `second` is gone, and its load time known
        answer = await rig.gateway.call("with_second", wait=0.05)
        assert isinstance(answer, Refused)
        assert answer.reason == "cold"
        assert 0.2 <= answer.retry_after_s < 2
        await until(lambda: resident(rig) == {"second"})
        assert isinstance(await rig.gateway.call("with_second", wait=0.5), Result)

    run(scenario, room=60)


def test_what_is_in_use_is_not_unloaded_and_takes_no_new_calls_for_ever() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.gateway.call("beside", seconds=0)
        running = [rig.gateway.send("beside", seconds=1.5) for _ in range(2)]
        other = rig.gateway.send("with_second")
        late = None
        while not rig.gateway.answers[other].done():
            if late is None or rig.gateway.answers[late].done():
                late = rig.gateway.send("beside", seconds=0.2)  # there is always one more
            await asyncio.sleep(0.05)
        assert all(rig.gateway.answers[job].done() for job in running)  # none was cut off
        assert isinstance(await rig.gateway.answer_to(other), Result)
        assert late is not None
        assert isinstance(await rig.gateway.answer_to(late), Result)
        assert rig.executor.restarts == 0

    run(scenario, room=60)


def test_a_function_of_two_models_gets_them_together_or_says_why_it_never_will() -> None:
    async def fits(rig: Rig) -> None:
        assert await rig.gateway.value("with_both") == 80 * MIB

    async def does_not(rig: Rig) -> None:
        rig.supervisor.models.look()
        answer = await rig.gateway.call("with_both")
        assert isinstance(answer, Refused)
        assert answer.reason == "degraded"
        assert f"HEADRACE_MEMORY allows {rig.supervisor.models.book.budget}" in answer.detail
        assert (
            "model resident_functions:first and model resident_functions:second need together"
            in answer.detail
        )
        assert isinstance(await rig.gateway.call("with_first"), Result)

    run(fits, room=100)
    run(does_not, room=60)


def test_two_executors_share_one_budget() -> None:
    async def scenario(rig: Rig) -> None:
        async def use() -> None:
            for _ in range(2):
                calls = [rig.gateway.call(f"with_{name}", seconds=0.1) for name in ("first", "second") * 2]
                assert all(isinstance(answer, Result) for answer in await asyncio.gather(*calls))

        peak = await peak_of(rig, use())
        assert peak <= rig.supervisor.models.book.budget

    run(scenario, room=70, executors=2, brief_wait=10.0)


# ---------------------------------------------------------------------- time


def test_an_idle_model_is_unloaded_and_memory_falls(device: str) -> None:
    async def scenario(rig: Rig) -> None:
        def taken() -> int:
            return psutil.Process(rig.pid()).memory_info().rss if device == "cpu" else held_bytes(rig)

        await rig.gateway.call("with_first")  # which may stay for longer
        before = taken()
        assert await rig.gateway.value("with_brief") == 30 * MIB
        assert taken() >= before + 28 * MIB
        await until(lambda: len(held_by(rig)) == 2)
        assert taken() <= before + 4 * MIB
        assert await rig.gateway.value("with_brief") == 30 * MIB

    run(scenario, device=device)


def test_a_replaced_executor_loads_again_what_was_there() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.gateway.call("with_first")
        rig.executor.kill()
        await until(lambda: rig.executor.restarts == 1 and rig.executor.is_ready)
        assert resident(rig) == {"first"}
        assert isinstance(await rig.gateway.call("with_first", wait=0.25), Result)
        assert rig.supervisor.models.book.loads[0, NAME + "first"] == 2

    run(scenario)


def test_operators_load_and_unload_and_what_is_in_use_goes_later() -> None:
    async def scenario(rig: Rig) -> None:
        models = rig.supervisor.models
        models.load(NAME + "first")
        await until(lambda: resident(rig) == {"first"})
        running = rig.gateway.send("beside", seconds=0.3)
        assert models.unload(NAME + "first") is False
        await asyncio.sleep(0.05)
        assert not rig.gateway.answers[running].done()
        assert resident(rig) == {"first"}
        await rig.gateway.answer_to(running)
        await until(lambda: NAME + "first" not in held_by(rig))
        with pytest.raises(KeyError):
            models.load("nobody:knows")
        standing = {one.model: one for one in models.standing()}
        assert standing[NAME + "first"].loads == 1
        assert standing[NAME + "first"].state == "absent"
        assert standing[NAME + "always"].state == "resident"

    run(scenario)


# ---------------------------------------------------------------------- failures


@pytest.fixture
def mended(signs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The sign that lets broken loaders work."""
    monkeypatch.syspath_prepend(signs)
    return signs / "mended"


async def degraded(rig: Rig, function: str, **options: Any) -> str:
    """Why a function can't run, once that is known; its call says the same."""
    job = rig.gateway.send(function, **options)
    await until(lambda: function in rig.supervisor.degraded)
    answer = await rig.gateway.answer_to(job)
    assert isinstance(answer, Refused)
    assert answer.reason == "degraded"
    assert answer.detail == rig.supervisor.degraded[function]
    assert {one.function: one.degraded for one in rig.supervisor.services()}[function] == answer.detail
    return answer.detail


async def goes_on(rig: Rig) -> None:
    assert await rig.gateway.value("without", text="on") == "on"
    assert isinstance(await rig.gateway.call("with_first"), Result)


def test_a_loader_that_raises_degrades_its_function_and_is_tried_again(
    mended: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "_FIRST_PAUSE_S", 0.3)

    async def scenario(rig: Rig) -> None:
        why = await degraded(rig, "with_broken")
        assert why == "model resident_functions:broken could not be loaded: OSError: no weights here"
        await goes_on(rig)
        mended.touch()
        await until(lambda: "with_broken" not in rig.supervisor.degraded)  # nobody asked for it
        assert await rig.gateway.value("with_broken") == 1
        assert rig.executor.restarts == 0

    run(scenario)


def test_a_loader_that_hangs_is_killed_and_works_once_asked_for_again(mended: Path) -> None:
    async def scenario(rig: Rig) -> None:
        why = await degraded(rig, "with_hanging")
        assert why == "model resident_functions:hanging could not be loaded: loading took over 1 s"
        await until(lambda: rig.executor.restarts == 1 and rig.executor.is_ready)
        await goes_on(rig)
        mended.touch()
        rig.supervisor.models.load(NAME + "hanging")
        await until(lambda: "with_hanging" not in rig.supervisor.degraded)
        assert await rig.gateway.value("with_hanging") == 1

    run(scenario, load_timeout=1.0)


def test_a_loader_that_ends_its_process_is_to_blame_from_the_third_time_on(mended: Path) -> None:
    async def scenario(rig: Rig) -> None:
        why = await degraded(rig, "with_fatal")
        assert why.endswith("fatal could not be loaded: its process ended while it was loaded (exit code 5)")
        await until(lambda: rig.executor.is_ready)
        assert rig.executor.restarts == 3
        await goes_on(rig)

    run(scenario)


def test_a_loader_that_needs_more_than_the_budget_is_stopped_in_time() -> None:
    async def scenario(rig: Rig) -> None:
        beside = rig.gateway.send("beside", seconds=0.2)  # loads `first` too
        await rig.gateway.answer_to(beside)

        async def use() -> None:
            why = await degraded(rig, "with_huge")
            assert "model resident_functions:huge needs more than the " in why
            assert f"HEADRACE_MEMORY={rig.supervisor.models.book.budget}" in why

        peak = await peak_of(rig, use())
        assert peak <= rig.supervisor.models.book.budget + 25 * MIB  # it grows by 5 MiB in 30 ms
        await until(lambda: rig.executor.is_ready)
        await goes_on(rig)

    run(scenario, room=100)


def test_one_of_unknown_size_that_needs_room_gets_it_the_second_time() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.gateway.call("with_first")
        assert isinstance(await rig.gateway.call("with_unknown", wait=20), Result)
        assert rig.executor.restarts == 1  # broken off, as `first` had the room
        assert resident(rig) == {"unknown"}
        await rig.gateway.call("with_first")
        await rig.gateway.call("with_unknown")
        assert rig.executor.restarts == 1  # its size is known now

    run(scenario, room=70)


def test_what_is_declared_larger_than_the_budget_is_never_loaded() -> None:
    async def scenario(rig: Rig) -> None:
        assert "with_boundless" in rig.supervisor.degraded
        why = await degraded(rig, "with_boundless")
        assert why.startswith("model resident_functions:boundless needs 1099")
        assert rig.services_changed >= 1

    run(scenario, room=100)


def test_a_declaration_that_is_too_small_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.gateway.call("with_modest")
        rig.supervisor.models.unload(NAME + "modest")
        await until(lambda: resident(rig) == set())
        await rig.gateway.call("with_modest")

    with caplog.at_level(logging.WARNING, "gpu_runner.residency"):
        run(scenario)
    (line,) = [record.message for record in caplog.records if "declares" in record.message]
    assert line.startswith(f"model {NAME}modest takes 2")
    assert re.search(r'bytes, and declares 1048576: write memory="\d+MiB"$', line)


def test_calls_beside_a_load_that_is_killed_are_charged_nothing(mended: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.gateway.call("beside", seconds=0)
        beside = rig.gateway.send("beside", seconds=30)
        await degraded(rig, "with_hanging")
        lost = await rig.gateway.answer_to(beside)
        assert (lost.charged, lost.suspect) == (False, False)

    run(scenario, load_timeout=0.5)
