from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from headrace.gateway.intake import Gate, nothing_known
from headrace.gateway.problems import Problem
from headrace.intake import Intake, Pause


def pause(function: str = "", reason: str = "", retry_after_s: float | None = None) -> Pause:
    return Pause(
        function=function,
        reason=reason,
        retry_after_s=retry_after_s,
        changed_at=datetime(2026, 1, 2, tzinfo=UTC),
        changed_by="operator:ada",
    )


def refusal(gate: Gate, name: str = "echo") -> Problem:
    with pytest.raises(Problem) as caught:
        gate.require(name)
    assert (caught.value.code, caught.value.status) == ("intake-paused", 503)
    return caught.value


def test_all_pass_where_nothing_is_paused() -> None:
    gate = Gate(nothing_known)
    gate.require("echo")
    gate.intake = Intake(functions={"nap": pause("nap")})
    gate.require("echo")
    assert [gate.is_shut(name) for name in ("echo", "nap")] == [False, True]
    gate.intake = Intake(site=pause(), open=frozenset({"echo"}))
    gate.require("echo")
    assert [gate.is_shut(name) for name in ("echo", "nap")] == [False, True]


def test_a_refusal_says_of_what_and_why() -> None:
    gate = Gate(nothing_known)
    gate.intake = Intake(site=pause(reason="we move"), functions={"nap": pause("nap")})
    assert refusal(gate).detail == "Nothing new is taken at this site: we move"
    assert refusal(gate, "nap").detail == "Nothing new of nap is taken."


@pytest.mark.parametrize(("given", "asked"), [(None, 30), (90.0, 90), (1.0, 1), (600.0, 600)])
def test_callers_are_asked_back_spread_and_never_later_than_was_said(given: float | None, asked: int) -> None:
    gate = Gate(nothing_known)
    gate.intake = Intake(site=pause(retry_after_s=given))
    seconds = {int(refusal(gate).headers["Retry-After"]) for _ in range(300)}
    assert asked * 0.8 <= min(seconds)
    assert max(seconds) <= asked
    assert len(seconds) > 1 or asked == 1


def test_a_key_that_stands_for_a_call_already_lets_it_pass_and_is_looked_for_only_then() -> None:
    looked: list[tuple[str, str, str]] = []

    async def is_known(*key: str) -> bool:
        looked.append((key[0], key[1], key[2]))
        return key[2] == "old"

    async def scenario() -> None:
        gate = Gate(is_known)
        await gate.require_or_known("echo", "o", "new")
        gate.intake = Intake(site=pause())
        await gate.require_or_known("echo", "o", "old")
        for key in ("new", None):
            with pytest.raises(Problem, match="intake-paused"):
                await gate.require_or_known("echo", "o", key)

    asyncio.run(scenario())
    assert looked == [("o", "echo", "old"), ("o", "echo", "new")]
