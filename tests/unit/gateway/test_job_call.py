"""What the ledger is given of a call, and what its refusals are told as; the rest is seen over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest
from harness.receipts import receipt_of
from harness.scripted_calls import manifest

from headrace.domain import Priority
from headrace.errors import DatabaseUnavailable
from headrace.gateway import job_call, job_view
from headrace.gateway.call_line import CallLine
from headrace.gateway.digest import digest_of
from headrace.gateway.exchange import Exchange
from headrace.gateway.invoke import Invoke
from headrace.gateway.job_asked import JobCall
from headrace.gateway.job_call import JobCalls
from headrace.gateway.metrics import GatewayMetrics
from headrace.gateway.preferences import Preferences, Wishes
from headrace.gateway.problems import Problem
from headrace.gateway.refusals import refused
from headrace.ids import uuid7
from headrace.keys import KeyRow
from headrace.ledger import reading, submission
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
        lambda *_: None,
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
@pytest.mark.parametrize("cut", [False, True])
def test_a_call_that_waits_for_its_job_does_not_keep_its_input(
    monkeypatch: pytest.MonkeyPatch, way: str, cut: bool
) -> None:
    """Nor is it lost where Postgres falls silent as soon as the job is there."""
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

        async def begin(self, _watch: Any, *, follow: bool) -> None:
            if cut:
                raise DatabaseUnavailable("cut off")

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
        lambda *_: None,
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

        def __init__(self, *_: Any, **__: Any) -> None:
            self.end = end

        async def answer(self, exchange: Exchange, *_: Any) -> None:
            exchange.follows_job, exchange.items = True, self.items
            await exchange.begin()

    async def ignored(*_: Any) -> Any: ...

    async def accept(exchange: Exchange, _name: str) -> Any:
        exchange.wants_events, exchange.function, exchange.metrics = True, "f", metrics.of("f")
        return jobs.prepare(exchange, manifest(), (b"{}", {}), KeyRow("k", "o", "o"), Wishes(ASYNC))

    monkeypatch.setattr(job_call, "EventStream", Events)
    settings, metrics, written = load_settings(), GatewayMetrics(), list[CallLine]()
    jobs = JobCalls(
        settings,
        cast("Any", Directory()),
        cast("Any", Submitter()),
        cast("Any", Watcher()),
        nothing,
        lambda: 0.0,
        metrics,
        lambda *_: None,
    )
    invoke = Invoke(settings, nothing, nothing, nothing, nothing, jobs, nothing, metrics)
    monkeypatch.setattr(invoke, "_accept", accept)
    monkeypatch.setattr(invoke, "_log", written.append)
    scope: Any = {"headers": [], "path_params": {"name": "f"}}
    asyncio.run(invoke(scope, ignored, ignored))

    (line,) = written
    assert (line.status, line.code, line.items) == (status, code, 3)
    assert [(series[1], seen.number) for series, seen in metrics.usage._present.items()] == [("accepted", 1)]
    ended = {"function": "f", "end": end}
    assert metrics.registry.get_sample_value("headrace_streams_total", ended) == 1
    assert metrics.registry.get_sample_value("headrace_stream_items_total", {"function": "f"}) == 3


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


@pytest.mark.parametrize("key", [None, "k"])
def test_a_job_that_was_submitted_twice_is_answered_though_postgres_falls_silent(
    monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    """The commit's own answer was lost, so the second one says `replayed`. Whoever is told to come again,
    without the job's id, would have the call executed twice."""
    nothing: Any = None
    sent: list[Any] = []

    class Submitter:
        async def submit(self, new: NewJob) -> Receipt:
            return receipt_of(new.job_id if key is None else "j0", cast("Any", "replayed"))

    class Directory:
        def was_served(self, *_: Any) -> bool:
            return True

    class Silent(Watcher):
        actor = "g"

        def watch(self, _job_id: str) -> Any:
            return contextlib.nullcontext(SimpleNamespace(has_left=False, stir=lambda: None))

        async def begin(self, _watch: Any, *, follow: bool) -> None:
            raise DatabaseUnavailable("cut off")

        async def until_final(self, *_: Any) -> None: ...

    async def find(*_: Any, **__: Any) -> Any:
        raise DatabaseUnavailable("cut off")

    async def send(message: Any) -> None:
        sent.append(message)

    monkeypatch.setattr(reading, "find", find)
    jobs = JobCalls(
        load_settings(),
        cast("Any", Directory()),
        cast("Any", Submitter()),
        cast("Any", Silent()),
        nothing,
        lambda: 0.0,
        GatewayMetrics(),
        lambda *_: None,
    )
    exchange = Exchange({}, uuid7(), "r", nothing, send, nothing)
    wishes = Wishes(Preferences(respond_async=True, wait=50), None, key)
    call = jobs.prepare(exchange, manifest(), (b"{}", {}), KeyRow("k", "o", "o"), wishes)
    if key is None:
        asyncio.run(jobs.answer(exchange, call))
        assert exchange.status == 202
        assert (b"headrace-job-id", call.new.job_id.encode()) in sent[0]["headers"]
    else:  # the other call's job has to be read, so all that can be told is which it is
        with pytest.raises(Problem) as caught:
            asyncio.run(jobs.answer(exchange, call))
        assert (caught.value.code, caught.value.extra["job_id"]) == ("database-unavailable", "j0")
