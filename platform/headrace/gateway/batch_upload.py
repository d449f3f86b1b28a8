"""A batch's body on its way in: each input is checked as it comes, and kept on disk until all are there."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Final, Self, TypeVar, cast

from headrace.gateway import preferences, strict_json
from headrace.gateway.batch_reader import ArraySplitter, LineSplitter, Splitter
from headrace.gateway.digest import digest_of
from headrace.gateway.directory import ServedFunction
from headrace.gateway.exchange import ClientLeft
from headrace.gateway.problems import Problem
from headrace.ledger.batches import Part

if TYPE_CHECKING:
    from litestar.types import Receive

A = TypeVar("A")
R = TypeVar("R")

MOST_ITEMS: Final = 10_000
"""Inputs in one batch."""

LINES: Final = frozenset(
    {b"application/x-ndjson", b"application/ndjson", b"application/jsonl", b"application/x-jsonlines"}
)
"""Content types of an input a line."""

_FORMS: Final = "A batch is a JSON array as `application/json`, or an input a line as `application/x-ndjson`."
_PLACE: Final = re.compile(r" \(line (\d+), column (\d+), byte \d+\)")
_IN_MEMORY: Final = 2**20  # bytes of a batch that never gets to the disk, and of one write there
_PART_JOBS: Final = 500
_PART_BYTES: Final = 4 * 2**20
_MOST_BAD: Final = 20
_MOST_FAULTS: Final = 5  # told of one item
_GRACE_S: Final = 30.0  # of waiting for the client, in all of a short body
_LEAST_RATE: Final = 2**19
"""Bytes a second that a longer body has to come at.

More than of a call, as an upload keeps others from room: for less than nine minutes at 256 MiB. A line of
4 Mbit/s is fast enough, and a gateway checks as much from all uploads at once.
"""

_TURN_S: Final = 0.005  # other callers get the event loop after so long at the latest


class Upload:
    """The inputs of one batch; a context manager, at whose end they are gone from the disk.

    Args:
        function: whose inputs they are.
        most_bytes: the largest body.
    """

    def __init__(self, function: ServedFunction, most_bytes: int) -> None:
        self.costs: list[float] = []
        """Of each input."""
        self.size = 0
        """Bytes of all inputs."""
        self.function = function
        self._most_bytes = most_bytes
        self._digests: list[bytes] = []
        self._sizes: list[int] = []
        self._errors: list[dict[str, str]] = []
        self._bad = 0
        self._hint = ""
        self._file = cast("IO[bytes]", tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY))  # noqa: SIM115
        self._unwritten: list[bytes] = []
        self._unwritten_size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):  # it writes what it has buffered, and a disk may be full
            self._file.close()

    def __len__(self) -> int:
        return len(self.costs)

    @property
    def digest(self) -> bytes:
        """SHA-256 over the inputs' digests."""
        return hashlib.sha256(b"".join(self._digests)).digest()

    async def read(self, receive: Receive, headers: dict[bytes, bytes]) -> None:
        """Take the body, as its `Content-Type` says, and check every input.

        Raises:
            Problem: it isn't a batch of the function's inputs; paths in `errors` begin with an input's index.
            ClientLeft: the client is gone.
        """
        splitter = splitter_of(headers.get(b"content-type"), self.function.manifest.limits.input)
        declared = headers.get(b"content-length")
        if declared is not None and int(declared) > self._most_bytes:
            raise _too_large(self._most_bytes)
        loop = asyncio.get_running_loop()
        turn_ends_at = loop.time() + _TURN_S
        async for found in _found(receive, splitter, self._most_bytes):
            for item in found:
                self._take(item, splitter.line)
                if self._unwritten_size > _IN_MEMORY:
                    await self._write()
                if loop.time() > turn_ends_at:
                    await asyncio.sleep(0)
                    turn_ends_at = loop.time() + _TURN_S
        if self._bad:
            raise self._invalid()
        if not self.costs:
            raise _not_a_batch("a batch has at least one input")
        await self._write()

    async def parts(self, job_ids: Sequence[str]) -> AsyncIterator[Part]:
        """The inputs from the first one on, with the ids of their jobs, as much as one statement may carry.

        Args:
            job_ids: one for each input.

        Raises:
            Problem: `busy`, they can't be read back.
        """
        await _on_disk(self._file.seek, 0)
        first = 0
        while first < len(self._sizes):
            last, size = first + 1, self._sizes[first]
            while last < len(self._sizes) and last - first < _PART_JOBS:
                if size + self._sizes[last] > _PART_BYTES:
                    break
                size += self._sizes[last]
                last += 1
            content = await _on_disk(self._file.read, size)
            inputs, at = list[bytes](), 0
            for length in self._sizes[first:last]:
                inputs.append(content[at : at + length])
                at += length
            yield Part(list(job_ids[first:last]), inputs, self._digests[first:last])
            first = last

    def _take(self, item: bytes, line: int | None) -> None:
        index = len(self.costs)
        if index == MOST_ITEMS:
            raise _not_a_batch(f"a batch has at most {MOST_ITEMS} inputs", "Connection")
        if line is not None and not index and item.startswith(b"["):
            self._hint = " The body looks like a JSON array: send that as `application/json`."
        try:
            value = strict_json.decode(item)
        except Problem as problem:
            detail = f"{_where(index, line)}: {_of_an_item(problem.detail, line)}{self._hint}"
            raise Problem(problem.code, detail, headers={"Connection": "close"}) from None
        self.costs.append(self.function.manifest.cost.of(value))
        try:
            self.function.check(value, len(item))
        except Problem as problem:
            self._note_bad(index, problem)
        if self._bad:
            return  # nothing will be recorded
        self._digests.append(digest_of(value))
        self._sizes.append(len(item))
        self.size += len(item)
        self._unwritten.append(item)
        self._unwritten_size += len(item)

    def _note_bad(self, index: int, problem: Problem) -> None:
        self._bad += 1
        faults = cast("list[dict[str, str]]", problem.extra["errors"])
        self._errors += [{**fault, "path": f"/{index}{fault['path']}"} for fault in faults[:_MOST_FAULTS]]
        if self._bad == _MOST_BAD:
            raise self._invalid("Connection")

    def _invalid(self, *close: str) -> Problem:
        first = self._errors[0]
        items = "1 input is" if self._bad == 1 else f"{self._bad} inputs are"
        read = f"{items} not valid, of {len(self.costs)} that were read."
        fault = f"At {first['path']}: {first['message']}"
        return Problem(
            "invalid-input",
            f"{read} {fault}.{self._hint}" if self._hint else f"{read} {fault}",
            headers=dict.fromkeys(close, "close"),
            errors=self._errors,
        )

    async def _write(self) -> None:
        content, self._unwritten, self._unwritten_size = b"".join(self._unwritten), [], 0
        await _on_disk(self._keep, content)

    def _keep(self, content: bytes) -> None:
        self._file.write(content)
        self._file.flush()  # or a full disk would be noticed only when all of it is read again


