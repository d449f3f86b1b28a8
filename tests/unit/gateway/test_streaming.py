"""What a client that follows its call is sent, and when, while its runner says what a test makes it say."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.scripted_calls import Site, asked, error, flexible, in_turn, lost, refused, result, run, site
from harness.scripted_runner import HANG_UP, settle

from headrace.gateway import calling, sse, streaming
from headrace.gateway.asked import ToJob
from headrace.gateway.call_stream import WINDOW, CallStream
from headrace.gateway.exchange import ClientLeft, Exchange
from headrace.gateway.http import PACED_UNTIL
from headrace.gateway.problems import Problem
from headrace.gateway.streaming import StreamCalls
from headrace.link.frames import Call, Credit, Error, Item, Progress, Result, Started, Stop


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calling, "_BACKOFF_S", 0.005)
    monkeypatch.setattr(calling, "_WATCH_AFTER_S", 0.005)


class Following:
    """A call and its client, which reads while `reads` is set, and leaves when `leaves` is."""

    def __init__(self, here: Site, make: Any = asked, **wishes: Any) -> None:
        self.here = here
        self.reads, self.leaves = asyncio.Event(), asyncio.Event()
        self.reads.set()
        self.messages: list[Any] = []
        self.news = asyncio.Event()
        self.stream = CallStream()
        self.scope: dict[str, Any] = {}
        self.asked = make(receive=self._receive, stream=self.stream, **wishes)
        self.exchange = Exchange(
            {}, self.asked.job_id, "request", self._receive, self._send, here.metrics.of("echo")
        )
        self.exchange.function = "echo"

    async def answer(self) -> ToJob | None:
        return await StreamCalls(self.here.caller, self.here.metrics, "").answer(
            self.exchange, self.asked, self.stream, self.scope
        )

    @property
    def body(self) -> bytes:
        return b"".join(message["body"] for message in self.messages[1:])

    @property
    def events(self) -> list[tuple[str, Any]]:
        """The events so far; their ids are checked."""
        blocks = [block for block in self.body.decode().split("\n\n") if block and not block.startswith(":")]
        lines = [block.split("\n") for block in blocks]
        assert [one[0] for one in lines] == [f"id: {number}" for number in range(1, len(lines) + 1)]
        return [(one[1].removeprefix("event: "), json.loads(one[2].removeprefix("data: "))) for one in lines]

    async def until(self, look: Callable[[], Any]) -> None:
        """Return when it is so; looks again whenever something was sent."""
        async with asyncio.timeout(10):
            while not look():
                self.news.clear()
                await self.news.wait()

    async def _send(self, message: Any) -> None:
        await self.reads.wait()
        self.messages.append(message)
        self.news.set()

    async def _receive(self) -> Any:
        await self.leaves.wait()
        return {"type": "http.disconnect"}


def item(call: Call, number: int, size: int = 0) -> Item:
    return Item(call.job_id, number, b'"%b"' % (b"x" * size) if size else b"%d" % number)


async def grants(here: Site, enough: int) -> int:
    """So much credit, or a little more, as it was granted."""
    total = 0
    while total < enough:
        total += (await here.runners[0].hears(Credit)).items
    return total


# ---------------------------------------------------------------------- as it should be


def test_items_progress_and_the_result(tmp_path: Path) -> None:
    async def scenario() -> None:
        def script(call: Call) -> list[Any]:
            return [
                item(call, 0),
                Progress(call.job_id, 0.5, "half"),
                item(call, 1),
                result(call, b'{"a":1}'),
            ]

        async with site(tmp_path, script) as here:
            client = Following(here)
            await client.answer()

            assert here.calls[0].credit == WINDOW
            start = client.messages[0]
            assert (start["type"], start["status"]) == ("http.response.start", 200)
            headers = dict(start["headers"])
            assert headers[b"content-type"] == b"text/event-stream; charset=utf-8"
            assert headers[b"x-accel-buffering"] == b"no"
            assert headers[b"x-request-id"] == b"request"
            assert client.events == [
                ("item", 0),
                ("progress", {"fraction": 0.5, "message": "half"}),
                ("item", 1),
                ("result", {"a": 1}),
            ]
            assert [message["more_body"] for message in client.messages[1:]].index(False) == (
                len(client.messages) - 2
            )
            assert (client.exchange.status, client.exchange.code, client.exchange.items) == (200, "", 2)
            sample = here.metrics.registry.get_sample_value
            assert sample("headrace_streams_total", {"function": "echo", "end": "result"}) == 1
            assert sample("headrace_stream_items_total", {"function": "echo"}) == 2
            assert sample("headrace_stream_first_item_seconds_count", {"function": "echo"}) == 1

    run(scenario)


def test_a_call_that_nobody_follows_asks_for_no_items(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path, result) as here:
            await here.caller.answer(asked())
            assert here.calls[0].credit == 0

    run(scenario)


def test_each_event_leaves_when_it_exists(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path, lambda _: None) as here:
            client = Following(here)
            answering = asyncio.ensure_future(client.answer())
            call = await here.runners[0].hears(Call)
            for number in range(3):
                here.runners[0].say(item(call, number))
                await client.until(lambda: len(client.messages) > 1 and client.events[-1] == ("item", number))  # noqa: B023
            here.runners[0].say(result(call))
            await answering
            assert client.events[-1] == ("result", {})

    run(scenario)


def test_a_stream_begins_with_the_execution(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path, lambda call: Started(call.job_id, 1)) as here:
            client = Following(here)
            answering = asyncio.ensure_future(client.answer())
            await client.until(lambda: client.messages)
            assert client.messages[0]["status"] == 200
            here.runners[0].say(error(here.calls[0]))
            await answering
            ((kind, document),) = client.events
            assert (kind, document["code"], document["status"]) == ("error", "function-failed", 500)
            assert (document["request_id"], document["type"]) == ("request", "/problems/function-failed")

    run(scenario)


def test_a_call_that_waits_long_for_its_start_is_told_that_it_was_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "OPEN_S", 0.02)
    monkeypatch.setattr(sse, "HEARTBEAT_S", 0.02)

    async def scenario() -> None:
        async with site(tmp_path, lambda _: None) as here:
            client = Following(here, hold=0.3, total=0.3)
            await client.answer()
            comments = client.body.count(b": still here\n\n")
            assert 3 <= comments <= 15
            ((kind, document),) = client.events
            assert (kind, document["code"]) == ("error", "deadline-exceeded")  # heartbeats put nothing off
            assert isinstance(await here.runners[0].hears(Stop), Stop)

    run(scenario)


# ---------------------------------------------------------------------- how it fails


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (refused, "busy"),
        (lambda call: error(call, "invalid-input"), "invalid-input"),
        (error, "function-failed"),
        (lambda call: lost(call, charged=True), "worker-lost"),
    ],
)
def test_a_problem_before_the_first_event_keeps_its_status(
    tmp_path: Path, answer: Callable[[Call], Any], code: str
) -> None:
    async def scenario() -> None:
        async with site(tmp_path, answer) as here:
            client = Following(here)
            with pytest.raises(Problem) as caught:
                await client.answer()
            assert caught.value.code == code
            assert client.messages == []
            sample = here.metrics.registry.get_sample_value
            assert sample("headrace_streams_total", {"function": "echo", "end": code}) == 1

    run(scenario)


def test_without_room_it_may_go_on_as_a_job_as_nothing_was_written(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path, refused) as here:
            client = Following(here, flexible)
            assert await client.answer() == ToJob(0, 0, "full")
            assert client.messages == []
            sample = here.metrics.registry.get_sample_value  # the job's stream is what counts
            assert sample("headrace_streams_total", {"function": "echo", "end": "cut-off"}) is None

    run(scenario)


def test_once_it_has_begun_it_becomes_no_job(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path, lambda call: Started(call.job_id, 1)) as here:
            client = Following(here, flexible)
            answering = asyncio.ensure_future(client.answer())
            await client.until(lambda: client.messages)
            assert not client.asked.may_be_job
            here.runners[0].say(lost(here.calls[0], charged=True))

            assert await answering is None
            ((kind, document),) = client.events
            assert (kind, document["code"]) == ("error", "worker-lost")

    run(scenario)


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        (error, "function-failed"),
        (lambda call: error(call, retryable=True), "attempts-exhausted"),
        (lambda call: lost(call, charged=True), "worker-lost"),
        (lambda call: lost(call, charged=False), "worker-lost"),
        (lambda _: HANG_UP, "worker-lost"),
    ],
)
def test_after_the_first_item_nothing_is_started_again(
    tmp_path: Path, ending: Callable[[Call], Any], code: str
) -> None:
    async def scenario() -> None:
        async with site(tmp_path, lambda call: item(call, 0)) as here:
            client = Following(here, attempts=5)
            answering = asyncio.ensure_future(client.answer())
            await client.until(lambda: len(client.messages) > 1)
            runner = here.runners[0]
            if (last := ending(here.calls[0])) is HANG_UP:
                runner.lose_links()
            else:
                runner.say(last)
            await answering
            kinds = [kind for kind, _ in client.events]
            assert (kinds, client.events[-1][1]["code"]) == (["item", "error"], code)
            was_cut_off = client.events[-1][1]["detail"].startswith("The stream was cut off")
            assert was_cut_off is (code == "worker-lost")
            assert client.messages[-1]["more_body"] is False
            assert (client.exchange.status, client.exchange.code) == (200, code)
            assert len(here.calls) == 1

    run(scenario)


def test_before_the_first_item_a_lost_start_is_made_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        script = in_turn(
            lambda call: [Started(call.job_id, 1), Progress(call.job_id, 0.1), lost(call, charged=True)],
            lambda call: error(call, retryable=True),
            lambda call: [item(call, 0), result(call)],
        )
        async with site(tmp_path, script) as here:
            client = Following(here, attempts=3)
            await client.answer()
            assert [kind for kind, _ in client.events if kind != "progress"] == ["item", "result"]
            assert [call.attempt for call in here.calls] == [1, 2, 3]

    run(scenario)


def test_the_deadline_ends_a_stream_that_goes_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path, lambda call: item(call, 0)) as here:
            client = Following(here, hold=0.1, total=0.1)
            await client.answer()
            assert [kind for kind, _ in client.events] == ["item", "error"]
            assert client.events[-1][1]["code"] == "deadline-exceeded"
            assert (await here.runners[0].hears(Stop)).job_id == client.asked.job_id
            here.runners[0].say(item(here.calls[0], 1))  # it was on its way
            await settle()

    run(scenario)


@pytest.mark.parametrize("is_open", [True, False])
def test_a_client_that_leaves_stops_its_call(tmp_path: Path, is_open: bool) -> None:
    async def scenario() -> None:
        def begins(call: Call) -> Any:
            return [Started(call.job_id, 1), item(call, 0)] if is_open else None

        async with site(tmp_path, begins) as here:
            client = Following(here)
            answering = asyncio.ensure_future(client.answer())
            await here.runners[0].hears(Call)
            if is_open:
                await client.until(lambda: len(client.messages) > 1)
            client.leaves.set()
            with pytest.raises(ClientLeft):
                await answering
            assert (await here.runners[0].hears(Stop)).job_id == client.asked.job_id
            sample = here.metrics.registry.get_sample_value
            assert sample("headrace_streams_total", {"function": "echo", "end": "client-left"}) == 1
            assert (client.asked.exec_ms > 0) is is_open

    run(scenario)


# ---------------------------------------------------------------------- clients that don't keep up


def test_a_client_that_stops_reading_stops_the_credit_and_nothing_else(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path, lambda _: None) as here:
            runner = here.runners[0]
            stopped, reading = Following(here), Following(here)
            tasks = [asyncio.ensure_future(one.answer()) for one in (stopped, reading)]
            calls = {call.job_id: call for call in [await runner.hears(Call), await runner.hears(Call)]}
            stopped.reads.clear()
            for one in (stopped, reading):
                for number in range(WINDOW):
                    runner.say(item(calls[one.asked.job_id], number, 2**16 - 2))
            assert await grants(here, WINDOW - 1) <= WINDOW  # all of it for the one that reads
            assert len(reading.events) == WINDOW
            assert stopped.messages == []
            runner.say(result(calls[reading.asked.job_id]))
            await tasks[1]

            stopped.reads.set()  # it goes on where it was
            assert await grants(here, WINDOW - 1) <= WINDOW
            runner.say(result(calls[stopped.asked.job_id]))
            await tasks[0]
            assert [kind for kind, _ in stopped.events] == ["item"] * WINDOW + ["result"]

    run(scenario)


def test_a_client_that_stops_reading_doesnt_outlast_its_deadline(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path, lambda call: [item(call, number) for number in range(3)]) as here:
            client = Following(here, hold=0.2, total=0.2)
            client.reads.clear()
            answering = asyncio.ensure_future(client.answer())
            await here.runners[0].hears(Call)
            assert client.scope[PACED_UNTIL] > time.monotonic()
            await here.runners[0].hears(Stop)  # the work ends in time
            await settle()
            assert client.scope[PACED_UNTIL] == 0  # what is left has to be taken
            client.reads.set()
            await answering
            assert [kind for kind, _ in client.events] == ["item"] * 3 + ["error"]

    run(scenario)


def test_what_is_written_at_once_is_bounded(tmp_path: Path) -> None:
    async def scenario() -> None:
        def script(call: Call) -> list[Item | Result | Error]:
            return [*(item(call, number, 50_000) for number in range(20)), result(call)]

        async with site(tmp_path, script) as here:
            client = Following(here)
            await client.answer()
            assert max(len(message["body"]) for message in client.messages[1:]) < 120_000
            assert len(client.events) == 21

    run(scenario)
