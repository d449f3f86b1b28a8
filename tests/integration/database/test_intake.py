from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import site_functions
from harness.ledger_runner import LedgerRunner
from harness.listening import hearing

from headrace import intake, registry
from headrace.audit import list_audit
from headrace.database import Database

ADA = "operator:ada"


def run(url: str, scenario: Callable[[Database], Coroutine[Any, Any, None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(20), await Database.open(url, application_name="headrace-test") as opened:
            await scenario(opened)

    LedgerRunner(url, [site_functions.echo.manifest, site_functions.nap.manifest]).register()
    asyncio.run(limited())


async def paused(database: Database) -> dict[str, bool]:
    """Whether functions are paused: one of each kind, and one that nobody paused by name."""
    now = await intake.load(database)
    return {name: now.pause_of(name) is not None for name in ("echo", "nap", "other")}


def test_a_function_is_paused_and_resumed_by_name(database_url: str) -> None:
    async def scenario(database: Database) -> None:
        assert await intake.pause(database, "echo", reason="new model", retry_after_s=90, actor=ADA)
        pause = (await intake.load(database)).pause_of("echo")
        assert pause is not None
        assert (pause.function, pause.reason, pause.retry_after_s) == ("echo", "new model", 90)
        assert pause.changed_by == ADA
        assert await paused(database) == {"echo": True, "nap": False, "other": False}

        assert await intake.pause(database, "echo")
        again = (await intake.load(database)).functions["echo"]
        assert (again.reason, again.retry_after_s) == ("", None)
        assert again.changed_at > pause.changed_at

        assert await intake.resume(database, "echo") == "resumed"
        assert await intake.load(database) == intake.Intake()
        assert await intake.resume(database, "echo") == "was-on"

    run(database_url, scenario)


def test_a_paused_site_has_exceptions_until_it_is_resumed(database_url: str) -> None:
    async def scenario(database: Database) -> None:
        assert await intake.pause(database, "nap", reason="its own")
        assert await intake.pause(database, reason="move")
        now = await intake.load(database)
        assert [one.function for one in now.pauses] == ["", "nap"]
        assert [now.pause_of(name) for name in ("echo", "nap")] == list(now.pauses)

        assert await intake.resume(database, "echo") == "resumed"
        assert await paused(database) == {"echo": False, "nap": True, "other": True}
        assert await intake.resume(database, "echo") == "was-on"
        assert await intake.pause(database, reason="still")  # what was opened stays so
        assert await paused(database) == {"echo": False, "nap": True, "other": True}
        assert await intake.resume(database, "nap") == "resumed"
        assert (await intake.load(database)).open == {"echo", "nap"}
        assert await intake.pause(database, "nap")
        assert await paused(database) == {"echo": False, "nap": True, "other": True}

        assert await intake.resume(database) == "resumed"
        assert await paused(database) == {"echo": False, "nap": True, "other": False}
        assert (await intake.load(database)).open == frozenset()
        assert await intake.resume(database) == "was-on"
        assert await intake.pause(database)
        assert await paused(database) == {"echo": True, "nap": True, "other": True}

    run(database_url, scenario)


def test_what_cannot_be_is_refused_and_changes_nothing(database_url: str) -> None:
    async def scenario(database: Database) -> None:
        assert not await intake.pause(database, "ehco")
        assert await intake.resume(database, "ehco") == "unknown-function"
        for seconds in (0.5, 601, float("nan")):
            with pytest.raises(ValueError, match="in 1 to 600 s"):
                await intake.pause(database, retry_after_s=seconds)
        with pytest.raises(ValueError, match="501 characters"):
            await intake.pause(database, reason="x" * 501)
        assert await intake.load(database) == intake.Intake()
        assert await list_audit(database) == []

    run(database_url, scenario)


def test_each_change_is_audited_and_told_to_gateways(database_url: str) -> None:
    async def scenario(database: Database) -> None:
        async with hearing(database_url, registry.CHANNEL) as heard:
            await intake.pause(database, "echo", reason="new model", retry_after_s=90, actor=ADA)
            await intake.pause(database, actor=ADA)
            await intake.resume(database, actor=ADA)
            await intake.resume(database, actor=ADA)  # there is nothing to do any more
            assert [await heard.get() for _ in range(3)] == ["intake"] * 3
        told = [
            (entry.actor, entry.action, entry.subject, entry.detail) for entry in await list_audit(database)
        ]
        assert told == [
            (ADA, "intake.resume", "*", {}),
            (ADA, "intake.pause", "*", {}),
            (ADA, "intake.pause", "echo", {"reason": "new model", "retry_after_s": 90}),
        ]

    run(database_url, scenario)


def test_changes_at_once_follow_one_another(database_url: str) -> None:
    async def scenario(database: Database) -> None:
        changes = [
            intake.pause(database, "echo"),
            intake.pause(database),
            intake.resume(database, "echo"),
        ] * 4
        await asyncio.gather(*changes)
        assert await intake.resume(database) in {"resumed", "was-on"}
        now = await intake.load(database)
        assert now.site is None
        assert now.open == frozenset()

    run(database_url, scenario)
