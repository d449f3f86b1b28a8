"""What the ledger is given of a call, and what its refusals are told as; the rest is seen over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest
from harness.scripted_calls import flexible, manifest

from headrace.domain import Priority
from headrace.errors import DatabaseUnavailable
from headrace.gateway import job_call, job_view
from headrace.gateway.asked import ToJob
from headrace.gateway.exchange import Exchange
from headrace.gateway.invoke import Invoke
from headrace.gateway.job_asked import JobCall
from headrace.gateway.job_call import JobCalls, digest_of
from headrace.gateway.metrics import GatewayMetrics
from headrace.gateway.preferences import Preferences, Wishes
from headrace.gateway.problems import Problem, to_problem
from headrace.gateway.refusals import refused
from headrace.ids import uuid7
from headrace.keys import KeyRow
from headrace.ledger import reading, submission
from headrace.ledger.reading import Job
from headrace.ledger.submission import NewJob, Receipt
from headrace.settings import Settings, load_settings

ASYNC = Preferences(respond_async=True)


class Watcher:
    gateway_id = "g"


def prepared(
    wishes: Wishes, *, key: KeyRow | None = None, settings: Settings | None = None, budget: Any = None
) -> JobCall:
    nothing: Any = None
    jobs = JobCalls(
        settings or load_settings(),
        nothing,
        nothing,
        cast("Any", Watcher()),
        nothing,
        lambda: 0.0,
        GatewayMetrics(),
    )
    exchange = Exchange({}, uuid7(), "r", nothing, nothing, nothing)
    return jobs.prepare(exchange, manifest(), (b"{}", {}), key or KeyRow("k", "o", "o"), wishes)


@pytest.mark.parametrize(
    ("asked", "highest", "weight"),
    [
        (None, "high", 1.0),
        ("high", "high", 4.0),
        ("normal", "high", 1.0),
        ("low", "high", 0.25),
        (None, "normal", 1.0),
        (None, "low", 0.25),
    ],
)
def test_a_priority_is_a_weight(asked: Priority | None, highest: Priority, weight: float) -> None:
    key = KeyRow("k", "o", "o", highest_priority=highest)
    assert prepared(Wishes(priority=asked), key=key).new.weight == weight


def test_the_settings_bound_what_waits() -> None:
    unbound = prepared(Wishes(ASYNC)).new
    assert (unbound.most_cost, unbound.most_age_s) == (None, None)

    settings = load_settings(backlog=5, backlog_cost=7.5, backlog_age=30)
    bound = prepared(Wishes(ASYNC), settings=settings).new
    assert (bound.most_waiting, bound.most_cost, bound.most_age_s) == (5, 7.5, 30)


def test_a_call_with_a_key_is_held_as_a_direct_call_is() -> None:
    sync = manifest().budget.sync
    settings = load_settings(max_hold=sync - 0.5)

    def hold(settings: Settings | None = None, **prefer: Any) -> float:
        return prepared(Wishes(Preferences(**prefer), 0.1, "k"), settings=settings).hold

    assert hold() == hold(wait=10_000) == sync
    assert hold(wait=1) == 1
    assert hold(settings) == hold(settings, wait=10_000) == sync - 0.5
    assert hold(respond_async=True) == 0
    assert hold(respond_async=True, wait=20) == 20


@pytest.mark.parametrize("way", ["accepted", "replayed", "recalled"])
def test_a_call_that_waits_for_its_job_does_not_keep_its_input(
    monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    body = bytes([32] * 1000)
    waits: list[int] = []
    nothing: Any = None

    class Submitter:
        async def submit(self, new: NewJob) -> Receipt:
            job_id = new.job_id if way == "accepted" else "j0"
            return receipt_of(job_id, cast("Any", way))

    class Watcher:
        gateway_id = actor = "g"

        def watch(self, _job_id: str) -> Any:
            return contextlib.nullcontext(SimpleNamespace(has_left=False, stir=lambda: None))

        async def begin(self, _watch: Any, *, follow: bool) -> None: ...

        async def until_final(self, *_: Any) -> None:
            waits.append(sys.getrefcount(body))

    class Directory:
        def was_served(self, *_: Any) -> bool:
            return way != "recalled"

    async def find(*_: Any, **_more: Any) -> Any:
        return SimpleNamespace(
            job_id="j0", state="queued", attempt=0, waited_s=0, execution_s=0, error_category=None
        )

    async def remembered(*_: Any) -> Any:
        return SimpleNamespace(job_id="j0", digest=digest_of({}))

    monkeypatch.setattr(reading, "find", find)
    monkeypatch.setattr(submission, "remembered", remembered)
    monkeypatch.setattr(job_view, "encode_job", lambda _job, _root: b"")
    jobs = JobCalls(
        load_settings(),
        cast("Any", Directory()),
        cast("Any", Submitter()),
        cast("Any", Watcher()),
        nothing,
        lambda: 0.0,
        GatewayMetrics(),
    )

    async def send(_message: Any) -> None: ...

    exchange = Exchange({}, uuid7(), "r", nothing, send, nothing)
    before = sys.getrefcount(body)
    wishes = Wishes(Preferences(respond_async=True, wait=50), None, "k")
    call = jobs.prepare(exchange, manifest(), (body, {}), KeyRow("k", "o", "o"), wishes)
    assert sys.getrefcount(body) == before + 1

    asyncio.run(jobs.answer(exchange, call))
    assert waits == [before]
    assert (exchange.status, exchange.is_replay) == (202, way != "accepted")


@pytest.mark.parametrize(
    ("end", "status", "code"),
    [
        ("result", 200, ""),
        ("function-failed", 200, "function-failed"),
        ("cut-off", 200, ""),
        ("client-left", 499, "client-left"),
    ],
)
def test_a_followed_job_counts_as_accepted_whatever_became_of_it(
    monkeypatch: pytest.MonkeyPatch, end: str, status: int, code: str
) -> None:
    nothing: Any = None

    class Submitter:
        async def submit(self, new: NewJob) -> Receipt:
            return receipt_of(new.job_id, "accepted")

    class Directory:
        def was_served(self, *_: Any) -> bool:
            return True

    class Events:
        items, job = 3, None

        def __init__(self, *_: Any) -> None:
            self.end = end

        async def follow(self, *_: Any) -> None: ...

    async def ignored(*_: Any) -> Any: ...

    async def accept(exchange: Exchange, _name: str) -> Any:
        exchange.wants_events, exchange.function, exchange.metrics = True, "f", metrics.of("f")
        return jobs.prepare(exchange, manifest(), (b"{}", {}), KeyRow("k", "o", "o"), Wishes(ASYNC))

    monkeypatch.setattr(job_call, "EventStream", Events)
    settings, metrics, written = load_settings(), GatewayMetrics(), list[dict[str, Any]]()
    jobs = JobCalls(
        settings,
        cast("Any", Directory()),
        cast("Any", Submitter()),
        cast("Any", Watcher()),
        nothing,
        lambda: 0.0,
        metrics,
    )
    invoke = Invoke(settings, nothing, nothing, nothing, nothing, jobs, nothing, metrics)
    monkeypatch.setattr(invoke, "_accept", accept)
    monkeypatch.setattr(invoke, "_access", SimpleNamespace(info=lambda _, **line: written.append(line)))
    scope: Any = {"headers": [], "path_params": {"name": "f"}}
    asyncio.run(invoke._handle(scope, ignored, ignored))

    (line,) = written
    assert (line["status"], line["code"], line["items"]) == (status, code, 3)
    assert [(series[1], seen.number) for series, seen in metrics.usage._present.items()] == [("accepted", 1)]
    ended = {"function": "f", "end": end}
    assert metrics.registry.get_sample_value("headrace_streams_total", ended) == 1
    assert metrics.registry.get_sample_value("headrace_stream_items_total", {"function": "f"}) == 3


def receipt_of(job_id: str, outcome: Any) -> Receipt:
    return Receipt(
        job_id=job_id,
        outcome=outcome,
        state="queued" if outcome in ("accepted", "replayed") else None,
        created_at=None,
        queue_deadline_at=None,
        deadline_at=None,
        outstanding=0,
    )


@pytest.mark.parametrize(
    ("outcome", "code", "said"),
    [
        ("quota-exceeded", "quota-exceeded", "unfinished jobs"),
        ("backlog-full", "backlog-full", "As many jobs"),
        ("backlog-costly", "backlog-full", "cost"),
        ("backlog-old", "backlog-full", "so long"),
        ("key-conflict", "key-conflict", "job j0"),
    ],
)
def test_what_the_ledger_refuses_is_told(outcome: Any, code: str, said: str) -> None:
    problem = refused(prepared(Wishes(ASYNC)).new, receipt_of("j0", outcome))

    assert problem.code == code
    assert said in problem.detail
    assert ("Retry-After" in problem.headers) == (code != "key-conflict")


# ---------------------------------------------------------------------- calls that became jobs


def job_of(state: str, **more: Any) -> Job:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    told: dict[str, Any] = {
        **dict.fromkeys(Job.__struct_fields__),
        **dict.fromkeys(("attempts", "charged", "sequence", "progress_sequence"), 0),
        **dict.fromkeys(("created_at", "queue_deadline_at", "deadline_at"), now),
        "job_id": "j1",
        "function": "echo",
        "state": state,
        "attempt": 2,
        "error_errors": [],
        "waited_s": 0.25,
        "execution_s": 3.0,
        **more,
    }
    return Job(**told)


class Answered:
    """What a client is answered by `JobCalls` on a ledger where a job stands so; None: Postgres is silent.

    Args:
        job: as it stands.
        outcome: what comes of a submission; or what it raises.
        away: seconds since Postgres last answered.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        job: Job | None,
        outcome: str | Exception = "replayed",
        away: float = 0.0,
    ) -> None:
        async def find(*_: Any, actor: str, within: float | None = None) -> Job:
            self.reads.append(within)
            if job is None:
                raise DatabaseUnavailable("away")
            return job

        async def result(*_: Any, within: float | None = None) -> bytes:
            self.reads.append(within)
            raise DatabaseUnavailable("away")

        async def send(message: Any) -> None:
            self.messages.append(message)

        class Submitter:
            async def submit(self, new: NewJob) -> Receipt:
                if isinstance(outcome, Exception):
                    raise outcome
                return receipt_of(new.job_id, outcome)

        def was_served(_name: str, _interface: str, seconds: float) -> bool:
            self.looked.append(seconds)
            return self.is_served

        monkeypatch.setattr(reading, "find", find)
        monkeypatch.setattr(reading, "result", result)
        nothing: Any = None
        watcher: Any = SimpleNamespace(gateway_id="g", actor="g")
        served: Any = SimpleNamespace(was_served=was_served)
        submitter: Any = Submitter()
        self.metrics = GatewayMetrics()
        self.jobs = JobCalls(load_settings(), served, submitter, watcher, nothing, lambda: away, self.metrics)
        self.reads: list[float | None] = []
        self.looked: list[float] = []
        self.is_served = True
        self.messages: list[Any] = []
        self.exchange = Exchange({}, "j1", "r", nothing, send, nothing)
        self.asked = flexible()
        self.asked.job_id = "j1"

    def submitted(self, why: Any, elapsed: float = 1.0) -> Problem | None:
        """Submit the call and answer it; returns the problem that is the answer."""
        try:
            call = self.jobs.become(self.asked, elapsed, 0.0, why)
            asyncio.run(self.jobs.answer(self.exchange, call))
        except Exception as error:
            return to_problem(error)
        return None

    def counted(self, reason: str) -> float:
        """Calls that became jobs for that reason."""
        labels = {"function": "echo", "reason": reason}
        return self.metrics.registry.get_sample_value("headrace_calls_became_jobs_total", labels) or 0.0

    @property
    def body(self) -> Any:
        return json.loads(self.messages[1]["body"])

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.messages[0]["headers"])


