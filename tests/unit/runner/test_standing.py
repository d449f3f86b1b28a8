"""What is told of a call, by where it is and what has become of it."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import msgspec
import pytest
import site_functions

from gpu_runner.calls import LocalCall
from gpu_runner.jobs.held import HeldJob
from gpu_runner.jobs.outcomes import EndedBy
from gpu_runner.lots import Joined, Lot
from gpu_runner.operators.standing import standing_of
from headrace.domain import Batch, Budget
from headrace.ledger.execution import Claimed
from headrace.link.frames import Answer, Call, Started
from headrace.runner_requests import Standing
from headrace.sdk import Function

JOB = "0199e0a0-0000-7000-8000-000000000001"
FUNCTIONS: dict[str, Function[Any, Any]] = {
    one.name: one for one in (site_functions.nap, site_functions.wait_together)
}
NAP = site_functions.nap.manifest
BATCHED = msgspec.structs.replace(NAP, batch=Batch(max_cost=2), budget=Budget(soft=50, hard=60))


CLAIMED: dict[str, Any] = {
    "job_id": JOB,
    "token": "0199e0a0-0000-7000-8000-000000000002",
    "attempt": 1,
    "charged": 0,
    "waited_s": 0.0,
    "function": "nap",
    "owner_id": "ada",
    "input": b"{}",
    "remaining_s": 60.0,
    "request_id": "",
    "traceparent": "",
    "alone": False,
}


class Gateway:
    def answer(self, frame: Answer | Started) -> None:
        pass

    def tell(self, frame: object) -> None:
        pass


class Executor:
    """This very process, and what is to happen while it tells its stacks."""

    index = 3
    has_heard = True

    def __init__(self) -> None:
        self.pid: int | None = os.getpid()
        self.meanwhile = lambda: None

    async def dump(self) -> str:
        self.meanwhile()
        return "the stacks"

    def send(self, frame: object) -> None:
        pass

    def interrupt(self, call: LocalCall) -> None:
        pass

    def kill(self, culprit: LocalCall | None = None) -> None:
        pass


class Supervisor:
    def __init__(self, *calls: LocalCall) -> None:
        self.calls = {call.job_id: call for call in calls}

    def call_of(self, job_id: str) -> LocalCall | None:
        return self.calls.get(job_id)


def held(ended_by: EndedBy) -> HeldJob:
    job = HeldJob(msgspec.convert(CLAIMED, Claimed), 0.0, lambda _: None, lambda _: None)
    job.ended_by = ended_by
    return job


def call(function: str = "nap", caller: Any = None, remaining_ms: int = 60_000) -> LocalCall:
    frame = Call(JOB, function, "1234", b"{}", "ada", 2, remaining_ms, wait_ms=0)
    made = LocalCall(frame, caller or Gateway(), FUNCTIONS[function].manifest)
    made.is_job = isinstance(caller, HeldJob)
    return made


def running(function: str = "nap", **more: Any) -> LocalCall:
    made = call(function, **more)
    made.start(Executor(), 5.0)
    return made


def told(supervisor: Supervisor) -> Standing:
    standing = asyncio.run(standing_of(supervisor, FUNCTIONS, JOB))
    assert standing is not None
    return standing


def test_a_call_that_is_elsewhere_has_no_standing() -> None:
    assert asyncio.run(standing_of(Supervisor(), FUNCTIONS, JOB)) is None


def test_a_call_that_waits_has_no_process() -> None:
    standing = told(Supervisor(call()))
    assert (standing.phase, standing.executor, standing.pid, standing.stacks) == ("waiting", None, None, "")
    assert (standing.function, standing.attempt, standing.path) == ("nap", 2, "direct")
    assert standing.why == "It hasn't started: it waits for a free slot."


def test_a_call_that_was_handed_ahead_has_not_started() -> None:
    ahead = call()
    ahead.executor = Executor()
    standing = told(Supervisor(ahead))
    assert (standing.phase, standing.executor, standing.stacks) == ("ahead", 3, "")


def test_a_running_call_is_told_of_with_its_process_and_its_limits() -> None:
    standing = told(Supervisor(running()))
    assert (standing.phase, standing.executor, standing.pid) == ("running", 3, os.getpid())
    assert (standing.stacks, standing.stop, standing.body) == ("the stacks", "", "main")
    assert standing.process in "RS"
    assert standing.threads >= 1
    assert 0.2 <= standing.running_s < 5
    assert 0 < standing.soft_s < NAP.budget.soft_limit
    assert 0 < standing.kill_s < NAP.budget.hard
    assert 50 < standing.deadline_s < 60


def test_where_a_body_runs_is_told() -> None:
    assert told(Supervisor(running("wait_together"))).body == "async"


def test_a_joined_call_is_told_of_with_the_limits_of_all_that_run_with_it() -> None:
    joined = [
        Joined(Call(job_id, "nap", "1234", b"{}", "ada", 1, 60_000, wait_ms=0), Gateway(), BATCHED)
        for job_id in (JOB, "other")
    ]
    lot = Lot(joined[0])
    lot.add(joined[1])
    assert told(Supervisor(*joined)).phase == "waiting"
    lot.start(Executor(), 5.0)
    joined[0].stop(5.0)
    standing = told(Supervisor(*joined))
    assert (standing.phase, standing.beside, standing.pid) == ("running", 1, os.getpid())
    assert standing.kill_s > 5  # for the other one it goes on
    assert "goes on while any of those it is joined with is wanted: another call" in standing.why
    lot.stop(5.0)
    assert told(Supervisor(*joined)).kill_s < 5


def test_a_call_that_ends_while_it_is_looked_at_is_told_so() -> None:
    ending = running()
    supervisor = Supervisor(ending)
    assert isinstance(ending.executor, Executor)
    ending.executor.meanwhile = supervisor.calls.clear
    assert told(supervisor).why == "It has ended while it was looked at."


def test_a_call_whose_process_is_gone_is_told_so() -> None:
    lost = running()
    assert isinstance(lost.executor, Executor)
    lost.executor.pid = None
    assert told(Supervisor(lost)).why.startswith("Its process has just ended")


@pytest.mark.parametrize(
    ("caller", "reason"),
    [
        (None, "its caller didn't wait any more"),
        (held("cancel"), "it was cancelled"),
        (held("lease"), "this runner couldn't renew its lease"),
        (held("leaving"), "this runner leaves"),
        (held(""), "it isn't this runner's job any more"),
    ],
)
def test_who_wanted_a_call_to_end_is_told(caller: Any, reason: str) -> None:
    stopped = running(caller=caller)
    stopped.stop(5.0)
    standing = told(Supervisor(stopped))
    assert standing.stop == reason
    assert 0 < standing.stopped_s < 5
    assert 0 < standing.kill_s < 5


def test_the_first_of_several_reasons_is_told() -> None:
    late = running(remaining_ms=0)
    late.stop(5.0)
    assert told(Supervisor(late)).stop == "its deadline had passed"
    late.started_at = time.monotonic() - 1000
    assert told(Supervisor(late)).stop == f"its soft limit of {NAP.budget.soft_limit:g} s was used up"
