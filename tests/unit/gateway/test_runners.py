from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from harness.scripted_runner import SECRET, ScriptedRunner, settle

from headrace.domain import RunnerInfo
from headrace.gateway import runners
from headrace.gateway.pending import PendingCall
from headrace.gateway.runners import RunnerLink, RunnerLinks, Serving
from headrace.link.frames import (
    Call,
    Error,
    Lost,
    Ping,
    Pong,
    Progress,
    Refused,
    Result,
    Service,
    Started,
    Stop,
)
from headrace.link.stream import FrameStream

ECHO = Service("echo", "1234", 4)
NAP = Service("nap", "5678", 4)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runners, "_SHORTEST_PAUSE_S", 0.005)
    monkeypatch.setattr(runners, "_LONGEST_PAUSE_S", 0.02)


def run(scenario: Any) -> None:
    async def limited() -> None:
        async with asyncio.timeout(20):
            await scenario()

    asyncio.run(limited())


def call(job_id: str = "job", function: str = "echo", size: int = 2) -> Call:
    return Call(job_id, function, "1234", b"x" * size, "owner", 1, 100_000, 250)


async def linked(links: RunnerLinks, count: int = 1) -> None:
    while links.count() != count:
        assert await links.next_change(10)


@asynccontextmanager
async def site(
    folder: Path, *services: Service
) -> AsyncIterator[tuple[RunnerLinks, ScriptedRunner, Serving]]:
    """One silent runner, linked."""
    links = RunnerLinks()
    async with ScriptedRunner(f"unix:{folder}/s", lambda _: None, services or (ECHO, NAP)) as runner:
        try:
            links.update([runner.info], SECRET)
            await linked(links)
            (serving,) = links.serving("echo", "1234")
            yield links, runner, serving
        finally:
            links.close()
    await settle()


async def answered(pending: PendingCall) -> Any:
    return await pending.wait(10)


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
            assert links.serving("nap", "5678")[0].load == 2

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


# ---------------------------------------------------------------------- coming and going


def test_a_lost_link_answers_for_its_calls_and_is_dialled_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path) as (links, runner, serving):
            pending = [serving.link.call(call(name)) for name in "ab"]
            await runner.hears(Call)
            runner.lose_links()
            for name, one in zip("ab", pending, strict=True):
                assert await answered(one) == Lost(name, 1, charged=True)
            assert links.serving("echo", "1234") == []
            await linked(links)
            (again,) = links.serving("echo", "1234")
            assert again is not serving
            assert again.load == 0
            serving.link.stop("a")  # of the link before: nobody hears of it

    run(scenario)


def test_a_runner_that_comes_later_is_found(tmp_path: Path) -> None:
    async def scenario() -> None:
        links = RunnerLinks()
        runner = ScriptedRunner(f"unix:{tmp_path}/s", lambda _: None, [ECHO])
        links.update([runner.info], SECRET)
        assert not await links.next_change(0.05)
        async with runner:
            await linked(links)
            links.close()
            await settle()

    run(scenario)


def test_a_runner_that_is_gone_from_the_registry_is_kept_while_its_link_lives(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path) as (links, runner, _):
            links.update([], SECRET)
            links.update([], SECRET)
            await settle()
            assert links.count() == 1
            runner.stop()
            while links.count():
                assert await links.next_change(10)
            links.update([], SECRET)
            await runner.start()
            assert not await links.next_change(0.1)  # nobody dials it any more

    run(scenario)


def test_the_same_runner_is_dialled_once_and_one_without_an_address_never(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path) as (links, runner, _):
            silent = RunnerInfo("other", None, "default", {"echo": "1234"})
            for _ in range(3):
                links.update([runner.info, silent], SECRET)
            await settle()
            assert len(runner.streams) == 1
            assert links.count() == 1

    run(scenario)


def test_another_runner_at_the_address_is_not_taken_for_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        links = RunnerLinks()
        async with ScriptedRunner(f"unix:{tmp_path}/s", lambda _: None, [ECHO]) as runner:
            links.update([RunnerInfo("expected", f"unix:{tmp_path}/s", "default", {})], SECRET)
            assert not await links.next_change(0.1)
            assert links.count() == 0
            assert runner.streams  # it was tried
            links.close()
            await settle()

    with caplog.at_level(logging.WARNING):
        run(scenario)
    (told,) = caplog.messages  # once, not at each try
    assert "another runner" in told


