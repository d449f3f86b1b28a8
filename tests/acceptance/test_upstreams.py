"""Functions whose work a remote server does: whatever ends a call closes its stream, and stops that work."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from harness.event_stream import Reader
from harness.openai_server import OpenAIServer, Request, openai_server
from harness.postgres import Clones
from harness.problem import problem
from harness.site import Site, eventually, site

ENDLESS = {"prompt": "endless"}


@dataclass
class Served:
    """A site, and the server that its functions ask."""

    site: Site
    remote: OpenAIServer

    def generating(self) -> Request:
        """The last request, once some of its answer is there."""

        def found() -> Request | None:
            request = self.remote.requests[-1] if self.remote.requests else None
            return request if request is not None and request.pieces > 2 and not request.ended else None

        return eventually(found, "the server generates")


@pytest.fixture(scope="module")
def running(clones: Clones) -> Iterator[Served]:
    with openai_server() as remote, clones.migrated() as url:
        settings = {"UPSTREAM_URL": remote.url}
        with site(url, functions="upstream_functions", settings=settings) as started:
            yield Served(started, remote)


@pytest.fixture
def served(running: Served) -> Served:
    running.remote.requests.clear()
    running.remote.answers.clear()
    return running


def check_left(request: Request) -> None:
    """The server has noticed that nobody reads any more."""
    eventually(lambda: request.ended, "the server notices")
    assert request.ended == "left"


# ---------------------------------------------------------------------- as it should be


def test_answers_come_whole_and_in_pieces(served: Served) -> None:
    assert served.site.call("whole", {"prompt": "one two"}).json() == {"text": "one two"}
    wanted = served.site.headers(Accept="text/event-stream", Content_Type="application/json")
    content = json.dumps({"prompt": "one two"}).encode()
    with served.site.client.stream("POST", "/fn/pieces", content=content, headers=wanted) as response:
        events = [(event.kind, event.data["text"]) for event in Reader(response)]
    assert events == [("item", "one"), ("item", " two"), ("result", "one two")]


# ---------------------------------------------------------------------- what ends a call


def test_a_client_that_leaves_a_stream_stops_the_server(served: Served) -> None:
    wanted = served.site.headers(Accept="text/event-stream", Content_Type="application/json")
    content = json.dumps(ENDLESS).encode()
    with served.site.client.stream("POST", "/fn/pieces", content=content, headers=wanted) as response:
        assert Reader(response).next("item").data["text"] == "endless"
        request = served.generating()
    check_left(request)


def test_a_client_that_leaves_while_it_waits_stops_the_server(served: Served) -> None:
    connection = http.client.HTTPConnection(served.site.url.removeprefix("http://"), timeout=30)
    headers = served.site.headers(Content_Type="application/json")
    connection.request("POST", "/fn/whole", json.dumps(ENDLESS), headers)
    request = served.generating()
    connection.close()
    check_left(request)


def test_a_cancelled_job_stops_the_server(served: Served) -> None:
    job_id = served.site.call("whole", ENDLESS, Prefer="respond-async").json()["job_id"]
    request = served.generating()
    served.site.post(f"/jobs/{job_id}/cancel", b"")
    check_left(request)
    job = f"/jobs/{job_id}"
    eventually(lambda: served.site.get(job).json()["status"] == "cancelled", "the job is cancelled")


def test_the_soft_limit_stops_the_server(served: Served) -> None:
    problem(served.site.call("brief", ENDLESS), 504, "soft-limit-exceeded")
    check_left(served.remote.requests[-1])


@pytest.mark.parametrize("prompt", ["endless", "silent", "mute"])
def test_the_callers_deadline_stops_the_server(served: Served, prompt: str) -> None:
    response = served.site.call("whole", {"prompt": prompt}, Headrace_Deadline="0.5", Headrace_Async="never")
    problem(response, 504, "deadline-exceeded")
    check_left(served.remote.requests[-1])


# ---------------------------------------------------------------------- what the server says


def test_what_the_server_refuses_is_said(served: Served) -> None:
    served.remote.answers.append((404, {}, '{"error": {"message": "model \'m\' not found"}}'))
    document = problem(served.site.call("whole", ENDLESS), 500, "function-failed")
    assert "model 'm' not found" in document["detail"]


def test_a_busy_server_is_left_alone_and_callers_are_told_when_to_come_back(served: Served) -> None:
    served.remote.answers.append((429, {"Retry-After": "40"}, ""))
    began = time.monotonic()
    for _ in range(2):
        response = served.site.call("throttled", {"prompt": "one"}, Headrace_Async="never")
        problem(response, 503, "busy")
        assert 40 - (time.monotonic() - began) <= int(response.headers["Retry-After"])
    assert len(served.remote.requests) == 1
    eventually(lambda: free(served.site, "throttled") == [0], "the runner says that it has no room")
    assert served.site.call("pieces", {"prompt": "one"}).status_code == 200  # others go on


def test_a_call_without_another_start_is_told_when_to_come_back(served: Served) -> None:
    served.remote.answers.append((429, {"Retry-After": "2"}, ""))
    began = time.monotonic()
    refused = served.site.call("once", {"prompt": "one"})
    assert problem(refused, 503, "upstream-busy")["attempt"] == 1
    assert 2 - (time.monotonic() - began) <= int(refused.headers["Retry-After"]) <= 2
    # Who comes then is answered, without a second refusal.
    time.sleep(int(refused.headers["Retry-After"]))
    assert served.site.call("once", {"prompt": "one two"}).json() == {"text": "one two"}
    assert len(served.remote.requests) == 2


def test_a_job_waits_until_the_server_takes_it(served: Served) -> None:
    served.remote.answers.append((503, {"Retry-After": "2"}, ""))
    job = served.site.call("whole", {"prompt": "one two"}, Prefer="respond-async").json()
    done = eventually(
        lambda: (
            found
            if (found := served.site.get(f"/jobs/{job['job_id']}").json())["status"] == "succeeded"
            else None
        ),
        "the job is done",
    )
    assert done["attempt"] == 2
    assert len(served.remote.requests) == 2


def free(site: Site, function: str) -> list[int]:
    """The free slots that each runner says the function has."""
    live = site.get(f"/fn/{function}").json()["live"]
    return [one["capacity"]["free"] for one in live if one["capacity"]]