def test_a_call_that_was_handed_over_is_answered_as_its_job_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    running = Answered(monkeypatch, job_of("running"))
    asyncio.run(running.jobs.handed(running.exchange, running.asked, "j1"))
    assert (running.exchange.status, running.body["status"], running.body["attempt"]) == (202, "running", 2)
    assert running.headers[b"headrace-job-id"] == b"j1"
    assert running.headers[b"location"] == b"/jobs/j1"
    assert (running.asked.attempt, running.asked.queue_ms, running.asked.exec_ms) == (2, 250, 3000)

    ended = Answered(monkeypatch, job_of("succeeded", small_result=b'"done"'))
    asyncio.run(ended.jobs.handed(ended.exchange, ended.asked, "j1"))
    assert (ended.exchange.status, ended.body) == (200, "done")

    failed = Answered(monkeypatch, job_of("failed", error_category="worker-lost", error_message="Gone."))
    with pytest.raises(Problem) as caught:
        asyncio.run(failed.jobs.handed(failed.exchange, failed.asked, "j1"))
    assert (caught.value.code, caught.value.detail) == ("worker-lost", "Gone.")


def test_where_postgres_falls_silent_after_the_handover_the_job_is_told_of_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    silent = Answered(monkeypatch, None)
    asyncio.run(silent.jobs.handed(silent.exchange, silent.asked, "j1"))
    assert (silent.exchange.status, silent.body["status"]) == (202, "running")
    assert silent.body.keys() >= {"job_id", "status_url", "function", "created_at", "attempt"}


