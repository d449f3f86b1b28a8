"""What a request of the client is made of."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from headrace.domain import Priority


def path_of(*parts: str) -> str:
    """The path of these segments."""
    return "".join(f"/{quote(part, safe='')}" for part in parts)


def prefer_header(first: str | None, wait: int | None) -> str:
    """`Prefer`, with what comes first, and the seconds that a job is given."""
    return ", ".join(filter(None, [first, None if wait is None else f"wait={wait}"]))


def body_of(value: Any) -> dict[str, Any]:
    """What httpx2 is given for an input: any JSON value, or JSON as bytes."""
    if isinstance(value, bytes):
        return {"content": value, "headers": {"Content-Type": "application/json"}}
    return {"json": value}


def with_wishes(
    request: dict[str, Any], idempotency_key: str | None, deadline: float | None, priority: Priority | None
) -> dict[str, Any]:
    """The same request, with the headers that say so."""
    wishes: dict[str, Any] = {}
    if idempotency_key is not None:
        escaped = idempotency_key.replace("\\", r"\\").replace('"', r"\"")
        wishes["Idempotency-Key"] = f'"{escaped}"'.encode()
    if deadline is not None:
        wishes["Headrace-Deadline"] = str(deadline)
    if priority is not None:
        wishes["Headrace-Priority"] = priority
    return {**request, "headers": {**request.get("headers", {}), **wishes}} if wishes else request


def line_of(value: Any) -> bytes:
    """An input as one line of a batch."""
    return (value if isinstance(value, bytes) else json.dumps(value, allow_nan=False).encode()) + b"\n"
