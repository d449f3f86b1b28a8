"""Answers what operators ask of this runner."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from gpu_runner.operators.models import load, unload
from gpu_runner.operators.standing import standing_of
from gpu_runner.supervisor import Supervisor
from headrace import runner_requests
from headrace.database import Database
from headrace.errors import DatabaseError
from headrace.runner_requests import DrainAnswer, Request, StackAnswer
from headrace.sdk import Function

log = logging.getLogger(__name__)

_RETRY_S: Final = 1.0
_KINDS: Final = ("drain", "stack", "load", "unload")


class Requests:
    """Takes requests from Postgres, and answers them there.

    Args:
        database: an open one.
        runner_id: this runner's id.
        supervisor: whose calls are looked at.
        functions: what is served, by name.
        drain_s: how long a drain lets calls run.
        drain: begins one; does nothing when it has begun.
    """

    def __init__(
        self,
        database: Database,
        runner_id: str,
        supervisor: Supervisor,
        functions: Mapping[str, Function[Any, Any]],
        drain_s: float,
        drain: Callable[[], None],
    ) -> None:
        self._database = database
        self._runner_id = runner_id
        self._supervisor = supervisor
        self._functions = functions
        self._drain_s = drain_s
        self._drain = drain
        self._wanted = asyncio.Event()
        self._answering: set[str] = set()
        self._not_understood: set[str] = set()

    def look(self) -> None:
        """There may be requests."""
        self._wanted.set()

    async def run(self) -> None:
        """Answer until cancelled, whatever becomes of Postgres meanwhile."""
        async with asyncio.TaskGroup() as answers:
            while True:
                await self._wanted.wait()
                self._wanted.clear()
                try:
                    asked = await runner_requests.take(self._database, self._runner_id)
                except DatabaseError as error:
                    log.warning("requests could not be read, trying on: %s", error)
                    await asyncio.sleep(_RETRY_S)
                    self._wanted.set()
                    continue
                for request in self._understood(asked):
                    if request.request_id not in self._answering:
                        self._answering.add(request.request_id)
                        answers.create_task(self._answer(request))

    def _understood(self, asked: list[Request]) -> list[Request]:
        """Those of a kind that this version knows; the others stay unanswered."""
        strange = {request.request_id: request for request in asked if request.kind not in _KINDS}
        for request_id in strange.keys() - self._not_understood:
            request = strange[request_id]
            log.warning("%s asks for %r, which this version doesn't know", request.asked_by, request.kind)
        self._not_understood = set(strange)
        return [request for request in asked if request.kind in _KINDS]

    async def _answer(self, request: Request) -> None:
        try:
            if request.kind == "drain":
                await self._answer_drain(request)
            elif request.kind == "stack":
                await self._answer_stack(request, request.job_id or "")
            else:
                await self._answer_model(request, request.subject or "")
        except DatabaseError as error:
            log.warning("an answer for %s could not be stored: %s", request.asked_by, error)
        except Exception:
            # Whoever looks at a call mustn't be able to harm it.
            log.exception("a request of %s could not be answered", request.asked_by)
        finally:
            self._answering.discard(request.request_id)

    async def _answer_drain(self, request: Request) -> None:
        already = self._supervisor.draining
        calls = sum(slots.load for slots in self._supervisor.groups())
        said = DrainAnswer(calls=calls, seconds=self._drain_s, already=already)
        if not already:
            log.info("%s wants this runner to drain", request.asked_by)
        try:
            await runner_requests.answer(self._database, self._runner_id, request, said)
        finally:
            self._drain()

    async def _answer_model(self, request: Request, model: str) -> None:
        said = (load if request.kind == "load" else unload)(self._supervisor.models, model)
        log.info("%s wants to %s model %s: %s", request.asked_by, request.kind, model, said.outcome)
        await runner_requests.answer(self._database, self._runner_id, request, said)

    async def _answer_stack(self, request: Request, job_id: str) -> None:
        standing = await standing_of(self._supervisor, self._functions, job_id)
        said = StackAnswer(standing=standing)
        await runner_requests.answer(self._database, self._runner_id, request, said)
