"""What is answered once a call of the direct path may be, or is, a job."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from harness.receipts import receipt_of
from harness.scripted_calls import flexible, manifest

from headrace.errors import DatabaseUnavailable
from headrace.gateway.asked import ToJob
from headrace.gateway.exchange import Exchange
from headrace.gateway.job_call import JobCalls
from headrace.gateway.metrics import GatewayMetrics
from headrace.gateway.preferences import Preferences, Wishes
from headrace.gateway.problems import Problem, to_problem
from headrace.keys import KeyRow
from headrace.ledger import reading
from headrace.ledger.reading import Job
from headrace.ledger.submission import NewJob, Receipt
from headrace.settings import load_settings

ASYNC = Preferences(respond_async=True)


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
        served: Any = SimpleNamespace(was_served=was_served, away_s=lambda *_: None)
        submitter: Any = Submitter()
        self.metrics = GatewayMetrics()
        self.jobs = JobCalls(
            load_settings(), served, submitter, watcher, nothing, lambda: away, self.metrics, lambda *_: None
        )
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
