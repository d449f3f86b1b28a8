"""A gateway's end of a link to a real runner, that says only what a test makes it say."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from harness.job_runner import Submitter
from headrace import registry
from headrace.ids import uuid7
from headrace.link.address import Address
from headrace.link.frames import Answer, Call, Frame, Handover, Hello, Ping, Pong
from headrace.link.handshake import GatewayHandshake
from headrace.link.liveness import Liveness


class Dialled:
    """Sends calls in the name of a submitter's owner, and keeps what is answered.

    Args:
        jobs: who sends them.
        secret: the link secret.
    """

    def __init__(self, jobs: Submitter, secret: bytes) -> None:
        self.hello: Hello
        self._jobs = jobs
        self._answers: dict[str, asyncio.Future[Answer]] = {}
        self._handshake = GatewayHandshake(secret, self._receive, lambda _: None)
        self.stream = self._handshake.stream
        self._liveness: Liveness | None = None

    async def connect(self, address: str) -> None:
        await Address.parse(address).connect(lambda: self._handshake.stream)
        self.hello = await self._handshake.complete()
        self._liveness = Liveness(self.stream)

    def close(self) -> None:
        if self._liveness is not None:
            self._liveness.end()
        self.stream.abort()

    def _receive(self, frame: Frame) -> None:
        if self._liveness is not None:
            self._liveness.heard()
        if isinstance(frame, Ping):
            self.stream.send(Pong())
        elif isinstance(frame, Answer):
            self._answers[frame.job_id].set_result(frame)  # a second one would raise

    def send(self, function: str, **input: Any) -> str:
        """Start a call; returns its id."""
        manifest = self._jobs.manifests[function]
        data, job_id = msgspec.json.encode(input), uuid7()
        self._answers[job_id] = asyncio.get_running_loop().create_future()
        self.stream.send(
            Call(job_id, function, manifest.interface, data, self._jobs.owner_id, 1, 60_000, 10_000)
        )
        return job_id

    def hand_over(self, job_id: str) -> None:
        """Say that the call's hold is ending."""
        digest = hashlib.sha256(b"{}").digest()
        self.stream.send(Handover(job_id, digest=digest, queue_s=30.0))

    async def answer(self, job_id: str) -> Answer:
        return await self._answers[job_id]

    def is_answered(self, job_id: str) -> bool:
        return self._answers[job_id].done()


@asynccontextmanager
async def dialled(jobs: Submitter, address: str) -> AsyncIterator[Dialled]:
    """A proven link to the runner that listens there, or soon will."""
    made = Dialled(jobs, await registry.link_secret(jobs.database))
    while True:
        try:
            await made.connect(address)
            break
        except OSError:
            await asyncio.sleep(0.01)
    try:
        yield made
    finally:
        made.close()