def test_after_a_handover_postgres_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hold is over by then, and a proxy in front may cut the connection any time."""
    large = Answered(monkeypatch, job_of("succeeded", result_size=10**6))
    asyncio.run(large.jobs.handed(large.exchange, large.asked, "j1"))
    assert large.reads == [1, 1]
    assert (large.exchange.status, large.body["result_url"]) == (202, "/jobs/j1/result")

    away = Answered(monkeypatch, job_of("running"), away=60)
    asyncio.run(away.jobs.handed(away.exchange, away.asked, "j1"))
    assert away.reads == []
    assert away.exchange.status == 202


def test_a_202_names_the_starts_that_are_known_though_the_job_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handed = Answered(monkeypatch, None)
    handed.asked.attempt = 2
    asyncio.run(handed.jobs.handed(handed.exchange, handed.asked, "j1"))
    assert handed.body["attempt"] == 2

    submitted = Answered(monkeypatch, None, "accepted")
    assert submitted.submitted(ToJob(3, 1, "lost")) is None
    assert (submitted.exchange.status, submitted.body["attempt"]) == (202, 3)


# ---------------------------------------------------------------------- calls that may be jobs already


REFUSALS: list[tuple[str | Exception, float, str]] = [
    ("quota-exceeded", 0.0, "quota-exceeded"),
    ("backlog-full", 0.0, "backlog-full"),
    (DatabaseUnavailable("away"), 0.0, "database-unavailable"),
    (Problem("busy", "Too many large inputs wait to be recorded."), 0.0, "busy"),
    ("accepted", 60.0, "database-unavailable"),
]


@pytest.mark.parametrize(("outcome", "away", "code"), REFUSALS)
def test_what_may_be_recorded_is_named_where_it_cannot_be_submitted(
    monkeypatch: pytest.MonkeyPatch, outcome: str | Exception, away: float, code: str
) -> None:
    here = Answered(monkeypatch, None, outcome, away)
    here.asked.is_handed_over = True
    found = here.submitted(ToJob(1, 1, "lost"))
    assert found is not None
    assert (found.code, found.extra["job_id"], found.headers["Headrace-Job-Id"]) == (code, "j1", "j1")
    assert "isn't known. `GET /jobs/j1` tells" in found.detail
    assert "Retry-After" in found.headers  # as without


@pytest.mark.parametrize(("outcome", "away", "code"), REFUSALS)
@pytest.mark.parametrize("is_withdrawn", [False, True])
def test_what_is_recorded_nowhere_is_named_nowhere(
    monkeypatch: pytest.MonkeyPatch, is_withdrawn: bool, outcome: str | Exception, away: float, code: str
) -> None:
    here = Answered(monkeypatch, None, outcome, away)
    here.asked.is_handed_over = here.asked.is_withdrawn = is_withdrawn
    found = here.submitted(ToJob(0, 0, "withdrawn"))
    assert found is not None
    assert (found.code, "job_id" in found.extra, "Headrace-Job-Id" in found.headers) == (code, False, False)


def test_a_job_that_has_ended_badly_is_told_of_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Answered(monkeypatch, job_of("failed", error_category="worker-lost", error_message="Gone."))
    here.asked.is_handed_over = True
    found = here.submitted(ToJob(1, 1, "lost"))
    assert found is not None
    assert (found.code, found.detail, found.extra["job_id"]) == ("worker-lost", "Gone.", "j1")


def test_without_time_to_submit_it_what_may_be_recorded_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Answered(monkeypatch, None)
    here.asked.is_handed_over = True
    found = here.submitted(ToJob(1, 1, "lost"), elapsed=1e6)
    assert found is not None
    assert (found.code, found.extra) == ("deadline-exceeded", {"job_id": "j1"})


def test_a_late_call_is_refused_for_want_of_a_runner_by_the_whole_queue_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = Answered(monkeypatch, None, "accepted")
    here.is_served = False
    found = here.submitted(ToJob(0, 0, "full"), elapsed=4.0)
    assert found is not None
    assert found.code == "no-runner"
    assert here.looked == [here.asked.manifest.budget.queue]


def test_what_may_be_recorded_is_looked_for_though_no_runner_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Answered(monkeypatch, job_of("running"))
    here.is_served, here.asked.is_handed_over = False, True
    assert here.submitted(ToJob(1, 1, "lost")) is None
    assert (here.exchange.status, here.body["status"]) == (202, "running")


@pytest.mark.parametrize(
    ("outcome", "number"), [("accepted", 1), ("replayed", 1), ("quota-exceeded", 0), ("backlog-full", 0)]
)
@pytest.mark.parametrize("why", [ToJob(0, 0, "full"), "over-hold"])
def test_a_call_counts_as_a_job_once_it_is_accepted(
    monkeypatch: pytest.MonkeyPatch, why: Any, outcome: str, number: int
) -> None:
    here = Answered(monkeypatch, None, outcome)
    assert (here.submitted(why) is None) == bool(number)
    assert here.counted(why if isinstance(why, str) else why.reason) == number


@pytest.mark.parametrize(
    ("job", "status", "state"),
    [(job_of("running"), 202, "running"), (None, 202, "queued"), (job_of("queued"), 202, "queued")],
)
def test_a_call_whose_runner_had_recorded_it_joins_its_own_job(
    monkeypatch: pytest.MonkeyPatch, job: Job | None, status: int, state: str
) -> None:
    here = Answered(monkeypatch, job)
    call = here.jobs.become(here.asked, 1.0, 0.0, ToJob(1, 1, "lost"))
    asyncio.run(here.jobs.answer(here.exchange, call))
    assert (here.exchange.status, here.body["status"]) == (status, state)
    assert not here.exchange.is_replay  # it is the same call


def test_a_result_that_was_recorded_meanwhile_is_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Answered(monkeypatch, job_of("succeeded", small_result=b"1"))
    call = here.jobs.become(here.asked, 1.0, 0.0, ToJob(1, 1, "lost"))
    asyncio.run(here.jobs.answer(here.exchange, call))
    assert (here.exchange.status, here.body, call.attempt) == (200, 1, 2)


def test_whom_a_job_is_no_answer_is_told_which_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Answered(monkeypatch, job_of("running"))
    wishes = Wishes(ASYNC, idempotency_key="k", takes_job=False)
    call = here.jobs.prepare(here.exchange, manifest(), (b"{}", {}), KeyRow("k", "o", "o"), wishes)
    assert (call.is_async, here.exchange.applied) == (False, b"")
    call.hold = 0.0
    with pytest.raises(Problem) as caught:
        asyncio.run(here.jobs.answer(here.exchange, call))
    assert (caught.value.code, caught.value.extra) == ("hold-exceeded", {"job_id": "j1"})
    assert caught.value.headers["Headrace-Job-Id"] == "j1"
