"""The part of the OpenAPI document about jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, get_args

from headrace.domain import State
from headrace.gateway import job_list
from headrace.gateway.openapi_answers import READ_PROBLEMS, ok, problem_responses, refer
from headrace.gateway.openapi_parts import FUNCTION_NAME, PARAMETERS
from headrace.gateway.problem_kinds import KINDS

Json = dict[str, Any]

ASKING_PROBLEMS: Final = (
    "unknown-job",
    "unknown-batch",
    "not-finished",
    "no-result",
    "already-finished",
    "not-retryable",
)
"""Of asking for a job or a batch, never of a call."""

ACCEPTED_HEADERS: Final = (
    "X-Request-Id",
    "Location",
    "Retry-After",
    "Headrace-Job-Id",
    "Preference-Applied",
    "Idempotent-Replayed",
)

_ONE: Final = (*READ_PROBLEMS, "unknown-job")
_RESULT: Final = (*_ONE, "not-finished", "no-result", "result-expired")
_CANCEL: Final = (*_ONE, "already-finished")
_RETRY: Final = (
    *_ONE,
    "unknown-function",
    "not-retryable",
    "function-retired",
    "quota-exceeded",
    "busy",
    "no-runner",
    "backlog-full",
    "no-capacity",
    "intake-paused",
)

JOB_RESPONSES: Final[Json] = {
    **problem_responses("job", _ONE),
    **problem_responses("result", _RESULT),
    **problem_responses("cancel", _CANCEL),
    **problem_responses("retry", _RETRY),
}

_UUID: Final = {"type": "string", "format": "uuid", "pattern": f"^{job_list.JOB_ID.pattern}$"}
_TIME: Final = {"type": "string", "format": "date-time"}
_MAYBE_TIME: Final = {"type": ["string", "null"], "format": "date-time"}
_STATUS: Final = {"type": "string", "enum": list(get_args(State))}
_JOB: Final = {"$ref": "#/components/schemas/Job"}

_ERROR: Final[Json] = {
    "type": ["object", "null"],
    "description": "Why it has no result and will get none.",
    "required": ["category", "message"],
    "properties": {
        "category": {"type": "string", "enum": list(KINDS), "description": "The code of a problem."},
        "message": {"type": "string"},
        "errors": {
            "type": "array",
            "description": "The faults of an invalid input.",
            "items": {
                "type": "object",
                "required": ["path", "message"],
                "properties": {"path": {"type": "string"}, "message": {"type": "string"}},
            },
        },
    },
}

_FIELDS: Final[Json] = {
    "job_id": _UUID,
    "status": {**_STATUS, "description": "Final are succeeded, failed, expired and cancelled."},
    "status_url": {"type": "string", "format": "uri-reference"},
    "function": FUNCTION_NAME,
    "created_at": _TIME,
    "queue_deadline": {**_TIME, "description": "It expires if it hasn't been started by then."},
    "deadline": {**_TIME, "description": "It fails if it isn't finished by then."},
    "started_at": {**_MAYBE_TIME, "description": "Its newest start."},
    "finished_at": _MAYBE_TIME,
    "attempt": {"type": "integer", "description": "The number of its newest start; 0 before the first."},
    "progress": {
        "type": ["object", "null"],
        "description": "What the function said last of how far it is.",
        "required": ["fraction", "message"],
        "properties": {
            "fraction": {"type": "number", "minimum": 0, "maximum": 1},
            "message": {"type": "string"},
        },
    },
    "error": _ERROR,
}

JOB_SCHEMAS: Final[Json] = {
    "Job": {
        "type": "object",
        "description": "A call that was recorded in the ledger. One that succeeded has `result` where that "
        "is small, otherwise `result_url`.",
        "required": list(_FIELDS),
        "properties": {
            **_FIELDS,
            "result": {"description": "The function's output: at most 64 KiB of JSON."},
            "result_url": {"type": "string", "format": "uri-reference"},
            "batch_id": {**_UUID, "description": "The batch that it is one of."},
            "batch_index": {
                "type": "integer",
                "description": "The place of its input in the batch, from 0 on.",
            },
            "retry_of": {**_UUID, "description": "The job that it does again."},
            "retried_as": {**_UUID, "description": "The job that does it again."},
            "result_expires_at": {
                **_TIME,
                "description": "Of one that succeeded: from then on its result is gone.",
            },
        },
    },
    "JobList": {
        "type": "object",
        "required": ["items", "next"],
        "properties": {
            "items": {
                "type": "array",
                "items": _JOB,
                "description": "Newest first; results by address only.",
            },
            "next": {
                "type": ["string", "null"],
                "description": "The `cursor` of the next page; null at the end.",
            },
        },
    },
}


def job_answer(description: str) -> Json:
    """An answer that is a job."""
    return ok("application/json", _JOB, description)


def jobs_paths(functions: Sequence[str]) -> Json:
    """The routes.

    Args:
        functions: the names that a list can be filtered by.
    """
    return {
        "/jobs": {"get": _list(functions)},
        "/jobs/{job_id}": {"get": _show()},
        "/jobs/{job_id}/result": {"get": _result()},
        "/jobs/{job_id}/events": {"get": _events()},
        "/jobs/{job_id}/cancel": {"post": _cancel()},
        "/jobs/{job_id}/retry": {"post": _retry()},
    }


def _list(functions: Sequence[str]) -> Json:
    function = {"type": "string", "enum": list(functions)} if functions else FUNCTION_NAME
    limit = {"type": "integer", "minimum": 1, "maximum": job_list.MOST, "default": job_list.DEFAULT}
    answer = ok("application/json", {"$ref": "#/components/schemas/JobList"}, "A page of the list.")
    answer["headers"] = {
        "Link": {
            "description": 'The next page, as `<...>; rel="next"` (RFC 8288).',
            "schema": {"type": "string"},
        }
    }
    return {
        **_operation("list_jobs", "List your jobs, newest first"),
        "parameters": [
            _query("limit", limit, "How many at most."),
            _query("cursor", _UUID, "What `next` was in the page before."),
            _query("status", _STATUS, "Only jobs in this state."),
            _query("function", function, "Only jobs of this function."),
            _query("batch", _UUID, "Only jobs of this batch."),
            _query("category", {"type": "string", "enum": list(KINDS)}, "Only jobs whose error is of it."),
            _query("dead", {"const": "true"}, "Only jobs that failed or expired and weren't retried."),
        ],
        "responses": {"200": answer, **refer("read", READ_PROBLEMS)},
    }


def _show() -> Json:
    prefer = {
        **PARAMETERS["Prefer"],
        "description": "`wait=N`: answer as soon as the job is final, or after N s.",
    }
    return {
        **_operation("show_job", "One job"),
        "parameters": [_JOB_ID, prefer],
        "responses": {"200": job_answer("The job as it stands."), **refer("job", _ONE)},
    }


def _result() -> Json:
    return {
        **_operation("show_result", "The output of a job"),
        "parameters": [_JOB_ID],
        "responses": {
            "200": ok("application/json", {}, "The function's output itself."),
            **refer("result", _RESULT),
        },
    }


def _events() -> Json:
    number = {"type": "integer", "minimum": 0, "maximum": 999_999_999}
    again = {"name": "Last-Event-ID", "in": "header", "schema": number}
    return {
        **_operation("show_events", "What happens to a job, as server-sent events"),
        "description": "`state` for each step, `item` for each part of the output of a function that "
        "streams, `progress` with the newest only, and one last event: `result` or `error`. Ids are numbers "
        "that rise.",
        "parameters": [
            _JOB_ID,
            {**again, "description": "Only what came after this event, as browsers ask when they come back."},
            _query("last_event_id", number, "The same, for whoever can't set headers."),
        ],
        "responses": {
            "200": ok("text/event-stream", {}, "The events, up to the last one."),
            "204": {"description": "You have the last one."},
            **refer("job", _ONE),
        },
    }


def _cancel() -> Json:
    requested = job_answer("It runs; its runner is told, and whatever comes of it is discarded.")
    requested["headers"] = {
        name: {"$ref": f"#/components/headers/{name}"} for name in ("X-Request-Id", "Location", "Retry-After")
    }
    return {
        **_operation("cancel_job", "Cancel a job"),
        "parameters": [_JOB_ID],
        "responses": {
            "200": job_answer("It is cancelled, or was before."),
            "202": requested,
            **refer("cancel", _CANCEL),
        },
    }


def _retry() -> Json:
    accepted = job_answer("The new job, which refers to the old one; of a repeated request as it stands now.")
    names = {*ACCEPTED_HEADERS, "RateLimit-Policy", "RateLimit"} - {"Preference-Applied"}
    accepted["headers"] = {name: {"$ref": f"#/components/headers/{name}"} for name in sorted(names)}
    return {
        **_operation("retry_job", "Do a job again that ended without a result"),
        "description": "A new job with the same input and budgets. Each job is retried once: whoever asks "
        "again gets the same new job, which may be retried in its turn.",
        "parameters": [_JOB_ID],
        "responses": {"202": accepted, **refer("retry", _RETRY)},
    }


_JOB_ID: Final = {"name": "job_id", "in": "path", "required": True, "schema": _UUID}


def _operation(name: str, summary: str) -> Json:
    return {"operationId": name, "tags": ["jobs"], "summary": summary, "security": [{"key": []}]}


def _query(name: str, schema: Any, description: str) -> Json:
    return {"name": name, "in": "query", "description": description, "schema": schema}
