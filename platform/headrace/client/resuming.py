"""A call with an idempotency key, read as a stream over as many connections as it takes.

The key makes it a job. Each connection is made by the same call, and goes on after the last event that came.
Each is checked as any call is: it counts against a rate, and is refused once the API key is revoked, the
function is retired, or its schema doesn't take the input any more, though the job goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from headrace.client.errors import ClientError, Unreachable, of_job
from headrace.client.events import TERMINAL, Event, Follower
from headrace.client.streams import Told, no_stream, progress_of


def resumed(
    events: Follower,
    output_of: Callable[[dict[str, Any]], Any],
    lost: Callable[[Exception], Unreachable],
) -> Generator[Told]:
    """What is told of a call, up to its result.

    Args:
        events: the call's, as its job's.
        output_of: the output of a job that has ended, or the error that it ended with.
        lost: makes the error of a connection.

    Raises:
        ClientError: the call was refused, has failed, or the site doesn't come back; once the call is
            known to be a job, it names that.
    """
    is_named = False
    try:
        for event in events:
            if not is_named:
                is_named = True
                yield Told("job", events.job_id)
            try:
                told = _told(event)
            except (KeyError, TypeError, ValueError):
                raise no_stream(lost) from None
            if event.kind in TERMINAL:
                yield Told("result", output_of(event.data))
                return
            if told is not None:
                yield told
    except ClientError as error:
        if events.job_id and not error.job_id:
            raise of_job(error, events.job_id) from None
        raise
    raise no_stream(lost)


def _told(event: Event) -> Told | None:
    match event.kind:
        case "item":
            return Told("item", event.data)
        case "progress":
            return Told("progress", progress_of(event.data))
        case "state" if event.data["status"] == "running":
            return Told("start", None)
        case "result" | "error":
            str(event.data["status"])
        case _:
            pass
    return None
