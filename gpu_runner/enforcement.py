"""What happens to running calls as time passes: they are announced, interrupted, and killed."""

from __future__ import annotations

import logging

from gpu_runner.calls import LocalCall
from gpu_runner.children.executors import ExecutorProcess
from headrace.link.frames import Started

log = logging.getLogger(__name__)

TICK_S = 0.05
"""How exactly limits and waits end."""

_MOST_INTERRUPTS = 5  # in ticks one after the other: the frame may be on its way when the signal comes
_LEAST_PATIENCE_S = 5.0


def patience_s(load_s: float) -> float:
    """How long a body that was asked to end may go on before its executor is killed, in seconds.

    No shorter than twice the time that the next executor takes to load its models: killing an executor costs
    everybody in it that much, and whoever makes calls only to leave them must not gain by it.
    """
    return max(_LEAST_PATIENCE_S, 2 * load_s)


def enforce(executor: ExecutorProcess, now: float) -> None:
    """Look at all that runs in one executor, at an instant of `time.monotonic()`."""
    for call in executor.calls.values():
        if not call.started_at:
            continue  # it waits in its slot for others to join it
        if now >= call.kill_at and executor.is_ready:
            log.warning("job %s %s: executor %d is killed", call.job_id, _why(call, now), executor.index)
            executor.kill(call)
            return
        if now >= call.interrupt_at and call.interrupts < _MOST_INTERRUPTS:
            if not call.interrupts:
                seconds = now - call.started_at
                log.info(
                    "job %s goes on after it was to end, %.1f s: it is interrupted", call.job_id, seconds
                )
            call.interrupts += 1
            executor.interrupt(call)
        if not call.announced:
            call.announced = True
            call.caller.answer(Started(call.job_id, call.frame.attempt))


def _why(call: LocalCall, now: float) -> str:
    if now >= call.started_at + call.manifest.budget.hard:
        return "is past its hard limit"
    return "was stopped and hasn't ended" if call.stopped else "is past its deadline and hasn't ended"
