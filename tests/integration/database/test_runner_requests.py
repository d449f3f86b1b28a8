"""What operators ask of single runners, and how the answers come back."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from typing import Any, Literal

import pytest
from harness.listening import hearing
from harness.postgres import query

from headrace import audit, runner_requests
from headrace.database import Database
from headrace.runner_requests import DrainAnswer, ModelAnswer, Request, StackAnswer, Standing

RUNNER = "0199e0a0-0000-4000-8000-000000000001"
OTHER = "0199e0a0-0000-4000-8000-000000000002"
JOB = "0199e0a0-0000-7000-8000-000000000003"
ADA = "operator:ada"
DRAINS = DrainAnswer(calls=3, seconds=10.0, already=False)
STANDING = Standing(
    job_id=JOB,
    function="echo",
    attempt=1,
    path="direct",
    body="main",
    phase="running",
    running_s=1.5,
    soft_s=2.0,
    deadline_s=3.0,
    kill_s=4.0,
    stacks='  File "x\x00.py", line 1 in \ufffd\n',
)
Scenario = Callable[[Database], Coroutine[Any, Any, None]]


def run(url: str, scenario: Scenario) -> None:
    async def limited() -> None:
        async with asyncio.timeout(20), await Database.open(url, application_name="headrace-test") as opened:
            await scenario(opened)

    asyncio.run(limited())


async def asked(database: Database, runner_id: str = RUNNER) -> Request:
    """The request that the runner has, as soon as it has one."""
    while not (taken := await runner_requests.take(database, runner_id)):
        await asyncio.sleep(0.005)
    (request,) = taken
    return request


def test_a_runner_hears_of_a_drain_answers_it_once_and_it_is_audited(database_url: str) -> None:
    async def scenario(database: Database) -> None:
        async with hearing(database_url, runner_requests.channel(RUNNER)) as heard:
            asking = asyncio.create_task(runner_requests.ask_drain(database, RUNNER, actor=ADA))
            request_id = await heard.get()
            request = await asked(database)
            assert request == Request(request_id=request_id, kind="drain", job_id=None, asked_by=ADA)
            await runner_requests.answer(database, RUNNER, request, DRAINS)
            assert await asking == DRAINS
            assert await runner_requests.take(database, RUNNER) == []
            await runner_requests.answer(
                database, RUNNER, request, DrainAnswer(calls=0, seconds=0, already=True)
            )
            assert await runner_requests._answers(database, {request_id: RUNNER}, DrainAnswer) == {
                RUNNER: DRAINS
            }
        entries = await audit.list_audit(database)
        assert [(one.actor, one.action, one.subject) for one in entries] == [(ADA, "runner.drain", RUNNER)]

    run(database_url, scenario)


def test_stacks_come_back_whole_from_those_who_answer(database_url: str) -> None:
    async def scenario(database: Database) -> None:
        third = str(uuid.uuid4())
        asking = asyncio.create_task(runner_requests.ask_stack(database, [RUNNER, OTHER, third], JOB))
        for runner_id, standing in ((RUNNER, None), (OTHER, STANDING)):
            request = await asked(database, runner_id)
            assert (request.kind, request.job_id) == ("stack", JOB)
            await runner_requests.answer(database, runner_id, request, StackAnswer(standing=standing))
        assert await asking == {RUNNER: None, OTHER: STANDING}
        assert await audit.list_audit(database) == []

    run(database_url, scenario)


@pytest.mark.parametrize("kind", ["load", "unload"])
def test_what_is_asked_of_a_model_names_it_and_is_audited(
    database_url: str, kind: Literal["load", "unload"]
) -> None:
    async def scenario(database: Database) -> None:
        model = "shop:encoder"
        asking = asyncio.create_task(
            runner_requests.ask_model(database, kind, [RUNNER, OTHER], model, actor=ADA)
        )
        for runner_id, users in ((RUNNER, 0), (OTHER, 2)):
            request = await asked(database, runner_id)
            assert (request.kind, request.subject, request.job_id) == (kind, model, None)
            said = ModelAnswer(outcome="in-use" if users else "unloading", users=users)
            await runner_requests.answer(database, runner_id, request, said)
        assert {runner_id: one.users for runner_id, one in (await asking).items()} == {RUNNER: 0, OTHER: 2}
        entries = await audit.list_audit(database)
        assert {(one.action, one.subject, one.detail["subject"]) for one in entries} == {
            (f"runner.{kind}", RUNNER, model),
            (f"runner.{kind}", OTHER, model),
        }

    run(database_url, scenario)


def test_an_answer_by_another_runner_does_not_count(database_url: str) -> None:
    async def scenario(database: Database) -> None:
        request_id = await runner_requests._ask(database, RUNNER, "drain", 60, ADA)
        request = await asked(database)
        assert request.request_id == request_id
        await runner_requests.answer(database, OTHER, request, DRAINS)
        assert await asked(database) == request
        assert await runner_requests.take(database, OTHER) == []

    run(database_url, scenario)


def test_a_request_that_nobody_heard_of_in_time_is_not_taken(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_requests, "ANSWERED_WITHIN_S", 0.1)
    monkeypatch.setattr(runner_requests, "DRAIN_VALID_S", 0.15)

    async def scenario(database: Database) -> None:
        assert await runner_requests.ask_drain(database, RUNNER) is None
        assert await runner_requests.ask_stack(database, [RUNNER], JOB) == {}
        while await runner_requests.take(database, RUNNER):
            await asyncio.sleep(0.01)

    run(database_url, scenario)


def test_requests_are_forgotten_after_an_hour(database_url: str) -> None:
    async def scenario(database: Database) -> None:
        old, young = [await runner_requests._ask(database, RUNNER, "drain", 60, ADA) for _ in range(2)]
        age = "UPDATE runner_request SET asked_at = asked_at - interval '61 minutes' WHERE id = %s"
        query(database_url, age, old)
        newest = await runner_requests._ask(database, RUNNER, "drain", 60, ADA)
        kept = query(database_url, "SELECT id::text FROM runner_request ORDER BY asked_at")
        assert kept == [(young,), (newest,)]

    run(database_url, scenario)
