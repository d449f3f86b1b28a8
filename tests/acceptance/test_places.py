"""Places in line: who is refused for want of room comes back when told, and is admitted before others."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
import pytest
from harness.postgres import Clones, query
from harness.problem import problem
from harness.site import Process, Site, environment, eventually, site

from headrace.client import CallRefused, Client
from headrace.database import Database
from headrace.keys import create_key

MOST = 20
NAP = {"seconds": 0.1}
ASYNC = {"Prefer": "respond-async"}


@pytest.fixture(scope="module")
def served(clones: Clones) -> Iterator[Site]:
    """A site with one slot, whose speed is known."""
    settings = {"HEADRACE_BACKLOG": str(MOST), "HEADRACE_EXECUTORS": "1"}
    with clones.migrated() as url, site(url, settings=settings) as running:
        for _ in range(10):
            assert running.call("nap", NAP).status_code == 200
        yield running


@pytest.fixture(scope="module")
def other_gateway(served: Site) -> str:
    return served.start_another_gateway("other")


@pytest.fixture(scope="module")
def stranger(served: Site) -> dict[str, str]:
    """The header of another owner's key."""

    async def make() -> str:
        async with await Database.open(served.database_url, application_name="test") as database:
            return await create_key(database, f"stranger-{uuid.uuid4().hex[:8]}")

    return {"Authorization": f"Bearer {asyncio.run(make())}"}


@pytest.fixture(autouse=True)
def empty(served: Site) -> None:
    """Nothing waits, and nobody has a place of an earlier test."""
    eventually(lambda: not served.get("/jobs?function=nap&status=queued").json()["items"], "nothing waits")
    query(served.database_url, "DELETE FROM place")
    query(served.database_url, "DELETE FROM line")


def runner(served: Site) -> Process:
    return served["runner-0"]


def thaw(served: Site) -> None:
    os.kill(runner(served).pid, signal.SIGCONT)


def nap(served: Site, at: str = "", **headers: str) -> httpx2.Response:
    """A call that is to be a job, at this gateway or another."""
    return served.post(f"{at}/fn/nap", json.dumps(NAP).encode(), **{**ASYNC, **headers})


def fill(served: Site, **headers: str) -> httpx2.Response:
    """Make calls until one is refused; returns that refusal."""
    for _ in range(10 * MOST):
        answer = nap(served, **headers)
        if answer.status_code != 202:
            return answer
    raise AssertionError("the lane takes whatever comes")


@contextmanager
def full(served: Site) -> Iterator[None]:
    """Nothing is started meanwhile, and there is no room for anybody without a place."""
    fill(served)
    with runner(served).frozen():
        fill(served)
        yield


def placed(served: Site, **headers: str) -> tuple[str, float]:
    """A place in line, and when it is due by `time.monotonic()`; the lane is full already."""
    refusal = nap(served, **headers)
    assert refusal.status_code == 503, refusal.text
    return refusal.headers["Headrace-Place"], time.monotonic() + int(refusal.headers["Retry-After"])


def wait_until(due: float) -> None:
    time.sleep(max(0.0, due - time.monotonic()))


def test_a_refusal_gives_a_place_and_says_when(served: Site) -> None:
    with full(served):
        refusal = nap(served)

    document = problem(refusal, 503, "backlog-full")
    assert str(uuid.UUID(document["place"])) == document["place"] == refusal.headers["Headrace-Place"]
    seconds = refusal.headers["Retry-After"]
    assert 1 <= int(seconds) <= 600
    assert f"come back in {seconds} s" in document["detail"]
    (line,) = eventually(lambda: served.access_lines(refusal.headers["X-Request-Id"]), "the access line")
    assert line["place"] == "given"


def test_who_comes_back_when_told_is_admitted_before_others(
    served: Site, other_gateway: str, stranger: dict[str, str]
) -> None:
    key = str(uuid.uuid4())
    with full(served):
        place, due = placed(served)
        _, due_too = placed(served, Idempotency_Key=key)

    wait_until(max(due, due_too))
    with full(served):
        problem(nap(served), 503, "backlog-full")
        theirs = nap(served, Headrace_Place=place, **stranger)
        assert problem(theirs, 503, "backlog-full")["place"] != place
        taken = nap(served, other_gateway, Headrace_Place=place)
        assert taken.status_code == 202, taken.text
        again = nap(served, Headrace_Place=place)
        assert problem(again, 503, "backlog-full")["place"] != place
        taken_too = nap(served, other_gateway, Idempotency_Key=key)
        assert taken_too.status_code == 202, taken_too.text
        assert "Idempotent-Replayed" not in taken_too.headers
        problem(nap(served), 503, "backlog-full")
    assert served.final(taken.json()["job_id"])["status"] == "succeeded"
    assert served.final(taken_too.json()["job_id"])["status"] == "succeeded"


