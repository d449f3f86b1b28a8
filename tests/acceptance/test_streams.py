"""Calls that are answered while they run: what their clients get, and when."""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from harness.event_stream import Event, Reader
from harness.postgres import Clones
from harness.problem import problem
from harness.site import Site, eventually, site
from harness.slow_reader import SlowReader, memory_of

MIB = 2**20


@pytest.fixture(scope="module")
def streaming(clones: Clones) -> Iterator[Site]:
    with clones.migrated() as url, site(url, functions="streaming_functions") as running:
        yield running


@contextlib.contextmanager
def following(site: Site, name: str, input: object, **headers: str) -> Iterator[Reader]:
    """The events of a call while it runs."""
    wanted = site.headers(Accept="text/event-stream", Content_Type="application/json", **headers)
    content = json.dumps(input).encode()
    with site.client.stream("POST", f"/fn/{name}", content=content, headers=wanted) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["Content-Type"].startswith("text/event-stream")
        yield Reader(response)


def events_of(site: Site, name: str, input: object, **headers: str) -> list[Event]:
    with following(site, name, input, **headers) as reader:
        return list(reader)


# ---------------------------------------------------------------------- as it should be


def test_an_item_leaves_when_it_exists_and_bodies_run_side_by_side(streaming: Site, tmp_path: Path) -> None:
    signs = [tmp_path / name for name in "abc"]

    with contextlib.ExitStack() as open_ones:
        readers = [
            open_ones.enter_context(following(streaming, "signed", {"path": str(sign)})) for sign in signs
        ]
        for reader in readers:
            assert reader.next("item") == Event(1, "item", "first")
        for sign, reader in zip(signs, readers, strict=True):
            sign.touch()  # its body waits for it
            assert list(reader) == [Event(2, "item", "second"), Event(3, "result", "firstsecond")]


@pytest.mark.parametrize("name", ["count", "count_async"])
def test_all_items_in_order_and_then_what_they_make(streaming: Site, name: str) -> None:
    events = events_of(streaming, name, {"n": 1000, "size": 10})

    assert [event.number for event in events] == list(range(1, 1002))
    assert [event.data["number"] for event in events[:-1]] == list(range(1000))
    assert events[-1][1:] == ("result", {"items": 1000, "characters": 10_000})


def test_items_larger_than_the_window(streaming: Site) -> None:
    events = events_of(streaming, "count", {"n": 4, "size": 6 * 2**20})

    assert [len(event.data["text"]) for event in events[:-1]] == [6 * 2**20] * 4


def test_a_client_that_doesnt_stream_gets_what_the_items_make(streaming: Site) -> None:
    response = streaming.call("count", {"n": 100, "size": 3}, Accept="application/json")

    assert response.json() == {"items": 100, "characters": 300}


def test_a_function_that_doesnt_stream_tells_how_far_it_is_and_its_result(streaming: Site) -> None:
    assert events_of(streaming, "plain", {}) == [
        Event(1, "progress", {"fraction": 0.5, "message": "half"}),
        Event(2, "result", 3),
    ]


def test_what_is_written_about_a_stream(streaming: Site) -> None:
    with following(streaming, "count", {"n": 5}, X_Request_Id="stream-1", Prefer="wait=20") as reader:
        assert reader.response.headers["X-Request-Id"] == "stream-1"
        assert reader.response.headers["Preference-Applied"] == "wait=20"
        list(reader)

    (line,) = eventually(lambda: streaming.access_lines("stream-1"), "the access line")
    assert (line["status"], line["code"], line["items"], line["attempt"]) == (200, "", 5, 1)
    gateway = streaming["gateway"]
    assert streaming.metric(gateway, "headrace_streams_total", function="count", end="result") > 0
    assert streaming.metric(gateway, "headrace_stream_items_total", function="count") >= 5
    manifest = streaming.get("/fn/count").json()
    assert manifest["item_schema"]["properties"].keys() == {"number", "text"}
    assert streaming.get("/fn/plain").json()["item_schema"] is None


# ---------------------------------------------------------------------- how streams fail


@pytest.mark.parametrize(
    ("input", "status", "code"),
    [({"how": 1}, 422, "invalid-input"), ({"how": "refused"}, 422, "invalid-input")],
)
def test_a_problem_before_the_first_event_is_one_with_a_status(
    streaming: Site, input: Any, status: int, code: str
) -> None:
    response = streaming.call("ends", input, Accept="text/event-stream")

    document = problem(response, status, code)
    assert document["errors"][0]["path"] == "/how"


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("permanent", "function-failed"),
        ("transient", "attempts-exhausted"),
        ("type", "invalid-output"),
        ("killed", "worker-lost"),
    ],
)
def test_a_stream_that_fails_ends_with_one_error_and_is_not_begun_again(
    streaming: Site, tmp_path: Path, how: str, code: str
) -> None:
    starts = tmp_path / "starts"

    events = events_of(streaming, "ends", {"how": how, "after": 3, "path": str(starts)})

    assert [(event.kind, event.data) for event in events[:3]] == [("item", 0), ("item", 1), ("item", 2)]
    assert [(event.kind, event.data["code"]) for event in events[3:]] == [("error", code)]
    assert starts.read_text() == "start\n"


