"""What an execution's end says to the gateway."""

from __future__ import annotations

import logging
import time

from gpu_runner.calls import LocalCall
from gpu_runner.children.executors import ExecutorProcess
from gpu_runner.frames import LONGEST_BUSY_S, Done, Failed
from gpu_runner.service_times import ServiceTime
from headrace.link.frames import Error, Lost, Result

log = logging.getLogger(__name__)


def answer_of(
    call: LocalCall, ended: Done | Failed, load: int, times: ServiceTime
) -> tuple[Result | Error, str]:
    """The answer for an execution that came to its own end, and its outcome in a word.

    Args:
        call: whose execution it was.
        ended: what its executor said.
        load: of the function's slots now.
        times: how long the function's executions take.
    """
    exec_ms, attempt = ended.exec_s * 1000, call.frame.attempt
    if isinstance(ended, Done):
        mean_s, cost_s = times.mean, times.per_cost
        result = Result(call.job_id, ended.output, attempt, call.queue_ms, exec_ms, load, mean_s, cost_s)
        return result, "succeeded"
    category, message = ended.category, ended.message
    if category == "stopped" and call.stopped:
        category = "cancelled"
    elif category == "stopped" and time.monotonic() >= call.deadline_at:
        category, message = "deadline-exceeded", "The call was not finished at its deadline."
    elif category == "stopped":
        category, soft = "soft-limit-exceeded", call.manifest.budget.soft_limit
        if ended.exec_s >= soft:  # else the function itself raised what stops a call
            message = f"The function ran into its soft limit of {soft:g} s."
    error = Error(
        call.job_id,
        category,
        message,
        attempt,
        call.queue_ms,
        exec_ms,
        ended.retryable,
        ended.errors,
        load,
        min(ended.retry_after_s, LONGEST_BUSY_S),
    )
    return error, category


def answer_of_lost(
    call: LocalCall,
    executor: ExecutorProcess,
    load: int,
    *,
    is_culprit: bool | None = None,
    is_bystander: bool = False,
) -> tuple[Error | Lost, str, float]:
    """The answer for a call whose executor has ended under it, its outcome in a word, and how long it ran.

    A crash of unknown cause charges everyone in it, or what ran alone there, if something did; a neighbour's
    kill charges nobody else; and the end of executors because this process was frozen, or of one for what it
    loads, says nothing about anyone.

    Args:
        call: what ran in it.
        executor: that was lost.
        load: of the function's slots now.
        is_culprit: whether the process was killed because of it; by default where it was killed for it alone.
        is_bystander: whether another call ran alone there, beside which this one rested.
    """
    culprit = executor.killed_for
    seconds = time.monotonic() - call.started_at
    if call is culprit if is_culprit is None else is_culprit:
        error = _killed(call, seconds, load)
        return error, error.category, seconds
    log.warning(
        "executor %d was lost under job %s of %s (attempt %d)",
        executor.index,
        call.job_id,
        call.frame.function,
        call.frame.attempt,
    )
    is_nobodys_fault = executor.was_frozen or executor.was_loading
    is_charged = culprit is None and not (is_nobodys_fault or is_bystander)
    lost = Lost(call.job_id, call.frame.attempt, is_charged, load, suspect=not is_nobodys_fault)
    return lost, "lost", seconds


def _killed(call: LocalCall, seconds: float, load: int) -> Error:
    """For a call whose executor was killed because of it."""
    if call.stopped:
        category, message = "cancelled", "The call was stopped."
    elif seconds < call.manifest.budget.hard and time.monotonic() >= call.deadline_at:
        category, message = "deadline-exceeded", "The call was not finished at its deadline."
    else:
        category = "hard-limit-exceeded"
        message = f"The function ran into its hard limit of {call.manifest.budget.hard:g} s."
    return Error(call.job_id, category, message, call.frame.attempt, call.queue_ms, seconds * 1000, load=load)
