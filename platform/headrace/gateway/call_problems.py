"""The problems that a call on the direct path can end with."""

from __future__ import annotations

from headrace import pools
from headrace.admission import back_s, mended_s, retry_after
from headrace.gateway.asked import Asked
from headrace.gateway.problem_kinds import KINDS
from headrace.gateway.problems import Problem
from headrace.gateway.serving import Serving
from headrace.link.frames import Error, Refused


def out_of_time(asked: Asked, *, held: bool = True) -> Problem:
    """For a call that hadn't ended when its hold ended, or its deadline passed.

    Args:
        asked: the call.
        held: whether its hold is what ended.
    """
    if not held or asked.span.hold >= asked.span.total:
        detail = f"The call was not finished within its {asked.span.total:g} s."
        return _as_known(Problem("deadline-exceeded", detail), asked)
    return Problem(
        "hold-exceeded",
        f"The call was not finished within the {asked.span.hold:g} s for which its connection may be held.",
    )


def unreachable(function: str, remaining_s: float, expected_s: float) -> Problem:
    """For a call that isn't sent, as less is left until its deadline than half of the executions take."""
    return Problem(
        "deadline-unreachable",
        f"{remaining_s:.3g} s are left until the deadline, and {function} takes about "
        f"{expected_s:.3g} s. The call was not started.",
    )


def worker_lost(asked: Asked) -> Problem:
    """For a call that no start is left for, or that no runner could start again."""
    starts = asked.starts
    if asked.has_items:
        detail = "The stream was cut off, as the process that ran the call ended"
        detail += "; a stream isn't started again after its first item."
        return Problem("worker-lost", detail, attempt=starts)
    when = "its only start" if starts == 1 else f"each of its {starts} starts"
    detail = f"The process that ran the call ended unexpectedly at {when}."
    if asked.attempt > starts:
        detail += " No runner could start it again in time."
    return _as_known(Problem("worker-lost", detail, attempt=starts), asked)


def perhaps_recorded(problem: Problem, job_id: str) -> Problem:
    """The same problem of a call that its runner was asked to record: it may be a job all the same."""
    return Problem(
        problem.code,
        f"{problem.detail.rstrip('.')}. Its runner was asked to record it as a job; whether it is one isn't "
        f"known. `GET /jobs/{job_id}` tells, if need be once Postgres is back.",
        headers=problem.headers | {"Headrace-Job-Id": job_id},
        **problem.extra | {"job_id": job_id},
    )


def recorded(problem: Problem, job_id: str) -> Problem:
    """The same problem of a call that is a job, of which Postgres doesn't tell now."""
    return Problem(
        problem.code,
        f"The call was accepted as the job {job_id}, which goes on: `GET /jobs/{job_id}` tells.",
        headers=problem.headers | {"Headrace-Job-Id": job_id},
        **problem.extra | {"job_id": job_id},
    )


def _as_known(problem: Problem, asked: Asked) -> Problem:
    return perhaps_recorded(problem, asked.job_id) if asked.may_be_recorded else problem


def failed(error: Error, asked: Asked) -> Problem:
    """For a call that failed and isn't tried again."""
    if error.category == "invalid-input":
        errors = [{"path": path, "message": message} for path, message in error.errors]
        return Problem("invalid-input", error.message, errors=errors)
    if error.retryable and error.retry_after_s > 0:
        headers = {"Retry-After": str(retry_after(error.retry_after_s))}
        return Problem("upstream-busy", headers=headers, attempt=asked.attempt)
    if error.retryable:
        return Problem("attempts-exhausted", error.message, attempt=asked.attempt)
    code = error.category if error.category in KINDS else "function-failed"
    return Problem(code, error.message, attempt=asked.attempt)


def no_room(asked: Asked, back_s: float) -> Problem:
    """For a call that every runner refused: of several reasons the one that ends first.

    Args:
        asked: the call.
        back_s: seconds until a runner should be there, where none was asked.
    """
    if asked.was_lost:
        return worker_lost(asked)
    if not asked.refusals:
        whose = f"{_whose(asked)} that serves {asked.manifest.name}"
        headers = {"Retry-After": str(retry_after(back_s))}
        return Problem("no-runner", f"No runner{whose} is connected.", headers=headers)
    told = [(one.reason, _seconds(asked, serving, one)) for serving, one in asked.refusals.items()]
    sound = [one for one in told if one[0] != "degraded"]
    reason, seconds = min(sound or told, key=lambda one: one[1])
    headers = {"Retry-After": str(retry_after(seconds))}
    match reason:
        case "full":
            return Problem("busy", headers=headers)
        case "cold":
            # Also in words: a stream that has begun gets no headers any more.
            when = headers["Retry-After"]
            detail = f"The function's process is starting, or loads its models: try again in {when} s."
            return Problem("busy", detail, headers=headers)
        case "degraded":
            return degraded(asked, seconds)
        case _:
            detail = f"The runner of {asked.manifest.name} takes no calls."
            return Problem("no-runner", detail, headers=headers)


def _seconds(asked: Asked, serving: Serving, refusal: Refused) -> float:
    """When whoever was refused so by a runner may find room there."""
    match refusal.reason:
        case "full" | "cold":
            # A slot that gets free is filled at once while jobs wait: there is room when none does any more.
            return max(refusal.retry_after_s, asked.clear_s)
        case "degraded":
            return mended_s(serving.broken_s)
        case _:
            return refusal.retry_after_s


def no_runner(detail: str, away_s: float | None) -> Problem:
    """For what is to be a job of a function without a runner.

    Args:
        detail: what is missing.
        away_s: for how long; None: there never was one.
    """
    return Problem("no-runner", detail, headers={"Retry-After": str(retry_after(back_s(away_s)))})


def degraded(asked: Asked, retry_after_s: float) -> Problem:
    """For a call of a function that no runner can run at present; why is for its operator to see."""
    detail = f"A runner serves {asked.manifest.name} but could not load what it needs, such as its model."
    return Problem("function-degraded", detail, headers={"Retry-After": str(retry_after(retry_after_s))})


def _whose(asked: Asked) -> str:
    """Which runners serve the function, where not all do by default."""
    pool = asked.manifest.pool
    if pool == pools.DEFAULT:
        return ""
    return f" with labels {pool}" if "=" in pool else f" of pool {pool}"
