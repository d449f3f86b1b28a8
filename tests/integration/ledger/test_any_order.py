"""The commands in any order, alone and two at once: two owners, two runners, two maintainers, operators."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator

import pytest
from harness import postgres
from harness.ledger import INTERFACE
from harness.ledger_machine import Machine
from harness.ledger_model import LANES
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from headrace.database import Database
from headrace.ledger.execution import Held

_FUNCTION = "INSERT INTO function (name, interface, revision, manifest) VALUES (%s, %s, 'r', '')"
SUBMIT = {"owners": [0, 1], "lane": "a", "key": None, "attempts": 2, "bound": 100, "weight": 1.0}


@pytest.fixture
def machine(clones: postgres.Clones) -> Iterator[type[Machine]]:
    with clones.migrated() as url, asyncio.Runner() as runner:
        databases = [
            runner.run(Database.open(url, application_name="headrace-test", max_size=4)) for _ in range(2)
        ]
        for lane in LANES:
            runner.run(databases[0].execute(_FUNCTION, [lane, INTERFACE]))
        parts = {"loop": runner.get_loop(), "database": databases[0], "admissions": databases[1]}
        try:
            yield type("Commands", (Machine,), parts)
        finally:
            for database in databases:
                runner.run(database.close())


def run(machine: type[Machine], examples: int, steps: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.timeout(300)
def test_commands_in_any_order(machine: type[Machine]) -> None:
    run(machine, examples=20, steps=30)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_commands_in_any_order_for_long(machine: type[Machine]) -> None:
    run(machine, examples=400, steps=60)


def test_a_start_is_known_by_its_token(machine: type[Machine]) -> None:
    """That of another runner, or one of before, is as unknown as any."""
    commands = machine()
    commands.one(("submit", SUBMIT))
    commands.one(("claim", {"runner": 0, "free": 2, "is_heard": True}))
    first = dict(commands.held[0])
    commands.wait(31.0, 0)
    commands.one(("settle", {"reap": True, "maintainer": 0}))
    commands.wait(5.0, 0)
    commands.one(("claim", {"runner": 1, "free": 2, "is_heard": True}))
    assert commands.do(commands.runners[0].renew(*first.values())).lost
    stranger = [Held(job.job_id, str(uuid.uuid4()), job.attempt) for job in commands.held[1].values()]
    assert len(commands.do(commands.runners[0].renew(*stranger)).lost) == 2
    commands.holds()
    assert {row["state"] for row in commands.do(commands.jobs()).values()} == {"running"}
