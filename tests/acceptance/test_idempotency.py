"""Calls with an `Idempotency-Key`, made again and again over two gateways: one execution, and one answer."""

from __future__ import annotations

import asyncio
import json
import socket
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import httpx2
import job_functions
import pytest
from harness.ledger_runner import LedgerRunner
from harness.postgres import Clones, query
from harness.problem import problem
from harness.site import Site, eventually, site
from harness.witness import Witness, witness

from headrace import owners
from headrace.database import Database
from headrace.keys import create_key

MANY = 50
KEY_TTL_S = 43_200
WAYS = ({}, {"Prefer": "respond-async"}, {"Prefer": "respond-async, wait=20"}, {"Prefer": "wait=20"})


@pytest.fixture(scope="module")
def served(clones: Clones) -> Iterator[Site]:
    with (
        clones.migrated() as url,
        site(
            url,
            functions="witness_functions,job_functions",
            runners=2,
            settings={"HEADRACE_KEY_TTL": str(KEY_TTL_S)},
        ) as running,
    ):
        yield running


@pytest.fixture(scope="module")
def other(served: Site) -> str:
    """The address of a second gateway."""
    return served.start_another_gateway("other")


@pytest.fixture(scope="module")
def seen(served: Site) -> Witness:
    return witness(served.database_url)


@pytest.fixture
def key() -> str:
    return str(uuid.uuid4())


def call(served: Site, name: str, input: Any, key: str, at: str = "", **headers: str) -> httpx2.Response:
    """A call with that key, at this gateway or at the other one."""
    body = input if isinstance(input, bytes) else json.dumps(input).encode()
    return served.post(f"{at}/fn/{name}", body, Idempotency_Key=key, **headers)


def job_of(response: httpx2.Response) -> str:
    return response.headers["Headrace-Job-Id"]


def is_replayed(response: httpx2.Response) -> bool:
    assert response.headers.get("Idempotent-Replayed", "true") == "true"
    return "Idempotent-Replayed" in response.headers


def new_owner(served: Site, **quota: Any) -> dict[str, str]:
    """The header of a new owner's key."""
    name = str(uuid.uuid4())

    async def make() -> str:
        async with await Database.open(served.database_url, application_name="test") as database:
            await owners.create_owner(database, name, **quota)
            return await create_key(database, name)

    return {"Authorization": f"Bearer {asyncio.run(make())}"}


def jobs_under(served: Site, key: str) -> list[str]:
    rows = query(served.database_url, "SELECT id::text FROM job WHERE idempotency_key = %s", key)
    return [job_id for (job_id,) in rows]


# ---------------------------------------------------------------------- at once


