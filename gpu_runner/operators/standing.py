"""How a call stands: what the supervisor knows of it, its process, and its stacks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Final, Literal, Protocol, cast

import msgspec

from gpu_runner.calls import LocalCall
from gpu_runner.frames import INTERRUPT
from gpu_runner.lots import Joined
from gpu_runner.operators.processes import look_at
from gpu_runner.operators.why import why
from headrace.runner_requests import Standing
from headrace.sdk import Function

_SAMPLE_S: Final = 0.2  # of CPU time, which the kernel tells in hundredths of a second

_STOPS: Final = {
    "cancel": "it was cancelled",
    "lease": "this runner couldn't renew its lease",
    "leaving": "this runner leaves",
    "": "it isn't this runner's job any more",
}


class Calls(Protocol):
    """A supervisor, as far as its calls are looked at."""

    def call_of(self, job_id: str) -> LocalCall | None:
        """The call of that name that waits or runs here."""
        ...


class Watched(Protocol):
    """An executor, as far as it is looked at."""

    @property
    def index(self) -> int:
        """Which of the runner's it is."""
        ...

    @property
    def pid(self) -> int | None:
        """Its process."""
        ...

    @property
    def has_heard(self) -> bool:
        """Whether its process has read all that was sent to it."""
        ...

    async def dump(self) -> str:
        """The Python stacks of all its threads; empty if they never came."""
        ...


class Holder(Protocol):
    """Who holds a job, as far as it is asked why the job was to end."""

    @property
    def ended_by(self) -> Literal["", "cancel", "lease", "leaving"]:
        """Why it was told to end."""
        ...


async def standing_of(
    calls: Calls, functions: Mapping[str, Function[Any, Any]], job_id: str
) -> Standing | None:
    """How a call stands; None when it isn't here. Watches it for a moment first.

    Args:
        calls: where it may be.
        functions: what is served there, by name.
        job_id: the call's id.
    """
    call = calls.call_of(job_id)
    if call is None:
        return None
    body = _body(functions[call.frame.function])
    if call.executor is None or not call.started_at:
        standing = _told(call, body, "waiting" if call.executor is None else "ahead")
    else:
        standing = await _watched(calls, call, body)
    return msgspec.structs.replace(standing, why=why(standing))


def _body(function: Function[Any, Any]) -> Literal["main", "pool", "async"]:
    if function.is_async:
        return "async"
    return "pool" if function.manifest.concurrency > 1 else "main"


def _told(
    call: LocalCall,
    body: Literal["main", "pool", "async"],
    phase: Literal["waiting", "ahead", "running"],
) -> Standing:
    """What the supervisor knows."""
    now = time.monotonic()
    # Joined calls are interrupted and killed together.
    unit = call.lot if isinstance(call, Joined) and call.lot is not None and call.started_at else call
    started = call.started_at or now
    soft_at = started + call.manifest.budget.soft_limit
    stop, stopped_at = _stop(call, soft_at, now) if phase == "running" else ("", now)
    return Standing(
        job_id=call.job_id,
        function=call.frame.function,
        attempt=call.frame.attempt,
        path="job" if call.is_job else "direct",
        body=body,
        phase=phase,
        running_s=now - (call.started_at or call.received_at),
        soft_s=soft_at - now,
        deadline_s=call.deadline_at - now,
        kill_s=unit.kill_at - now if call.started_at else call.manifest.budget.hard,
        executor=None if call.executor is None else cast(Watched, call.executor).index,
        stop=stop,
        stopped_s=now - stopped_at,
        interrupts=unit.interrupts,
        interrupted_s=now - unit.interrupt_at if unit.interrupts else 0.0,
        beside=len(unit.parts) - 1,
    )


def _stop(call: LocalCall, soft_at: float, now: float) -> tuple[str, float]:
    """Why and when a call was first asked to end."""
    asked = [
        (soft_at, f"its soft limit of {call.manifest.budget.soft_limit:g} s was used up"),
        (call.deadline_at, "its deadline had passed"),
    ]
    if call.stopped:
        asked.append((call.stopped_at, _reason(call)))
    at, stop = min(asked)
    return (stop, at) if at <= now else ("", now)


def _reason(call: LocalCall) -> str:
    if call.is_job:
        return _STOPS[cast(Holder, call.caller).ended_by]
    return "its caller didn't wait any more"


async def _watched(calls: Calls, call: LocalCall, body: Literal["main", "pool", "async"]) -> Standing:
    """The same, with its process: for a moment, as CPU time takes one to show."""
    executor = cast(Watched, call.executor)
    pid = executor.pid
    before = None if pid is None else await asyncio.to_thread(look_at, pid)  # it may have many threads
    began = time.monotonic()
    stacks, _ = await asyncio.gather(executor.dump(), asyncio.sleep(_SAMPLE_S))
    after = None if pid is None else await asyncio.to_thread(look_at, pid)
    took = time.monotonic() - began
    told = _told(call, body, "running")
    if calls.call_of(call.job_id) is not call or executor.pid != pid:
        return msgspec.structs.replace(told, phase="ended", stacks=stacks)
    told = msgspec.structs.replace(told, pid=pid, stacks=stacks, heard=executor.has_heard)
    if before is None or after is None:
        return told
    return msgspec.structs.replace(
        told,
        process=after.state,
        threads=after.threads,
        wchan=after.wchan,
        cpu=max(0.0, after.cpu_s - before.cpu_s) / took,
        signals_blocked=after.is_deaf_to(INTERRUPT),
    )
