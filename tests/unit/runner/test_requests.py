"""A runner answers the operators' requests that it understands, and lives on with the others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gpu_runner.operators.requests import Requests

RUNNER = "0199e0a0-0000-4000-8000-000000000001"


def row(number: int, kind: str) -> dict[str, Any]:
    """As the ledger has it, with a column of a later version."""
    return {
        "request_id": f"0199e0a0-0000-7000-8000-{number:012}",
        "kind": kind,
        "job_id": None,
        "asked_by": "operator:ada",
        "later": 1,
    }


class Ledger:
    def __init__(self, *rows: dict[str, Any]) -> None:
        self.rows = list(rows)
        self.looks = 0

    async def fetch(self, _: object, parameters: dict[str, Any]) -> list[dict[str, Any]]:
        if "answer" in parameters:
            self.rows = [row for row in self.rows if row["request_id"] != parameters["request_id"]]
            return []
        self.looks += 1
        return self.rows


class Idle:
    draining = False

    def groups(self) -> list[Any]:
        return []


def test_a_request_of_a_later_version_is_passed_over_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    ledger: Any = Ledger(row(1, "shrink"), row(2, "drain"))
    supervisor: Any = Idle()
    drained = asyncio.Event()

    async def scenario() -> None:
        requests = Requests(ledger, RUNNER, supervisor, {}, 10.0, drained.set)
        running = asyncio.create_task(requests.run())
        async with asyncio.timeout(10):
            requests.look()
            await drained.wait()
            requests.look()
            while ledger.looks < 2:
                await asyncio.sleep(0)
        assert not running.done()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(scenario())
    assert [left["kind"] for left in ledger.rows] == ["shrink"]
    assert caplog.text.count("operator:ada asks for 'shrink', which this version doesn't know") == 1
