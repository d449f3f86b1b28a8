"""Which way calls go, by what runners have said; and what the ledger is given of one that becomes a job."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from harness.scripted_calls import Site, flexible, refused, result, run, site

from headrace.admission import Decision, Job, Predicted, Refused, Snapshot, Span, Sync, Wish
from headrace.capacity import Capacity
from headrace.gateway import explaining
from headrace.gateway.asked import Record, ToJob
from headrace.gateway.becoming import new_job
from headrace.gateway.digest import digest_of
from headrace.gateway.lanes import Lanes
from headrace.gateway.problems import Problem
from headrace.gateway.routing import Routing
from headrace.ledger.lanes import LaneStanding
from headrace.link.frames import Pong
from headrace.settings import load_settings

# ---------------------------------------------------------------------- decisions


def routing(
    here: Site, away: float = 0.0, lanes: Lanes | None = None, gone_s: float | None = None
) -> Routing:
    return Routing(here.caller._links, 0.25, lambda: away, lanes, lambda _name, _interface: gone_s)


def decided(way: Routing, hold: float = 10) -> Decision:
    return way.decide(flexible().manifest, Span(hold, 100), Wish(), 0.0)


def test_a_runner_that_has_just_refused_is_believed_to_be_full_for_a_moment(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path, refused, slots=1) as here:
            way = routing(here)
            (serving,) = here.caller._links.serving("echo", "1234")
            serving.load, serving.mean_s = 1, 2.0
            assert isinstance(decided(way), Sync)  # its report may be a second old

            assert isinstance(await here.caller.answer(flexible()), ToJob)
            assert serving.is_full
            assert decided(way) == Job(10, "no-room")
            assert decided(way, hold=1) == Job(0, "over-hold")
            assert isinstance(decided(routing(here, away=60)), Sync)  # nothing can be recorded
            serving._full_until = time.monotonic()
            assert isinstance(decided(way), Sync)

    run(scenario)


def test_a_result_says_that_there_is_room_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path, result, slots=1) as here:
            (serving,) = here.caller._links.serving("echo", "1234")
            serving._full_until = time.monotonic() + 60
            await here.caller.answer(flexible())
            assert not serving.is_full

    run(scenario)


def test_without_a_runner_that_can_run_it_no_call_goes_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path, result) as here:
            (serving,) = here.caller._links.serving("echo", "1234")
            for degraded in ("broken", "broken, and otherwise"):
                serving.told(Pong(degraded={"echo": degraded}), "echo")
            assert decided(routing(here)) == Refused("function-degraded", 10)  # the first try again
            serving.degraded_at = time.monotonic() - 70
            found = decided(routing(here))
            assert isinstance(found, Refused)
            assert found.retry_after_s == pytest.approx(70, abs=5)
        assert decided(routing(here)) == Refused("no-runner", 600)  # it never had one
        assert decided(routing(here, gone_s=33)) == Refused("no-runner", 33)
        here.caller._links.load_s["echo"] = 20
        assert decided(routing(here, gone_s=33)) == Refused("no-runner", 53)

    run(scenario)


@pytest.mark.parametrize(("mean_s", "wait_s", "clear_s"), [(2.0, 4.0, 9.0), (0.1, 0.2, 0.0)])
def test_jobs_that_wait_take_every_other_turn(
    tmp_path: Path, mean_s: float, wait_s: float, clear_s: float
) -> None:
    """Behind them a call gets a slot by waiting briefly where executions are short; else when none waits."""
    lanes = Lanes()
    lanes.told(
        {
            "echo": LaneStanding(
                name="echo",
                waiting=9,
                waiting_cost=9.0,
                rate=1.0,
                is_measured=True,
                places=1,
                line_s=30.0,
            )
        }
    )

    async def scenario() -> None:
        async with site(tmp_path, result, slots=1) as here:
            (serving,) = here.caller._links.serving("echo", "1234")
            serving.load, serving.mean_s = 1, mean_s
            found = routing(here, lanes=lanes).snapshot(flexible().manifest, 0.0)
            assert found.predicted is not None
            assert (found.predicted.wait_s, found.clear_s) == (wait_s, clear_s)
            document = json.loads(
                routing(here, lanes=lanes).explain(flexible().manifest, Span(10, 100), Wish(), 0.0)
            )
            assert (document["lane"]["waiting"], document["lane"]["line_s"]) == (9, 30)

    run(scenario)


def test_times_that_were_measured_decide(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path, result) as here:
            (serving,) = here.caller._links.serving("echo", "1234")
            serving.capacity = Capacity(slots=4, free=4, mean_s=1, p95_s=3, known=50)
            assert isinstance(decided(routing(here), hold=3), Sync)
            assert decided(routing(here), hold=2.9) == Job(0, "over-hold")

    run(scenario)


def test_what_can_not_end_before_its_deadline_is_no_job_either(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(tmp_path, result, result) as here:
            way, one = routing(here), flexible().manifest
            slow, fast = here.caller._links.serving("echo", "1234")
            for serving, median_s in ((slow, 20.0), (fast, 12.0)):
                serving.capacity = Capacity(slots=4, mean_s=12, p50_s=median_s, known=50)
                serving._known_at = time.monotonic()
            way.require_time(one, 12.0, 0.0)
            with pytest.raises(Problem) as caught:
                way.require_time(one, 11.0, 0.0)
            assert caught.value.code == "deadline-unreachable"
            fast._known_at -= 60  # nothing has been executed for long
            for _ in range(2):
                way.require_time(one, 11.0, 0.0)
            assert fast.may_try()  # they haven't taken it from the next direct call
            with pytest.raises(Problem):
                way.require_time(one, 11.0, 0.0)
        way.require_time(one, 11.0, 0.0)  # nobody is there to know

    run(scenario)


# ---------------------------------------------------------------------- becoming a job


def made(elapsed: float, given_up: ToJob | None = None, **change: Any) -> Any:
    asked = flexible(attempts=2, hold=10, total=100)
    for name, value in change.items():
        setattr(asked, name, value)
    content = asked.input
    new = new_job(asked, elapsed, given_up, load_settings(), "gateway")
    assert (new.input, asked.input) == (content, b"")
    return new


def test_a_job_has_what_is_left_of_the_calls_times_and_its_id() -> None:
    new = made(4.0, most_outstanding=7)
    asked = flexible()
    assert (new.queue_s, new.total_s) == (56, 96)
    assert (new.attempt, new.charged, new.alone) == (0, 0, False)
    assert (new.key_id, new.cost, new.weight) == ("key", 3.5, 2.0)
    assert (new.owner_id, new.function, new.interface) == ("owner", "echo", "1234")
    assert (new.digest, new.waiter) == (digest_of(json.loads(asked.input)), "gateway")
    assert (new.most_outstanding, new.attempts) == (7, 2)


def test_starts_that_it_has_had_count() -> None:
    new = made(1.0, ToJob(2, 1, "lost", alone=True))
    assert (new.attempt, new.charged, new.alone) == (2, 1, True)
    assert not made(1.0, ToJob(0, 0, "withdrawn", alone=True)).alone  # the ledger knows that of starts only


def test_the_queue_deadline_is_that_of_the_first_start() -> None:
    late = Record("key", 1.0, 1.0, 3.0)
    with pytest.raises(Problem) as caught:
        made(3.0, record=late)
    assert caught.value.code == "queue-deadline-exceeded"
    assert 0 < made(3.0, ToJob(1, 1, "lost"), record=late).queue_s < 0.01


def test_after_the_deadline_there_is_no_job() -> None:
    with pytest.raises(Problem) as caught:
        made(100.0, ToJob(1, 1, "lost"))
    assert caught.value.code == "deadline-exceeded"


# ---------------------------------------------------------------------- explaining


@pytest.mark.parametrize(
    ("query", "expected"), [(b"", False), (b"a=1", False), (b"explain=1", True), (b"a=b&explain=1", True)]
)
def test_what_asks_for_an_explanation(query: bytes, expected: bool) -> None:
    assert explaining.is_asked_for(query) == expected


@pytest.mark.parametrize("query", [b"explain", b"explain=0", b"explain=true", b"explain=1&explain=1"])
def test_who_asks_for_it_otherwise_is_told_and_nothing_is_executed(query: bytes) -> None:
    with pytest.raises(Problem) as caught:
        explaining.is_asked_for(query)
    assert caught.value.code == "bad-request"


@pytest.mark.parametrize(
    ("decision", "told"),
    [
        (Sync(10), ("runner", "room", 10, None)),
        (Job(0, "over-hold"), ("job", "over-hold", 0, None)),
        (Refused("busy", 11.5), ("refused", "busy", 10, 12)),
        (Refused("hold-exceeded", None), ("refused", "hold-exceeded", 10, None)),
    ],
)
def test_an_explanation(decision: Decision, told: tuple[Any, ...]) -> None:
    predicted = Predicted(0.1234567, 0, 1, 2)
    document = json.loads(explaining.explanation(Span(10, 100), Snapshot(predicted, 0.25), decision))
    assert tuple(document[name] for name in ("decision", "reason", "hold_s", "retry_after")) == told
    assert (document["deadline_s"], document["brief_wait_s"]) == (100, 0.25)
    assert document["predicted"] == {**predicted._asdict(), "wait_s": 0.123457}
    nothing = explaining.explanation(Span(10, 100), Snapshot(None, 0.25), Refused("no-runner", 5))
    assert json.loads(nothing)["predicted"] is None
    assert json.loads(nothing)["lane"] is None
