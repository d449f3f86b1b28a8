"""What operators ask of single runners, through Postgres: to drain, how a call stands, to load models or not.

Whoever asks writes a request and looks for its answer; the runner is notified on its own channel, and looks
for itself after each connect.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterable, Mapping
from typing import Final, Literal, TypeVar

import msgspec

from headrace.audit import operator
from headrace.database import Database, queries
from headrace.domain import State

_SQL: Final = queries("runner_requests")

ANSWERED_WITHIN_S: Final = 5.0
"""A runner that hasn't answered by then is frozen, or has lost its connection to Postgres."""
DRAIN_VALID_S: Final = 60.0
"""A drain that a runner hears of so late is done still."""
_LOOK_EVERY_S: Final = 0.05

A = TypeVar("A")


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What a runner is asked.

    Args:
        kind: `drain`, `stack`, `load` or `unload`; a command of a later version may ask for something else.
        job_id: whose stack is wanted.
        subject: the model to be loaded or unloaded.
        asked_by: `operator:` and a login name.
    """

    request_id: str
    kind: str
    job_id: str | None
    asked_by: str
    subject: str | None = None


class DrainAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The runner drains.

    Args:
        calls: how many run or wait there at this moment.
        seconds: how long they may take.
        already: whether it drained before.
    """

    calls: int
    seconds: float
    already: bool


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """How a call stands in its runner. What is due is told in seconds from now, negative once it is past.

    Args:
        job_id: the call's id, also of one that isn't in the ledger.
        attempt: the number of this start.
        path: how it came.
        body: where its function runs in the executor: its main thread, a thread of a pool, or the event loop.
        phase: `waiting` for a slot, `ahead` in an executor that runs another, `running`, or `ended` while it
            was looked at.
        executor: the executor's number.
        pid: the executor's process.
        running_s: since its start, or since it came if it hasn't started.
        soft_s: the soft limit is due.
        deadline_s: the deadline is due.
        kill_s: its process is killed.
        stop: why it was asked to end, as the end of "it was asked to end, as"; empty if it wasn't.
        stopped_s: how long ago.
        interrupts: how often `CallStopped` was to be raised in it.
        interrupted_s: how long ago for the first time.
        heard: whether its process has read all that the supervisor sent it: it can't while C code holds the
            interpreter.
        signals_blocked: whether its main thread blocks the signal that interrupts it, or ignores it.
        process: the state of the process, as `/proc` has it: R, S, D, T or Z; empty if it is gone.
        threads: how many it has.
        wchan: the function of the kernel in which its main thread waits, where the kernel tells.
        cpu: the share of one core that it has used just now.
        stacks: the Python stacks of all its threads; empty if they never came.
        beside: how many calls are joined with it and run as one.
        why: a sentence for people.
    """

    job_id: str
    function: str
    attempt: int
    path: Literal["direct", "job"]
    body: Literal["main", "pool", "async"]
    phase: Literal["waiting", "ahead", "running", "ended"]
    running_s: float
    soft_s: float
    deadline_s: float
    kill_s: float
    executor: int | None = None
    pid: int | None = None
    stop: str = ""
    stopped_s: float = 0.0
    interrupts: int = 0
    interrupted_s: float = 0.0
    heard: bool = True
    signals_blocked: bool = False
    process: str = ""
    threads: int = 0
    wchan: str = ""
    cpu: float = 0.0
    stacks: str = ""
    beside: int = 0
    why: str = ""


class StackAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """How the call stands; None where the runner doesn't have it."""

    standing: Standing | None


class ModelAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of a model.

    Args:
        outcome: `unknown`, no function there uses it; to a load `loaded`, it was there, `loading`, it will be
            when there is room, or `too-large`, there never can be; to an unload `absent`, it wasn't there,
            `unloading`, or `in-use`, it goes once its calls have ended, and none starts before.
        load_s: how long loading it took the last time; 0: it never was.
        users: calls that use it.
        reason: why it can't be done.
    """

    outcome: Literal["unknown", "loaded", "loading", "too-large", "absent", "unloading", "in-use"]
    load_s: float = 0.0
    users: int = 0
    reason: str = ""


Said = DrainAnswer | StackAnswer | ModelAnswer


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """Where a job is.

    Args:
        session_id: the runner that runs it.
    """

    state: State
    function: str
    session_id: str | None


def channel(runner_id: str) -> str:
    """Where a runner is notified of requests."""
    return f"headrace_ask_{runner_id.replace('-', '')}"


# ---------------------------------------------------------------------- who asks


async def ask_drain(database: Database, runner_id: str, *, actor: str | None = None) -> DrainAnswer | None:
    """Have a runner drain; None when it hasn't answered, and may still within `DRAIN_VALID_S`.

    Args:
        database: an open one.
        runner_id: the runner.
        actor: who asks, for the audit; by default whoever runs this program.
    """
    request_id = await _ask(database, runner_id, "drain", DRAIN_VALID_S, actor)
    answers = await _answers(database, {request_id: runner_id}, DrainAnswer)
    return answers.get(runner_id)


async def ask_stack(
    database: Database, runner_ids: Iterable[str], job_id: str, *, actor: str | None = None
) -> dict[str, Standing | None]:
    """How a call stands in each of these runners, by their ids; one that doesn't answer is left out.

    Args:
        database: an open one.
        runner_ids: the runners.
        job_id: the call's id.
        actor: who asks; by default whoever runs this program.
    """
    asked = {
        await _ask(database, runner_id, "stack", ANSWERED_WITHIN_S, actor, job_id=job_id): runner_id
        for runner_id in runner_ids
    }
    answers = await _answers(database, asked, StackAnswer)
    return {runner_id: answer.standing for runner_id, answer in answers.items()}


async def ask_model(
    database: Database,
    kind: Literal["load", "unload"],
    runner_ids: Iterable[str],
    model: str,
    *,
    actor: str | None = None,
) -> dict[str, ModelAnswer]:
    """Have a model loaded or unloaded in each of these runners; one that doesn't answer is left out.

    Args:
        database: an open one.
        kind: what is to be done.
        runner_ids: the runners.
        model: its name.
        actor: who asks, for the audit; by default whoever runs this program.
    """
    asked = {
        await _ask(database, runner_id, kind, ANSWERED_WITHIN_S, actor, subject=model): runner_id
        for runner_id in runner_ids
    }
    return await _answers(database, asked, ModelAnswer)


async def holder(database: Database, job_id: str) -> Holder | None:
    """Where a job is; None for an id that isn't in the ledger."""
    rows = await database.fetch(_SQL["holder"], {"job_id": job_id})
    return msgspec.convert(rows[0], Holder) if rows else None


async def has_left(database: Database, runner_id: str) -> bool:
    """Whether a runner has left in order, rather than fallen silent."""
    return (await database.fetch(_SQL["has_left"], {"runner_id": runner_id}))[0]["has_left"]


async def _ask(
    database: Database,
    runner_id: str,
    kind: str,
    valid_s: float,
    actor: str | None,
    *,
    job_id: str | None = None,
    subject: str | None = None,
) -> str:
    request_id = str(uuid.uuid4())
    parameters = {
        "kind": kind,
        "job_id": job_id,
        "subject": subject,
        "valid_s": valid_s,
        "actor": actor or operator(),
    }
    await database.fetch(_SQL["ask"], {"request_id": request_id, "runner_id": runner_id, **parameters})
    return request_id


async def _answers(database: Database, asked: Mapping[str, str], kind: type[A]) -> dict[str, A]:
    """The answers by the runners that gave them, as soon as all are there or it is too late."""
    until = time.monotonic() + ANSWERED_WITHIN_S
    while True:
        rows = await database.fetch(_SQL["answers"], {"request_ids": [*asked]})
        if len(rows) == len(asked) or time.monotonic() > until:
            return {asked[row["request_id"]]: msgspec.json.decode(row["answer"], type=kind) for row in rows}
        await asyncio.sleep(_LOOK_EVERY_S)


# ---------------------------------------------------------------------- who answers


async def take(database: Database, runner_id: str) -> list[Request]:
    """What a runner has been asked and hasn't answered."""
    return msgspec.convert(await database.fetch(_SQL["take"], {"runner_id": runner_id}), list[Request])


async def answer(database: Database, runner_id: str, request: Request, said: Said) -> None:
    """Answer a request, once."""
    parameters = {"request_id": request.request_id, "runner_id": runner_id}
    await database.fetch(_SQL["answer"], {**parameters, "answer": msgspec.json.encode(said)})
