"""Every command against every state, as `docs/job_lifecycle.md` has it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from harness.documents import table
from harness.ledger import check_ledger, make_owner, opened, row, submit_one
from harness.ledger_commands import COMMANDS
from harness.ledger_states import STATES, Placed, forget, placed, placed_again

from headrace.database import Database
from headrace.domain import FINAL

Place = Callable[[Database], Awaitable[Placed]]

HEAD, *ROWS = table("docs/job_lifecycle.md", "given")
PLACES: dict[str, Place] = {
    **{f"`{state}`": lambda database, state=state: placed(database, state) for state in STATES},
    "`queued` again": placed_again,
}


def test_the_page_has_every_command_and_every_state() -> None:
    assert [name for name, *_ in ROWS] == list(COMMANDS)
    assert set(HEAD[1:]) == PLACES.keys()


@pytest.mark.parametrize("state", PLACES)
def test_what_every_command_does_in_every_state(database_url: str, state: str) -> None:
    column = HEAD.index(state)

    async def scenario() -> None:
        async with opened(database_url) as database:
            found: dict[str, str] = {}
            for name, command in COMMANDS.items():
                made = await PLACES[state](database)
                before = await row(database, made.job.job_id)
                answer = await command.give(database, made)
                found[name] = await became(database, before, answer)
                await forget(database)
            assert found == {name: cells[column - 1] for name, *cells in ROWS}
            assert await submit_one(database, await make_owner(database))

    asyncio.run(scenario())


async def became(database: Database, before: dict[str, object], answer: str) -> str:
    """The cell of the table: where the job is now, or else what was answered."""
    jobs = await check_ledger(database)
    if before["id"] not in jobs:
        return "→ forgotten"
    after = await row(database, str(before["id"]))
    if after["state"] != before["state"]:
        assert before["state"] not in FINAL
        return f"→ `{after['state']}`"
    if before["state"] in FINAL:
        may_change = {"result", "result_place", "batch_id", "batch_index", "retried_as"}
        kept = {key for key in before if not key.endswith("_at") and key not in may_change}
        assert {key: after[key] for key in kept} == {key: before[key] for key in kept}
    return answer
