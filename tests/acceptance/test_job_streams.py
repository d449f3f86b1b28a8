"""What jobs yield while they run: followed live, come back to, begun anew with a start, and replayed."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.event_stream import Event, Reader, all_events, reading
from harness.jobs import check_at_rest
from harness.postgres import Clones, query
from harness.problem import problem
from harness.site import Site, eventually, site


@pytest.fixture(scope="module")
def served(clones: Clones) -> Iterator[Site]:
    with clones.migrated() as url, site(url, functions="streaming_functions") as running:
        yield running
        check_at_rest(url)


@contextlib.contextmanager
def calling(site: Site, name: str, input: object, **headers: str) -> Iterator[Reader]:
    """The events of a call that is a job."""
    wanted = site.headers(Accept="text/event-stream", Content_Type="application/json", **headers)
    content = json.dumps(input).encode()
    with site.client.stream("POST", f"/fn/{name}", content=content, headers=wanted) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["Content-Type"].startswith("text/event-stream")
        job_id = response.headers["Headrace-Job-Id"]
        assert response.headers["Location"] == f"/jobs/{job_id}"
        yield Reader(response)


def streamed(site: Site, function: str, end: str) -> float:
    """How many calls were answered by streams that ended so."""
    return site.metric(site["gateway"], "headrace_streams_total", function=function, end=end)


def states(events: list[Event]) -> list[tuple[str, int]]:
    return [(event.data["status"], event.data["attempt"]) for event in events if event.kind == "state"]


def items(events: list[Event]) -> list[object]:
    return [event.data for event in events if event.kind == "item"]


def test_an_item_is_told_while_the_body_runs_and_whoever_left_comes_back(
    served: Site, tmp_path: Path
) -> None:
    sign = tmp_path / "sign"
    left = {"Prefer": "respond-async", "X_Request_Id": "left"}
    with calling(served, "signed", {"path": str(sign)}, **left) as reader:
        job_id = reader.response.headers["Headrace-Job-Id"]
        before = [reader.next("state"), reader.next("state"), reader.next("item")]
        assert (states(before), items(before)) == ([("queued", 0), ("running", 1)], ["first"])
    assert served.job(job_id)["status"] == "running"  # though its client has left
    (line,) = eventually(lambda: served.access_lines("left"), "the access line")
    assert (line["status"], line["code"], line["items"]) == (499, "client-left", 1)
    assert streamed(served, "signed", "client-left") == 1
    with reading(served, job_id, Last_Event_ID=str(before[-1].number)) as reader:
        sign.touch()
        second, last = reader
    assert (second.kind, second.data) == ("item", "second")
    assert (last.kind, last.data["result"]) == ("result", "firstsecond")
    assert before[-1].number < second.number < last.number
    assert served.get(f"/jobs/{job_id}/result").json() == "firstsecond"
    assert all_events(served, job_id) == [*before, second, last]


def test_a_reader_that_is_cut_off_again_and_again_misses_nothing(served: Site) -> None:
    count = 400
    job_id = served.submit("count", {"n": count, "size": 1000, "pause": 0.002})
    seen: list[Event] = []
    while not seen or seen[-1].kind != "result":
        after = str(seen[-1].number) if seen else "0"
        with reading(served, job_id, Last_Event_ID=after) as reader:
            seen += itertools.islice(reader, 37)
    numbers = [event.number for event in seen]
    assert numbers == sorted(set(numbers))
    assert [item["number"] for item in items(seen)] == list(range(count))  # type: ignore[index]  # an object
    assert seen[-1].data["result"] == {"items": count, "characters": count * 1000}
    assert all_events(served, job_id) == seen


def test_a_killed_runner_makes_the_stream_begin_anew(served: Site, tmp_path: Path) -> None:
    sign = tmp_path / "sign"
    job_id = served.submit("signed", {"path": str(sign)})
    with reading(served, job_id) as reader:
        before = list(itertools.islice(reader, 3))
        assert items(before) == ["first"]
        served["runner-0"].kill()
        served.start_runner("runner-0")
        again = list(itertools.islice(reader, 3))
        assert (states(again), items(again)) == ([("queued", 1), ("running", 2)], ["first"])
        sign.touch()
        last = list(reader)
    assert [event.kind for event in last] == ["item", "result"]
    assert all_events(served, job_id, Last_Event_ID=str(before[-1].number)) == [*again, *last]
    # Whoever comes late sees the items of the last start alone.
    assert all_events(served, job_id) == [*before[:2], *again, *last]
    assert served.get(f"/jobs/{job_id}/events", Last_Event_ID=str(last[-1].number)).status_code == 204
    served.wait_ready()


def test_a_key_is_answered_with_the_same_stream_again(served: Site, tmp_path: Path) -> None:
    sign = tmp_path / "sign"
    key = {"Idempotency_Key": tmp_path.parent.name + tmp_path.name}
    with calling(served, "signed", {"path": str(sign)}, **key) as reader:
        assert "Idempotent-Replayed" not in reader.response.headers
        job_id = reader.response.headers["Headrace-Job-Id"]
        first = list(itertools.islice(reader, 3))
        with calling(served, "signed", {"path": str(sign)}, **key) as joined:
            assert joined.response.headers["Headrace-Job-Id"] == job_id
            assert joined.response.headers["Idempotent-Replayed"] == "true"
            also = list(itertools.islice(joined, 3))
            sign.touch()
            both = [first + list(reader), also + list(joined)]
    assert items(both[0]) == ["first", "second"]
    assert both[0] == both[1] == all_events(served, job_id)
    with calling(served, "signed", {"path": str(sign)}, X_Request_Id="again", **key) as reader:
        assert list(reader) == both[0]
    (line,) = eventually(lambda: served.access_lines("again"), "the access line")
    assert (line["status"], line["job_id"], line["items"], line["attempt"]) == (200, job_id, 2, 1)
    plain = served.call("signed", {"path": str(sign)}, **key)
    assert (plain.json(), plain.headers["Idempotent-Replayed"]) == ("firstsecond", "true")

    headers = {"Accept": "text/event-stream", **key}
    problem(served.call("signed", {"path": "another"}, **headers), 422, "key-conflict")
    query(served.database_url, "UPDATE job SET result_expires_at = now() WHERE id = %s", job_id)
    problem(served.call("signed", {"path": str(sign)}, **headers), 410, "result-expired")


def test_a_stream_that_fails_ends_in_one_error(served: Site) -> None:
    with calling(
        served, "ends", {"how": "permanent", "after": 3}, Prefer="respond-async", X_Request_Id="ends"
    ) as reader:
        events = list(reader)
    assert [event.kind for event in events] == ["state", "state", "item", "item", "item", "error"]
    assert events[-1].data["error"]["message"] == "no more today"
    (line,) = eventually(lambda: served.access_lines("ends"), "the access line")
    assert (line["status"], line["code"], line["items"]) == (200, "function-failed", 3)
    assert streamed(served, "ends", "function-failed") == 1
    assert served.metric(served["gateway"], "headrace_stream_items_total", function="ends") == 3
    assert all_events(served, events[-1].data["job_id"]) == events
    problem(
        served.call("ends", {"how": 1}, Accept="text/event-stream", Prefer="respond-async"),
        422,
        "invalid-input",
    )
