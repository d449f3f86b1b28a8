from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import pytest
from harness.scripted_site import Answer, ScriptedSite, document, event, scripted_site, stream

from headrace.client import CallRefused, Client, Event, Unreachable, events, following
from headrace.client.errors import STATUSES
from headrace.gateway.problem_kinds import KINDS
from headrace.site.address import free_port

JOB = "0199e0a0-0000-7000-8000-000000000001"
QUEUED = {"job_id": JOB, "status": "queued", "attempt": 0}
RUNNING = {"job_id": JOB, "status": "running", "attempt": 1}
DONE = {"job_id": JOB, "status": "succeeded", "attempt": 1, "result": 3}
PATH = f"/jobs/{JOB}"
STATES = [
    event("state", 1, {"status": "queued", "attempt": 0}),
    event("state", 2, {"status": "running", "attempt": 1}),
]
RESULT = event("result", 4, {"result": "a\u2028b"})


@pytest.fixture
def site() -> Iterator[ScriptedSite]:
    with scripted_site() as made:
        yield made


@pytest.fixture
def client(site: ScriptedSite) -> Iterator[Client]:
    with Client(site.url, "hr_x") as made:
        yield made


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_PAUSE_S", 0.01)
    monkeypatch.setattr(events, "PATIENCE_S", 0.2)


def test_a_submitted_call_is_a_job(site: ScriptedSite, client: Client) -> None:
    site.on("POST /fn/echo", document(QUEUED, 202))

    assert client.submit("echo", {"text": "ü"}) == QUEUED
    client.submit("echo", b"[1]")

    first, second = site.asked
    assert first.headers["Prefer"] == second.headers["Prefer"] == "respond-async"
    assert first.headers["Authorization"] == "Bearer hr_x"
    assert (json.loads(first.body), second.body) == ({"text": "ü"}, b"[1]")
    assert second.headers["Content-Type"] == "application/json"


def test_a_submitted_call_may_be_given_time(site: ScriptedSite, client: Client) -> None:
    site.on("POST /fn/echo", document(3, 200, Headrace_Job_Id=JOB))
    site.on(f"GET {PATH}", document(DONE))

    assert client.submit("echo", {}, wait=5) == DONE
    assert site.asked[0].headers["Prefer"] == "respond-async, wait=5"


def test_calls_and_batches_say_what_they_wish(site: ScriptedSite, client: Client) -> None:
    site.on("POST /fn/echo", document(3))
    site.on("POST /fn/echo/batch", document({"batch_id": JOB}, 202))
    client.call("echo", {}, deadline=0.00001, priority="high")
    client.batch("echo", [{}], deadline=90, priority="low")
    client.call("echo", {})

    wishes = [(one.headers["Headrace-Deadline"], one.headers["Headrace-Priority"]) for one in site.asked]
    assert wishes == [("1e-05", "high"), ("90", "low"), (None, None)]


def test_an_output_without_a_job_is_no_job(site: ScriptedSite, client: Client) -> None:
    site.on("POST /fn/echo", document(3))

    with pytest.raises(Unreachable, match="answered with an output, not with a job"):
        client.submit("echo", {})


def test_a_job_is_waited_for_where_that_is_asked(site: ScriptedSite, client: Client) -> None:
    site.on(f"GET {PATH}", document(RUNNING))

    assert client.job(JOB) == RUNNING
    assert client.job(JOB, wait=30) == RUNNING
    assert [one.headers["Prefer"] for one in site.asked] == [None, "wait=30"]


def test_jobs_come_in_pages(site: ScriptedSite, client: Client) -> None:
    site.on("GET /jobs", document({"items": [DONE], "next": "abc"}), document({"items": [], "next": None}))

    assert client.jobs(status="succeeded", function="a b", limit=1) == ([DONE], "abc")
    assert client.jobs(cursor="abc") == ([], None)
    assert [one.path for one in site.asked] == [
        "/jobs?status=succeeded&function=a+b&limit=1",
        "/jobs?cursor=abc",
    ]


