"""Calls that are refused for want of room, and come back when they are told."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from harness.scripted_site import Answer, ScriptedSite, document, scripted_site

from headrace.client import CallRefused, Client, patience

JOB = "0199e0a0-0000-7000-8000-000000000001"
FIRST, SECOND = "11111111-0000-4000-8000-000000000001", "22222222-0000-4000-8000-000000000002"
CALL = "POST /fn/echo"


def refusal(seconds: int | None, place: str = "", status: int = 503, **more: str) -> Answer:
    headers = {} if seconds is None else {"Retry-After": str(seconds)}
    problem = {"code": "backlog-full", "title": "Too many jobs wait", **more}
    return document(problem | ({"place": place} if place else {}), status, **headers)


class Clock:
    """Time that passes only in sleep."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(patience, "time", made)
    return made


@pytest.fixture
def site() -> Iterator[ScriptedSite]:
    with scripted_site() as made:
        yield made


@pytest.fixture
def client(site: ScriptedSite) -> Iterator[Client]:
    with Client(site.url, "hr_x") as made:
        yield made


def places(site: ScriptedSite) -> list[str | None]:
    return [one.headers["Headrace-Place"] for one in site.asked]


@pytest.fixture(params=["call", "submit"])
def ask(client: Client, request: pytest.FixtureRequest) -> Callable[..., Any]:
    return getattr(client, request.param)


def accepted(ask: Callable[..., Any]) -> Answer:
    return document({"job_id": JOB}, 202) if ask.__name__ == "submit" else document({"job_id": JOB})


def test_one_comes_back_when_it_is_told_with_the_place_that_it_has(
    site: ScriptedSite, client: Client, clock: Clock, ask: Callable[..., Any]
) -> None:
    told: list[int | None] = []
    client.on_wait = lambda refusal: told.append(refusal.retry_after)
    site.on(CALL, refusal(7, FIRST), refusal(3, SECOND), accepted(ask))

    assert ask("echo", {"text": "a"}, patience=10) == {"job_id": JOB}
    assert places(site) == [None, FIRST, SECOND]
    assert clock.slept == told == [7, 3]
    assert len({one.body for one in site.asked}) == 1
    assert len({one.headers["Prefer"] for one in site.asked}) == 1


def test_patience_has_an_end_and_is_not_used_up_in_vain(
    site: ScriptedSite, clock: Clock, ask: Callable[..., Any]
) -> None:
    site.on(CALL, refusal(7, FIRST), refusal(4, SECOND))

    with pytest.raises(CallRefused) as caught:
        ask("echo", {}, patience=10)
    assert (caught.value.code, caught.value.retry_after, caught.value.place) == ("backlog-full", 4, SECOND)
    assert clock.slept == [7]


def test_without_patience_a_refusal_is_the_answer(
    site: ScriptedSite, clock: Clock, ask: Callable[..., Any]
) -> None:
    site.on(CALL, refusal(0, FIRST))

    with pytest.raises(CallRefused) as caught:
        ask("echo", {})
    assert (caught.value.retry_after, caught.value.place) == (0, FIRST)
    assert (len(site.asked), clock.slept) == (1, [])


def test_nobody_is_asked_without_a_pause(site: ScriptedSite, client: Client, clock: Clock) -> None:
    site.on(CALL, refusal(0))

    with pytest.raises(CallRefused):
        client.call("echo", {}, patience=3)
    assert len(site.asked) <= 4


def test_a_place_may_be_given_by_hand_and_outlasts_what_asks_for_none(
    site: ScriptedSite, clock: Clock, ask: Callable[..., Any]
) -> None:
    site.on(CALL, refusal(1, status=429), refusal(1, SECOND), accepted(ask))

    ask("echo", {}, place=FIRST, patience=60)
    assert places(site) == [FIRST, FIRST, SECOND]


@pytest.mark.parametrize(
    "answer",
    [
        refusal(None, FIRST),  # it doesn't say when
        refusal(1, status=500),
        refusal(1, status=409),
        document({"code": "busy"}, 503, **{"Retry-After": "\xb2"}),  # a digit to Python, but no number
        document({"code": "busy"}, 503, **{"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}),
        refusal(1, job_id=JOB),  # it may have been taken
    ],
)
def test_what_is_no_want_of_room_is_the_answer(
    site: ScriptedSite, clock: Clock, ask: Callable[..., Any], answer: Answer
) -> None:
    site.on(CALL, answer)

    with pytest.raises(CallRefused):
        ask("echo", {}, patience=60)
    assert (len(site.asked), clock.slept) == (1, [])


def test_patience_is_a_number(site: ScriptedSite, ask: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="number of seconds"):
        ask("echo", {}, patience=math.nan)
    assert not site.asked


def test_with_a_key_a_call_that_may_have_been_taken_is_made_again(
    site: ScriptedSite, clock: Clock, ask: Callable[..., Any]
) -> None:
    site.on(CALL, refusal(1, job_id=JOB), accepted(ask))

    ask("echo", {}, patience=60, idempotency_key="k")
    assert [one.headers["Idempotency-Key"] for one in site.asked] == ['"k"', '"k"']


def test_one_never_comes_sooner_than_told(site: ScriptedSite, client: Client) -> None:
    site.on(CALL, refusal(1, FIRST), document(3))
    began = time.monotonic()

    assert client.call("echo", {}, patience=60) == 3
    assert time.monotonic() - began >= 1
