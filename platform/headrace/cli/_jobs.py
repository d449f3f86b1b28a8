"""Jobs as text for people. Imported inside command bodies."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from headrace.cli._advice import advice_on_job
from headrace.cli._table import exact_moment, moment
from headrace.cli.output import on_one_line, one_line, plain
from headrace.domain import FINAL

if TYPE_CHECKING:
    from headrace.client import Client, Event, Job

_SHOWN: Final = 400
"""A result up to this many characters is shown with its job, and so much of an error's message."""

_LABEL: Final = 10
"""What the name of a line takes."""

_ENDED_BY_OTHERS: Final = frozenset({"deadline-exceeded", "queue-deadline-exceeded", "worker-lost"})
"""Categories of jobs that no end of an execution has ended: the event's reason says all of the message."""

_WORDS: Final = {
    "failed": "the job failed",
    "expired": "the job expired before it could start",
    "cancelled": "the job was cancelled",
}


def rows(found: Iterable[Job]) -> list[tuple[str, ...]]:
    """A line of a list for each job."""
    return [
        (
            job["job_id"],
            plain(job["function"]),
            plain(job["status"]),
            str(job["attempt"]),
            moment(_time(job, "created_at")),
            moment(_time(job, "finished_at")),
        )
        for job in found
    ]


def dead_rows(found: Iterable[Job]) -> list[tuple[str, ...]]:
    """A line of a list for each job that ended without a result."""
    return [
        (
            job["job_id"],
            plain(job["function"]),
            plain(job["status"]),
            plain(job["error"]["category"]),
            moment(_time(job, "finished_at")),
            plain(job["error"]["message"]),
        )
        for job in found
    ]


def lines(job: Job, width: int | None) -> list[str]:
    """All that is worth knowing of one job, a line each; what its function said last fits the width."""
    final = job["status"] in FINAL
    waits = job["status"] == "queued" and not job["attempt"]
    parts = {
        "job": job["job_id"],
        "function": plain(job["function"]),
        "status": plain(job["status"]),
        "progress": "" if final else one_line(_progress(job.get("progress")), width and width - _LABEL),
        "attempt": str(job["attempt"] or ""),
        "created": moment(_time(job, "created_at")),
        "start by": moment(_time(job, "queue_deadline")) if waits else "",
        "started": _since_creation(job, "started_at"),
        "end by": "" if final else moment(_time(job, "deadline")),
        "finished": _since_creation(job, "finished_at") + _last_attempt(job),
        "error": _error(job),
        "retry of": job.get("retry_of", ""),
        "retried": f"as {job['retried_as']}" if job.get("retried_as") else "",
        "result": _result(job),
        "kept": _kept(job),
    }
    width = max(map(len, parts))
    return [f"{name.ljust(width)}  {text}" for name, text in parts.items() if text]


def failure(job: Job) -> list[str]:
    """Why there is no result, and what can be done."""
    error: dict[str, Any] = job.get("error") or {}
    faults: list[dict[str, str]] = error.get("errors") or []
    told = [f"headrace: {_WORDS.get(job['status'], job['status'])}"]
    if job["status"] == "failed" and error:
        told[0] += f": {_shown(error['message'])} ({error['category']})"
        told += [f"  {_shown(': '.join(filter(None, fault.values())))}" for fault in faults]
    if job["status"] != "cancelled" and (known := advice_on_job(error.get("category", ""))):
        told.append(f"  {known}")
    return [*told, f"  job: {job['job_id']}"]


def on_a_line(event: Event) -> str:
    """An event in JSON: its kind, its number, and all that it says; an item, whatever it is, by that name."""
    number = int(event.event_id) if event.event_id.isdigit() else None
    said = {"item": event.data} if event.kind == "item" else event.data
    return on_one_line({"event": event.kind, "id": number, **said})


def with_result(client: Client, job_id: str, event: Event) -> Event:
    """The event, with the output in it where it is the one of a success and says only where that is."""
    if event.kind != "result" or "result" in event.data:
        return event
    known = {name: value for name, value in event.data.items() if name != "result_url"}
    return event._replace(data={**known, "result": client.result(job_id)})


