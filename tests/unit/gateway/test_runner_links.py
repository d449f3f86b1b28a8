"""How links to runners come and go."""

from __future__ import annotations

import asyncio
import logging
import socket
from pathlib import Path

import pytest
from harness.scripted_links import ECHO, answered, call, linked, run, site
from harness.scripted_runner import SECRET, ScriptedRunner, settle

from headrace.domain import RunnerInfo
from headrace.gateway import runners
from headrace.gateway.runners import RunnerLink, RunnerLinks
from headrace.link.frames import Call, Duplicate, Item, Lost, Pong, Progress, Result
from headrace.link.stream import FrameStream


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runners, "_SHORTEST_PAUSE_S", 0.005)
    monkeypatch.setattr(runners, "_LONGEST_PAUSE_S", 0.02)


def test_a_lost_link_answers_for_its_calls_and_is_dialled_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path) as (links, runner, serving):
            pending = [serving.link.call(call(name)) for name in "ab"]
            await runner.hears(Call)
            runner.lose_links()
            for name, one in zip("ab", pending, strict=True):
                assert await answered(one) == Lost(name, 1, charged=True, suspect=False)
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
            runner.say(Duplicate("job", "other"))
            assert isinstance(await answered(pending), Lost)
            await linked(links)  # and dials again

    run(scenario)


def test_what_nobody_follows_is_dropped(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path) as (_, runner, serving):
            pending = serving.link.call(call())
            for frame in (Progress("job", 0.5), Item("job", 0, b"1"), Item("another", 0, b"1")):
                runner.say(frame)
            runner.say(Result("job", b"2", 1, 0.0, 0.0))
            assert isinstance(await answered(pending), Result)

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
            async with asyncio.timeout(10):
                await serving.link._task  # and doesn't dial again

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


def test_every_change_of_what_can_be_sent_is_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        told: list[bool] = []
        links = RunnerLinks(lambda: told.append(bool(links.serving("echo", "1234"))))
        async with ScriptedRunner(f"unix:{tmp_path}/s", lambda _: None, [ECHO]) as runner:
            links.update([runner.info], SECRET)
            await linked(links)
            (serving,) = links.serving("echo", "1234")
            serving.link.call(call())
            for _ in range(2):
                runner.say(Pong({}, draining=True))
            while told != [True, False]:
                assert await links.next_change(10)
            assert serving.link.is_linked  # it has a call to answer
            runner.lose_links()
            assert await links.next_change(10)
            assert told == [True, False, False]
            links.close()
        await settle()

    run(scenario)
