"""What a client asks for in headers, read from the bytes that ASGI gives.

Every function takes the header's value, or None where the header is absent; the common case returns first.
Several header lines of one name are joined with `, ` before they come here (RFC 9110, section 5.3).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from headrace.domain import WEIGHTS, Priority
from headrace.gateway.problems import Problem
from headrace.ids import uuid7

_TOKEN: Final = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_QUOTED: Final = rb'"(?:[\t \x21\x23-\x5b\x5d-\x7e\x80-\xff]|\\[\t \x21-\x7e\x80-\xff])*"'
_SETTING: Final = re.compile(
    rb"[ \t]*(" + _TOKEN + rb")[ \t]*(?:=[ \t]*(" + _TOKEN + rb"|" + _QUOTED + rb"))?[ \t]*"
)
_MEDIA_TYPE: Final = re.compile(rb"[ \t]*(" + _TOKEN + rb"/" + _TOKEN + rb")[ \t]*")
_PIECES: Final = re.compile(rb'(?:[^"]|' + _QUOTED + rb")*")
_ESCAPE: Final = re.compile(rb"\\(.)", re.DOTALL)
_QUALITY: Final = re.compile(rb"0?\.[0-9]{1,3}|0\.?|1(?:\.0{0,3})?")
_WAIT: Final = re.compile(rb"[0-9]{1,9}")
_SECONDS: Final = re.compile(rb"[0-9]{1,20}(?:\.[0-9]{1,40})?(?:[eE][+-]?[0-9]{1,3})?")
_LONGEST_DEADLINE: Final = 1e9
_KEY: Final = re.compile(rb'"((?:[\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"|([\x21\x23-\x2b\x2d-\x7e]+)')
_LONGEST_KEY: Final = 255
_PRIORITIES: Final[Mapping[bytes, Priority]] = {name.encode(): name for name in WEIGHTS}
_REQUEST_ID: Final = re.compile(rb"[\x21-\x7e]{1,128}")
_PLACE: Final = re.compile(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_JSON_TYPE: Final = re.compile(rb"application/(?:[!#$&^_.+a-z0-9-]+\+)?json")

_PLAIN_JSON: Final = frozenset(
    {b"application/json", b"application/json; charset=utf-8", b"application/json;charset=utf-8"}
)
_ANYTHING: Final = frozenset({b"*/*", b"application/json"})
_AS_JSON: Final[Mapping[bytes, int]] = {b"application/json": 3, b"application/*": 2, b"*/*": 1, b"*": 1}
_AS_EVENTS: Final[Mapping[bytes, int]] = {b"text/event-stream": 3}
_SHOWN: Final = 80
_LONGEST_TRACEPARENT: Final = 256


@dataclass(frozen=True, slots=True)
class Preferences:
    """What `Prefer` (RFC 7240) asks for.

    Args:
        respond_async: answer 202 rather than hold the connection.
        wait: seconds for which the client is content to wait; None where it doesn't say.
    """

    respond_async: bool = False
    wait: int | None = None


_NO_PREFERENCES: Final = Preferences()


class Wishes(NamedTuple):
    """What a call asks for, besides what its input says.

    Args:
        prefer: how it is to be answered.
        deadline: its own total budget, in seconds.
        idempotency_key: what stands for it, however often it is made.
        priority: its class among its owner's jobs.
        takes_job: whether a job is an answer that it can use.
        place: its place in line, as a refusal has given it.
    """

    prefer: Preferences = _NO_PREFERENCES
    deadline: float | None = None
    idempotency_key: str | None = None
    priority: Priority | None = None
    takes_job: bool = True
    place: str | None = None


_NO_WISHES: Final = Wishes()
_ASKING: Final = frozenset(
    {
        b"headrace-async",
        b"headrace-deadline",
        b"headrace-place",
        b"headrace-priority",
        b"idempotency-key",
        b"prefer",
    }
)


def wishes(headers: Mapping[bytes, bytes]) -> Wishes:
    """All that a call's headers ask for.

    Raises:
        Problem: `malformed-header`.
    """
    if _ASKING.isdisjoint(headers):
        return _NO_WISHES
    return Wishes(
        prefer(headers.get(b"prefer")),
        deadline(headers.get(b"headrace-deadline")),
        idempotency_key(headers.get(b"idempotency-key")),
        priority(headers.get(b"headrace-priority")),
        takes_job(headers.get(b"headrace-async")),
        place(headers.get(b"headrace-place")),
    )


def prefer(value: bytes | None) -> Preferences:
    """The preferences that the platform knows; others are ignored, and of repeated ones the first counts.

    Raises:
        Problem: `malformed-header`.
    """
    if value is None:
        return _NO_PREFERENCES
    found: dict[bytes, bytes] = {}
    for element in _split(value, b",", "Prefer"):
        head, *parameters = _split(element, b";", "Prefer")
        if not element.strip(b" \t"):
            continue
        name, word = _setting(head, "Prefer")
        for parameter in parameters:
            if parameter.strip(b" \t"):
                _setting(parameter, "Prefer")
        found.setdefault(name, word)
    respond_async = found.get(b"respond-async")
    if respond_async:
        raise _malformed("Prefer", "`respond-async` takes no value")
    wait = found.get(b"wait")
    if wait is not None and _WAIT.fullmatch(wait) is None:
        raise _malformed("Prefer", "`wait` takes whole seconds, at most nine digits, as in `wait=10`")
    return Preferences(respond_async is not None, None if wait is None else int(wait))


def deadline(value: bytes | None) -> float | None:
    """The seconds of `Headrace-Deadline` within which the whole call has to be done.

    Raises:
        Problem: `malformed-header`.
    """
    if value is None:
        return None
    seconds = float(value) if _SECONDS.fullmatch(value) else 0.0
    if not 0 < seconds < _LONGEST_DEADLINE:
        raise _malformed("Headrace-Deadline", "it takes a positive number of seconds, as in `2.5`")
    return seconds


def idempotency_key(value: bytes | None) -> str | None:
    """The key of `Idempotency-Key`: quoted, as draft-ietf-httpapi-idempotency-key-header has it, or bare.

    Both forms of a key are the same key. A bare one holds neither `"` nor `,`, which would make it several.

    Raises:
        Problem: `malformed-header`.
    """
    if value is None:
        return None
    match = _KEY.fullmatch(value.strip(b" \t"))
    key = b"" if match is None else _ESCAPE.sub(rb"\1", match[1]) if match[2] is None else match[2]
    if not 1 <= len(key) <= _LONGEST_KEY:
        raise _malformed(
            "Idempotency-Key",
            f'it takes one key of 1 to {_LONGEST_KEY} visible ASCII characters, as in `"8e03978e"`',
        )
    return key.decode("ascii")


def priority(value: bytes | None) -> Priority | None:
    """The class of `Headrace-Priority`.

    Raises:
        Problem: `malformed-header`.
    """
    if value is None:
        return None
    found = _PRIORITIES.get(value.strip(b" \t").lower())
    if found is None:
        raise _malformed("Headrace-Priority", f"it takes {', '.join(f'`{name}`' for name in WEIGHTS)}")
    return found


def takes_job(value: bytes | None) -> bool:
    """Whether a job is an answer, which `Headrace-Async: never` denies.

    Raises:
        Problem: `malformed-header`.
    """
    if value is None:
        return True
    if value.strip(b" \t").lower() != b"never":
        raise _malformed("Headrace-Async", "it takes `never`")
    return False


def place(value: bytes | None) -> str | None:
    """The place in line of `Headrace-Place`; what is none is ignored, as a place of the past is."""
    if value is None:
        return None
    found = value.strip(b" \t").lower()
    return found.decode("ascii") if _PLACE.fullmatch(found) else None


def request_id(value: bytes | None) -> str:
    """The client's `X-Request-Id` where it is 1 to 128 visible ASCII characters, otherwise a new one."""
    if value is None or _REQUEST_ID.fullmatch(value) is None:
        return uuid7()
    return value.decode("ascii")


