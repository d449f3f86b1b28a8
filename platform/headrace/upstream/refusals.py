"""What an answer other than 200 means: an error for the caller, and when to come back."""

from __future__ import annotations

import time
from email.utils import parsedate_to_datetime
from typing import Any, Final, cast

import msgspec

from headrace.errors import PermanentError, TransientError

BUSY: Final = frozenset({429, 503})
"""Nothing was done, and the same request may be taken later."""

_PASSING: Final = frozenset({408, 425, 500, 502, 504})
_LONGEST_MESSAGE: Final = 500
_LATEST_S: Final = 3600.0


def error_of(status: int, body: bytes, secret: str) -> PermanentError | TransientError:
    """The error that a status other than 200 and `BUSY` is.

    Args:
        status: of the answer.
        body: its first bytes.
        secret: what the message must not show.
    """
    if status in {401, 403}:  # servers quote the key here
        return PermanentError(f"the upstream server doesn't accept the key that it was given ({status})")
    said = message_of(body, secret)
    told = f"({status}): {said}" if said else f"({status})"
    if status in _PASSING:
        return TransientError(f"the upstream server failed {told}")
    if status == 404:
        return PermanentError(f"the upstream server doesn't have this model or address {told}")
    return PermanentError(f"the upstream server refused the request {told}")


def message_of(body: bytes, secret: str) -> str:
    """What a server says in OpenAI's form of an error, or in others that are usual; empty if nothing."""
    try:
        found: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
    for name in ("error", "message", "detail"):
        if isinstance(found, dict) and name in found:
            found = cast("dict[str, Any]", found)[name]
    if not isinstance(found, str):
        return ""
    text = found.replace(secret, "***") if secret else found
    return " ".join(text.split())[:_LONGEST_MESSAGE]


def retry_after(header: str | None) -> float:
    """Seconds until the server wants to be asked again, at most an hour; 0: it didn't say.

    A number or a date: RFC 9110, section 10.2.3.
    """
    if header is None:
        return 0.0
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(header).timestamp() - time.time()
        except ValueError:
            return 0.0
    return min(max(0.0, seconds), _LATEST_S)  # also for NaN, which isn't greater than 0
