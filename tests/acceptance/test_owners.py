"""Who may do what, and how much: scopes, functions of a key, and rates, over HTTP."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any, TypeVar

import httpx2
from harness.postgres import Clones, query
from harness.problem import problem
from harness.site import Site, answered, eventually, free_port, site

from headrace.database import Database
from headrace.keys import create_key
from headrace.owners import set_quota

T = TypeVar("T")

ECHO = {"text": "a"}
_numbers = count()


def with_database(running: Site, work: Callable[[Database], Coroutine[Any, Any, T]]) -> T:
    async def connected() -> T:
        async with await Database.open(running.database_url, application_name="test") as database:
            return await work(database)

    return asyncio.run(connected())


def bearer(running: Site, owner: str = "someone", **key: Any) -> dict[str, str]:
    """The header of a new key."""
    secret = with_database(running, lambda database: create_key(database, owner, **key))
    return {"Authorization": f"Bearer {secret}"}


def limited(running: Site, **quota: Any) -> tuple[str, dict[str, str]]:
    """A new owner with that quota, and the header of its key."""
    owner = f"owner-{next(_numbers)}"
    headers = bearer(running, owner)
    with_database(running, lambda database: set_quota(database, owner, **quota))
    return owner, headers


# ---------------------------------------------------------------------- scopes and functions


def test_each_route_needs_its_scope(served: Site) -> None:
    reads, calls, operates = (bearer(served, scopes=[scope]) for scope in ("read", "call", "admin"))

    refused = served.call("echo", ECHO, **reads)
    assert problem(refused, 403, "forbidden")["detail"] == "The key lacks the scope `call`."
    assert refused.headers["WWW-Authenticate"] == (
        'Bearer realm="headrace", error="insufficient_scope", scope="call"'
    )
    assert served.call("echo", ECHO, **calls).status_code == 200
    problem(served.call("echo", ECHO, **operates), 403, "forbidden")

    for path in ("/fn", "/fn/echo"):
        assert served.get(path, **reads).status_code == 200
        assert served.get(path, **calls).status_code == 200
        refused = served.get(path, **operates)
        assert problem(refused, 403, "forbidden")["detail"] == "The key lacks the scope `read` or `call`."


def test_a_key_calls_its_functions_and_sees_all(served: Site) -> None:
    narrow = bearer(served, functions=["echo", "not_there_yet"])

    assert served.call("echo", ECHO, **narrow).status_code == 200
    refused = served.call("nap", {"seconds": 0}, **narrow)
    assert problem(refused, 403, "forbidden")["detail"] == "The key may not call `nap`."
    assert served.get("/fn", **narrow).json()["items"] == served.get("/fn").json()["items"]
    assert served.get("/fn/nap", **narrow).status_code == 200
    problem(served.call("not_there_yet", {}, **narrow), 404, "unknown-function")


# ---------------------------------------------------------------------- rates


def test_without_a_rate_no_answer_speaks_of_one(served: Site) -> None:
    assert "RateLimit" not in served.call("echo", ECHO).headers


def test_calls_over_the_rate_are_refused_and_told_when_to_come_back(served: Site) -> None:
    _, headers = limited(served, rate=0.01, burst=3)

    answers = [served.call("echo", ECHO, **headers) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 200]
    limits = [re.fullmatch(r'"rate";r=(\d);t=(\d+)', answer.headers["RateLimit"]) for answer in answers]
    assert [int(limit[1]) for limit in limits if limit] == [2, 1, 0]
    assert all(answer.headers["RateLimit-Policy"] == '"rate";q=3;w=300' for answer in answers)

    refused = served.call("echo", ECHO, **headers)
    document = problem(refused, 429, "quota-exceeded")
    assert document["detail"] == "The owner of the key may make 0.01 calls a second, 3 at once."
    assert document["violated-policies"] == ["rate"]
    assert 90 <= int(refused.headers["Retry-After"]) <= 100
    assert refused.headers["RateLimit"] == f'"rate";r=0;t={refused.headers["Retry-After"]}'
    assert served.call("echo", ECHO).status_code == 200  # somebody else's


def test_refused_calls_count_but_reading_does_not(served: Site) -> None:
    _, headers = limited(served, rate=0.01, burst=3)

    for answer in (
        served.post("/fn/echo", b"{", **headers),
        served.call("echo", {"text": 1}, **headers),
        served.call("echo", ECHO, **headers, Prefer="wait=x"),
    ):
        assert answer.status_code in {400, 422}
        assert answer.headers["RateLimit-Policy"] == '"rate";q=3;w=300'
    problem(served.call("echo", ECHO, **headers), 429, "quota-exceeded")
    assert served.get("/fn", **headers).status_code == 200


def test_over_the_rate_a_body_is_not_waited_for(served: Site) -> None:
    _, headers = limited(served, rate=0.01)
    assert served.call("echo", ECHO, **headers).status_code == 200

    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as client:
        client.sendall(
            f"POST /fn/echo HTTP/1.1\r\nHost: a\r\nAuthorization: {headers['Authorization']}\r\n"
            "Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n".encode()
        )
        assert client.recv(65536).startswith(b"HTTP/1.1 429 ")


def test_a_changed_quota_holds_at_once(served: Site) -> None:
    owner, headers = limited(served, rate=0.001)
    assert served.call("echo", ECHO, **headers).status_code == 200
    refused = served.call("echo", ECHO, **headers)
    assert int(refused.headers["Retry-After"]) > 900

    with_database(served, lambda database: set_quota(database, owner, rate=1000, burst=1000))
    answered(lambda: served.call("echo", ECHO, **headers), 200, within=5)
    with_database(served, lambda database: set_quota(database, owner, rate=None))
    eventually(
        lambda: "RateLimit" not in served.call("echo", ECHO, **headers).headers, "the rate is gone", within=5
    )


# ---------------------------------------------------------------------- unfinished jobs


def test_an_owner_has_so_many_unfinished_jobs(served: Site) -> None:
    owner, headers = limited(served, most_outstanding=2, rate=100)
    headers["Prefer"] = "respond-async"

    for left in (1, 0):
        accepted = served.call("nap", {"seconds": 4}, **headers)
        assert accepted.status_code == 202
        assert accepted.headers.get_list("RateLimit-Policy") == [
            '"rate";q=100;w=1',
            '"jobs";q=2;qu="concurrent-requests"',
        ]
        assert accepted.headers.get_list("RateLimit")[1] == f'"jobs";r={left}'
    refused = served.call("nap", {"seconds": 4}, **headers)
    document = problem(refused, 429, "quota-exceeded")
    assert document["detail"] == "The owner of the key may have 2 unfinished jobs, and has as many."
    assert document["violated-policies"] == ["jobs"]

    with_database(served, lambda database: set_quota(database, owner, most_outstanding=3))
    answered(lambda: served.call("nap", {"seconds": 4}, **headers), 202, within=5)
    problem(served.call("nap", {"seconds": 4}, **headers), 429, "quota-exceeded")
    for job in served.get("/jobs", **headers).json()["items"]:
        served.post(f"/jobs/{job['job_id']}/cancel", b"", **headers)
    accepted = answered(lambda: served.call("nap", {"seconds": 0}, **headers), 202)
    answered(lambda: served.get(f"{accepted.headers['Location']}/result", **headers), 200)


# ---------------------------------------------------------------------- several gateways


def test_gateways_share_a_rate(clones: Clones) -> None:
    def left(answer: httpx2.Response) -> int:
        return int(answer.headers["RateLimit"].partition(";r=")[2].partition(";")[0])

    with clones.migrated() as url, site(url) as running:
        _, headers = limited(running, rate=0.001, burst=100_000)
        assert left(running.call("echo", ECHO, **headers)) == 99_999
        running.start("another", "headrace", "gateway", HEADRACE_PORT=str(free_port()))
        eventually(
            lambda: left(running.call("echo", ECHO, **headers)) < 50_000, "the first grants its part alone"
        )
        assert query(url, "SELECT count(*) FROM gateway") == [(2,)]
        assert running.call("echo", ECHO, **headers).headers["RateLimit-Policy"] == (
            '"rate";q=100000;w=100000000'
        )