def trace_of(headers: Mapping[bytes, bytes]) -> str:
    """The `traceparent` that a runner is told, as far as one can be."""
    trace = headers.get(b"traceparent")
    return "" if trace is None else trace[:_LONGEST_TRACEPARENT].decode("latin-1")


def check_accept(value: bytes | None) -> None:
    """Refuse a client that can't take `application/json`, the only form of the answer.

    An element that can't be read is passed over: some clients' defaults hold one (`*; q=.2`).

    Raises:
        Problem: `not-acceptable`.
    """
    if value is None or value in _ANYTHING or not value.strip(b" \t"):
        return
    if _weight(_ranges(value), _AS_JSON)[0] == 0:
        raise Problem(
            "not-acceptable", "The answer is `application/json`, which the `Accept` header rules out."
        )


def wants_events(value: bytes | None) -> bool:
    """Whether a call is to be answered by server-sent events, which have to be named for that.

    Of two forms that are wanted alike the one that is named more precisely counts (`text/event-stream, */*`),
    and JSON where both are named.

    Raises:
        Problem: `not-acceptable`, neither form is.
    """
    if value is None or value in _ANYTHING or not value.strip(b" \t"):
        return False
    ranges = _ranges(value)
    as_json, as_events = _weight(ranges, _AS_JSON), _weight(ranges, _AS_EVENTS)
    if max(as_json, as_events)[0] == 0:
        raise Problem(
            "not-acceptable",
            "The answer is `application/json` or `text/event-stream`; the `Accept` header rules out both.",
        )
    return as_events > as_json


