"""Somebody sets a clock by an hour while jobs run and wait: nobody is taken for lost, nothing runs twice.

Deadlines are instants of the database's clock: what has less than an hour left when it is set forwards is too
late, and what waits when it is set backwards may wait an hour longer.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime

import pytest
from harness.jobs import check_at_rest
from harness.moved_clock import MovedClock, moved_clock
from harness.own_postgres import own_postgres
from harness.postgres import Clones
from harness.site import Site, eventually, site
from harness.witness import Witness

HOUR = 3600
LEASE = 4
SETTINGS = {"HEADRACE_LEASE": str(LEASE)}
DONE = ("succeeded", None, 1)


@pytest.fixture(scope="module")
def clock() -> Iterator[MovedClock]:
    """The clock of Postgres."""
    with moved_clock() as made:
        yield made


@pytest.fixture(scope="module")
def served(clock: MovedClock) -> Iterator[Site]:
    with own_postgres() as server:
        server.stop()  # a database is made without it, which is quicker
        with clock.over_postgres():
            server.start()
        with site(server.url, functions="witness_functions", settings=SETTINGS) as running:
            yield running
            check_at_rest(server.url)


def submit(served: Site, seen: Witness, name: str, running: int, waiting: int) -> list[str]:
    """Jobs as many as can run at a time, for longer than a lease, and more behind them."""
    seconds = [2.0 * LEASE] * running + [0.0] * waiting
    return [served.submit(name, seen.input(each, number)) for number, each in enumerate(seconds)]


def ended(served: Site, ids: list[str]) -> list[tuple[str, str | None, int]]:
    """How jobs end: state, category of their error, attempt."""
    jobs = [served.final(job_id) for job_id in ids]
    return [(job["status"], (job["error"] or {}).get("category"), job["attempt"]) for job in jobs]


@pytest.mark.parametrize("ahead", [HOUR, 0], ids=["forwards", "backwards"])
def test_the_clock_of_postgres_is_set(served: Site, clock: MovedClock, seen: Witness, ahead: int) -> None:
    clock.move(HOUR - ahead)
    in_time = submit(served, seen, "witnessed_unhurried", 4, 2)
    late = submit(served, seen, "witnessed", 8, 2)
    eventually(lambda: seen.started(12), "they run")
    time.sleep(LEASE + 0.5)  # before, nobody would believe a lease, whatever the clock does
    jumped = [len(process.lines("a clock jumped")) for process in served.processes]
    clock.move(ahead)
    for process, before in zip(served.processes, jumped, strict=True):
        eventually(lambda p=process, b=before: len(p.lines("a clock jumped")) > b, f"{process.name} notices")

    assert ended(served, in_time) == [DONE] * 6
    if ahead:
        failed, expired = ("failed", "deadline-exceeded", 1), ("expired", "queue-deadline-exceeded", 0)
        assert ended(served, late) == [failed] * 8 + [expired] * 2
        assert seen.starts() == dict.fromkeys([*in_time, *late[:8]], 1)
    else:
        assert ended(served, late) == [DONE] * 10
        assert seen.starts() == dict.fromkeys([*in_time, *late], 1)


def test_a_runner_that_is_lost_afterwards_is_found_out(served: Site, seen: Witness) -> None:
    job_id = served.submit("witnessed", seen.input(0.5))
    eventually(lambda: seen.started(1), "it runs")
    served["runner-0"].kill()
    served.start_runner("runner-0")

    assert ended(served, [job_id]) == [("succeeded", None, 2)]
    assert seen.starts() == {job_id: 2}


def gateways_time(served: Site) -> float:
    return parsedate_to_datetime(served.get("/healthz").headers["Date"]).timestamp()


@pytest.mark.parametrize(
    "ahead", [HOUR, pytest.param(-HOUR, marks=pytest.mark.slow)], ids=["forwards", "backwards"]
)
def test_the_clocks_of_all_but_postgres_are_set(clones: Clones, seen: Witness, ahead: int) -> None:
    """They only measure time, so nothing comes of it."""
    with (
        moved_clock() as clock,
        clones.migrated() as url,
        site(url, functions="witness_functions", settings=SETTINGS | clock.environment) as served,
    ):
        ids = submit(served, seen, "witnessed", 8, 2)
        eventually(lambda: seen.started(8), "they run")
        clock.move(ahead)
        eventually(lambda: abs(gateways_time(served) - time.time() - ahead) < 60, "the clock is set")
        ids += submit(served, seen, "witnessed", 0, 2)

        assert ended(served, ids) == [DONE] * 12
        assert seen.starts() == dict.fromkeys(ids, 1)
        check_at_rest(url)