def test_many_at_once_are_one_execution(served: Site, other: str, seen: Witness, key: str) -> None:
    together = Barrier(MANY)

    def ask(number: int) -> httpx2.Response:
        together.wait(30)
        at = (served.url, other)[number % 2]
        return call(served, "witnessed", seen.input(0.5), key, at, **WAYS[number // 2 % 4])

    with ThreadPoolExecutor(MANY) as threads:
        answers = list(threads.map(ask, range(MANY)))

    (job_id,) = jobs_under(served, key)
    assert {job_of(answer) for answer in answers} == {job_id}
    assert [is_replayed(answer) for answer in answers].count(False) == 1
    done = served.final(job_id)
    for number, answer in enumerate(answers):
        if WAYS[number // 2 % 4] == {"Prefer": "respond-async"}:
            assert (answer.status_code, answer.json()["job_id"]) == (202, job_id)
        else:
            assert (answer.status_code, answer.json()) == (200, done["result"])
    assert (seen.starts()[job_id], seen.ends()[job_id]) == (1, 1)


# ---------------------------------------------------------------------- the first


def test_the_first_is_answered_as_any_call(served: Site, seen: Witness, key: str) -> None:
    answer = call(served, "witnessed", seen.input(), key)

    assert answer.status_code == 200
    assert answer.json()["job_id"] == job_of(answer)
    assert answer.headers["Server-Timing"].startswith("queue;dur=")
    assert "Preference-Applied" not in answer.headers
    assert not is_replayed(answer)
    (line,) = eventually(lambda: served.access_lines(answer.headers["X-Request-Id"]), "the access line")
    assert (line["status"], line["job_id"], line["attempt"]) == (200, job_of(answer), 1)


@pytest.mark.parametrize("wait", ["wait=0", "wait=1"])
def test_a_hold_that_ends_is_a_job_that_goes_on(served: Site, seen: Witness, key: str, wait: str) -> None:
    answer = call(served, "witnessed", seen.input(2), key, Prefer=wait)

    assert (answer.status_code, answer.headers["Preference-Applied"]) == (202, wait)
    assert answer.headers["Location"] == answer.json()["status_url"] == f"/jobs/{job_of(answer)}"
    again = call(served, "witnessed", seen.input(2), key)
    assert (again.status_code, job_of(again), is_replayed(again)) == (200, job_of(answer), True)
    assert seen.starts()[job_of(answer)] == 1


def test_a_deadline_of_its_own_ends_the_job_and_so_the_wait(served: Site, seen: Witness, key: str) -> None:
    answer = call(served, "witnessed", seen.input(30), key, Headrace_Deadline="0.7")

    assert problem(answer, 504, "deadline-exceeded")["job_id"] == job_of(answer)
    assert answer.elapsed.total_seconds() < 4


def test_a_client_that_leaves_finds_its_answer(served: Site, other: str, seen: Witness, key: str) -> None:
    request_id = str(uuid.uuid4())
    body = json.dumps(seen.input(1.5)).encode()
    head = (
        f"POST /fn/witnessed HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {served.key}\r\n"
        f"X-Request-Id: {request_id}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        f"Idempotency-Key: {key}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as connection:
        connection.sendall(head.encode() + body)
        job_id = eventually(lambda: jobs_under(served, key), "it is recorded")[0]

    (line,) = eventually(lambda: served.access_lines(request_id), "the access line")
    assert (line["status"], line["code"], line["job_id"]) == (499, "client-left", job_id)
    again = call(served, "witnessed", seen.input(1.5), key, other)
    assert (again.status_code, job_of(again), is_replayed(again)) == (200, job_id, True)
    assert (seen.starts()[job_id], seen.ends()[job_id]) == (1, 1)


# ---------------------------------------------------------------------- again


def test_a_success_is_answered_again(served: Site, other: str, seen: Witness, key: str) -> None:
    first = call(served, "witnessed", seen.input(number=7), key)
    turned = json.dumps(dict(reversed(seen.input(number=7).items())), indent=2).encode()

    for again in (
        call(served, "witnessed", seen.input(number=7), key),
        call(served, "witnessed", turned, f'"{key}"', other),
    ):
        assert (again.status_code, again.content) == (200, first.content)
        assert (job_of(again), is_replayed(again)) == (job_of(first), True)
        assert again.headers["Server-Timing"] == first.headers["Server-Timing"]
    followed = call(served, "witnessed", seen.input(number=7), key, Prefer="respond-async")
    assert (followed.status_code, followed.json()["status"], is_replayed(followed)) == (
        202,
        "succeeded",
        True,
    )
    assert followed.json() == served.job(job_of(first))
    (line,) = eventually(lambda: served.access_lines(followed.headers["X-Request-Id"]), "the access line")
    assert (line["status"], line["job_id"]) == (202, job_of(first))
    assert seen.starts()[job_of(first)] == 1


def test_a_failure_is_answered_again(served: Site, other: str, key: str) -> None:
    first = call(served, "fails_with", {"words": "never"}, key)
    again = call(served, "fails_with", {"words": "never"}, key, other)

    documents = [problem(answer, 500, "function-failed") for answer in (first, again)]
    assert len({document.pop("request_id") for document in documents}) == 2
    assert documents[0] == documents[1]
    assert documents[0]["detail"] == "never"
    assert [is_replayed(answer) for answer in (first, again)] == [False, True]
    assert [job_of(answer) for answer in (first, again)] == [documents[0]["job_id"]] * 2
    followed = call(served, "fails_with", {"words": "never"}, key, Prefer="respond-async")
    assert (followed.status_code, followed.json()["status"]) == (202, "failed")


def test_whoever_joins_at_another_gateway_is_told(served: Site, other: str, seen: Witness, key: str) -> None:
    first = call(served, "witnessed", seen.input(2), key, other, Prefer="respond-async")
    waiters = "SELECT waiters FROM job WHERE id = %s::uuid AND finished_at IS NULL AND waiters <> '{}'"
    with ThreadPoolExecutor(1) as threads:
        joined = threads.submit(call, served, "witnessed", seen.input(2), key)
        eventually(lambda: query(served.database_url, waiters, job_of(first)), "the ledger knows who waits")
        answer = joined.result()

    assert (answer.status_code, job_of(answer), is_replayed(answer)) == (200, job_of(first), True)


def test_an_expired_result_is_gone(served: Site, seen: Witness, key: str) -> None:
    first = call(served, "witnessed", seen.input(), key)
    query(
        served.database_url,
        "UPDATE job SET result_expires_at = clock_timestamp() - interval '1 second' WHERE id = %s::uuid",
        job_of(first),
    )
    again = call(served, "witnessed", seen.input(), key)
    document = problem(again, 410, "result-expired")
    assert document["expired_at"] in document["detail"]
    assert (document["job_id"], job_of(again), is_replayed(again)) == (job_of(first), job_of(first), True)
    followed = call(served, "witnessed", seen.input(), key, Prefer="respond-async")
    assert (followed.status_code, "result" in followed.json()) == (202, False)

    query(served.database_url, "DELETE FROM job_event WHERE job_id = %s::uuid", job_of(first))
    query(served.database_url, "DELETE FROM job WHERE id = %s::uuid", job_of(first))
    for prefer in ("respond-async", "wait=1"):
        problem(call(served, "witnessed", seen.input(), key, Prefer=prefer), 410, "result-expired")
    assert seen.starts()[job_of(first)] == 1


# ---------------------------------------------------------------------- other calls


@pytest.mark.parametrize("prefer", ["respond-async", "wait=5"])
def test_another_input_is_refused(served: Site, other: str, seen: Witness, key: str, prefer: str) -> None:
    first = call(served, "witnessed", seen.input(number=1), key)
    refused = call(served, "witnessed", seen.input(number=2), key, other, Prefer=prefer)

    document = problem(refused, 422, "key-conflict")
    assert document["job_id"] == job_of(refused) == job_of(first)
    assert job_of(first) in document["detail"]
    assert not is_replayed(refused)
    assert call(served, "witnessed", seen.input(number=1), key).content == first.content


def test_a_key_is_its_owners_and_its_functions(served: Site, seen: Witness, key: str) -> None:
    answers = [
        call(served, "witnessed", seen.input(), key),
        call(served, "witnessed", seen.input(), key, **new_owner(served)),
        call(served, "witnessed_many", seen.input(), key),
        call(served, "witnessed", seen.input(), key.upper()),
    ]
    assert [answer.status_code for answer in answers] == [200] * 4
    assert not any(is_replayed(answer) for answer in answers)
    assert len({answer.json()["job_id"] for answer in answers}) == 4


def test_a_key_is_forgotten_in_time(served: Site, seen: Witness, key: str) -> None:
    first = call(served, "witnessed", seen.input(number=1), key)
    kept = "SELECT extract(epoch FROM expires_at - clock_timestamp()) FROM idempotency WHERE key = %s"
    ((seconds,),) = query(served.database_url, kept, key)
    assert KEY_TTL_S - 60 < seconds <= KEY_TTL_S

    query(served.database_url, "UPDATE idempotency SET expires_at = clock_timestamp() WHERE key = %s", key)
    again = call(served, "witnessed", seen.input(number=2), key)
    assert (again.status_code, is_replayed(again), again.json()["number"]) == (200, False, 2)
    assert job_of(again) != job_of(first)


def test_a_refusal_is_not_kept(served: Site, seen: Witness, key: str) -> None:
    small = new_owner(served, most_outstanding=1)
    busy = call(served, "witnessed", seen.input(1), str(uuid.uuid4()), Prefer="respond-async", **small)
    refused = call(served, "witnessed", seen.input(), key, **small)
    problem(refused, 429, "quota-exceeded")

    eventually(lambda: served.get(f"/jobs/{job_of(busy)}", **small).json()["finished_at"], "it ends")
    again = call(served, "witnessed", seen.input(number=2), key, **small)
    assert (again.status_code, is_replayed(again)) == (200, False)


@pytest.mark.parametrize("given", ["", '""', '"a', 'a"b', "a, b", "a b", "x" * 256, '"a";b=1'])
def test_a_malformed_key_is_refused(served: Site, seen: Witness, given: str) -> None:
    document = problem(call(served, "witnessed", seen.input(), given), 400, "malformed-header")
    assert "`Idempotency-Key`" in document["detail"]


# ---------------------------------------------------------------------- without a runner


def test_what_was_answered_once_needs_no_runner(quiet: Site, key: str) -> None:
    runner = LedgerRunner(quiet.database_url, [job_functions.says.manifest])
    runner.register()
    eventually(lambda: quiet.get("/fn/says").status_code == 200, "the function is served")
    first = call(quiet, "says", {"words": "a"}, key, Prefer="respond-async")
    runner.end(runner.claim_one("says"), output=b'"a"')
    runner.leave()
    query(
        quiet.database_url,
        "UPDATE runner SET seen_at = seen_at - interval '1 hour', left_at = left_at - interval '1 hour'"
        " WHERE id = %s",
        runner.runner_id,
    )
    query(quiet.database_url, "SELECT pg_notify('headrace_registry', 'runners')")

    def refused() -> bool:
        return quiet.call("says", {"words": "a"}, Prefer="respond-async").status_code == 503

    eventually(refused, "no runner was seen lately")
    again = call(quiet, "says", {"words": "a"}, key)
    assert (again.status_code, again.json(), job_of(again)) == (200, "a", job_of(first))
    assert is_replayed(again)
    problem(call(quiet, "says", {"words": "b"}, key), 422, "key-conflict")
    problem(call(quiet, "says", {"words": "a"}, str(uuid.uuid4())), 503, "no-runner")
