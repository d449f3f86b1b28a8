"""One call, from its headers to its answer, and the ways in which a function can end it."""

from __future__ import annotations

import re
import socket
import uuid
from pathlib import Path

import pytest
from harness.postgres import Clones
from harness.problem import problem
from harness.site import Site, eventually, site

# ---------------------------------------------------------------------- the answer


def test_the_body_is_the_output_itself(served: Site) -> None:
    response = served.call("echo", {"text": "grüezi \U0001f6b0", "top_k": 3, "scores": [0.5, 1]})

    assert response.status_code == 200
    assert response.headers["Content-Type"] == "application/json"
    assert response.json() == {"text": "grüezi \U0001f6b0", "n": 3, "scores": [0.5, 1.0]}
    assert re.fullmatch(r"queue;dur=\d+\.\d{3}, exec;dur=\d+\.\d{3}", response.headers["Server-Timing"])


def test_a_large_input_arrives_whole(served: Site) -> None:
    response = served.call("count", {"texts": ["\u4e2d" * 1000] * 170})

    assert len(response.request.content) > 1_000_000
    assert response.json() == 170


def test_server_timing_tells_how_long_it_ran(served: Site) -> None:
    response = served.call("nap", {"seconds": 0.2})

    executed = float(response.headers["Server-Timing"].rpartition("dur=")[2])
    assert 200 <= executed < 3000


@pytest.mark.parametrize("given", ["a", "x" * 128, "a/b:c~!", "6ba7b810-9dad-11d1-80b4-00c04fd430c8"])
def test_the_request_id_comes_back(served: Site, given: str) -> None:
    assert served.call("echo", {"text": "a"}, X_Request_Id=given).headers["X-Request-Id"] == given
    assert served.get("/fn", X_Request_Id=given).headers["X-Request-Id"] == given


@pytest.mark.parametrize("given", [None, "x" * 129, "two words", "caf\xe9"])
def test_without_a_usable_request_id_there_is_a_new_one(served: Site, given: str | None) -> None:
    headers = [(b"Authorization", b"Bearer " + served.key.encode())]
    if given is not None:
        headers.append((b"X-Request-Id", given.encode("latin-1")))
    for response in (
        served.client.post("/fn/echo", json={"text": "a"}, headers=headers),
        served.client.get("/fn", headers=headers),
    ):
        assert response.status_code == 200
        assert uuid.UUID(response.headers["X-Request-Id"]).version == 7


# ---------------------------------------------------------------------- what the caller asks for


def test_wait_is_applied_and_said(served: Site) -> None:
    response = served.call("echo", {"text": "a"}, Prefer="wait=7")

    assert (response.status_code, response.headers["Preference-Applied"]) == (200, "wait=7")


def test_wait_shortens_the_hold(served: Site) -> None:
    response = served.call("nap", {"seconds": 4}, Prefer="wait=1", Headrace_Async="never")

    assert "1 s" in problem(response, 504, "hold-exceeded")["detail"]
    assert 1 <= response.elapsed.total_seconds() < 3


def test_wait_does_not_lengthen_the_hold(served: Site) -> None:
    response = served.call("long_nap", {"seconds": 4}, Prefer="wait=9", Headrace_Async="never")

    assert "0.5 s" in problem(response, 504, "hold-exceeded")["detail"]
    assert 0.5 <= response.elapsed.total_seconds() < 3


@pytest.mark.parametrize("prefer", ["return=minimal", "handling=lenient", ""])
def test_other_preferences_are_ignored_and_not_said_to_be_applied(served: Site, prefer: str) -> None:
    response = served.call("echo", {"text": "a"}, Prefer=prefer)

    assert response.status_code == 200
    assert "Preference-Applied" not in response.headers


def test_of_two_preferences_the_known_one_is_applied(served: Site) -> None:
    response = served.call("echo", {"text": "a"}, Prefer="handling=lenient, wait=5")

    assert (response.status_code, response.headers["Preference-Applied"]) == (200, "wait=5")


def test_a_deadline_ends_the_call(served: Site) -> None:
    response = served.call("nap", {"seconds": 4}, Headrace_Deadline="0.3")

    assert "0.3 s" in problem(response, 504, "deadline-exceeded")["detail"]
    assert 0.3 <= response.elapsed.total_seconds() < 3
    assert served.call("echo", {"text": "a"}, Headrace_Deadline="1e3").status_code == 200


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Headrace-Deadline", "soon"),
        ("Headrace-Deadline", "-1"),
        ("Headrace-Deadline", "0"),
        ("Headrace-Deadline", "1, 2"),
        ("Headrace-Deadline", "nan"),
        ("Headrace-Deadline", "1e99"),
        ("Prefer", "wait=soon"),
        ("Prefer", "wait=-1"),
        ("Prefer", "wait=1.5"),
        ("Prefer", 'wait="1'),
    ],
)
def test_a_malformed_header(served: Site, name: str, value: str) -> None:
    document = problem(served.call("echo", {"text": "a"}, **{name: value}), 400, "malformed-header")

    assert f"`{name}`" in document["detail"]