def test_result_and_cancel(site: ScriptedSite, client: Client) -> None:
    site.on(f"GET {PATH}/result", document([1, 2]))
    site.on(f"POST {PATH}/cancel", document({**RUNNING, "status": "cancel_requested"}, 202))

    assert client.result(JOB) == [1, 2]
    assert client.cancel(JOB)["status"] == "cancel_requested"


def test_a_refusal_is_the_same_error_as_of_a_call(site: ScriptedSite, client: Client) -> None:
    site.on(f"GET {PATH}/result", document({"code": "not-finished", "title": "No"}, 409, Retry_After="3"))

    with pytest.raises(CallRefused) as caught:
        client.result(JOB)
    assert (caught.value.code, caught.value.status, caught.value.retry_after) == ("not-finished", 409, 3)


def test_what_is_no_object_is_no_gateways(site: ScriptedSite, client: Client) -> None:
    site.on(f"GET {PATH}", document([]))

    with pytest.raises(Unreachable, match="no JSON object"):
        client.job(JOB)


# ---------------------------------------------------------------------- events


def test_who_has_the_last_event_gets_none(site: ScriptedSite, client: Client) -> None:
    site.on(f"GET {PATH}/events", Answer(204))

    assert list(client.events(JOB, "4")) == []
    assert len(site.asked) == 1


def test_events_end_with_the_terminal_one(site: ScriptedSite, client: Client) -> None:
    site.on(
        f"GET {PATH}/events",
        stream(b"retry: 1000\n\n", *STATES, b": heartbeat\n\n", RESULT, event("state", 5, {"late": True})),
    )

    assert list(client.events(JOB)) == [
        Event("state", "1", {"status": "queued", "attempt": 0}),
        Event("state", "2", {"status": "running", "attempt": 1}),
        Event("result", "4", {"result": "a\u2028b"}),
    ]
    assert site.asked[0].headers["Accept"] == "text/event-stream"
    assert site.asked[0].headers["Last-Event-ID"] is None


def test_an_event_is_told_when_it_comes_however_it_is_cut(site: ScriptedSite, client: Client) -> None:
    seen = threading.Event()
    middle = len(RESULT) // 2
    site.on(f"GET {PATH}/events", stream(STATES[0], seen, RESULT[:middle], RESULT[middle:]))

    following = client.events(JOB)
    assert next(following).event_id == "1"
    seen.set()  # only now the rest is sent
    assert next(following).kind == "result"


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("is_cut", [True, False])
def test_a_lost_connection_is_taken_up_where_it_ended(
    site: ScriptedSite, client: Client, is_cut: bool
) -> None:
    site.on(f"GET {PATH}/events", stream(*STATES, is_cut=is_cut), stream(is_cut=is_cut), stream(RESULT))

    assert [one.event_id for one in client.events(JOB)] == ["1", "2", "4"]
    assert [one.headers["Last-Event-ID"] for one in site.asked] == [None, "2", "2"]


def test_events_may_begin_later(site: ScriptedSite, client: Client) -> None:
    site.on(f"GET {PATH}/events", stream(RESULT))

    assert len(list(client.events(JOB, "3"))) == 1
    assert site.asked[0].headers["Last-Event-ID"] == "3"


