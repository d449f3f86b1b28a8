"""`headrace pause` and `resume`: intake off, and everything else on."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from harness.postgres import Clones, query
from harness.problem import problem
from harness.site import Site, eventually, site

TEXT = {"text": "a"}


@pytest.fixture(scope="module")
def own(clones: Clones) -> Iterator[Site]:
    """A site for these tests only: what others call may not be paused."""
    with clones.migrated() as url, site(url) as running:
        yield running


@pytest.fixture(scope="module")
def other(own: Site) -> str:
    """The address of its second gateway."""
    return own.start_another_gateway("gateway-2")


@pytest.fixture(autouse=True)
def resumed(own: Site) -> Iterator[None]:
    yield
    query(own.database_url, "DELETE FROM intake")
    query(own.database_url, "NOTIFY headrace_registry, 'intake'")
    eventually(lambda: not intake_at(own)["functions"], "everything is taken again")


def headrace(own: Site, *arguments: str, status: int = 0) -> str:
    """What a command on the site's database prints."""
    done = subprocess.run(
        [sys.executable, "-m", "headrace", *arguments],
        env={**own.environment(), "LOGNAME": "gauss"},
        cwd=own.folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == status, done.stderr
    return done.stderr if status else done.stdout


def intake_at(own: Site, address: str = "") -> dict[str, Any]:
    ready = own.client.get(f"{address}/readyz")
    assert ready.status_code == 200  # whatever is paused
    return ready.json()["intake"]


def paused(own: Site, *functions: str, address: str = "") -> None:
    """Wait until a gateway knows that these are paused."""
    eventually(lambda: set(functions) <= set(intake_at(own, address)["functions"]), "it knows of the pause")


def pause_at_once(own: Site) -> None:
    """Pause the site, sooner than a command could."""
    query(own.database_url, "SELECT pause_v1('', '', NULL, 'operator:test')")
    paused(own, "nap", "echo")


def refused(response: httpx2.Response, detail: str, *, most: int = 30) -> None:
    document = problem(response, 503, "intake-paused")
    assert document["detail"] == detail
    assert most * 0.8 <= int(response.headers["Retry-After"]) <= most


def test_nothing_new_of_a_paused_function_is_taken_by_any_gateway(own: Site, other: str) -> None:
    key = f'"{uuid.uuid4()}"'
    before = own.call("echo", TEXT, Idempotency_Key=key)
    batch_before = own.post("/fn/echo/batch", b'[{"text": "a"}]', Idempotency_Key=key)
    failed = own.submit("halve", {"number": 1})
    assert own.final(failed)["status"] == "failed"

    told = headrace(own, "pause", "echo", "--reason", "the model changes", "--retry-after", "2m")
    assert told == "nothing new is taken of echo; what was accepted goes on\n"
    headrace(own, "pause", "halve")
    for address in ("", other):
        paused(own, "echo", "halve", address=address)
        detail = "Nothing new of echo is taken: the model changes"
        headers = {"Accept": "text/event-stream"}, {"Prefer": "respond-async"}, {"Idempotency-Key": "new"}, {}
        for more in headers:
            refused(own.post(f"{address}/fn/echo", b'{"text": "a"}', **more), detail, most=120)
        refused(own.post(f"{address}/fn/echo/batch", b'[{"text": "a"}]'), detail, most=120)
        refused(own.post(f"{address}/jobs/{failed}/retry", b""), "Nothing new of halve is taken.")
        assert own.post(f"{address}/fn/nap", b'{"seconds": 0}').status_code == 200

        again = own.post(f"{address}/fn/echo", b'{"text": "a"}', Idempotency_Key=key)
        assert (again.status_code, again.content) == (200, before.content)
        assert again.headers["Idempotent-Replayed"] == "true"
        batch = own.post(f"{address}/fn/echo/batch", b'[{"text": "a"}]', Idempotency_Key=key)
        assert (batch.status_code, batch.headers["Idempotent-Replayed"]) == (202, "true")
        assert batch.json()["batch_id"] == batch_before.json()["batch_id"]
        assert intake_at(own, address) == {"paused": False, "functions": ["echo", "halve"]}

    assert [own.get(f"/fn/{name}").json()["paused"] for name in ("echo", "nap")] == [True, False]
    assert own.metric(own["gateway"], "headrace_functions_paused") == 2
    assert headrace(own, "resume", "echo") == "what is new of echo is taken again\n"
    eventually(lambda: own.call("echo", TEXT).status_code == 200, "it is taken again")


def test_what_was_accepted_goes_on_while_the_site_is_paused(own: Site) -> None:
    waiting = own.submit("nap", {"seconds": 0})
    with own.calling(("nap", {"seconds": 3}), X_Request_Id="held") as (held,):
        eventually(lambda: own.client.get("/readyz").json()["functions"]["nap"]["load"], "it runs")
        with own.calling(("nap", {"seconds": 0}), Prefer="wait=2", X_Request_Id="queued") as (queued,):
            eventually(
                lambda: query(own.database_url, "SELECT 1 FROM job WHERE request_id = 'queued'"),
                "it waits as a job",
            )
            pause_at_once(own)
            refused(own.call("echo", TEXT), "Nothing new is taken at this site.")
            assert own.get(f"/jobs/{waiting}").status_code == 200
            assert not held.done()
            assert not queued.done()
        assert held.result().status_code == 200
        assert queued.result().status_code == 202
    job_id = queued.result().json()["job_id"]
    assert own.final(job_id)["status"] == "succeeded"
    assert own.get(f"/jobs/{job_id}/result").status_code == 200
    assert intake_at(own)["paused"]
    assert {item["function"] for item in own.get("/jobs").json()["items"]} >= {"nap"}


def test_a_running_call_is_handed_over_while_the_site_is_paused(own: Site) -> None:
    with own.calling(("nap", {"seconds": 3}), Prefer="wait=2") as (running,):
        eventually(lambda: own.client.get("/readyz").json()["functions"]["nap"]["load"], "it runs")
        pause_at_once(own)
        assert not running.done()
        answer = running.result()
    assert answer.status_code == 202, answer.text
    job = own.final(answer.json()["job_id"])
    assert (job["status"], job["attempt"]) == ("succeeded", 1)


def begun(own: Site, path: str) -> socket.socket:
    """A connection on which the head of a call, or of a batch, was sent; its body is 14 bytes long."""
    connection = socket.create_connection(("127.0.0.1", int(own.url.rpartition(":")[2])), timeout=20)
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: x",
        f"Authorization: Bearer {own.key}",
        "Content-Type: application/json",
        "Content-Length: 14",
        "Connection: close",
        "Expect: 100-continue",
    ]
    connection.sendall("".join(f"{line}\r\n" for line in [*lines, ""]).encode())
    return connection


