"""Streams that outlast the hold, and connections that are cut in the middle of one."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from harness.event_stream import Reader, all_events
from harness.jobs import check_at_rest
from harness.postgres import Clones, query
from harness.problem import problem
from harness.relay import Relay, gateway_relay
from harness.site import Site, eventually, site

from headrace.client import CallRefused, Client, Unreachable

HOLD_S = 1


@pytest.fixture(scope="module")
def served(clones: Clones) -> Iterator[Site]:
    settings = {"HEADRACE_MAX_HOLD": str(HOLD_S)}
    with (
        clones.migrated() as url,
        site(url, functions="streaming_functions", settings=settings) as running,
    ):
        yield running
        check_at_rest(url)


@pytest.fixture
def link(served: Site) -> Iterator[Relay]:
    with gateway_relay(served.port) as relay:
        yield relay


@pytest.fixture
def client(served: Site, link: Relay) -> Iterator[Client]:
    with Client(link.url, served.key) as made:
        yield made


@pytest.fixture
def key() -> str:
    return str(uuid.uuid4())


@contextlib.contextmanager
def told(site: Site, name: str, input: object, key: str, after: int = 0) -> Iterator[Reader]:
    """The stream of a call with a key, from what comes after an event on."""
    wanted = site.headers(Accept="text/event-stream", Content_Type="application/json", Idempotency_Key=key)
    if after:
        wanted["Last-Event-ID"] = str(after)
    content = json.dumps(input).encode()
    with site.client.stream("POST", f"/fn/{name}", content=content, headers=wanted) as response:
        assert response.status_code == 200, response.read()
        assert response.headers.get("Idempotent-Replayed") == ("true" if after else None)
        yield Reader(response)


def jobs_of(site: Site) -> int:
    return query(site.database_url, "SELECT count(*) FROM job")[0][0]


# ---------------------------------------------------------------------- over HTTP


def test_a_call_made_again_goes_on_after_the_event_that_it_names(
    served: Site, tmp_path: Path, key: str
) -> None:
    sign = tmp_path / "sign"
    sent = {"path": str(sign)}
    with told(served, "signed", sent, key) as reader:
        job_id = reader.response.headers["Headrace-Job-Id"]
        first = list(itertools.islice(reader, 3))
    assert [event.kind for event in first] == ["state", "state", "item"]
    with told(served, "signed", sent, key, first[-1].number) as reader:
        assert reader.response.headers["Headrace-Job-Id"] == job_id
        sign.touch()
        rest = list(reader)
    assert [event.kind for event in rest] == ["item", "result"]
    assert all_events(served, job_id) == [*first, *rest]
    with told(served, "signed", sent, key, first[0].number) as reader:
        assert list(reader) == [*first[1:], *rest]

    again = {"Accept": "text/event-stream", "Idempotency_Key": key}
    last = served.call("signed", sent, Last_Event_ID=str(rest[-1].number), **again)
    assert (last.status_code, last.content) == (204, b"")
    assert (last.headers["Headrace-Job-Id"], last.headers["Idempotent-Replayed"]) == (job_id, "true")
    problem(served.call("signed", {"path": "x"}, Last_Event_ID="1", **again), 422, "key-conflict")
    problem(served.call("signed", sent, Last_Event_ID="x", **again), 400, "malformed-header")


def test_what_cant_be_gone_on_with_is_not_begun_again(served: Site, tmp_path: Path, key: str) -> None:
    before, starts = jobs_of(served), tmp_path / "starts"
    sent = {"how": "permanent", "path": str(starts)}
    headers = {"Accept": "text/event-stream", "Last_Event_ID": "3"}

    problem(served.call("ends", sent, **headers), 400, "malformed-header")
    problem(served.call("ends", sent, Prefer="respond-async", **headers), 400, "malformed-header")
    problem(served.call("ends", sent, Idempotency_Key=key, **headers), 410, "result-expired")

    assert (jobs_of(served), starts.exists()) == (before, False)


# ---------------------------------------------------------------------- the hold, and the deadline


@pytest.mark.parametrize("is_keyed", [False, True])
def test_a_stream_outlasts_the_hold(
    served: Site, client: Client, tmp_path: Path, key: str, is_keyed: bool
) -> None:
    sign = tmp_path / "sign"
    reading = client.stream("signed", {"path": str(sign)}, idempotency_key=key if is_keyed else None)
    items = iter(reading)
    assert next(items) == "first"
    time.sleep(HOLD_S + 0.5)  # that much time has to pass: nothing tells of a hold that does not end it
    sign.touch()
    assert (list(items), reading.result) == (["second"], "firstsecond")
    assert bool(reading.job_id) == is_keyed


@pytest.mark.parametrize("is_keyed", [False, True])
def test_its_deadline_ends_it(client: Client, key: str, is_keyed: bool) -> None:
    reading = client.stream("ticks", {}, deadline=HOLD_S + 0.2, idempotency_key=key if is_keyed else None)
    items: list[Any] = []
    with pytest.raises(CallRefused) as caught:
        items.extend(reading)
    assert (caught.value.code, caught.value.status) == ("deadline-exceeded", 504)


# ---------------------------------------------------------------------- cut connections


def test_a_client_goes_on_over_cut_connections(served: Site, link: Relay, client: Client, key: str) -> None:
    count = 300
    reading = client.stream("count", {"n": count, "size": 1000, "pause": 0.005}, idempotency_key=key)
    seen: list[int] = []
    for item in reading:
        seen.append(item["number"])
        if len(seen) in (1, 60, 170):
            link.cut()
            link.restore()
    assert seen == list(range(count))
    assert reading.result == {"items": count, "characters": count * 1000}
    assert served.job(reading.job_id)["attempt"] == 1


def test_a_call_whose_first_answer_is_lost_is_made_again(
    served: Site, link: Relay, client: Client, tmp_path: Path, key: str
) -> None:
    starts, before = tmp_path / "starts", jobs_of(served)
    link.hold_answers(to="POST /fn/ends")
    reading = client.stream("ends", {"how": "permanent", "path": str(starts)}, idempotency_key=key)

    def restore() -> None:
        eventually(starts.exists, "it runs")
        link.cut()
        link.restore()

    with ThreadPoolExecutor(1) as threads:
        restored = threads.submit(restore)
        with pytest.raises(CallRefused, match="no more today"):
            list(reading)
        restored.result()
    assert (starts.read_text(), jobs_of(served)) == ("start\n", before + 1)


def test_without_a_key_a_cut_connection_ends_stream_and_function(
    link: Relay, client: Client, tmp_path: Path
) -> None:
    path = tmp_path / "tally"
    items = iter(client.stream("tally", {"path": str(path), "size": 10}))
    next(items)
    link.cut()
    link.restore()
    with pytest.raises(Unreachable, match="the stream was cut off"):
        list(items)
    eventually(path.with_suffix(".ended").exists, "the function is stopped")