@pytest.mark.usefixtures("impatient")
def test_retry_after_is_honoured(site: ScriptedSite, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(events.time, "sleep", slept.append)
    monkeypatch.setattr(events, "PATIENCE_S", 10)
    busy = document({"code": "database-unavailable", "title": "No"}, 503, Retry_After="5")
    site.on(f"GET {PATH}/events", busy, stream(STATES[0]), busy, stream(RESULT))

    assert [one.event_id for one in client.events(JOB)] == ["1", "4"]
    assert [pause for pause in slept if pause > 1] == [5, 5]


def test_a_retry_after_of_nothing_is_no_reason_to_ask_without_a_pause(
    site: ScriptedSite, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(events.time, "sleep", slept.append)
    busy = document({"code": "busy", "title": "No"}, 503, Retry_After="0")
    site.on(f"GET {PATH}/events", busy, busy, stream(RESULT))

    assert len(list(client.events(JOB))) == 1
    assert len(slept) == 2
    assert all(pause >= events._PAUSE_S / 2 for pause in slept)


@pytest.mark.usefixtures("impatient")
def test_patience_with_a_lost_connection_has_an_end(site: ScriptedSite, client: Client) -> None:
    site.on(f"GET {PATH}/events", stream(STATES[0]), stream())

    with pytest.raises(Unreachable, match="the events ended before the job did"):
        list(client.events(JOB))
    assert len(site.asked) > 2


@pytest.mark.usefixtures("impatient")
def test_an_outage_is_told_once(site: ScriptedSite, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "PATIENCE_S", 10)
    busy = document({"code": "database-unavailable", "title": "No"}, 503)
    told: list[str] = []
    site.on(f"GET {PATH}/events", stream(STATES[0]), busy, busy, stream(STATES[1]), busy, stream(RESULT))

    list(client.events(JOB, on_outage=lambda error: told.append(str(error))))
    assert told == ["No", "No"]


@pytest.mark.usefixtures("impatient")
def test_a_refusal_that_does_not_pass_ends_the_events(site: ScriptedSite, client: Client) -> None:
    busy = document({"code": "busy", "title": "Not now"}, 503, Retry_After="60")
    site.on(f"GET {PATH}/events", stream(STATES[0]), busy)
    with pytest.raises(CallRefused, match="Not now"):  # longer than anybody waits
        list(client.events(JOB))

    site.on(f"GET {PATH}/events", document({"code": "unknown-job", "title": "No such job"}, 404))
    with pytest.raises(CallRefused, match="No such job"):
        list(client.events(JOB))
    assert len(site.asked) == 3


def test_a_gateway_that_is_down_is_said_at_once() -> None:
    with (
        Client(f"http://127.0.0.1:{free_port('127.0.0.1')}") as client,
        pytest.raises(Unreachable, match="Connection refused"),
    ):
        next(client.events(JOB))


@pytest.mark.parametrize("answer", [stream(b"data: {\n\n"), document({"items": []})])
def test_what_is_no_stream_of_events_is_said(site: ScriptedSite, client: Client, answer: object) -> None:
    site.on(f"GET {PATH}/events", answer)

    with pytest.raises(Unreachable, match="not a Headrace gateway"):
        next(client.events(JOB))
    assert len(site.asked) == 1


# ---------------------------------------------------------------------- idempotency keys


def test_a_call_with_a_key_is_made_once_and_its_job_is_followed(
    site: ScriptedSite, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made again and again, each try would count against the key's rate."""
    monkeypatch.setattr("headrace.client.following.time.sleep", lambda _: None)
    site.on("POST /fn/echo", document(QUEUED, 202), document({"code": "quota-exceeded"}, 429))
    site.on(f"GET {PATH}", document(RUNNING), document(DONE))

    assert client.call("echo", {"text": "a"}, idempotency_key='once "more"') == 3
    (made,) = site.requests("POST")
    assert made.headers["Idempotency-Key"] == r'"once \"more\""'


def test_a_job_may_have_a_key(site: ScriptedSite, client: Client) -> None:
    site.on("POST /fn/echo", document(QUEUED, 202))

    assert client.submit("echo", b"[1]", idempotency_key="k") == QUEUED
    (asked,) = site.asked
    assert (asked.headers["Idempotency-Key"], asked.headers["Prefer"]) == ('"k"', "respond-async")
    assert asked.headers["Content-Type"] == "application/json"


# ---------------------------------------------------------------------- calls that became jobs


def test_a_call_that_became_a_job_is_followed_to_its_output(
    site: ScriptedSite, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("headrace.client.following.time.sleep", pauses.append)
    site.on("POST /fn/echo", document(RUNNING, 202))
    site.on(f"GET {PATH}", document(RUNNING), document(RUNNING), document(DONE))

    assert client.call("echo", {}) == 3
    assert [one.headers.get("Prefer") for one in site.asked] == [None, *["wait=50"] * 3]
    assert len(pauses) == 2  # the site answered at once: it would be asked without end


def test_a_large_output_is_fetched(site: ScriptedSite, client: Client) -> None:
    site.on("POST /fn/echo", document({"job_id": JOB, "status": "succeeded", "result_url": "x"}, 202))
    site.on(f"GET {PATH}/result", document([1]))

    assert client.call("echo", {}) == [1]


AWAY = document({"code": "database-unavailable", "title": "No", "detail": "Not now."}, 503)


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_an_outage_is_waited_for_while_the_job_is_followed(
    site: ScriptedSite, client: Client, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("headrace.client.following.time.sleep", pauses.append)
    refusal = document({"code": "x", "title": "No"}, status, Retry_After="7")
    cut = Answer(200, [b"{"], {"Content-Length": "100", "Connection": "close"}, is_cut=True)
    site.on("POST /fn/echo", document(RUNNING, 202))
    site.on(f"GET {PATH}", cut, refusal, document({"job_id": JOB, "status": "succeeded", "result_url": "x"}))
    site.on(f"GET {PATH}/result", refusal, document([1]))

    assert client.call("echo", {}) == [1]
    assert pauses[1:] == [7, 7]


def test_who_loses_a_job_is_told_its_id(
    site: ScriptedSite, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "PATIENCE_S", 0.2)
    monkeypatch.setattr(following, "_FIRST_PAUSE_S", 0.01)
    site.on("POST /fn/echo", document(RUNNING, 202))
    site.on(f"GET {PATH}", AWAY)
    with pytest.raises(CallRefused, match=f"Not now. The call was accepted as the job {JOB}") as refused:
        client.call("echo", {})
    assert (refused.value.job_id, refused.value.code) == (JOB, "database-unavailable")
    assert len(site.requests("GET")) > 2

    site.on(f"GET {PATH}", document([]))
    with pytest.raises(Unreachable, match=f"accepted as the job {JOB}") as lost:
        client.call("echo", {})
    assert lost.value.job_id == JOB


def test_a_refusal_that_does_not_pass_is_not_waited_for(site: ScriptedSite, client: Client) -> None:
    site.on("POST /fn/echo", document(RUNNING, 202))
    site.on(f"GET {PATH}", document({"code": "forbidden", "title": "No"}, 403))

    with pytest.raises(CallRefused) as caught:
        client.call("echo", {})
    assert (caught.value.status, caught.value.job_id, len(site.requests("GET"))) == (403, JOB, 1)


def test_a_call_that_was_refused_has_no_job(site: ScriptedSite, client: Client) -> None:
    site.on("POST /fn/echo", AWAY)

    with pytest.raises(CallRefused) as caught:
        client.call("echo", {})
    assert (caught.value.job_id, len(site.asked)) == ("", 1)


@pytest.mark.parametrize(
    ("ended", "status", "code", "said"),
    [
        (
            {"status": "failed", "error": {"category": "worker-lost", "message": "Its process ended."}},
            502,
            "worker-lost",
            "The job failed: Its process ended.",
        ),
        ({"status": "failed", "error": {"category": "new", "message": "?"}}, 500, "new", "The job failed: ?"),
        ({"status": "cancelled", "error": None}, 409, "job-cancelled", "The job was cancelled"),
    ],
)
def test_a_job_that_ends_without_a_result_is_the_error_that_the_call_would_have_been(
    site: ScriptedSite, client: Client, ended: dict[str, object], status: int, code: str, said: str
) -> None:
    site.on("POST /fn/echo", document(RUNNING, 202))
    site.on(f"GET {PATH}", document({"job_id": JOB, **ended}))

    with pytest.raises(CallRefused) as caught:
        client.call("echo", {})
    error = caught.value
    assert (error.status, error.code, str(error)) == (status, code, said)


def test_a_job_that_ended_badly_has_the_status_of_its_problem() -> None:
    assert {code: KINDS[code].status for code in STATUSES if code in KINDS} == STATUSES
