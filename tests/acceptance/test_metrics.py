"""What is counted and written: one line a call, the same in the metrics, and nothing that is confidential."""

from __future__ import annotations

import re
import uuid
from typing import Any

import pytest
from harness.site import Site, eventually

# One of each, to look for in all that the processes write.
INPUT = "in-7f3a9c"
OUTPUT = "out-7f3a9c"
MESSAGE = "message-7f3a9c"
WRONG_KEY = "hr_7f3a9c" + "x" * 37

CONFIDENTIAL = f'''\
from pydantic import BaseModel, field_validator
from headrace import InvalidInput, PermanentError, TransientError, function

ERRORS = {{error.__name__: error for error in (InvalidInput, PermanentError, TransientError)}}

class In(BaseModel):
    text: str
    then: str = ""

    @field_validator("then")
    @classmethod
    def _check(cls, then: str) -> str:
        if then == "validate":
            raise ValueError("{MESSAGE}")
        return then

@function(attempts=2)
def confide(input: In) -> str:
    """Has something to hide."""
    if input.then == "lie":
        return ["{OUTPUT}", input.text]
    if input.then == "break":
        raise KeyError("{MESSAGE}" + input.text)
    if input.then == "break within":
        try:
            int(input.text)
        except ValueError as error:
            raise RuntimeError("{MESSAGE}") from error
    if input.then in ERRORS:
        raise ERRORS[input.then]("{MESSAGE}" + input.text)
    return "{OUTPUT}" + input.text
'''


def line_of(served: Site, request_id: str) -> dict[str, Any]:
    """The access line of a request, of which there is exactly one."""
    (line,) = eventually(lambda: served.access_lines(request_id), "the access line")
    return line


@pytest.mark.parametrize(
    ("function", "input", "status", "code", "attempt"),
    [
        ("echo", {"text": "a"}, 200, "", 1),
        ("echo", {}, 422, "invalid-input", 0),
        ("no-such-function", {}, 404, "unknown-function", 0),
        ("refuses", {}, 422, "invalid-input", 1),
        ("recovers", {}, 200, "", 3),
        ("breaks", {}, 500, "function-failed", 1),
        ("dies_at_once", {}, 502, "worker-lost", 1),
        ("dies_once", {}, 200, "", 2),
        ("long_nap", {"seconds": 5}, 504, "hold-exceeded", 1),
        ("long_nap", {"seconds": 1}, 202, "", 1),
    ],
)
def test_a_call_has_one_line(
    served: Site, function: str, input: Any, status: int, code: str, attempt: int
) -> None:
    request_id = str(uuid.uuid4())
    never = {"Headrace_Async": "never"} if status == 504 else {}
    response = served.call(function, input, X_Request_Id=request_id, **never)
    line = line_of(served, request_id)

    assert response.status_code == status
    assert (line["event"], line["level"], line["status"], line["code"]) == ("call", "info", status, code)
    assert line["function"] == ("" if code == "unknown-function" else function)
    assert line["attempt"] == attempt
    assert uuid.UUID(line["owner"])
    if attempt:
        assert uuid.UUID(line["job_id"]).version == 7
        if status == 200 and function != "echo":
            assert line["job_id"] == response.json()["job_id"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["at"])
    assert line["total_ms"] >= line["queue_ms"] + line["exec_ms"] >= 0


def test_times_are_told_apart(served: Site) -> None:
    request_id = str(uuid.uuid4())
    assert served.call("nap", {"seconds": 0.2}, X_Request_Id=request_id).status_code == 200
    line = line_of(served, request_id)

    assert 200 <= line["exec_ms"] <= line["total_ms"] < 3000
    assert line["bytes_in"] == len('{"seconds": 0.2}')


def test_other_requests_have_a_line_too_and_probes_have_none(served: Site) -> None:
    request_id = str(uuid.uuid4())
    served.get("/healthz", X_Request_Id=request_id + "-probe")
    served.get("/fn/echo", X_Request_Id=request_id)
    line = line_of(served, request_id)

    assert (line["event"], line["status"]) == ("request", 200)
    assert (line["method"], line["path"]) == ("GET", "/fn/echo")
    assert served.access_lines(request_id + "-probe") == []


def test_a_hundred_calls_have_a_hundred_lines(served: Site) -> None:
    prefix = str(uuid.uuid4())
    for number in range(100):
        assert served.call("echo", {"text": "a"}, X_Request_Id=f"{prefix}-{number}").status_code == 200

    def lines() -> list[str]:
        return [
            line["request_id"]
            for line in served["gateway"].lines("call")
            if line["request_id"].startswith(prefix)
        ]

    eventually(lambda: len(lines()) >= 100, "all lines are written")
    assert sorted(lines()) == sorted(f"{prefix}-{number}" for number in range(100))
    served.call("echo", {"text": "a"}, X_Request_Id=f"{prefix}-last")
    eventually(lambda: len(lines()) > 100, "the line after them")
    assert len(lines()) == 101


