"""The part of the OpenAPI document about batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, get_args

from headrace.domain import Manifest, State
from headrace.gateway import job_list
from headrace.gateway.batch_upload import MOST_ITEMS
from headrace.gateway.openapi_answers import READ_PROBLEMS, ok, problem_responses, refer
from headrace.gateway.openapi_parts import FUNCTION_NAME, PARAMETERS
from headrace.gateway.schema_refs import component_name

Json = dict[str, Any]

_SUBMIT: Final = (
    *READ_PROBLEMS,
    "malformed-json",
    "priority-not-allowed",
    "unknown-function",
    "unknown-batch",
    "not-acceptable",
    "request-timeout",
    "function-retired",
    "payload-too-large",
    "unsupported-media-type",
    "invalid-input",
    "key-conflict",
    "quota-exceeded",
    "busy",
    "no-runner",
    "backlog-full",
    "no-capacity",
    "intake-paused",
)
_ONE: Final = (*READ_PROBLEMS, "unknown-batch")
_RESULTS: Final = (*_ONE, "not-finished")

BATCH_RESPONSES: Final[Json] = {
    **problem_responses("batch-submit", _SUBMIT),
    **problem_responses("batch", _ONE),
    **problem_responses("batch-results", _RESULTS),
}

_UUID: Final = {"type": "string", "format": "uuid", "pattern": f"^{job_list.JOB_ID.pattern}$"}
_BATCH: Final = {"$ref": "#/components/schemas/Batch"}
_BATCH_ID: Final = {"name": "batch_id", "in": "path", "required": True, "schema": _UUID}
_COUNT: Final = {"type": "integer", "minimum": 0}

_LISTED: Final[Json] = {
    "batch_id": _UUID,
    "function": FUNCTION_NAME,
    "size": {"type": "integer", "minimum": 1, "maximum": MOST_ITEMS},
    "created_at": {"type": "string", "format": "date-time"},
    "status": {
        "type": "string",
        "enum": ["running", "finished"],
        "description": "It is finished when all its jobs are final.",
    },
    "batch_url": {"type": "string", "format": "uri-reference"},
    "results_url": {"type": "string", "format": "uri-reference"},
}

BATCH_SCHEMAS: Final[Json] = {
    "Batch": {
        "type": "object",
        "description": "Many inputs of one function that were accepted together, a job each.",
        "required": [*_LISTED, "counts"],
        "properties": {
            **_LISTED,
            "counts": {
                "type": "object",
                "description": "How many of its jobs are in each state.",
                "required": list(get_args(State)),
                "properties": dict.fromkeys(get_args(State), _COUNT),
            },
        },
    },
    "BatchList": {
        "type": "object",
        "required": ["items", "next"],
        "properties": {
            "items": {
                "type": "array",
                "items": {"type": "object", "required": list(_LISTED), "properties": _LISTED},
                "description": "Newest first, without counts.",
            },
            "next": {
                "type": ["string", "null"],
                "description": "The `cursor` of the next page; null at the end.",
            },
        },
    },
}


def batch_paths(manifests: Mapping[str, Manifest]) -> Json:
    """The routes.

    Args:
        manifests: the functions by name.
    """
    return {
        **{f"/fn/{name}/batch": {"post": _submit(manifests[name])} for name in sorted(manifests)},
        "/batches": {"get": _list()},
        "/batches/{batch_id}": {"get": _show()},
        "/batches/{batch_id}/results": {"get": _results()},
        "/batches/{batch_id}/cancel": {"post": _cancel()},
    }


def _submit(manifest: Manifest) -> Json:
    item = {"$ref": f"#/components/schemas/{component_name(manifest.name, 'input')}"}
    inputs = {"type": "array", "minItems": 1, "items": item}
    names = ("Idempotency-Key", "Headrace-Priority", "Headrace-Deadline", "X-Request-Id")
    more = ("Idempotent-Replayed", "RateLimit-Policy", "RateLimit")
    return {
        **_operation(f"batch_{manifest.name}", f"Call {manifest.name} with many inputs"),
        "description": "A job for each input: all are accepted, or none. The deadline is that of each job.",
        "parameters": [{"$ref": f"#/components/parameters/{name}"} for name in names],
        "requestBody": {
            "required": True,
            "description": f"At most {MOST_ITEMS:,} inputs of {manifest.limits.input:,} bytes each.",
            "content": {
                "application/json": {"schema": inputs},
                "application/x-ndjson": {
                    "schema": {"type": "string", "description": "An input a line; blank lines don't count."}
                },
            },
        },
        "responses": {
            "202": _with(_batch("The batch; follow it at `Location`."), "Location", "Retry-After", *more),
            **refer("batch-submit", _SUBMIT),
        },
    }


def _list() -> Json:
    limit = {"type": "integer", "minimum": 1, "maximum": job_list.MOST, "default": job_list.DEFAULT}
    answer = ok("application/json", {"$ref": "#/components/schemas/BatchList"}, "A page of the list.")
    return {
        **_operation("list_batches", "List your batches, newest first"),
        "parameters": [
            _query("limit", limit, "How many at most."),
            _query("cursor", _UUID, "What `next` was in the page before."),
        ],
        "responses": {"200": _linked(answer), **refer("read", READ_PROBLEMS)},
    }


def _show() -> Json:
    prefer = {
        **PARAMETERS["Prefer"],
        "description": "`wait=N`: answer as soon as the batch is finished, or after N s.",
    }
    return {
        **_operation("show_batch", "One batch"),
        "parameters": [_BATCH_ID, prefer],
        "responses": {"200": _with(_batch("The batch as it stands.")), **refer("batch", _ONE)},
    }


def _results() -> Json:
    most = {"type": "integer", "minimum": 1, "maximum": MOST_ITEMS, "default": MOST_ITEMS}
    index = {"type": "integer", "minimum": 0, "maximum": MOST_ITEMS}
    lines = ok(
        "application/x-ndjson",
        {"type": "string"},
        "A line for each input, in their order: `index`, `job_id`, `status`, and `result` or `error`.",
    )
    return {
        **_operation("show_batch_results", "The outputs of a batch"),
        "parameters": [
            _BATCH_ID,
            _query("after", index, "Only what follows the input of this index."),
            _query("limit", most, "How many lines at most."),
            _query("partial", {"enum": ["true", "false"]}, "`true`: what there is, finished or not."),
        ],
        "responses": {"200": _linked(lines), **refer("batch-results", _RESULTS)},
    }


def _cancel() -> Json:
    running = _batch("Some of its jobs run; their runners are told, and whatever comes of them is discarded.")
    return {
        **_operation("cancel_batch", "Cancel what isn't finished of a batch"),
        "parameters": [_BATCH_ID],
        "responses": {
            "200": _with(_batch("All its jobs are final.")),
            "202": _with(running, "Location", "Retry-After"),
            **refer("batch", _ONE),
        },
    }


def _batch(description: str) -> Json:
    return ok("application/json", _BATCH, description)


def _with(answer: Json, *names: str) -> Json:
    headers: Json = {name: {"$ref": f"#/components/headers/{name}"} for name in ("X-Request-Id", *names)}
    headers["Headrace-Batch-Id"] = {
        "description": "The batch.",
        "schema": {"type": "string", "format": "uuid"},
    }
    return {**answer, "headers": headers}


def _linked(answer: Json) -> Json:
    link = {
        "description": 'What follows, as `<...>; rel="next"` (RFC 8288).',
        "schema": {"type": "string"},
    }
    return {**answer, "headers": {"Link": link}}


def _operation(name: str, summary: str) -> Json:
    return {"operationId": name, "tags": ["batches"], "summary": summary, "security": [{"key": []}]}


def _query(name: str, schema: Any, description: str) -> Json:
    return {"name": name, "in": "query", "description": description, "schema": schema}
