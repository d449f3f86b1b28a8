"""The answer to a call, read while the function makes it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, cast

import httpx2

from headrace.client.errors import CallRefused, Restarted, Unreachable

CONNECT_S: Final = 5.0
SILENCE_S: Final = 45.0
"""Of a connection; a gateway's heartbeats come more often."""


class Told(NamedTuple):
    """News of a call: `job` (its id), `start`, `item`, `progress` (two parts), `result` (the output)."""

    kind: str
    data: Any


class Stream:
    """The items of one call, as they come; to iterate over once, or a context manager.

    Whoever stops reading, or takes its time, holds the function up. Whoever leaves stops it: by `close`, at
    the end of a `with`, or by letting go of it. Neither is so where the call has an idempotency key: then it
    is a job, which goes on without its reader.

    Args:
        source: asks, and tells of the call while it runs, up to its result.
        on_progress: told how far the function is: the fraction that is done, and what it says.
        on_restart: told that the function begins anew, and how many items are void by that: all so far.
    """

    def __init__(
        self,
        source: Callable[[], Generator[Told]],
        on_progress: Callable[[float, str], None] | None,
        on_restart: Callable[[int], None] | None = None,
    ) -> None:
        self.result: Any = None
        """The function's output, which its items make; None until they are over."""
        self.job_id = ""
        """The job that the call is, where it has a key and was accepted."""
        self._source = source
        self._on_progress = on_progress
        self._on_restart = on_restart
        self._count = 0
        self._items = self._read()

    def __iter__(self) -> Iterator[Any]:
        """Yield the items.

        Raises:
            CallRefused: the call was refused, or failed; some items may have come before.
            Unreachable: the connection was lost, and so is the call; of one with a key, it didn't come back.
            Restarted: the items so far are void, and nobody is told of that.
        """
        return self._items

    def close(self) -> None:
        """Read no more; a function that still runs is stopped, unless it is a job."""
        self._items.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self) -> Generator[Any]:
        with contextlib.closing(self._source()) as source:
            for kind, data in source:
                if kind == "item":
                    self._count += 1
                    yield data
                elif kind == "result":
                    self.result = data
                    return
                elif kind == "job":
                    self.job_id = data
                elif kind == "start":
                    self._begin_anew()
                elif self._on_progress is not None:
                    self._on_progress(*data)

    def _begin_anew(self) -> None:
        void, self._count = self._count, 0
        if void and self._on_restart is None:
            raise Restarted(void, self.job_id)
        if void and self._on_restart is not None:
            self._on_restart(void)


def directly(
    open_: Callable[[], AbstractContextManager[httpx2.Response]],
    refused: Callable[[httpx2.Response], CallRefused],
    lost: Callable[[Exception], Unreachable],
) -> Generator[Told]:
    """What is told of a call without a key, over the one connection that it has.

    Args:
        open_: asks, and gives the answer while it comes.
        refused: makes the error of an answer.
        lost: makes the error of a connection.
    """
    is_open = False
    try:
        with open_() as response:
            if response.status_code != 200:
                response.read()
                raise refused(response)
            is_open = True
            for event in httpx2.EventSource(response):
                if event.event in {"item", "result"}:
                    yield Told(event.event, event.json())
                elif event.event == "progress":
                    yield Told(event.event, progress_of(event.json()))
                elif event.event == "error":
                    problem = cast("dict[str, Any]", event.json())
                    raise CallRefused(int(problem["status"]), problem)
    except (httpx2.TransportError, httpx2.InvalidURL) as error:
        raise (_cut_off(error) if is_open else lost(error)) from None
    except (httpx2.SSEError, ValueError, KeyError, TypeError):
        raise no_stream(lost) from None
    raise _cut_off("it ended before the call did")


def progress_of(data: Any) -> tuple[float, str]:
    """The fraction that is done, and what the function says.

    Raises:
        KeyError, TypeError, ValueError: it isn't so.
    """
    return float(data["fraction"]), str(data["message"])


def no_stream(lost: Callable[[Exception], Unreachable]) -> Unreachable:
    """The error of an answer that isn't what a gateway sends."""
    return lost(ValueError("what it sends is no stream of a Headrace gateway"))


def _cut_off(reason: object) -> Unreachable:
    return Unreachable(f"the stream was cut off: {reason}")
