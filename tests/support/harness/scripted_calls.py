"""Calls that a gateway answers through scripted runners, and what such a runner may say to them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.scripted_runner import SECRET, Script, ScriptedRunner, settle
from headrace.admission import Span
from headrace.domain import Budget, Cost, Limits, Manifest
from headrace.gateway.asked import Asked, Record
from headrace.gateway.call_stream import CallStream
from headrace.gateway.calling import Caller
from headrace.gateway.handover import Recorded
from headrace.gateway.metrics import GatewayMetrics
from headrace.gateway.problems import Problem
from headrace.gateway.runners import RunnerLinks
from headrace.link.frames import Call, Error, Handover, Lost, Refused, Result, Service

_ids = itertools.count()


def manifest(attempts: int = 1, pool: str = "default") -> Manifest:
    return Manifest(
        name="echo",
        interface="1234",
        revision="r",
        description="",
        input_schema={},
        output_schema={},
        budget=Budget(),
        limits=Limits(),
        attempts=attempts,
        concurrency=1,
        cost=Cost(),
        pool=pool,
        examples=[],
    )


async def stays() -> Any:
    """The receive of a client that waits for its answer."""
    await asyncio.Event().wait()


def asked(
    attempts: int = 1,
    hold: float = 10,
    total: float = 100,
    receive: Any = stays,
    stream: CallStream | None = None,
) -> Asked:
    return Asked(
        f"job-{next(_ids)}",
        manifest(attempts),
        b'{"text": "hello"}',
        "owner",
        "request",
        "00-trace",
        Span(hold, total),
        receive,
        stream,
    )


def flexible(
    attempts: int = 1,
    hold: float = 10,
    total: float = 100,
    receive: Any = stays,
    stream: CallStream | None = None,
) -> Asked:
    """A call whose client takes a job for an answer."""
    call = asked(attempts, hold, total, receive, stream)
    call.may_be_job, call.record = True, Record("key", 3.5, 2.0, 60.0)
    return call


def result(call: Call | Handover, output: bytes = b"{}") -> Result:
    return Result(call.job_id, output, getattr(call, "attempt", 1), 1.5, 2.5)


def error(
    call: Call, category: str = "function-failed", *, retryable: bool = False, retry_after_s: float = 0.0
) -> Error:
    return Error(
        call.job_id, category, "It broke.", call.attempt, 0.0, 1.0, retryable, retry_after_s=retry_after_s
    )


def refused(call: Call, reason: str = "full", seconds: float = 1.0) -> Refused:
    return Refused(call.job_id, reason, 1, seconds)


def lost(call: Call, *, charged: bool, suspect: bool = True) -> Lost:
    return Lost(call.job_id, call.attempt, charged, suspect=suspect)


def in_turn(*answers: Callable[[Call], Any]) -> Script:
    """Answers the n-th call with the n-th, and all that follow with the last."""
    turns = iter(answers)
    state = {"now": answers[0]}

    def script(call: Call) -> Any:
        state["now"] = next(turns, state["now"])
        return state["now"](call)

    return script


async def _unasked(job_id: str, owner_id: str) -> bool:
    raise AssertionError(f"the ledger was asked for {job_id} of {owner_id}")


class Site:
    def __init__(self, caller: Caller, runners: list[ScriptedRunner], metrics: GatewayMetrics) -> None:
        self.caller = caller
        self.runners = runners
        self.metrics = metrics

    @property
    def calls(self) -> list[Call]:
        return [call for runner in self.runners for call in runner.calls]

    def restarts(self) -> float:
        return self.counted("headrace_call_restarts_total")

    def counted(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


@asynccontextmanager
async def site(
    folder: Path,
    *scripts: Script,
    slots: int = 4,
    on_handover: Callable[[Handover], Any] | None = None,
    away: Callable[[], float] = lambda: 0.0,
    recorded: Recorded | None = None,
) -> AsyncIterator[Site]:
    """A gateway's caller linked to one scripted runner for each script.

    Args:
        folder: for their sockets.
        scripts: what they do with calls.
        slots: of each.
        on_handover: what they do when they are asked to record a call; None: they take no handover.
        away: for how long Postgres has been silent.
        recorded: what the ledger knows; None: it must not be asked.
    """
    links, metrics = RunnerLinks(), GatewayMetrics()
    runners = [
        ScriptedRunner(f"unix:{folder}/{number}", script, [Service("echo", "1234", slots)], on_handover)
        for number, script in enumerate(scripts)
    ]
    try:
        for runner in runners:
            await runner.start()
        links.update([runner.info for runner in runners], SECRET)
        async with asyncio.timeout(10):
            while links.count() < len(runners):
                assert await links.next_change(10)
        yield Site(Caller(links, metrics, away, recorded or _unasked), runners, metrics)
    finally:
        links.close()
        for runner in runners:
            runner.stop()
        await settle()


def run(scenario: Any) -> None:
    async def limited() -> None:
        async with asyncio.timeout(20):
            await scenario()

    asyncio.run(limited())


async def problem(caller: Caller, call: Asked) -> Problem:
    with pytest.raises(Problem) as caught:
        await caller.answer(call)
    return caught.value
