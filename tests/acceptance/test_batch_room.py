"""Batches that don't fit, for now or ever, and when that is told."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import uuid
from collections.abc import Sequence
from typing import Any

import httpx2
from harness.ledger_runner import LedgerRunner
from harness.problem import problem
from harness.site import Site

from headrace.database import Database
from headrace.keys import create_key
from headrace.owners import create_owner


def post(site: Site, inputs: Sequence[Any], **headers: str) -> httpx2.Response:
    return site.post("/fn/echo/batch", json.dumps(inputs).encode(), **headers)


def submit(site: Site, count: int, **headers: str) -> str:
    response = post(site, [{"text": str(n)} for n in range(count)], **headers)
    assert response.status_code == 202, response.text
    return response.json()["batch_id"]


def cancel(site: Site, batch_id: str, **headers: str) -> None:
    assert site.post(f"/batches/{batch_id}/cancel", b"", **headers).status_code == 200


def owner(site: Site, name: str, **quota: Any) -> str:
    """The `Authorization` of a new owner."""
    name = f"{name}-{uuid.uuid4().hex[:8]}"

    async def make() -> str:
        async with await Database.open(site.database_url, application_name="test") as database:
            await create_owner(database, name, **quota)
            return await create_key(database, name)

    return f"Bearer {asyncio.run(make())}"


def test_all_of_a_batch_must_fit_its_quota_and_the_backlog(quiet: Site, runner: LedgerRunner) -> None:
    key = owner(quiet, "small", most_outstanding=5, rate=100)
    batch_id = submit(quiet, 3, Authorization=key)
    full = post(quiet, [{"text": "a"}] * 3, Authorization=key)
    assert "5 unfinished jobs and has 3; a batch of 3" in problem(full, 429, "quota-exceeded")["detail"]
    assert full.headers["RateLimit"].startswith('"jobs";r=2, "rate";r=')
    cancel(quiet, batch_id, Authorization=key)


def test_what_never_fits_is_no_batch_and_what_may_fit_later_is_refused_for_now(
    quiet: Site, runner: LedgerRunner
) -> None:
    key = owner(quiet, "large")
    never = post(quiet, [{"text": "a"}] * 21, Authorization=key)
    detail = problem(never, 422, "invalid-input")["detail"]
    assert detail == "a batch of 21 never fits: 20 jobs of echo may wait"
    assert "Retry-After" not in never.headers
    batch_id = submit(quiet, 1, Authorization=key)
    later = post(quiet, [{"text": "a"}] * 20, Authorization=key)
    assert "20 more would be more" in problem(later, 503, "backlog-full")["detail"]
    assert re.fullmatch("[2-5]", later.headers["Retry-After"])
    cancel(quiet, batch_id, Authorization=key)


def test_without_room_for_a_job_the_body_is_not_waited_for(quiet: Site, runner: LedgerRunner) -> None:
    key = owner(quiet, "full", most_outstanding=2, rate=100)
    again = {"Authorization": key, "Idempotency-Key": str(uuid.uuid4())}
    batch_id = submit(quiet, 2, **again)
    url = httpx2.URL(quiet.url)
    with socket.create_connection((url.host, url.port), timeout=20) as connection:
        connection.sendall(
            f"POST /fn/echo/batch HTTP/1.1\r\nHost: {url.host}\r\nAuthorization: {key}\r\n"
            "Content-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
            'f\r\n{"text": "abc"}\r\n'.encode()
        )
        answer = connection.recv(2**16)  # nothing more is sent
    head = answer.split(b"\r\n\r\n")[0].lower()
    assert head.startswith(b"http/1.1 429 ")
    assert b'ratelimit: "jobs";r=0' in head
    assert b"retry-after: " in head
    replayed = post(quiet, [{"text": "0"}, {"text": "1"}], **again)
    assert (replayed.status_code, replayed.json()["batch_id"]) == (202, batch_id)
    cancel(quiet, batch_id, Authorization=key)
