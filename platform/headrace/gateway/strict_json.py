"""Reading a body as JSON, strictly: whatever two parsers could understand differently is refused.

Two parsers read every body, because neither is strict alone: jiter refuses duplicate keys and deep nesting
but reads 1e999 as infinity; msgspec refuses that but keeps the last of duplicate keys. Together they take a
few microseconds. Integers have the range of floats.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable
from itertools import accumulate
from typing import Any, Final, cast

import jiter
import msgspec

from headrace.gateway.problems import Problem

MAX_DEPTH: Final = 100
"""How many arrays and objects may be open at once."""

_LONGEST_KEY: Final = 64
_LONGEST_PATH: Final = 128
_STRING: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
# As signed bytes: 1 opens a level, -1 closes one.
_STEPS: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[{]}"))
_NOT_OPENING: Final = bytes(set(range(256)) - set(b"[{"))
_DIGITS: Final = bytes.maketrans(b"123456789", b"0" * 9)
_STRIDE: Final = 20
_MOST_DIGITS: Final = sys.float_info.max_10_exp  # an integer of so many surely fits a float
_LARGEST: Final = int(sys.float_info.max)
_POSITION: Final = re.compile(r"(.*) at line (\d+) column (\d+)", re.DOTALL)
_NOT_A_NUMBER: Final = re.compile(rb"-?(NaN|Infinity)")
_CLEARER: Final = {
    "EOF while parsing a value": "the body ends in the middle of a value",
    "EOF while parsing a list": "the body ends inside an array",
    "EOF while parsing an object": "the body ends inside an object",
    "EOF while parsing a string": "the body ends inside a string",
    "expected value": "a value is expected here",
    "invalid unicode code point": "the text is not valid UTF-8",
    "recursion limit exceeded": f"it is nested more than {MAX_DEPTH} levels deep",
    "number out of range": "an integer has too many digits",
    "unexpected end of hex escape": "an escape is incomplete or stands for a lone surrogate",
    "lone leading surrogate in hex escape": "an escape stands for a lone surrogate",
    "trailing characters": "something follows the value",
}


def decode(body: bytes) -> Any:
    """The value of a JSON text.

    Raises:
        Problem: `malformed-json`, saying what is wrong and where.
    """
    try:
        # Keys repeat from call to call and are worth caching; what callers send as values is not to be kept.
        jiter.from_json(body, catch_duplicate_keys=True, allow_inf_nan=False, cache_mode="keys")
    except ValueError as error:
        raise Problem("malformed-json", _explain(body, str(error))) from None
    try:
        value = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise Problem("malformed-json", _explain_range(jiter.from_json(body), str(error))) from None
    if len(body) > _MOST_DIGITS and _has_many_digits(body) and _out_of_range(value) is not None:
        # Python has integers of any size, but a function's float would silently become infinite.
        raise Problem("malformed-json", _explain_range(value))
    if len(body.translate(None, _NOT_OPENING)) > MAX_DEPTH and _depth(body) > MAX_DEPTH:
        raise Problem("malformed-json", f"The body is nested more than {MAX_DEPTH} levels deep.")
    return value


def _has_many_digits(body: bytes) -> bool:
    # Looked through at every so many bytes first: in so long a row of digits, these are digits too.
    if b"0" * (_MOST_DIGITS // _STRIDE) not in body[::_STRIDE].translate(_DIGITS):
        return False
    return b"0" * (_MOST_DIGITS + 1) in body.translate(_DIGITS)


def _depth(body: bytes) -> int:
    """The levels of a valid JSON text, from its brackets alone."""
    steps = _STRING.sub(b"", body).translate(_STEPS, _NOT_BRACKETS)
    return max(accumulate(memoryview(steps).cast("b")), default=0)


def _explain(body: bytes, message: str) -> str:
    if not body.strip(b" \t\r\n"):
        return "The body is empty; send a JSON value."
    if body.startswith(b"\xef\xbb\xbf"):
        return "The body starts with a byte order mark; send UTF-8 without one."
    match = _POSITION.fullmatch(message)
    if match is None:  # pragma: no cover - the parser always says where
        return f"The body is not valid JSON: {message}."
    reason, line, column = match[1], int(match[2]), int(match[3])
    at = _offset(body, line, column)
    if (literal := _NOT_A_NUMBER.match(body, max(at - 1, 0)) or _NOT_A_NUMBER.match(body, at)) is not None:
        reason = f"{literal[0].decode()} is not a JSON number"
    elif reason.startswith("Detected duplicate key"):
        key = reason.removeprefix("Detected duplicate key ")
        shown = key if len(key) <= _LONGEST_KEY else f"{key[:_LONGEST_KEY]}…"
        reason = f"an object has the key {shown} twice"
    else:
        reason = _CLEARER.get(reason, reason)
    return f"The body is not valid JSON: {reason} (line {line}, column {column}, byte {at})."


def _offset(body: bytes, line: int, column: int) -> int:
    start = len(body) - len(body.split(b"\n", line - 1)[-1])
    return min(start + max(column - 1, 0), len(body))


def _explain_range(value: Any, message: str = "") -> str:
    path = _out_of_range(value)
    if path is None:  # pragma: no cover - the parsers differ in nothing else
        return f"The body is not valid JSON: {message}."
    return f"The body is not valid JSON: the number at {path[:_LONGEST_PATH] or 'the top'} is out of range."


def _out_of_range(value: Any, path: str = "") -> str | None:
    """The JSON Pointer of the first number beyond the range of floats; jiter has bounded the depth."""
    if isinstance(value, float):
        return path if math.isinf(value) else None
    if isinstance(value, int):
        return path if abs(value) > _LARGEST else None
    children: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        children = cast("dict[str, Any]", value).items()
    elif isinstance(value, list):
        children = enumerate(cast("list[Any]", value))
    for key, child in children:
        step = str(key).replace("~", "~0").replace("/", "~1")
        if (found := _out_of_range(child, f"{path}/{step}")) is not None:
            return found
    return None
