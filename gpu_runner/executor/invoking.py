"""`Call.invoke` in an executor: asks the supervisor, and lets the body wait for the answer."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import threading
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, Final, NoReturn

import msgspec

from gpu_runner.frames import Invoke, Invoked, Uninvoke
from headrace.errors import CannotWait, InvalidInput, InvalidOutput, InvocationError
from headrace.sdk import Function

MOST_AT_ONCE: Final = 100
"""Calls that one call waits for at the same time; more wait for their turn."""

MOST_BYTES: Final = 8 * 2**20
"""Inputs that one call has sent at the same time, as the supervisor keeps them until the answers. One that is
larger is sent alone."""

_sorted_json = msgspec.json.Encoder(order="deterministic").encode
_Number = tuple[str, int, int]
"""A job's id, its attempt, and the number of what it asked for."""


class Invoking:
    """What all running calls have asked for.

    Args:
        send: takes what is for the supervisor; from any thread. Raises `EOFError` when it is gone.
    """

    def __init__(self, send: Callable[[Invoke | Uninvoke], None]) -> None:
        self._send = send
        self._changing = threading.Lock()
        self._waiting: dict[_Number, asyncio.Future[Invoked]] = {}

    def of(
        self, job_id: str, attempt: int, function: Function[Any, Any]
    ) -> Callable[[Function[Any, Any], Any], Coroutine[Any, Any, Any]]:
        """What calls other functions for one start of a call of this function."""
        return Caller(self, job_id, attempt).invoke if function.is_async else _refuse

    def answered(self, frame: Invoked) -> None:
        """Wake the body that waits for this answer, if it still does."""
        with self._changing:
            waiting = self._waiting.pop((frame.job_id, frame.attempt, frame.number), None)
        if waiting is not None:
            with contextlib.suppress(RuntimeError):  # the body's own loop has been closed
                waiting.get_loop().call_soon_threadsafe(_settle, waiting, frame)

    async def ask(self, frame: Invoke) -> Invoked:
        """The supervisor's answer; a body that stops waiting says so."""
        number = frame.job_id, frame.attempt, frame.number
        waiting: asyncio.Future[Invoked] = asyncio.get_running_loop().create_future()
        with self._changing:
            self._waiting[number] = waiting
        try:
            self._send(frame)
            return await waiting
        except asyncio.CancelledError:
            with contextlib.suppress(EOFError):  # the thread that reads ends the process
                self._send(Uninvoke(*number))
            raise
        finally:
            with self._changing:
                self._waiting.pop(number, None)


class Caller:
    """One start of a call, as it calls other functions.

    Args:
        invoking: where it asks.
        job_id: the call's.
        attempt: which start it is.
    """

    __slots__ = ("_attempt", "_counts", "_invoking", "_job_id", "_numbers", "_room")

    def __init__(self, invoking: Invoking, job_id: str, attempt: int) -> None:
        self._invoking = invoking
        self._job_id = job_id
        self._attempt = attempt
        self._numbers: itertools.count[int] | None = None  # most calls call nobody

    async def invoke(self, function: Function[Any, Any], value: Any) -> Any:
        """As `Call.invoke`."""
        if self._numbers is None:
            self._numbers = itertools.count()
            self._counts: Counter[tuple[str, bytes]] = Counter()
            self._room = Room()
        try:
            data = function.encode_input(value)
        except InvalidInput as error:
            found = ((error.path, error.message),)
            raise InvocationError(function.name, "invalid-input", error.message, errors=found) from None
        limit = function.manifest.limits.input
        if len(data) > limit:
            message = f"The input has {len(data)} bytes, the limit is {limit}."
            raise InvocationError(function.name, "payload-too-large", message)
        digest = hashlib.sha256(_sorted_json(msgspec.json.decode(data))).digest()
        same = function.name, digest
        count = self._counts[same]
        self._counts[same] += 1
        async with self._room.taken(len(data)):
            answer = await self._invoking.ask(
                Invoke(
                    self._job_id,
                    self._attempt,
                    next(self._numbers),
                    function.name,
                    function.manifest.interface,
                    data,
                    digest,
                    count,
                )
            )
        return _output(function, answer)


class Room:
    """Bounds what one call waits for at once, in number and in bytes of inputs; in the order of asking."""

    def __init__(self) -> None:
        self._open = 0
        self._bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @contextlib.asynccontextmanager
    async def taken(self, size: int) -> AsyncGenerator[None]:
        """Wait until there is room for an input of that size, and leave it in the end."""
        if self._waiting or not self._has_room(size):
            await self._wait(size)
        else:
            self._take(size)
        try:
            yield
        finally:
            self._leave(size)

    async def _wait(self, size: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        one = size, turn
        self._waiting.append(one)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._leave(size)  # its turn had just come
            elif one in self._waiting:
                self._waiting.remove(one)
                self._let_in()  # those behind it may need less
            raise

    def _has_room(self, size: int) -> bool:
        return not self._open or (self._open < MOST_AT_ONCE and self._bytes + size <= MOST_BYTES)

    def _take(self, size: int) -> None:
        self._open += 1
        self._bytes += size

    def _leave(self, size: int) -> None:
        self._open -= 1
        self._bytes -= size
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting and self._has_room(self._waiting[0][0]):
            size, turn = self._waiting.popleft()
            if not turn.done():  # else it has been cancelled, and hasn't run since
                self._take(size)
                turn.set_result(None)


def _output(function: Function[Any, Any], answer: Invoked) -> Any:
    child_id = answer.child_id or None
    if answer.output is None:
        raise InvocationError(
            function.name,
            answer.category,
            answer.message,
            job_id=child_id,
            is_passing=answer.is_passing,
            retry_after_s=answer.retry_after_s or None,
            errors=answer.errors,
        )
    try:
        return function.decode_output(answer.output)
    except InvalidOutput as error:
        raise InvocationError(function.name, "invalid-output", str(error), job_id=child_id) from None


def _settle(waiting: asyncio.Future[Invoked], frame: Invoked) -> None:
    if not waiting.done():
        waiting.set_result(frame)


def _refuse(function: Function[Any, Any], _value: Any) -> NoReturn:
    raise CannotWait(
        f"Call.invoke({function.name!r}) needs a body that can wait: declare the calling function `async def`"
    )