def test_a_start_that_fails_before_its_first_item_is_made_again(streaming: Site, tmp_path: Path) -> None:
    starts = tmp_path / "starts"

    response = streaming.call("ends", {"how": "transient", "path": str(starts)}, Accept="text/event-stream")

    problem(response, 500, "attempts-exhausted")
    assert starts.read_text() == "start\n" * 2


def test_limits_hold_while_items_flow(streaming: Site) -> None:
    for headers, code in (({"Headrace_Deadline": "0.5"}, "deadline-exceeded"), ({}, "soft-limit-exceeded")):
        began = time.monotonic()
        events = events_of(streaming, "ticks", {}, **headers)
        assert time.monotonic() - began < 10
        assert [event.kind for event in events] == ["item"] * (len(events) - 1) + ["error"]
        assert len(events) > 2
        assert events[-1].data["code"] == code


# ---------------------------------------------------------------------- readers that stop, and that leave


def made(path: Path) -> int:
    """How many items `tally` has made."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        return int(path.read_text()) + 1
    return 0


def has_stalled(path: Path) -> bool:
    before = made(path)
    time.sleep(0.3)
    return 0 < before == made(path)


def leave_one_stopped(site: Site, path: Path, seconds: float) -> None:
    """One reader stops for so long beside 20 that don't, and then goes on."""
    before = memory_of(site)
    stopped = SlowReader(site, "tally", {"path": str(path), "size": 32_000})
    with contextlib.closing(stopped):
        assert stopped.read(1000).startswith(b"HTTP/1.1 200 OK\r\n")
        eventually(lambda: has_stalled(path), "its body waits for it")
        number, until = made(path), time.monotonic() + seconds
        with ThreadPoolExecutor(20) as threads:
            while True:
                counts = threads.map(
                    lambda _: len(events_of(site, "count_async", {"n": 100, "size": 1000})), range(20)
                )
                assert list(counts) == [101] * 20
                if time.monotonic() > until:
                    break
        assert made(path) == number
        assert number * 32_000 < 16 * MIB  # in all buffers, the kernel's included
        growth = [now - then for now, then in zip(memory_of(site), before, strict=True)]
        assert max(growth) < 48 * MIB, growth
        stopped.read(number * 32_000)
        eventually(lambda: made(path) > number, "its body goes on")


def is_idle(site: Site) -> bool:
    """Whether nothing is under way, at the gateway or in slots of the runner."""
    in_flight = site.metric(site["gateway"], "headrace_calls_in_flight")
    return in_flight == 0 and site.get("/fn/tally").json()["state"]["load"] == 0


def test_a_reader_that_stops_holds_up_nobody_else(streaming: Site, tmp_path: Path) -> None:
    path = tmp_path / "tally"

    leave_one_stopped(streaming, path, 0)

    eventually(path.with_suffix(".ended").exists, "its body ends, as it has left")
    eventually(lambda: is_idle(streaming), "its slot is free")


@pytest.mark.slow
def test_a_reader_that_stops_for_a_minute(streaming: Site, tmp_path: Path) -> None:
    leave_one_stopped(streaming, tmp_path / "tally", 60)  # longer than an answer may stand still otherwise

    eventually(lambda: is_idle(streaming), "its slot is free")


def test_a_reader_that_stops_doesnt_outlast_its_deadline(streaming: Site, tmp_path: Path) -> None:
    path = tmp_path / "tally"
    wanted = {"path": str(path), "size": 32_000}
    stopped = SlowReader(streaming, "tally", wanted, Headrace_Deadline="1", Connection="close")
    with contextlib.closing(stopped):
        stopped.read(1000)
        eventually(path.with_suffix(".ended").exists, "the work ends at the deadline")
        eventually(lambda: streaming.get("/fn/tally").json()["state"]["load"] == 0, "its slot is free")

        events = stopped.read(64 * MIB).decode()  # what was made before, and how it ended

        assert events.count("event: error") == 1
        assert '"code":"deadline-exceeded"' in events[events.index("event: error") :]


def test_a_client_that_has_sent_a_request_ahead_and_leaves_stops_its_call(
    streaming: Site, tmp_path: Path
) -> None:
    path = tmp_path / "tally"
    reader = SlowReader(streaming, "tally", {"path": str(path), "size": 10}, ahead=True)
    reader.read(1000)

    reader.close()

    eventually(path.with_suffix(".ended").exists, "its body ends, as it has left")


def test_streams_that_are_left_at_random_leave_nothing_behind(streaming: Site, tmp_path: Path) -> None:
    chance = random.Random(50)
    plans = [(tmp_path / str(number), chance.randrange(1, 40)) for number in range(50)]

    def read_some(path: Path, items: int) -> None:
        with following(streaming, "tally", {"path": str(path), "size": 1000}) as reader:
            for _ in range(items):
                reader.next("item")

    with ThreadPoolExecutor(50) as threads:
        list(threads.map(lambda plan: read_some(*plan), plans))
    left_at = time.monotonic()

    def have_ended() -> bool:
        return all(path.with_suffix(".ended").exists() for path, _ in plans)

    eventually(have_ended, "every body has ended")
    assert time.monotonic() - left_at < 5  # a second each, but for a busy machine
    eventually(lambda: is_idle(streaming), "all slots are free")
    assert streaming.call("count", {"n": 1}).json()["items"] == 1
    left = streaming.metric(
        streaming["gateway"], "headrace_streams_total", function="tally", end="client-left"
    )
    assert left >= 50
