"""A stream of a call with an idempotency key: it goes on over lost connections, and tells of lost starts."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from harness.scripted_site import Answer, ScriptedSite, document, event, scripted_site, stream

from headrace.client import CallRefused, Client, ClientError, Restarted, Unreachable, events
from headrace.site.address import free_port

JOB = "0199e0a0-0000-7000-8000-000000000001"
STATES = [
    event("state", 1, {"status": "queued", "attempt": 0}),
    event("state", 2, {"status": "running", "attempt": 1}),
]
ITEMS = [event("item", 3, "a"), event("item", 4, "b")]
AGAIN = [
    event("state", 5, {"status": "queued", "attempt": 1}),
    event("state", 6, {"status": "running", "attempt": 2}),
]
ENDED = {"job_id": JOB, "status": "succeeded", "attempt": 1}
RESULT = event("result", 9, {**ENDED, "result": "ab"})
BUSY = document({"code": "backlog-full", "title": "Too many jobs wait", "status": 503}, 503, Retry_After="0")


@pytest.fixture
def site() -> Iterator[ScriptedSite]:
    with scripted_site() as made:
        yield made


@pytest.fixture
def client(site: ScriptedSite) -> Iterator[Client]:
    with Client(site.url, "hr_x") as made:
        yield made


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_PAUSE_S", 0.01)


def told(*parts: bytes, is_cut: bool = False) -> Answer:
    answer = stream(*parts, is_cut=is_cut)
    answer.headers["Headrace-Job-Id"] = JOB
    return answer


@pytest.mark.parametrize("is_cut", [True, False])
def test_a_lost_connection_is_made_again_by_the_same_call(
    site: ScriptedSite, client: Client, is_cut: bool
) -> None:
    parts = [told(*STATES, ITEMS[0], is_cut=is_cut), BUSY, told(is_cut=is_cut), told(ITEMS[1], RESULT)]
    site.on("POST /fn/tell", *parts)
    outages: list[ClientError] = []

    items = client.stream(
        "tell", {"q": 1}, idempotency_key="k", deadline=3, priority="low", on_outage=outages.append
    )

    assert (list(items), items.result, items.job_id) == (["a", "b"], "ab", JOB)
    assert [one.headers["Last-Event-ID"] for one in site.asked] == [None, "3", "3", "3"]
    assert [type(error) for error in outages] == [CallRefused]
    for asked in site.asked:
        assert json.loads(asked.body) == {"q": 1}
        assert asked.headers["Accept"] == "text/event-stream"
        assert asked.headers["Headrace-Async"] is None
        wishes = [
            asked.headers[name] for name in ("Idempotency-Key", "Headrace-Deadline", "Headrace-Priority")
        ]
        assert wishes == ['"k"', "3", "low"]


@pytest.mark.parametrize("end", range(1, len(ITEMS[1])))
def test_an_event_that_is_cut_off_anywhere_is_asked_for_again(
    site: ScriptedSite, client: Client, end: int
) -> None:
    cut = told(*STATES, ITEMS[0], ITEMS[1][:end])  # as when a proxy ends: no error tells of it
    site.on("POST /fn/tell", cut, told(ITEMS[1], RESULT))

    assert list(client.stream("tell", {}, idempotency_key="k")) == ["a", "b"]
    assert [one.headers["Last-Event-ID"] for one in site.asked] == [None, "3"]


def test_a_lost_start_makes_the_items_void(site: ScriptedSite, client: Client) -> None:
    site.on("POST /fn/tell", told(*STATES, *ITEMS, *AGAIN, event("item", 7, "c"), RESULT))

    items = client.stream("tell", {}, idempotency_key="k")
    reading = iter(items)
    assert [next(reading), next(reading)] == ["a", "b"]
    with pytest.raises(Restarted, match="the 2 items so far are void") as caught:
        next(reading)
    assert (caught.value.void, caught.value.job_id, items.result) == (2, JOB, None)

    void: list[int] = []
    items = client.stream("tell", {}, idempotency_key="k", on_restart=void.append)
    assert (list(items), items.result, void) == (["a", "b", "c"], "ab", [2])


def test_a_start_that_was_lost_before_its_first_item_needs_no_telling(
    site: ScriptedSite, client: Client
) -> None:
    site.on("POST /fn/tell", told(*STATES, *AGAIN, event("item", 7, "a"), RESULT))

    assert list(client.stream("tell", {}, idempotency_key="k")) == ["a"]


def test_progress_and_a_large_result(site: ScriptedSite, client: Client) -> None:
    large = event("result", 4, {**ENDED, "result_url": f"/jobs/{JOB}/result"})
    site.on("POST /fn/tell", told(*STATES, event("progress", 3, {"fraction": 0.5, "message": "half"}), large))
    site.on(f"GET /jobs/{JOB}/result", document("ab"))
    told_of: list[tuple[float, str]] = []

    items = client.stream("tell", {}, idempotency_key="k", on_progress=lambda *news: told_of.append(news))

    assert (list(items), items.result, told_of) == ([], "ab", [(0.5, "half")])


def test_a_failure_is_that_of_its_job(site: ScriptedSite, client: Client) -> None:
    error = {"category": "hard-limit-exceeded", "message": "It took too long.", "errors": []}
    failed = {"job_id": JOB, "status": "failed", "attempt": 1, "error": error}
    site.on("POST /fn/tell", told(*STATES, ITEMS[0], event("error", 4, failed)))

    reading = iter(client.stream("tell", {}, idempotency_key="k"))
    assert next(reading) == "a"
    with pytest.raises(CallRefused, match="It took too long") as caught:
        next(reading)
    assert (caught.value.status, caught.value.code, caught.value.job_id) == (504, "hard-limit-exceeded", JOB)


def test_what_refuses_the_call_at_first_is_its_answer(site: ScriptedSite, client: Client) -> None:
    site.on("POST /fn/tell", BUSY)

    with pytest.raises(CallRefused, match="Too many jobs wait"):
        list(client.stream("tell", {}, idempotency_key="k"))
    assert len(site.asked) == 1


def test_what_cant_be_gone_on_with_names_its_job(site: ScriptedSite, client: Client) -> None:
    gone = document({"code": "result-expired", "title": "The result has expired", "status": 410}, 410)
    site.on("POST /fn/tell", told(*STATES, ITEMS[0]), gone)

    with pytest.raises(CallRefused, match=JOB) as caught:
        list(client.stream("tell", {}, idempotency_key="k"))
    assert (caught.value.status, caught.value.job_id) == (410, JOB)


def test_patience_has_an_end(site: ScriptedSite, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "PATIENCE_S", 0.2)
    site.on("POST /fn/tell", told(*STATES, ITEMS[0]), told())

    with pytest.raises(Unreachable, match=JOB) as caught:
        list(client.stream("tell", {}, idempotency_key="k"))
    assert caught.value.job_id == JOB
    assert len(site.asked) > 2


@pytest.mark.parametrize(
    "answer",
    [
        document({"text": "all"}),
        told(event("state", 1, {})),
        told(event("progress", 1, {})),
        told(event("error", 1, [])),
        Answer(204),
    ],
)
def test_whatever_is_no_gateways(site: ScriptedSite, client: Client, answer: Answer) -> None:
    site.on("POST /fn/tell", answer)
    with pytest.raises(Unreachable):
        list(client.stream("tell", {}, idempotency_key="k"))


def test_nobody_answers() -> None:
    with Client(f"http://127.0.0.1:{free_port('127.0.0.1')}") as client, pytest.raises(Unreachable):
        list(client.stream("tell", {}, idempotency_key="k"))
