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
from headrace.gateway.call_stream import CallStream
from headrace.gateway.calling import Asked, Caller
from headrace.gateway.metrics import GatewayMetrics
from headrace.gateway.problems import Problem
from headrace.gateway.runners import RunnerLinks
from headrace.link.frames import Call, Error, Lost, Refused, Result, Service

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


def result(call: Call, output: bytes = b"{}") -> Result:
    return Result(call.job_id, output, call.attempt, 1.5, 2.5)


def error(call: Call, category: str = "function-failed", *, retryable: bool = False) -> Error:
    return Error(call.job_id, category, "It broke.", call.attempt, 0.0, 1.0, retryable)


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


class Site:
    def __init__(self, caller: Caller, runners: list[ScriptedRunner], metrics: GatewayMetrics) -> None:
        self.caller = caller
        self.runners = runners
        self.metrics = metrics

    @property
    def calls(self) -> list[Call]:
        return [call for runner in self.runners for call in runner.calls]

    def restarts(self) -> float:
        return self.metrics.registry.get_sample_value("headrace_call_restarts_total") or 0.0


@asynccontextmanager
async def site(folder: Path, *scripts: Script, slots: int = 4) -> AsyncIterator[Site]:
    """A gateway's caller linked to one scripted runner for each script."""
    links, metrics = RunnerLinks(), GatewayMetrics()
    runners = [
        ScriptedRunner(f"unix:{folder}/{number}", script, [Service("echo", "1234", slots)])
        for number, script in enumerate(scripts)
    ]
    try:
        for runner in runners:
            await runner.start()
        links.update([runner.info for runner in runners], SECRET)
        async with asyncio.timeout(10):
            while links.count() < len(runners):
                assert await links.next_change(10)
        yield Site(Caller(links, metrics), runners, metrics)
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
