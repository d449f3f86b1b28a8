"""The inputs of a batch, found in its body piece by piece: the elements of a JSON array, or lines of NDJSON.

Only where an input begins and ends is decided here, by quotes, brackets and commas. Whether it is JSON is
told by whoever decodes it: a body is an array of JSON exactly when each of its pieces decodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, Protocol

from headrace.gateway.problems import Problem

_BLANK: Final = b" \t\r\n"
_NOT_BLANK: Final = re.compile(rb"[^ \t\r\n]")
_AT_TOP: Final = re.compile(rb'[\[\]{}",]')  # between the elements of the outer array
_NESTED: Final = re.compile(rb'[\[\]{}"]')  # where commas don't matter
_OPENING: Final = b"[{"
_CLOSING: Final = b"]}"
_BOM: Final = b"\xef\xbb\xbf"
_QUOTE, _BACKSLASH, _END, _WRONG_END = b'"\\]}'
_BLANKS: Final = 2**16
"""What is put up with around an input that hasn't ended, as it may be blank; then its own bytes count."""


class Splitter(Protocol):
    """Finds inputs in a body that comes in pieces."""

    @property
    def line(self) -> int | None:
        """The line of the body, from 1 on, in which the newest input is; None where that says little."""
        ...

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """The inputs that end within the piece; to be used up before the next one.

        Raises:
            Problem: the body can't be a batch, or an input is over its limit.
        """
        ...

    def end(self) -> Iterator[bytes]:
        """The input that the end of the body ends.

        Raises:
            Problem: the body ends too early.
        """
        ...


class LineSplitter:
    """NDJSON: an input a line; blank lines count for nothing.

    Args:
        limit: the most bytes of an input.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._rest = bytearray()
        self._count = 0
        self._line_number = 1

    @property
    def line(self) -> int:
        """See `Splitter`."""
        return self._line_number

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """See `Splitter`."""
        start = 0 if self._rest else _next(piece, 0)
        self._line_number += piece.count(b"\n", 0, start)
        while (end := piece.find(b"\n", start)) >= 0:
            yield from self._line(piece[start:end])
            start = _next(piece, end + 1)
            self._line_number += piece.count(b"\n", end, start)
        self._rest += piece[start:]
        if len(self._rest) > self._limit + _BLANKS:
            raise too_large(self._count, self._limit)

    def end(self) -> Iterator[bytes]:
        """See `Splitter`."""
        yield from self._line(b"")

    def _line(self, rest: bytes) -> Iterator[bytes]:
        line = rest
        if self._rest:
            line = bytes(self._rest) + rest
            self._rest.clear()
        line = line.strip(_BLANK)
        if len(line) > self._limit:
            raise too_large(self._count, self._limit)
        if line:
            self._count += 1
            yield line


class ArraySplitter:
    """A JSON array: an input an element.

    Args:
        limit: the most bytes of an input.
    """

    line = None
    """See `Splitter`."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._count = 0
        self._rest = bytearray()  # of an element that hasn't ended
        self._at: int = 0  # what of it was looked at
        self._depth = 0  # 1 between the elements of the outer array
        self._is_text = False
        self._is_over = False

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """See `Splitter`."""
        self._rest += piece if self._rest else piece.lstrip(_BLANK)
        if self._depth == 0 and self._rest and not self._is_over:
            self._begin()
        start = 0
        while not self._is_over and (end := self._next_end()) is not None:
            self._is_over = self._rest[end] == _END
            yield from self._element(bytes(self._rest[start:end]).strip(_BLANK))
            start = end + 1
        self._drop(start)
        if self._is_over and self._rest:
            raise Problem("malformed-json", "The body is not valid JSON: something follows the array.")
        if len(self._rest) > self._limit + _BLANKS:
            raise too_large(self._count, self._limit)

    def end(self) -> Iterator[bytes]:
        """See `Splitter`."""
        if not self._is_over:
            what = "inside an array" if self._depth else "before it begins"
            raise Problem("malformed-json", f"The body is not valid JSON: it ends {what}.")
        yield from ()

    def _begin(self) -> None:
        if self._rest.startswith(_BOM):
            raise Problem("malformed-json", "The body starts with a byte order mark; send UTF-8 without one.")
        if not self._rest.startswith(b"["):
            message = "a batch is a JSON array of inputs, or an input a line as application/x-ndjson"
            raise Problem("invalid-input", message, errors=[{"path": "", "message": message}])
        del self._rest[:1]
        self._depth = 1

    def _next_end(self) -> int | None:
        """Where the next comma or bracket is that ends an element; None when it hasn't come yet."""
        rest = self._rest
        while True:
            if self._is_text and not self._leave_text():
                return None
            found = (_AT_TOP if self._depth == 1 else _NESTED).search(rest, self._at)
            if found is None:
                self._at = len(rest)
                return None
            at, self._at = found.start(), found.end()
            byte = rest[at]
            if byte == _QUOTE:
                self._is_text = True
            elif byte in _OPENING:
                self._depth += 1
            elif self._depth > 1 and byte in _CLOSING:
                self._depth -= 1
            elif byte == _WRONG_END:
                raise Problem(
                    "malformed-json",
                    f"The body is not valid JSON: a bracket in item {self._count} closes nothing.",
                )
            else:
                return at  # a comma or the last bracket of the outer array

    def _leave_text(self) -> bool:
        """Go on behind the text's closing quote; False when that hasn't come yet."""
        rest = self._rest
        while (at := rest.find(b'"', self._at)) >= 0:
            self._at = at + 1
            before = at - 1
            while rest[before] == _BACKSLASH:  # not beyond the opening quote
                before -= 1
            if (at - before) % 2:  # not escaped
                self._is_text = False
                return True
        self._at = len(rest)
        return False

    def _element(self, element: bytes) -> Iterator[bytes]:
        if not element and self._is_over and not self._count:
            return  # an empty array
        if not element:
            raise Problem(
                "malformed-json",
                f"The body is not valid JSON: there is no value where item {self._count} should be.",
            )
        if len(element) > self._limit:
            raise too_large(self._count, self._limit)
        self._count += 1
        yield element

    def _drop(self, size: int) -> None:
        """Forget so many bytes, and the blank ones behind them, so that no amount of those has to be kept.

        What is left begins with an element: looking at its first byte is enough, however many pieces come.
        """
        if size < len(self._rest) and self._rest[size] in _BLANK:
            size = _next(self._rest, size)
        if size:
            del self._rest[:size]
            self._at = max(self._at - size, 0)


def _next(piece: bytes | bytearray, start: int) -> int:
    """Where the next byte is that isn't blank; millions of blank lines are passed over at once."""
    match = _NOT_BLANK.search(piece, start)
    return len(piece) if match is None else match.start()


def too_large(index: int, limit: int) -> Problem:
    """The problem of an input that is over its limit; the rest of the body isn't read."""
    return Problem(
        "payload-too-large",
        f"Item {index} is over the function's limit of {limit} bytes.",
        headers={"Connection": "close"},
        limit=limit,
    )
