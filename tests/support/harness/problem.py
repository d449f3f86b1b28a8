"""What every problem of the API must be, whatever it is about."""

from __future__ import annotations

import re
from typing import Any

import httpx2


def problem(response: httpx2.Response, status: int, code: str) -> dict[str, Any]:
    """The document of an answer that must be this problem, with all that the standards ask of it."""
    assert response.headers["Content-Type"] == "application/problem+json", response.text
    document: dict[str, Any] = response.json()
    assert (response.status_code, document["code"]) == (status, code), document
    assert (document["status"], document["type"]) == (status, f"/problems/{code}")
    assert document["title"]
    assert document["detail"]
    assert document["request_id"] == response.headers["X-Request-Id"]
    if sent := response.request.headers.get("X-Request-Id"):
        assert response.headers["X-Request-Id"] == sent
    assert "Traceback" not in response.text
    assert ("WWW-Authenticate" in response.headers) == (status in {401, 403})
    assert ("Allow" in response.headers) == (status == 405)
    assert ("RateLimit" in response.headers) >= (status == 429)
    if status in {429, 503}:
        assert re.fullmatch("[1-9][0-9]{0,2}", response.headers["Retry-After"])
    else:  # a job that isn't finished may be soon
        assert "Retry-After" not in response.headers or code == "not-finished"
    return document