@pytest.mark.parametrize("path", ["/fn/echo", "/fn/echo/batch"])
def test_a_body_that_was_on_its_way_comes_too_late(own: Site, path: str) -> None:
    with begun(own, path) as slow:
        assert slow.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"  # it would be taken
        pause_at_once(own)
        slow.sendall(b'{"text": "a"} ' if path == "/fn/echo" else b'[{"text":"a"}]')
        answer = slow.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b'"code":"intake-paused"' in answer


@pytest.mark.parametrize("path", ["/fn/echo", "/fn/echo/batch"])
def test_no_body_is_asked_for_in_vain(own: Site, path: str) -> None:
    pause_at_once(own)
    with begun(own, path) as early:
        assert early.recv(1000).startswith(b"HTTP/1.1 503 ")


def test_operators_see_what_is_paused_and_open_functions_by_name(own: Site) -> None:
    assert "ehco" in headrace(own, "pause", "ehco", status=1)
    assert "ehco" in headrace(own, "resume", "ehco", status=1)
    assert "in 1 to 600 s" in headrace(own, "pause", "--retry-after", "1h", status=2)
    assert "paused" not in headrace(own, "status")
    assert headrace(own, "resume") == "what is new at this site was taken already\n"

    headrace(own, "pause", "nap", "--reason", "its own\nsecond line")
    assert headrace(own, "pause", "--reason", "move") == (
        "nothing new is taken at this site; what was accepted goes on\n"
    )
    told = headrace(own, "resume", "echo")
    assert told == "what is new of echo is taken again; the rest of the site stays paused\n"
    paused(own, "halve", "nap")
    assert "echo" not in intake_at(own)["functions"]
    assert own.call("echo", TEXT).status_code == 200

    lines = headrace(own, "status").split("\n\n")[0].splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("the whole site is paused since ")
    assert lines[0].endswith(" by operator:gauss: move")
    assert lines[1].startswith("nap is paused since ")
    assert lines[2] == "open nonetheless: echo"
    document = json.loads(headrace(own, "status", "--json"))["intake"]
    assert [(one["function"], one["reason"]) for one in document["pauses"]] == [
        (None, "move"),
        ("nap", "its own\nsecond line"),
    ]
    assert document["open"] == ["echo"]

    assert headrace(own, "pause").splitlines()[1] == "resumed before, and open still: echo"
    assert headrace(own, "resume") == "what is new at this site is taken again; still paused: nap\n"
    audited = headrace(own, "audit", "--json", "--action", "intake.pause", "--subject", "*")
    entries = [json.loads(line) for line in audited.splitlines()]
    assert ("operator:gauss", {"reason": "move"}) in [(one["actor"], one["detail"]) for one in entries]