@pytest.mark.parametrize("accept", ["*/*", "application/json", "text/html, application/*;q=0.1", ""])
def test_what_can_be_accepted(served: Site, accept: str) -> None:
    assert served.call("echo", {"text": "a"}, Accept=accept).status_code == 200


@pytest.mark.parametrize("accept", ["text/html", "application/json;q=0, */*", "text/event-stream;q=0"])
def test_what_cannot_be_accepted(served: Site, accept: str) -> None:
    response = served.call("echo", {"text": "a"}, Accept=accept)

    assert "application/json" in problem(response, 406, "not-acceptable")["detail"]


# ---------------------------------------------------------------------- how functions fail


def test_a_function_refuses_its_input(served: Site) -> None:
    document = problem(served.call("refuses", {}), 422, "invalid-input")

    assert document["detail"] == "the moon is not in its phase"
    assert document["errors"] == [{"path": "/phase", "message": "the moon is not in its phase"}]


def test_a_permanent_errors_message_is_for_the_caller(served: Site) -> None:
    document = problem(served.call("fails", {}), 500, "function-failed")

    assert (document["detail"], document["attempt"]) == ("the archive has burnt down", 1)


def test_any_other_exceptions_message_is_nobodys_business(served: Site) -> None:
    response = served.call("breaks", {})

    problem(response, 500, "function-failed")
    assert "secret" not in response.text
    failed = eventually(lambda: served["runner-0"].lines("function breaks failed"), "the runner's line")
    assert "RuntimeError at " in failed[-1]["event"]
    assert "site_functions.py:" in failed[-1]["event"]
    assert all("secret" not in process.output() for process in served.processes)


def test_a_function_that_exits_has_failed(served: Site) -> None:
    problem(served.call("leaves", {}), 500, "function-failed")
    assert served.call("echo", {"text": "a"}).status_code == 200


def test_a_passing_error_is_tried_again(served: Site) -> None:
    response = served.call("recovers", {})

    assert (response.status_code, response.json()["attempt"]) == (200, 3)


def test_running_out_of_memory_may_pass_too(served: Site) -> None:
    response = served.call("swells", {})

    assert (response.status_code, response.json()["attempt"]) == (200, 2)


def test_an_error_that_does_not_pass_ends_the_attempts(served: Site) -> None:
    response = served.call("never_recovers", {})

    assert problem(response, 500, "attempts-exhausted")["attempt"] == 2
    assert "not yet" not in response.text


def test_an_output_that_was_not_declared(served: Site) -> None:
    response = served.call("lies", {})

    problem(response, 500, "invalid-output")
    assert "not a witness" not in response.text


def test_an_output_over_its_limit(served: Site) -> None:
    at_the_limit = served.call("talks", {"characters": 1022})
    assert (at_the_limit.status_code, len(at_the_limit.content)) == (200, 1024)

    document = problem(served.call("talks", {"characters": 1023}), 500, "invalid-output")
    assert "1025 bytes, the function's limit is 1024" in document["detail"]


# ---------------------------------------------------------------------- a client that leaves


@pytest.mark.parametrize("function", ["watched", "watched_async"])
def test_the_work_stops_when_its_client_leaves(served: Site, tmp_path: Path, function: str) -> None:
    leave_in_the_middle(served, function, tmp_path / "notes")


def test_the_work_stops_where_an_executor_reads_between_two_steps(clones: Clones, tmp_path: Path) -> None:
    """An executor that has only synchronous functions has no thread that reads."""
    with clones.migrated() as url, site(url, runners=0) as alone:
        alone.write_module("alone", "from site_functions import watched")
        alone.start_runner(HEADRACE_FUNCTIONS="alone")
        eventually(lambda: alone.get("/fn/watched").status_code == 200, "it is registered")
        alone.wait_ready()
        leave_in_the_middle(alone, "watched", tmp_path / "notes")


def leave_in_the_middle(served: Site, function: str, notes: Path) -> None:
    body = b'{"path": "%b"}' % str(notes).encode()
    request_id = str(uuid.uuid4())
    head = (
        f"POST /fn/{function} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {served.key}\r\n"
        f"X-Request-Id: {request_id}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as connection:
        connection.sendall(head.encode() + body)
        eventually(lambda: notes.exists() and notes.read_text() == "started\n", "the function runs")

    eventually(lambda: notes.read_text() == "started\nstopped\n", "the function stops", within=2)
    line = eventually(lambda: served.access_lines(request_id), "the access line")[0]
    assert (line["status"], line["code"], line["function"]) == (499, "client-left", function)
