"""`Headrace-Priority` over HTTP: what it does to jobs, and who may ask for what."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from harness.ledger_runner import LedgerRunner
from harness.postgres import query
from harness.problem import problem
from harness.site import Site

from headrace.database import Database
from headrace.keys import create_key

ASYNC = {"Prefer": "respond-async"}


def key_of_owner(site: Site, highest: str) -> dict[str, str]:
    """The header of a new owner's key, who may ask for no more than that."""
    name = str(uuid.uuid4())

    async def make() -> str:
        async with await Database.open(site.database_url, application_name="test") as database:
            return await create_key(database, name)

    secret = asyncio.run(make())
    query(site.database_url, "UPDATE owner SET highest_priority = %s WHERE name = %s", highest, name)
    return {"Authorization": f"Bearer {secret}"}


def test_urgent_jobs_overtake_their_owners_others(quiet: Site, runner: LedgerRunner) -> None:
    headers = key_of_owner(quiet, "high")

    def submit(number: int, **more: str) -> list[str]:
        return [quiet.submit("count", {"texts": ["a"]}, **headers, **more) for _ in range(number)]

    usual = submit(6)
    urgent = submit(4, Headrace_Priority="High")
    patient = submit(2, Headrace_Priority="low")
    order = [runner.claim_one("count").job_id for _ in range(12)]

    # The first of each class has its turn at once; four urgent ones take as much of it as one usual one.
    assert set(order[:3]) == {usual[0], urgent[0], patient[0]}
    assert order[3:6] == urgent[1:]
    assert [job_id for job_id in order if job_id in usual] == usual
    assert order.index(patient[1]) > order.index(usual[3])


def test_above_what_its_owner_may_ask_for_a_call_is_refused(quiet: Site, runner: LedgerRunner) -> None:
    normal, low = key_of_owner(quiet, "normal"), key_of_owner(quiet, "low")
    refused = quiet.call("count", {"texts": ["a"]}, **ASYNC, **normal, Headrace_Priority="high")

    assert "`normal` at most, not for `high`" in problem(refused, 403, "priority-not-allowed")["detail"]
    assert 'error="insufficient_scope"' in refused.headers["WWW-Authenticate"]
    for headers in (normal | {"Headrace-Priority": "normal"}, low):
        assert quiet.call("count", {"texts": ["a"]}, **ASYNC, **headers).status_code == 202
    problem(
        quiet.call("count", {"texts": ["a"]}, **ASYNC, **low, Headrace_Priority="normal"),
        403,
        "priority-not-allowed",
    )
    assert len(runner.claim("count", 3)) == 2


@pytest.mark.parametrize(("priority", "status"), [("low", 200), ("HIGH", 200), ("urgent", 400), ("", 400)])
def test_of_a_direct_call_it_is_only_checked(served: Site, priority: str, status: int) -> None:
    response = served.call("echo", {"text": "a"}, Headrace_Priority=priority)

    assert response.status_code == status
    assert "Headrace-Job-Id" not in response.headers


def test_a_direct_call_may_not_ask_for_more_either(served: Site) -> None:
    normal = key_of_owner(served, "normal")
    response = served.call("echo", {"text": "a"}, **normal, Headrace_Priority="high")

    problem(response, 403, "priority-not-allowed")
