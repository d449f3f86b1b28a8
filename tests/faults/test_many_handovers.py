"""Processes die while many running calls become jobs: who was answered was told the truth."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import pytest
from harness.jobs import all_final, check_at_rest
from harness.postgres import Clones, query
from harness.site import Site, eventually, site

FUNCTIONS = "straddling_functions"
CALLS = 48
END_HANDOVERS = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE pid <> pg_backend_pid() AND datname = current_database() AND query LIKE '%handover_v1%'
"""


@dataclass
class Calls:
    """What became of the calls, by number.

    Args:
        folder: where each start leaves a line.
        answers: of those that were answered.
    """

    folder: Path
    answers: dict[int, httpx2.Response] = field(default_factory=dict[int, httpx2.Response])

    async def make(self, served: Site, urls: list[str]) -> None:
        """Make them all, at these gateways in turn; each outlasts its hold by little or much."""
        async with contextlib.AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(httpx2.AsyncClient(base_url=url, timeout=60, trust_env=False))
                for url in urls
            ]

            async def call(number: int) -> None:
                await asyncio.sleep(number / CALLS * 0.5)  # not all handed over in one transaction
                client = clients[number % len(clients)]
                stay = {"seconds": 1 + number % 4 / 2, "folder": str(self.folder), "number": number}
                with contextlib.suppress(httpx2.TransportError):
                    self.answers[number] = await client.post(
                        "/fn/stay", json=stay, headers=served.headers(Prefer="wait=1")
                    )

            await asyncio.gather(*map(call, range(CALLS)))

    def starts(self, number: int) -> list[int]:
        """The process of each start of a call."""
        path = self.folder / str(number)
        return [int(pid) for pid in path.read_text().split()] if path.exists() else []

    def processes(self) -> set[int]:
        """All processes in which calls were started; there must be several."""
        pids = {pid for number in range(CALLS) for pid in self.starts(number)}
        assert len(pids) > 1
        return pids

    def check(self, served: Site, most_starts: int) -> None:
        """Each answer is right, each job of a 202 has the result, and nothing was started too often."""
        for number, answer in self.answers.items():
            assert answer.status_code in {200, 202}, f"{number}: {answer.text}"
            output = answer.json()
            if answer.status_code == 202:
                job = served.final(output["job_id"])
                assert job["status"] == "succeeded", job
                output = job["result"]
            assert output["number"] == number
        starts = [len(self.starts(number)) for number in range(CALLS)]
        assert max(starts) <= most_starts, starts
        assert all(starts[number] for number in self.answers), starts
        eventually(lambda: all_final(served.database_url), "all jobs are final")
        check_at_rest(served.database_url)
        gateway = served["gateway"]
        assert served.metric(gateway, "headrace_handovers_pending") == 0


def has_jobs(served: Site) -> bool:
    return query(served.database_url, "SELECT count(*) > 3 FROM job") == [(True,)]


def run(calls: Calls, served: Site, urls: list[str], fault: Callable[[], None]) -> None:
    """Make the calls, and let something break as soon as some are jobs."""

    async def both() -> None:
        making = asyncio.create_task(calls.make(served, urls))
        await asyncio.to_thread(eventually, lambda: has_jobs(served), "some are jobs")
        await asyncio.to_thread(fault)
        await making

    asyncio.run(both())


@pytest.fixture
def served(clones: Clones) -> Iterator[Site]:
    with clones.migrated() as url, site(url, functions=FUNCTIONS, runners=2) as running:
        yield running


@pytest.fixture
def calls(tmp_path: Path) -> Calls:
    return Calls(tmp_path)


def test_of_a_killed_gateway_what_was_recorded_goes_on(served: Site, calls: Calls) -> None:
    """And what wasn't is stopped: its client sees the connection end."""
    run(calls, served, [served.url], served["gateway"].kill)
    assert len(calls.answers) < CALLS
    served.start_gateway()
    served.wait_ready(2)
    calls.check(served, most_starts=1)


def test_a_killed_gateway_is_nothing_to_the_calls_of_another(served: Site, calls: Calls) -> None:
    other = served.start_another_gateway("other")
    run(calls, served, [served.url, other], served["other"].kill)
    assert set(range(0, CALLS, 2)) <= calls.answers.keys()
    calls.check(served, most_starts=1)


def test_calls_of_a_killed_runner_go_on_elsewhere(served: Site, calls: Calls) -> None:
    other = served.start_another_gateway("other")
    run(calls, served, [served.url, other], served["runner-0"].kill)
    assert len(calls.answers) == CALLS
    calls.check(served, most_starts=2)


def test_calls_of_a_killed_process_start_again(served: Site, calls: Calls) -> None:
    def fault() -> None:
        os.kill(min(calls.processes()), signal.SIGKILL)

    run(calls, served, [served.url], fault)
    assert len(calls.answers) == CALLS
    calls.check(served, most_starts=2)


def test_a_runner_that_drains_ends_what_it_has(served: Site, calls: Calls) -> None:
    run(calls, served, [served.url], lambda: served["runner-0"].signal(signal.SIGTERM))
    assert len(calls.answers) == CALLS
    calls.check(served, most_starts=1)


def test_lost_connections_to_postgres_change_nothing(served: Site, calls: Calls) -> None:
    def fault() -> None:
        for _ in range(20):
            query(served.database_url, END_HANDOVERS)
            time.sleep(0.05)

    run(calls, served, [served.url], fault)
    assert len(calls.answers) == CALLS
    calls.check(served, most_starts=1)


@pytest.mark.slow
def test_calls_of_a_frozen_runner_go_on_elsewhere(served: Site, calls: Calls) -> None:
    with contextlib.ExitStack() as stack:
        run(calls, served, [served.url], lambda: stack.enter_context(served["runner-0"].frozen()))
        assert len(calls.answers) == CALLS
    calls.check(served, most_starts=2)