def test_both_processes_count_a_call(served: Site) -> None:
    gateway, runner = served["gateway"], served["runner-0"]

    def counts() -> dict[str, float]:
        return {
            "200": served.metric(gateway, "headrace_calls_total", function="echo", status="200"),
            "422": served.metric(gateway, "headrace_calls_total", function="echo", status="422"),
            "404": served.metric(gateway, "headrace_calls_total", function="", status="404"),
            "seconds": served.metric(gateway, "headrace_call_seconds_count", function="echo"),
            "succeeded": served.metric(
                runner, "headrace_runner_executions_total", function="echo", outcome="succeeded"
            ),
            "waits": served.metric(runner, "headrace_runner_wait_seconds_count", function="echo"),
            "executions": served.metric(runner, "headrace_runner_execution_seconds_count", function="echo"),
        }

    before = counts()
    for _ in range(3):
        served.call("echo", {"text": "a"})
    served.call("echo", {})
    served.call("made-up-" + uuid.uuid4().hex, {})
    after = counts()

    assert {name: after[name] - before[name] for name in after} == {
        "200": 3,
        "422": 1,
        "404": 1,
        "seconds": 4,
        "succeeded": 3,
        "waits": 3,
        "executions": 3,
    }
    assert "made-up" not in served.client.get("/metrics").text


def test_failures_and_losses_are_counted(served: Site) -> None:
    gateway, runner = served["gateway"], served["runner-0"]
    executions = "headrace_runner_executions_total"

    def counts() -> list[float]:
        return [
            served.metric(runner, executions, function="dies_once", outcome="lost"),
            served.metric(runner, executions, function="fails", outcome="function-failed"),
            served.metric(runner, "headrace_runner_executor_losses_total"),
            served.metric(gateway, "headrace_call_restarts_total"),
        ]

    before = counts()
    served.call("dies_once", {})
    served.call("fails", {})
    assert [now - then for now, then in zip(counts(), before, strict=True)] == [1, 1, 1, 1]


def test_gauges_tell_the_present_state(served: Site) -> None:
    gateway, runner = served["gateway"], served["runner-0"]

    running = "headrace_runner_running_calls"
    assert served.metric(gateway, "headrace_runners_linked") == 1
    assert served.metric(gateway, "headrace_database_up") == 1
    assert served.metric(gateway, "headrace_functions") == len(served.get("/fn").json()["items"])
    assert served.metric(runner, "headrace_runner_executors_ready") == 1
    with served.calling(("nap", {"seconds": 1})):
        eventually(lambda: served.metric(gateway, "headrace_calls_in_flight") == 1, "it is in flight")
        eventually(lambda: served.metric(runner, running, slots="(main)") == 1, "it runs")
    assert served.metric(runner, running, slots="(main)") == 0


def test_nothing_confidential_is_written_anywhere(served: Site) -> None:
    served.write_module("confidential", CONFIDENTIAL)
    runner = served.start_runner("confidential", HEADRACE_FUNCTIONS="confidential")
    eventually(lambda: served.call("confide", {"text": "x"}).status_code == 200, "it is served")

    expected = {
        "": 200,
        "lie": 500,
        "break": 500,
        "break within": 500,
        "validate": 422,
        "InvalidInput": 422,
        "PermanentError": 500,
        "TransientError": 500,
    }
    for then, status in expected.items():
        response = served.call("confide", {"text": INPUT, "then": then})
        assert response.status_code == status, response.text
        public = then in {"validate", "InvalidInput", "PermanentError"}
        assert (MESSAGE in response.text) == public
        assert (OUTPUT in response.text) == (then == "")
    assert served.call("confide", {"text": [INPUT], INPUT: 1}).status_code == 422
    assert served.post("/fn/confide", b'{"text": "%b"' % INPUT.encode()).status_code == 400
    last = str(uuid.uuid4())
    refused = served.call("confide", {}, Authorization=f"Bearer {WRONG_KEY}", X_Request_Id=last)
    assert refused.status_code == 401
    line_of(served, last)
    eventually(lambda: len(runner.lines("function confide failed")) >= 3, "the failures are written")
    assert runner.stop() == 0

    for process in served.processes:
        for secret in (INPUT, OUTPUT, MESSAGE, WRONG_KEY, WRONG_KEY[:9], served.key, served.key[3:]):
            assert secret not in process.output(), process.name
