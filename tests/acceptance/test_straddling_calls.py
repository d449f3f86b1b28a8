"""Calls that end about when their holds do: each is answered, has its result, and is executed once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx2
from harness.jobs import check_at_rest
from harness.postgres import Clones
from harness.site import Site, site

FUNCTIONS = "straddling_functions"
CALLS = 60
HOLD_S = 1.0


def seconds(number: int) -> float:
    """How long a call takes: some nothing, some twice their hold, most about as long as it."""
    match number % 6:
        case 0:
            return 0.0
        case 1:
            return 2 * HOLD_S
        case _:
            return HOLD_S - 0.05 + 0.15 * (2 * number / CALLS - 1)


async def all_at_once(served: Site, folder: Path) -> list[httpx2.Response]:
    """The answers to all calls, which are made before anything is known of the function."""
    async with httpx2.AsyncClient(base_url=served.url, timeout=30, trust_env=False) as client:

        async def call(number: int) -> httpx2.Response:
            stay = {"seconds": seconds(number), "folder": str(folder), "number": number}
            return await client.post("/fn/stay", json=stay, headers=served.headers(Prefer="wait=1"))

        return list(await asyncio.gather(*map(call, range(CALLS))))


def test_every_one_is_an_answer_or_a_job_and_is_executed_once(clones: Clones, tmp_path: Path) -> None:
    with clones.migrated() as url, site(url, functions=FUNCTIONS) as served:
        answers = asyncio.run(all_at_once(served, tmp_path))

        outputs: list[object] = []
        for answer in answers:
            assert answer.status_code in {200, 202}, answer.text
            outputs.append(
                answer.json()
                if answer.status_code == 200
                else served.final(answer.json()["job_id"])["result"]
            )
        assert outputs == [{"number": number, "attempt": 1} for number in range(CALLS)]
        starts = [len((tmp_path / str(number)).read_text().split()) for number in range(CALLS)]
        assert starts == [1] * CALLS

        assert {answer.status_code for answer in answers} == {200, 202}
        assert served.metric(served["gateway"], "headrace_handovers_total", end="handed") > 0
        check_at_rest(url)