def check_content_type(value: bytes | None) -> None:
    """Refuse a body that isn't declared as JSON in UTF-8.

    Raises:
        Problem: `unsupported-media-type`.
    """
    if value in _PLAIN_JSON:
        return
    if value is None or not value.strip(b" \t"):
        raise Problem(
            "unsupported-media-type",
            "The request has no `Content-Type`; send it as `application/json`.",
        )
    if _PIECES.fullmatch(value) is not None:
        head, *parameters = _split(value, b";", "Content-Type")
        media = _MEDIA_TYPE.fullmatch(head)
        if media is not None and _JSON_TYPE.fullmatch(media[1].lower()) is not None:
            _check_charset(parameters)
            return
    raise Problem(
        "unsupported-media-type",
        f"`{_shown(value)}` is not JSON; send the body with `Content-Type: application/json`.",
    )


def check_content_encoding(value: bytes | None) -> None:
    """Refuse a compressed body: its size couldn't be bounded before it is read.

    Raises:
        Problem: `unsupported-media-type`.
    """
    if value is not None and value.strip(b" \t").lower() not in {b"", b"identity"}:
        raise Problem(
            "unsupported-media-type",
            f"The content encoding `{_shown(value)}` is not supported; send the body as it is.",
            headers={"Accept-Encoding": "identity"},
        )


def _check_charset(parameters: list[bytes]) -> None:
    for parameter in parameters:
        if not parameter.strip(b" \t"):
            continue
        name, word = _setting(parameter, "Content-Type")
        if name == b"charset" and word.lower() not in {b"utf-8", b"utf8"}:
            raise Problem(
                "unsupported-media-type", f"The charset `{_shown(word)}` is not supported; send UTF-8."
            )


def _ranges(value: bytes) -> list[tuple[bytes, float]]:
    """The media ranges of an `Accept` and their weights."""
    found: list[tuple[bytes, float]] = []
    for element in _split(value.lower(), b",", "Accept"):
        media, *parameters = (part.strip(b" \t") for part in _split(element, b";", "Accept"))
        found.append((media, _quality(parameters)))
    return found


def _weight(ranges: list[tuple[bytes, float]], precision: Mapping[bytes, int]) -> tuple[float, int]:
    """How much a form is wanted, as the most precise range says that covers it, and how precise that is."""
    best, quality = 0, 0.0
    for media, weight in ranges:
        rank = precision.get(media, 0)
        if rank and rank >= best:
            best, quality = rank, max(quality, weight) if rank == best else weight
    return quality, best


def _quality(parameters: list[bytes]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition(b"=")
        if name.strip(b" \t") == b"q":
            value = value.strip(b" \t")
            return float(value) if _QUALITY.fullmatch(value) else 0.0
    return 1.0


def _split(value: bytes, separator: bytes, header: str) -> list[bytes]:
    """Split at separators outside quoted strings."""
    if b'"' not in value:
        return value.split(separator)
    if _PIECES.fullmatch(value) is None:
        raise _malformed(header, "a quoted string is not closed")
    parts: list[bytes] = []
    start = at = 0
    while at < len(value):
        if value[at : at + 1] == b'"':
            at = _closing_quote(value, at)
        elif value[at : at + 1] == separator:
            parts.append(value[start:at])
            start = at + 1
        at += 1
    return [*parts, value[start:]]


def _closing_quote(value: bytes, at: int) -> int:
    at += 1
    while value[at : at + 1] != b'"':
        at += 2 if value[at : at + 1] == b"\\" else 1
    return at


def _setting(text: bytes, header: str) -> tuple[bytes, bytes]:
    """A lower-case name and its value, unquoted; an empty value says the same as none."""
    match = _SETTING.fullmatch(text)
    if match is None:
        raise _malformed(header, f"`{_shown(text.strip())}` is neither `name` nor `name=value`")
    word = match[2] or b""
    return match[1].lower(), _ESCAPE.sub(rb"\1", word[1:-1]) if word.startswith(b'"') else word


def _malformed(header: str, reason: str) -> Problem:
    return Problem("malformed-header", f"The header `{header}` could not be understood: {reason}.")


def _shown(value: bytes) -> str:
    text = value.decode("ascii", "replace")
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
