"""Streams of calls with a key go on when gateways and runners are killed in the middle of them."""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.event_stream import Event, Reader, all_events
from harness.jobs import check_at_rest
from harness.postgres import Clones
from harness.site import Site, eventually, site

from headrace.client import Client, Restarted


@pytest.fixture
def served(clones: Clones) -> Iterator[Site]:
    with clones.migrated() as url, site(url, functions="streaming_functions") as running:
        yield running
        check_at_rest(url)


@pytest.fixture
def client(served: Site) -> Iterator[Client]:
    with Client(served.url, served.key) as made:
        yield made


@pytest.fixture
def key() -> str:
    return str(uuid.uuid4())


def followed(site: Site, url: str, input: object, key: str, after: int, most: int | None) -> list[Event]:
    """So many events of `signed` from one gateway, after the one with that number."""
    wanted = site.headers(Accept="text/event-stream", Content_Type="application/json", Idempotency_Key=key)
    if after:
        wanted["Last-Event-ID"] = str(after)
    content = json.dumps(input).encode()
    with site.client.stream("POST", f"{url}/fn/signed", content=content, headers=wanted) as response:
        assert response.status_code == 200, response.read()
        return list(itertools.islice(Reader(response), most))


def test_killed_gateways_cost_no_item_and_tell_none_twice(served: Site, client: Client, key: str) -> None:
    count = 300
    reading = client.stream("count", {"n": count, "size": 1000, "pause": 0.01}, idempotency_key=key)
    seen: list[Any] = []
    for item in reading:
        seen.append(item["number"])
        if len(seen) in (5, 150):
            served["gateway"].kill()
            served.start_gateway()
    assert seen == list(range(count))
    assert reading.result == {"items": count, "characters": count * 1000}
    assert served.job(reading.job_id)["attempt"] == 1
    ends = [event for event in all_events(served, reading.job_id) if event.kind in ("result", "error")]
    assert len(ends) == 1


def test_another_gateway_goes_on_with_it(served: Site, tmp_path: Path, key: str) -> None:
    sign = tmp_path / "sign"
    sent = {"path": str(sign)}
    other = served.start_another_gateway("second")
    first = followed(served, served.url, sent, key, 0, 3)
    served["gateway"].kill()
    sign.touch()
    rest = followed(served, other, sent, key, first[-1].number, None)
    assert [event.kind for event in rest] == ["item", "result"]
    assert [event.data for event in (first[-1], rest[0])] == ["first", "second"]
    served.start_gateway()
    assert all_events(served, rest[-1].data["job_id"]) == [*first, *rest]


def test_a_killed_runner_makes_the_items_void_and_says_so(
    served: Site, client: Client, tmp_path: Path, key: str
) -> None:
    sign = tmp_path / "sign"
    sent = {"path": str(sign)}
    void: list[int] = []
    patient = client.stream("signed", sent, idempotency_key=key, on_restart=void.append)
    strict = client.stream("signed", sent, idempotency_key=key)
    items = iter(patient)
    assert next(items) == next(iter(strict)) == "first"

    served["runner-0"].kill()
    served.start_runner("runner-0")

    with pytest.raises(Restarted) as caught:
        next(iter(strict))
    assert (caught.value.void, caught.value.job_id) == (1, patient.job_id)
    assert (next(items), void) == ("first", [1])
    sign.touch()
    assert (list(items), patient.result) == (["second"], "firstsecond")
    # Who makes the call again has the items of the newest start alone.
    again = client.stream("signed", sent, idempotency_key=key)
    assert (list(again), again.result) == (["first", "second"], "firstsecond")


def test_a_call_made_again_after_runner_and_gateway_were_killed_is_told_of_the_new_start(
    served: Site, tmp_path: Path, key: str
) -> None:
    sign = tmp_path / "sign"
    sent = {"path": str(sign)}
    before = followed(served, served.url, sent, key, 0, 3)
    (job,) = served.get("/jobs").json()["items"]
    served["runner-0"].kill()
    served.start_runner("runner-0")
    # Where nobody has seen the runner's lock held, its lease is waited for.
    eventually(lambda: served.job(job["job_id"])["attempt"] == 2, "it is started again", within=75)
    served["gateway"].kill()
    served.start_gateway()

    again = followed(served, served.url, sent, key, before[-1].number, 3)
    sign.touch()
    rest = followed(served, served.url, sent, key, again[-1].number, None)

    states = [(event.data["status"], event.data["attempt"]) for event in again[:2]]
    assert (states, again[2].data) == ([("queued", 1), ("running", 2)], "first")
    assert [event.kind for event in rest] == ["item", "result"]
    numbers = [event.number for event in (*before, *again, *rest)]
    assert numbers == sorted(set(numbers))
