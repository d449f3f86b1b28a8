"""A call whose client reads its items as they come."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from harness.scripted_site import Answer, ScriptedSite, document, event, scripted_site, stream

from headrace.client import CallRefused, Client, Unreachable
from headrace.site.address import free_port

ITEMS = [event("item", 1, {"text": "a\u2028"}), event("item", 2, [1])]
RESULT = event("result", 3, {"text": "all"})
BUSY = {"code": "busy", "title": "No room for the call now", "status": 503, "detail": "No slot is free."}


@pytest.fixture
def site() -> Iterator[ScriptedSite]:
    with scripted_site() as made:
        yield made


@pytest.fixture
def client(site: ScriptedSite) -> Iterator[Client]:
    with Client(site.url, "hr_x") as made:
        yield made


def test_items_come_as_they_are_made_and_make_the_result(site: ScriptedSite, client: Client) -> None:
    is_read = threading.Event()
    site.on("POST /fn/tell", stream(ITEMS[0], b": still here\n\n", is_read, ITEMS[1], RESULT))

    items = client.stream("tell", {"q": "ü"}, deadline=3)
    reading = iter(items)
    assert next(reading) == {"text": "a\u2028"}
    assert items.result is None
    is_read.set()
    assert list(reading) == [[1]]
    assert items.result == {"text": "all"}

    (asked,) = site.asked
    assert (asked.headers["Accept"], asked.headers["Headrace-Deadline"]) == ("text/event-stream", "3")
    assert asked.headers["Authorization"] == "Bearer hr_x"
    assert asked.body == b'{"q":"\xc3\xbc"}'


def test_progress_is_told_and_what_isnt_known_is_passed_over(site: ScriptedSite, client: Client) -> None:
    told: list[tuple[float, str]] = []
    progress = event("progress", 1, {"fraction": 0.5, "message": "half"})
    site.on("POST /fn/tell", stream(progress, event("later", 2, {}), b"retry: 5\n\n", RESULT))

    items = client.stream("tell", b"{}", on_progress=lambda *news: told.append(news))

    assert (list(items), items.result, told) == ([], {"text": "all"}, [(0.5, "half")])
    assert site.asked[0].headers["Content-Type"] == "application/json"


def test_a_refusal_and_a_failure_midway_are_the_same_error(site: ScriptedSite, client: Client) -> None:
    site.on("POST /fn/full", document(BUSY, 503, Retry_After="7"))
    site.on("POST /fn/broken", stream(ITEMS[0], event("error", 2, BUSY)))

    with pytest.raises(CallRefused) as refused:
        list(client.stream("full", {}))
    reading = iter(client.stream("broken", {}))
    assert next(reading) == {"text": "a\u2028"}
    with pytest.raises(CallRefused) as failed:
        next(reading)

    for error in (refused.value, failed.value):
        assert (error.status, error.code) == (503, "busy")
    assert refused.value.retry_after == 7


@pytest.mark.parametrize(
    "answer",
    [
        stream(*ITEMS),
        stream(*ITEMS, is_cut=True),
        document({"text": "all"}),
        stream(b"event: result\ndata: {\n\n"),
        stream(event("error", 1, [])),
        stream(event("progress", 1, {})),
    ],
)
def test_whatever_isnt_a_whole_stream_is_no_answer(
    site: ScriptedSite, client: Client, answer: Answer
) -> None:
    site.on("POST /fn/tell", answer)
    with pytest.raises(Unreachable):
        list(client.stream("tell", {}))


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_stream_without_an_end_was_cut_off(site: ScriptedSite, client: Client, is_cut: bool) -> None:
    site.on("POST /fn/tell", stream(*ITEMS, is_cut=is_cut))
    with pytest.raises(Unreachable, match=r"^the stream was cut off: "):
        list(client.stream("tell", {}))


def test_nobody_answers() -> None:
    with Client(f"http://127.0.0.1:{free_port('127.0.0.1')}") as client, pytest.raises(Unreachable):
        list(client.stream("tell", {}))


def test_whoever_leaves_closes_the_connection(site: ScriptedSite, client: Client) -> None:
    goes_on = threading.Event()
    site.on("POST /fn/tell", stream(ITEMS[0], goes_on))

    with client.stream("tell", {}) as items:
        for _ in items:
            break

    assert list(items) == []
    goes_on.set()
