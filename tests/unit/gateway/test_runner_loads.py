"""What a gateway knows of its runners: who serves what, and how busy they are."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from harness.scripted_links import ECHO, answered, call, run, site
from harness.scripted_runner import SECRET

from headrace.capacity import Capacity
from headrace.gateway import runners
from headrace.gateway.functions import state_of
from headrace.gateway.serving import Serving
from headrace.link.frames import (
    Call,
    Error,
    Fenced,
    Handed,
    Lost,
    Ping,
    Pong,
    Refused,
    Result,
    Service,
    Started,
    Stop,
)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runners, "_SHORTEST_PAUSE_S", 0.005)
    monkeypatch.setattr(runners, "_LONGEST_PAUSE_S", 0.02)


# ---------------------------------------------------------------------- load


@pytest.mark.parametrize(
    "answer",
    [
        Result("job", b"{}", 1, 0.0, 0.0, load=3),
        Error("job", "function-failed", "", 1, 0.0, 0.0, load=3),
        Refused("job", "full", load=3),
        Lost("job", 1, charged=True, load=3),
    ],
)
def test_an_answer_is_delivered_and_says_the_load(tmp_path: Path, answer: Any) -> None:
    async def scenario() -> None:
        async with site(tmp_path) as (_, runner, serving):
            assert serving.load == 0
            pending = serving.link.call(call())
            serving.link.call(call("other"))
            assert serving.load == 2  # at once, before the runner knows
            runner.say(answer)
            assert await answered(pending) == answer
            assert serving.load == 3

    run(scenario)


@pytest.mark.parametrize(
    ("answer", "load"),
    [(Handed("job"), 2), (Handed("job", withdrawn=True), 1), (Fenced("job"), 1)],
)
def test_a_call_that_is_handed_over_goes_on_in_its_slot(tmp_path: Path, answer: Any, load: int) -> None:
    async def scenario() -> None:
        async with site(tmp_path) as (_, runner, serving):
            pending = serving.link.call(call())
            serving.link.call(call("other"))
            runner.say(answer)
            assert await answered(pending) == answer
            assert serving.load == load

    run(scenario)


def test_a_pong_says_the_load_of_every_function(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path) as (links, runner, serving):
            runner.say(Pong({"echo": 3, "nap": 2, "unheard-of": 9}))
            runner.say(Started("nobody", 1))
            runner.say(Result("nobody", b"", 1, 0.0, 0.0, load=77))  # stopped long ago: tells nothing
            pending = serving.link.call(call())
            runner.say(Result("job", b"", 1, 0.0, 0.0, load=1))
            await answered(pending)
            assert serving.load == 1
            (nap,) = links.serving("nap", "5678")
            assert (nap.load, nap.mean_s) == (2, 0.0)

    run(scenario)


def test_a_pong_says_how_long_executions_take(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path) as (_, runner, serving):
            assert serving.mean_s == 0.0
            for state, mean_s in (
                (Pong({}, means={"echo": 0.25, "unheard-of": 9.0}), 0.25),
                (Pong({"echo": 1}), 0.25),  # nothing new of it
                (Pong({"echo": 0}, means={"echo": 0.5}), 0.5),
            ):
                runner.say(state)
                while serving.load != state.loads.get("echo", 0) or serving.mean_s != mean_s:
                    await asyncio.sleep(0)

    run(scenario)


def test_a_result_says_how_long_executions_take_by_now(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path) as (_, runner, serving):
            for mean_s, cost_s, known in ((0.25, 0.01, (0.25, 0.01)), (0.0, 0.0, (0.25, 0.01))):
                pending = serving.link.call(call())
                runner.say(Result("job", b"", 1, 0.0, 0.0, 0, mean_s, cost_s))
                await answered(pending)
                assert (serving.mean_s, serving.cost_s) == known

    run(scenario)


def test_a_function_tells_what_its_runners_can_do_and_how_long_a_call_should_wait(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path) as (links, runner, serving):
            manifest: Any = SimpleNamespace(name="echo", interface=serving.interface)
            assert state_of(manifest, links).predicted_wait_s is None
            capacity = Capacity(slots=2, free=0, busy=2, waiting=3, load_s=1.5)
            runner.say(Pong({"echo": 5}, means={"echo": 0.5}, capacity={"echo": capacity}))
            while serving.capacity is None:
                await asyncio.sleep(0)
            state = state_of(manifest, links)
            assert (state.slots, state.load) == (2, 5)
            assert state.predicted_wait_s == pytest.approx(4 / 2 * 0.5 + 1.5)

    run(scenario)


def test_a_stop_gives_the_place_back_and_is_said_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path) as (_, runner, serving):
            serving.link.call(call("a"))
            pending = serving.link.call(call("b"))
            serving.link.stop("a")
            serving.link.stop("a")
            serving.link.stop("unknown")
            assert serving.load == 1
            runner.say(Result("a", b"late", 1, 0.0, 0.0))
            runner.say(Result("b", b"", 1, 0.0, 0.0))
            await answered(pending)
            assert (await runner.hears(Stop)).job_id == "a"
            runner.say(Ping())
            await runner.hears(Pong)
            assert not any(isinstance(frame, Stop) for frame in runner.heard._queue)  # type: ignore[attr-defined]

    run(scenario)


def test_a_load_is_never_negative(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path) as (_, runner, serving):
            serving.link.call(call())
            runner.say(Pong({"echo": 0}))
            while serving.load:
                await asyncio.sleep(0)
            serving.link.stop("job")
            assert serving.load == 0

    run(scenario)


def test_that_a_call_has_started_is_noted(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path) as (_, runner, serving):
            pending = serving.link.call(call())
            assert not pending.started
            runner.say(Started("job", 1))
            while not pending.started:
                await asyncio.sleep(0)
            assert pending.answer is None

    run(scenario)


def test_a_service_without_slots_counts_as_one() -> None:
    assert Serving(None, "1234", 0, "").slots == 1  # type: ignore[arg-type]


# ---------------------------------------------------------------------- who serves


def test_who_serves_what(tmp_path: Path) -> None:
    async def scenario() -> None:
        services = (ECHO, Service("nap", "5678", 1, "model m could not be loaded"))
        async with site(tmp_path, *services) as (links, _, serving):
            assert links.serving("echo", "1234", [serving]) == []
            assert links.serving("echo", "another") == []
            assert links.serving("unknown", "1234") == []
            (nap,) = links.serving("nap", "5678")
            assert (nap.degraded, nap.slots) == ("model m could not be loaded", 1)

    run(scenario)


def test_a_link_that_is_busy_sending_is_still_up(tmp_path: Path) -> None:
    """A body larger than a socket's buffer must not turn away the next call."""

    async def scenario() -> None:
        async with site(tmp_path) as (links, runner, serving):
            pending = serving.link.call(call("large", size=8 * 2**20))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert serving.link.is_congested
            assert serving.link.is_up
            assert links.serving("echo", "1234") == [serving]
            links.update([], SECRET)  # out of the registry, but linked
            second = serving.link.call(call("second"))
            await runner.hears(Call)
            runner.say(Result("large", b"", 1, 0.0, 0.0))
            runner.say(Result("second", b"", 1, 0.0, 0.0))
            assert isinstance(await answered(pending), Result)
            assert isinstance(await answered(second), Result)
            assert not serving.link.is_congested

    run(scenario)