async def _on_disk(work: Callable[[A], R], argument: A) -> R:
    try:
        return await asyncio.to_thread(work, argument)
    except OSError as error:
        raise Problem("busy", f"The batch can't be kept until it is recorded: {error.strerror}.") from error


def splitter_of(content_type: bytes | None, limit: int) -> Splitter:
    """What finds the inputs of a body of this type.

    Args:
        content_type: the header.
        limit: the most bytes of an input.

    Raises:
        Problem: `unsupported-media-type`.
    """
    media, semicolon, parameters = (content_type or b"").partition(b";")
    if media.strip(b" \t").lower() in LINES:
        preferences.check_content_type(b"application/json" + semicolon + parameters)
        return LineSplitter(limit)
    try:
        preferences.check_content_type(content_type)
    except Problem as problem:
        raise Problem(
            problem.code,
            f"{problem.detail} {_FORMS}",
            headers={"Accept": "application/json, application/x-ndjson"},
        ) from None
    return ArraySplitter(limit)


def _where(index: int, line: int | None) -> str:
    return f"Item {index} (counted from 0)" + (f", line {line} of the body" if line is not None else "")


def _of_an_item(detail: str, line: int | None) -> str:
    """What is wrong with a body, told of an item of one, with the place in that."""
    place = r" (column \2 of the item)" if line is not None else r" (line \1, column \2 of the item)"
    return _PLACE.sub(place, detail).replace("The body ", "it ", 1).replace("the body ends", "it ends", 1)


async def _found(receive: Receive, splitter: Splitter, most_bytes: int) -> AsyncIterator[Iterator[bytes]]:
    """What of the body each of its pieces ends."""
    loop = asyncio.get_running_loop()
    received, waited = 0, 0.0
    while True:
        began = loop.time()
        try:
            async with asyncio.timeout(longest_wait(received) - waited):
                message: Any = await receive()
        except TimeoutError:
            raise _too_slow() from None
        waited += loop.time() - began
        if message["type"] == "http.disconnect":
            raise ClientLeft
        piece: bytes = message.get("body", b"")
        received += len(piece)
        if received > most_bytes:
            raise _too_large(most_bytes)
        yield splitter.feed(piece)
        if not message.get("more_body", False):
            yield splitter.end()
            return
        if not piece:  # `Connection` says so: the rest has been too long in coming
            raise _too_slow()


def longest_wait(received: int) -> float:
    """How many seconds a client may have been waited for that has sent so many bytes of a batch."""
    return max(_GRACE_S, received / _LEAST_RATE)


def _too_slow() -> Problem:
    return Problem(
        "request-timeout",
        f"A batch has to come within {_GRACE_S:.0f} s, or at {_LEAST_RATE // 1024} KiB a second.",
        headers={"Connection": "close"},
    )


def _not_a_batch(message: str, *close: str) -> Problem:
    headers = dict.fromkeys(close, "close")
    return Problem("invalid-input", message, headers=headers, errors=[{"path": "", "message": message}])


def _too_large(limit: int) -> Problem:
    return Problem(
        "payload-too-large",
        f"The body is over the limit of {limit} bytes for a batch.",
        headers={"Connection": "close"},
        limit=limit,
    )