def test_a_wrong_secret_links_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        links = RunnerLinks()
        async with ScriptedRunner(f"unix:{tmp_path}/s", lambda _: None, [ECHO]) as runner:
            links.update([runner.info], b"w" * 32)
            assert not await links.next_change(0.1)
            assert runner.refused
            assert not runner.streams
            links.close()
            await settle()

    with caplog.at_level(logging.WARNING):
        run(scenario)
    assert len(caplog.messages) == 1


def test_an_address_that_is_none_is_told_and_harms_no_other(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path) as (links, runner, _):
            links.update([runner.info, RunnerInfo("odd", "gopher://x", "default", {})], SECRET)
            await settle()
            assert links.count() == 1

    run(scenario)


def test_a_dial_that_is_not_answered_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(runners, "TIMEOUT_S", 0.05)

    async def scenario() -> None:
        with socket.socket() as full:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            address = full.getsockname()
            callers = [socket.socket() for _ in range(4)]  # more than wait in its queue
            for caller in callers:
                caller.setblocking(False)
                caller.connect_ex(address)
            links = RunnerLinks()
            links.update([RunnerInfo("r", f"tcp://{address[0]}:{address[1]}", "default", {})], SECRET)
            while not caplog.messages:
                await asyncio.sleep(0.005)
            links.close()
            for caller in callers:
                caller.close()
            await settle()

    with caplog.at_level(logging.WARNING):
        run(scenario)
    assert "runner r at" in caplog.messages[0]


def test_a_frame_that_no_runner_sends_ends_the_link(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path) as (links, runner, serving):
            pending = serving.link.call(call())
            runner.say(Progress("job", 0.5))
            assert isinstance(await answered(pending), Lost)
            await linked(links)  # and dials again

    run(scenario)


def test_a_runner_that_falls_silent_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.link.liveness.PING_S", 0.02)
    monkeypatch.setattr("headrace.link.liveness.DEAD_S", 0.06)

    async def scenario() -> None:
        async with site(tmp_path) as (_, runner, serving):
            pending = serving.link.call(call())
            assert await pending.wait(0.3) is None  # it answers pings: it lives, however long the call takes
            for stream in runner.streams:
                stream.on_frame = lambda _: None
            assert isinstance(await answered(pending), Lost)

    run(scenario)


def test_a_runner_that_says_goodbye_gets_no_new_calls_and_its_answers_are_awaited(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path) as (links, runner, serving):
            pending = [serving.link.call(call(name)) for name in "ab"]
            runner.say(Pong({"echo": 2}, draining=True))
            while links.serving("echo", "1234"):
                await asyncio.sleep(0)
            runner.say(Result("a", b"", 1, 0.0, 0.0))
            assert isinstance(await answered(pending[0]), Result)
            assert serving.link.is_linked  # for the other
            ended = asyncio.Event()
            runner.streams[0].on_lost = lambda _: ended.set()
            serving.link.stop("b")
            await ended.wait()  # the gateway hangs up, when nothing is on its way

    run(scenario)


def test_closing_ends_every_link_and_its_calls(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path) as (links, _, serving):
            pending = serving.link.call(call())
            links.close()
            assert isinstance(await answered(pending), Lost)
            assert links.count() == 0
            assert not await links.next_change(0.05)

    run(scenario)


def test_next_change_wakes_all_who_wait() -> None:
    async def scenario() -> None:
        links = RunnerLinks()
        waiting = [asyncio.ensure_future(links.next_change(10)) for _ in range(3)]
        await settle()
        links.changed()
        assert await asyncio.gather(*waiting) == [True, True, True]
        assert await links.next_change(0) is False
        assert await links.next_change(-1) is False

    run(scenario)


def test_a_link_is_a_frame_stream_over_any_address(tmp_path: Path) -> None:
    async def scenario() -> None:
        links = RunnerLinks()
        async with ScriptedRunner("tcp://127.0.0.1:0", lambda _: None, [ECHO]) as runner:
            links.update([runner.info], SECRET)
            await linked(links)
            assert isinstance(runner.streams[0], FrameStream)
            (serving,) = links.serving("echo", "1234")
            assert isinstance(serving.link, RunnerLink)
            links.close()
            await settle()

    run(scenario)
