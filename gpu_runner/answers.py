"""What an execution's end says to the gateway."""

from __future__ import annotations

from gpu_runner.calls import DirectCall
from gpu_runner.frames import Done, Failed
from headrace.link.frames import Error, Result


def answer_of(call: DirectCall, ended: Done | Failed, load: int) -> tuple[Result | Error, str]:
    """The answer for an execution that came to its own end, and its outcome in a word.

    Args:
        call: whose execution it was.
        ended: what its executor said.
        load: of the function's slots now.
    """
    exec_ms, attempt = ended.exec_s * 1000, call.frame.attempt
    if isinstance(ended, Done):
        return Result(call.job_id, ended.output, attempt, call.queue_ms, exec_ms, load), "succeeded"
    category = ended.category
    if category == "stopped":
        category = "cancelled" if call.stopped else "soft-limit-exceeded"
    error = Error(
        call.job_id,
        category,
        ended.message,
        attempt,
        call.queue_ms,
        exec_ms,
        ended.retryable,
        ended.errors,
        load,
    )
    return error, category


def answer_of_killed(call: DirectCall, seconds: float, load: int) -> tuple[Error, str]:
    """The answer for a call whose executor was killed because of it, after so many seconds."""
    category = "hard-limit-exceeded"
    message = f"The function ran into its hard limit of {call.manifest.budget.hard:g} s."
    error = Error(
        call.job_id, category, message, call.frame.attempt, call.queue_ms, seconds * 1000, load=load
    )
    return error, category
