"""The answer to a call, read while the function makes it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Final, Self, cast

import httpx2

from headrace.client.errors import CallRefused, Unreachable

CONNECT_S: Final = 5.0
SILENCE_S: Final = 45.0
"""Of a connection; a gateway's heartbeats come more often."""


class Stream:
    """The items of one call, as they come; to iterate over once, or a context manager.

    Whoever stops reading, or takes its time, holds the function up. Whoever leaves stops it: by `close`, at
    the end of a `with`, or by letting go of it.

    Args:
        open_: asks, and gives the answer while it comes.
        refused: makes the error of an answer.
        lost: makes the error of a connection.
        on_progress: told how far the function is: the fraction that is done, and what it says.
    """

    def __init__(
        self,
        open_: Callable[[], AbstractContextManager[httpx2.Response]],
        refused: Callable[[httpx2.Response], CallRefused],
        lost: Callable[[Exception], Unreachable],
        on_progress: Callable[[float, str], None] | None,
    ) -> None:
        self.result: Any = None
        """The function's output, which its items make; None until they are over."""
        self._open = open_
        self._refused = refused
        self._lost = lost
        self._on_progress = on_progress
        self._items = self._read()

    def __iter__(self) -> Iterator[Any]:
        """Yield the items.

        Raises:
            CallRefused: the call was refused, or failed; some items may have come before.
            Unreachable: the connection was lost, and so is the call.
        """
        return self._items

    def close(self) -> None:
        """Read no more; a function that still runs is stopped."""
        self._items.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self) -> Generator[Any]:
        with contextlib.closing(self._events()) as events:
            for kind, data in events:
                if kind == "item":
                    yield data
                elif kind == "result":
                    self.result = data
                    return
                elif self._on_progress is not None:
                    self._on_progress(*data)

    def _events(self) -> Generator[tuple[str, Any]]:
        """What the function says, up to its result; progress as the arguments of `on_progress`."""
        is_open = False
        try:
            with self._open() as response:
                if response.status_code != 200:
                    response.read()
                    raise self._refused(response)
                is_open = True
                for event in httpx2.EventSource(response):
                    if event.event in {"item", "result"}:
                        yield event.event, event.json()
                    elif event.event == "progress":
                        data = cast("dict[str, Any]", event.json())
                        yield event.event, (float(data["fraction"]), str(data["message"]))
                    elif event.event == "error":
                        problem = cast("dict[str, Any]", event.json())
                        raise CallRefused(int(problem["status"]), problem)
        except (httpx2.TransportError, httpx2.InvalidURL) as error:
            raise (_cut_off(error) if is_open else self._lost(error)) from None
        except (httpx2.SSEError, ValueError, KeyError, TypeError):
            raise self._lost(ValueError("what it sends is no stream of a Headrace gateway")) from None
        raise _cut_off("it ended before the call did")


def _cut_off(reason: object) -> Unreachable:
    return Unreachable(f"the stream was cut off: {reason}")
