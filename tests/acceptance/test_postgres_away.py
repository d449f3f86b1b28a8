"""Without Postgres: a start waits for it, calls go on for a while, and it comes back without a restart."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.own_postgres import OwnPostgres, own_postgres
from harness.problem import problem
from harness.site import Process, answered, environment, eventually, free_port, site

from headrace.database import Database
from headrace.keys import create_key

GRACE_S = 10.0


@pytest.fixture(scope="module")
def own() -> Iterator[OwnPostgres]:
    with own_postgres() as running:
        yield running


@pytest.fixture
def server(own: OwnPostgres) -> Iterator[OwnPostgres]:
    """A server of this module's own, to be stopped and started; the next test finds it running."""
    yield own
    if not own.is_running():
        own.start()


def make_key(url: str) -> str:
    async def make() -> str:
        async with await Database.open(url, application_name="test") as database:
            return await create_key(database, "other", "test")

    return asyncio.run(make())


def test_calls_go_on_for_a_while_and_all_comes_back_without_a_restart(server: OwnPostgres) -> None:
    with site(server.url, settings={"HEADRACE_OUTAGE_GRACE": f"{GRACE_S:g}"}) as served:
        pids = [process.pid for process in served.processes]
        unused = f"Bearer {make_key(server.url)}"
        assert served.call("echo", {"text": "a"}).status_code == 200

        away_since = time.monotonic()  # the stop takes its time, and the grace may begin with it
        server.stop()
        calls = 0
        while time.monotonic() < away_since + GRACE_S - 4:  # a proof of life is a second old, or some more
            assert served.call("echo", {"text": "a"}).status_code == 200
            calls += 1
        assert calls > 3
        assert served.get("/fn/echo").status_code == 200
        assert served.client.get("/readyz").status_code == 200
        for key in (unused, "Bearer hr_" + "x" * 43):
            response = served.call("echo", {"text": "a"}, Authorization=key)
            assert problem(response, 503, "database-unavailable")["detail"]
        problem(served.call("echo", {}), 422, "invalid-input")

        response = answered(lambda: served.call("echo", {"text": "a"}), 503)
        assert GRACE_S - 4 < time.monotonic() - away_since < GRACE_S + 15
        assert "Postgres" in problem(response, 503, "database-unavailable")["detail"]
        assert served.client.get("/readyz").json()["missing"] == ["Postgres does not answer"]
        assert served.client.get("/healthz").status_code == 200
        assert served.metric(served["gateway"], "headrace_calls_total", function="", status="503") >= 1

        server.start()
        back_since = time.monotonic()
        answered(lambda: served.call("echo", {"text": "a"}), 200)
        assert time.monotonic() - back_since < 15  # its listener pauses for 2 s at most
        assert served.call("echo", {"text": "a"}, Authorization=unused).status_code == 200
        problem(served.call("echo", {"text": "a"}, Authorization="Bearer hr_" + "x" * 43), 401, "invalid-key")
        eventually(lambda: served["runner-0"].said("Postgres is back"), "the runner's heart beats again")
        assert served.client.get("/readyz").json()["missing"] == []
        assert [process.pid for process in served.processes] == pids
        assert not any(process.has_ended() for process in served.processes)


def test_without_postgres_a_call_with_a_key_is_refused_not_executed(server: OwnPostgres) -> None:
    with site(server.url, settings={"HEADRACE_OUTAGE_GRACE": "60"}) as served:
        assert served.call("echo", {"text": "a"}).status_code == 200
        server.stop()
        for _ in range(2):  # while its end isn't certain, and when it is
            problem(served.call("echo", {"text": "a"}, Idempotency_Key="k"), 503, "database-unavailable")
        assert served.call("echo", {"text": "a"}).status_code == 200
        assert served.metric(served["gateway"], "headrace_submits_total") == 0

        server.start()
        first = answered(lambda: served.call("echo", {"text": "a"}, Idempotency_Key="k"), 200)
        assert "Idempotent-Replayed" not in first.headers
        again = served.call("echo", {"text": "a"}, Idempotency_Key="k")
        assert again.headers["Headrace-Job-Id"] == first.headers["Headrace-Job-Id"]


@pytest.mark.slow
def test_a_runner_that_comes_after_an_outage_is_linked(server: OwnPostgres) -> None:
    """The gateway's listener must have come back too, not just its pool."""
    with site(server.url) as served:
        server.stop()
        eventually(lambda: served["gateway"].said("listening failed"), "the listener notices")
        server.start()
        served.start_runner("late")
        served.wait_ready(2)


def test_a_frozen_postgres_is_as_good_as_none(server: OwnPostgres) -> None:
    """A server that takes connections and says nothing: only time tells."""
    with site(server.url, settings={"HEADRACE_OUTAGE_GRACE": "1.5"}) as served:
        assert served.call("echo", {"text": "a"}).status_code == 200
        with server.frozen():
            response = answered(lambda: served.call("echo", {"text": "a"}), 503, within=5)
            problem(response, 503, "database-unavailable")
        answered(lambda: served.call("echo", {"text": "a"}), 200)


def test_processes_wait_for_postgres_and_then_serve(server: OwnPostgres) -> None:
    with site(server.url, runners=0) as served:
        assert served["gateway"].stop() == 0
        server.stop()
        gateway = served.start("gateway", "headrace", "gateway")
        runner = served.start_runner()
        for process in (gateway, runner):
            eventually(lambda process=process: process.said("waiting: "), "it says what it waits for")
        assert not gateway.has_ended()

        server.start()
        served.wait_answering()
        served.wait_ready()
        assert served.call("echo", {"text": "a"}).status_code == 200


@pytest.mark.parametrize("command", [("headrace", "gateway"), ("gpu_runner",)])
def test_a_start_that_gives_up_says_why_in_one_line(tmp_path: Path, command: tuple[str, ...]) -> None:
    settings = environment(
        HEADRACE_DATABASE_URL="postgresql://nobody@127.0.0.1:1/none",
        HEADRACE_START_PATIENCE="0.5",
        HEADRACE_PORT=str(free_port()),
        HEADRACE_FUNCTIONS="site_functions",
    )
    process = Process("process", command, settings, tmp_path)

    assert process.wait() == 1
    *lines, last = process.output().splitlines()
    assert last.startswith(("headrace: gave up after 0.5 s: ", "headrace runner: gave up after 0.5 s: "))
    assert "127.0.0.1" in last
    assert "Traceback" not in process.output()
    assert any('"event":"waiting: ' in line for line in lines)


def test_a_url_that_is_none_is_not_waited_for(tmp_path: Path) -> None:
    settings = environment(HEADRACE_DATABASE_URL="mysql://root@localhost/x")
    process = Process("process", ("headrace", "gateway"), settings, tmp_path)

    assert process.wait() == 1
    assert "HEADRACE_DATABASE_URL=mysql://root@localhost/x: allowed is postgresql://" in process.output()