def recorded(client: Client, job_id: str) -> list[Event]:
    """The states that were recorded when this was asked: the stream itself ends only with the job."""
    job = client.job(job_id)
    last = (job["status"], job["attempt"])
    states: list[Event] = []
    for event in client.events(job_id):
        if event.kind not in {"progress", "item"}:
            states.append(event)
            if (event.data["status"], event.data["attempt"]) == last:
                break
    return states


def step(event: Event) -> str:
    """An event in a few words; empty for one that says nothing new to a person."""
    if event.kind == "progress":
        return _progress(event.data)
    if event.kind != "state":
        return ""
    state, attempt = event.data["status"], event.data.get("attempt") or 0
    if state == "queued" and attempt:
        return f"queued again: {event.data.get('reason')}"
    return f"running, attempt {attempt}" if state == "running" and attempt > 1 else state.replace("_", " ")


def transitions(states: Iterable[dict[str, Any]]) -> list[tuple[str, ...]]:
    """A line for each state, with the one before."""
    found: list[tuple[str, ...]] = []
    before = ""
    for state in states:
        at, now = exact_moment(_time(state, "at")), plain(state["status"])
        attempt, who, why = str(state.get("attempt", "")), state.get("by") or "", state.get("reason") or ""
        error = state.get("error")
        if now == "failed" and error and error["category"] not in _ENDED_BY_OTHERS:
            why = f"{why}: {error['message']}"
        found.append((at, before, now, attempt, plain(who), one_line(why, None)))
        before = now
    return found


def _time(job: dict[str, Any], name: str) -> datetime | None:
    text = job.get(name)
    return datetime.fromisoformat(text).astimezone(UTC) if text else None


def _since_creation(job: Job, name: str) -> str:
    """A moment, and how long after the job's creation it was."""
    created, then = _time(job, "created_at"), _time(job, name)
    return f"{moment(then)}, {_lasting(created, then)} after its creation" if created and then else ""


def _last_attempt(job: Job) -> str:
    """How long an attempt ran that wasn't the first, where the job ended with it."""
    started, finished = _time(job, "started_at"), _time(job, "finished_at")
    error: dict[str, Any] = job.get("error") or {}
    category = error.get("category")
    by_itself = job["status"] in {"succeeded", "failed"} and category not in _ENDED_BY_OTHERS
    if job["attempt"] < 2 or not by_itself or not started or not finished:
        return ""
    return f"; attempt {job['attempt']} ran {_lasting(started, finished)}"


def _lasting(began: datetime, ended: datetime) -> str:
    seconds = (ended - began).total_seconds()
    return f"{seconds:.3g} s" if seconds < 100 else f"{seconds:.0f} s"


def _progress(progress: dict[str, Any] | None) -> str:
    if progress is None:
        return ""
    return f"{progress['fraction']:.0%} {progress.get('message') or ''}".rstrip()


def _error(job: Job) -> str:
    error: dict[str, str] | None = job.get("error")
    return f"{error['category']}: {_shown(error['message'])}" if error else ""


def _shown(text: str) -> str:
    """A text of a function on one line; `--json` has all of it."""
    return one_line(text, _SHOWN)


def _result(job: Job) -> str:
    if job["status"] != "succeeded":
        return ""
    if _is_expired(job):
        return f"expired, {moment(_time(job, 'result_expires_at'))}"
    text = on_one_line(job["result"]) if "result" in job else ""
    return text if text and len(text) <= _SHOWN else f"`headrace jobs follow {job['job_id']}` prints it"


def _kept(job: Job) -> str:
    """Until when there is a result."""
    until = _time(job, "result_expires_at")
    return f"until {moment(until)}" if until and not _is_expired(job) else ""


def _is_expired(job: Job) -> bool:
    until = _time(job, "result_expires_at")
    return until is not None and until <= datetime.now(UTC)
