"""Calls that would have to become jobs when they may wait no longer: no ledger ever hears of them."""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

import pytest
from harness.scripted_calls import flexible
from msgspec.structs import replace

from headrace.admission import Span
from headrace.gateway.asked import Asked, ToJob
from headrace.gateway.exchange import Exchange
from headrace.gateway.invoke import Invoke
from headrace.gateway.job_call import JobCalls
from headrace.gateway.metrics import GatewayMetrics
from headrace.settings import load_settings

nothing = cast("Any", None)


class Watcher:
    gateway_id = actor = "gateway"


class NoRoom:
    """No runner takes a call."""

    async def answer(self, _asked: Asked) -> ToJob:
        return ToJob(0, 0, "cold")


def test_a_call_that_is_too_late_to_be_a_job_counts_as_expired(monkeypatch: pytest.MonkeyPatch) -> None:
    settings, metrics, sent = load_settings(), GatewayMetrics(), list[Any]()
    jobs = JobCalls(
        settings, nothing, nothing, cast("Any", Watcher()), nothing, lambda: 0.0, metrics, lambda *_: None
    )
    invoke = Invoke(settings, nothing, nothing, nothing, cast("Any", NoRoom()), jobs, nothing, metrics)

    async def accept(exchange: Exchange, _name: str) -> Asked:
        call = flexible()
        assert call.record is not None
        call.record, call.span = replace(call.record, queue_s=3.0), Span(10, 100)
        exchange.function, exchange.metrics, exchange.course = "echo", metrics.of("echo"), call
        exchange.accepted_at = time.monotonic() - 3.0
        return call

    async def receive() -> Any: ...

    async def send(message: Any) -> None:
        sent.append(message)

    monkeypatch.setattr(invoke, "_accept", accept)
    asyncio.run(invoke({"headers": [], "path_params": {"name": "echo"}}, receive, send))  # type: ignore[typeddict-item]

    assert sent[0]["status"] == 504
    assert b"queue-deadline-exceeded" in sent[1]["body"]
    assert [(series[:3], seen.number) for series, seen in metrics.usage._present.items()] == [
        (("echo", "expired", ""), 1)
    ]