def test_who_comes_too_soon_keeps_its_place(served: Site) -> None:
    with full(served):
        refusals = [nap(served) for _ in range(40)]  # the last ones are told more than a second
        place, told = refusals[-1].headers["Headrace-Place"], int(refusals[-1].headers["Retry-After"])
        assert told > 2
        again = nap(served, Headrace_Place=place)
        assert problem(again, 503, "backlog-full")["place"] == place
        assert int(again.headers["Retry-After"]) <= told


def test_what_is_no_place_is_ignored(served: Site) -> None:
    assert nap(served, Headrace_Place="here").status_code == 202
    assert nap(served, Headrace_Place=str(uuid.uuid4())).status_code == 202
    assert served.call("nap", NAP, Headrace_Place=str(uuid.uuid4())).status_code == 200
    with full(served):
        problem(nap(served, Headrace_Place="here"), 503, "backlog-full")
        problem(nap(served, Headrace_Place=str(uuid.uuid4())), 503, "backlog-full")


def test_what_would_expire_is_not_accepted(served: Site) -> None:
    with runner(served).frozen():
        for _ in range(MOST - 6):
            assert nap(served).status_code == 202
        refusal = nap(served, Headrace_Deadline="0.5")
        assert nap(served).status_code == 202  # such a place holds nobody up who has more time

    document = problem(refusal, 503, "no-capacity")
    assert document["place"] == refusal.headers["Headrace-Place"]
    assert 1 <= int(refusal.headers["Retry-After"]) <= 600


def test_a_batch_is_told_when_it_should_fit(served: Site) -> None:
    def told(of: int) -> int:
        refusal = served.post("/fn/nap/batch", json.dumps([NAP] * of).encode())
        assert "place" not in problem(refusal, 503, "backlog-full")
        assert "Headrace-Place" not in refusal.headers
        return int(refusal.headers["Retry-After"])

    with runner(served).frozen():
        for _ in range(MOST // 2):
            assert nap(served).status_code == 202
        assert 1 <= told(MOST // 2 + 1) <= 600
        fill(served)
        assert 1 <= told(1) <= 600


@pytest.mark.parametrize("way", ["call", "submit"])
def test_a_client_with_patience_waits_for_its_turn(served: Site, way: str) -> None:
    told: list[CallRefused] = []
    with Client(served.url, served.key) as client, full(served):

        def wait(refusal: CallRefused) -> None:
            told.append(refusal)
            thaw(served)

        client.on_wait = wait
        if way == "call":  # by a key, as a direct call waits for a slot
            assert client.call("nap", NAP, patience=60, idempotency_key=str(uuid.uuid4()))["attempt"] == 1
        else:
            job = client.submit("nap", NAP, patience=60)
            assert served.final(job["job_id"])["status"] == "succeeded"

    assert told[0].code == "backlog-full"
    assert told[0].place


def test_a_command_with_patience_waits_for_its_turn(served: Site) -> None:
    command = [sys.executable, "-m", "headrace", "call", "nap", json.dumps(NAP), "--async"]
    variables = environment(HEADRACE_URL=served.url, HEADRACE_KEY=served.key)
    with full(served):
        refused = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert "Try again after" in refused.stderr
        assert "--patience TIME" in refused.stderr
        seen = len(served["gateway"].lines("call"))
        with subprocess.Popen(
            [*command, "--patience", "1m"], env=variables, stdout=subprocess.PIPE
        ) as patient:
            eventually(lambda: served["gateway"].lines("call")[seen:], "it was refused")
            thaw(served)
            job_id, _ = patient.communicate(timeout=60)
        assert patient.returncode == 0
    first, *_, last = served["gateway"].lines("call")[seen:]
    assert (first["code"], first["place"], last["status"]) == ("backlog-full", "given", 202)
    assert served.final(job_id.decode().strip())["status"] == "succeeded"
