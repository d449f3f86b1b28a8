"""The parts of the OpenAPI document that don't depend on which functions there are."""

from __future__ import annotations

from typing import Any, Final

from headrace.domain import WEIGHTS
from headrace.gateway.openapi_capacity import LANE, LIVE, PREDICTED
from headrace.gateway.problem_kinds import KINDS

Json = dict[str, Any]

FUNCTION_NAME: Final = {"type": "string", "pattern": "^[a-z][a-z0-9_-]{0,39}$"}

HEADERS: Final[Json] = {
    "X-Request-Id": {
        "description": "The id under which the request is in the logs.",
        "required": True,
        "schema": {"type": "string"},
    },
    "Retry-After": {
        "description": "Seconds after which trying again is worthwhile.",
        "required": True,
        "schema": {"type": "integer", "minimum": 1},
    },
    "Headrace-Place": {
        "description": "A place in line, where one could be given: whoever comes back with it after "
        "`Retry-After` seconds, and at most 5 s later, comes before others.",
        "schema": {"type": "string", "format": "uuid"},
    },
    "WWW-Authenticate": {
        "description": "The challenge of RFC 6750.",
        "required": True,
        "schema": {"type": "string"},
    },
    "RateLimit-Policy": {
        "description": "The quotas that the answer is under, as in draft-ietf-httpapi-ratelimit-headers: "
        "calls per time (`rate`) where the owner of the key has such a quota, unfinished jobs (`jobs`).",
        "schema": {"type": "string"},
    },
    "RateLimit": {
        "description": "What is left of them, and after how many seconds there is more.",
        "schema": {"type": "string"},
    },
    "Server-Timing": {
        "description": "Milliseconds in the queue and in the function, as `queue;dur=, exec;dur=`.",
        "schema": {"type": "string"},
    },
    "Preference-Applied": {
        "description": "The part of `Prefer` that was honoured.",
        "schema": {"type": "string"},
    },
    "Vary": {
        "description": "The headers of the call that its answer depends on.",
        "schema": {"type": "string"},
    },
    "Idempotent-Replayed": {
        "description": "`true`: the call was made before under its `Idempotency-Key`; this is its answer.",
        "schema": {"type": "string", "const": "true"},
    },
    "Location": {
        "description": "The path of the job.",
        "required": True,
        "schema": {"type": "string", "format": "uri-reference"},
    },
    "Headrace-Job-Id": {
        "description": "The job in the ledger; an answer on the direct path has none.",
        "schema": {"type": "string", "format": "uuid"},
    },
}

PARAMETERS: Final[Json] = {
    "Prefer": {
        "name": "Prefer",
        "in": "header",
        "description": "RFC 7240. `wait=N` holds the connection for at most N whole seconds; it only "
        "shortens: what isn't done by then is a job, 202. `respond-async` makes the call a job: 202 at "
        "once, or with `wait=N` when the job isn't final after N seconds. Preferences that aren't known are "
        "ignored.",
        "schema": {"type": "string"},
        "example": "wait=10",
    },
    "Headrace-Deadline": {
        "name": "Headrace-Deadline",
        "in": "header",
        "description": "Seconds within which the whole call has to be done; it only shortens.",
        "schema": {"type": "number", "exclusiveMinimum": 0, "maximum": 999_999_999},
        "example": 30,
    },
    "Headrace-Async": {
        "name": "Headrace-Async",
        "in": "header",
        "description": "`never`: a job is no answer. What would be answered 202 is 503 `busy`, or 504 "
        "`hold-exceeded`, and `respond-async` isn't applied.",
        "schema": {"type": "string", "enum": ["never"]},
        "example": "never",
    },
    "Idempotency-Key": {
        "name": "Idempotency-Key",
        "in": "header",
        "description": "draft-ietf-httpapi-idempotency-key-header: 1 to 255 visible ASCII characters, quoted "
        "or bare, new for each call. However often the call is made with the same key and input, it is one "
        "job with one outcome, and that is answered to all. Its stream, when it was cut off, goes on after "
        "the event that the header `Last-Event-ID` names.",
        "schema": {
            "type": "string",
            "pattern": r"""^(?:[!#-+\--~]{1,255}|"(?:[!#-\[\]-~]|\\["\\]){1,255}")$""",
        },
        "example": "8e03978e-40d5-43dd-bc93-6894a57f9324",
    },
    "Headrace-Place": {
        "name": "Headrace-Place",
        "in": "header",
        "description": "The place in line that a refusal has given. It admits one call of the same owner "
        "and function before others, when `Retry-After` is over and for 5 s from then on; sooner the call is "
        "refused and keeps its place. What isn't a place, or isn't any more, is ignored.",
        "schema": {"type": "string"},
        "example": "0c0f7a4e-6c1d-4a44-9f3a-3d3a5c3b7c11",
    },
    "Headrace-Priority": {
        "name": "Headrace-Priority",
        "in": "header",
        "description": "How urgent a job is beside others of the function: each class has its share of "
        "the starts. A call that doesn't become a job is checked for it, and not affected.",
        "schema": {"type": "string", "enum": list(WEIGHTS)},
        "example": "normal",
    },
    "X-Request-Id": {
        "name": "X-Request-Id",
        "in": "header",
        "description": "Your id for this request: 1 to 128 visible ASCII characters; others are replaced.",
        "schema": {"type": "string"},
        "example": "order-4711",
    },
}

_STATE: Final[Json] = {
    "type": "object",
    "description": "What this gateway sees: runners and their slots, calls running or waiting there.",
    "required": ["runners", "slots", "load", "degraded", "predicted_wait_s"],
    "properties": {
        "runners": {"type": "integer"},
        "slots": {"type": "integer"},
        "load": {"type": "integer"},
        "degraded": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Why runners could not load it.",
        },
        "predicted_wait_s": {
            "type": ["number", "null"],
            "description": "Seconds that a call that came now should wait for a slot; null: not known.",
        },
    },
}

_LISTED: Final[Json] = {
    "name": FUNCTION_NAME,
    "description": {"type": "string"},
    "budget": {"type": "object", "description": "Seconds: sync, queue, soft, hard, margin."},
    "limits": {"type": "object", "description": "Bytes of JSON: input, output."},
    "state": _STATE,
    "paused": {"type": "boolean", "description": "An operator has paused it: nothing new of it is taken."},
}

SCHEMAS: Final[Json] = {
    "Problem": {
        "type": "object",
        "description": "What went wrong, as RFC 9457 has it.",
        "required": ["type", "title", "status", "detail", "code", "request_id"],
        "properties": {
            "type": {
                "type": "string",
                "format": "uri-reference",
                "description": "The page of this kind of problem.",
            },
            "title": {"type": "string", "description": "What it is; the same for every occurrence."},
            "status": {"type": "integer", "minimum": 400, "maximum": 599},
            "detail": {"type": "string", "description": "What is wrong with this request in particular."},
            "code": {"type": "string", "enum": list(KINDS), "description": "What programs should look at."},
            "request_id": {"type": "string"},
            "place": {
                "type": "string",
                "format": "uuid",
                "description": "A place in line, as in the header `Headrace-Place`.",
            },
            "errors": {
                "type": "array",
                "description": "The faults of an invalid input.",
                "items": {
                    "type": "object",
                    "required": ["path", "message"],
                    "properties": {
                        "path": {
                            "type": "string",
                            "description": "Where in the input: a JSON Pointer (RFC 6901).",
                        },
                        "message": {"type": "string"},
                    },
                },
            },
        },
    },
    "Function": {
        "type": "object",
        "description": "A function's manifest, and how it stands on this gateway.",
        "required": [
            "interface",
            "revision",
            "input_schema",
            "output_schema",
            "examples",
            "predicted",
            "lane",
            "live",
            *_LISTED,
        ],
        "properties": {
            **_LISTED,
            "predicted": PREDICTED,
            "lane": LANE,
            "live": LIVE,
            "interface": {"type": "string", "description": "Changes when what is taken or returned changes."},
            "revision": {"type": "string", "description": "Changes when anything else of it changes."},
            "input_schema": {"type": "object", "description": "JSON Schema, draft 2020-12."},
            "output_schema": {"type": "object", "description": "JSON Schema, draft 2020-12."},
            "item_schema": {
                "type": ["object", "null"],
                "description": "JSON Schema of what it streams, an item at a time; null where it doesn't.",
            },
            "batch": {
                "type": ["object", "null"],
                "description": "How calls are joined: at most `max_cost` in one run, and `max_wait` seconds "
                "of waiting for more. Null where each runs by itself.",
            },
            "attempts": {"type": "integer", "description": "How often it may be started for one call."},
            "concurrency": {"type": "integer", "description": "Calls that one process runs at once."},
            "reserve": {"type": "integer", "description": "Slots of each runner that only it may take."},
            "pool": {
                "type": "string",
                "description": "The runners that serve it: their pool's name, or labels, `key=value,...`.",
            },
            "examples": {"type": "array", "description": "Inputs."},
        },
    },
    "FunctionList": {
        "type": "object",
        "required": ["items", "next"],
        "properties": {
            "items": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": [*_LISTED, "url"],
                    "properties": {**_LISTED, "url": {"type": "string", "format": "uri-reference"}},
                },
            },
            "next": {"type": ["string", "null"], "description": "Where the list goes on; null at its end."},
        },
    },
    "Health": {"type": "object", "required": ["status"], "properties": {"status": {"type": "string"}}},
    "Readiness": {
        "type": "object",
        "required": ["ready", "missing", "functions", "runners", "intake"],
        "properties": {
            "ready": {"type": "boolean"},
            "missing": {"type": "array", "items": {"type": "string"}, "description": "Why it isn't ready."},
            "functions": {"type": "object", "additionalProperties": _STATE},
            "runners": {
                "type": "array",
                "items": {"type": "string"},
                "description": "The runners that calls can be sent to.",
            },
            "intake": {
                "type": "object",
                "description": "What operators have turned off; it makes nothing unready.",
                "required": ["paused", "functions"],
                "properties": {
                    "paused": {"type": "boolean", "description": "Whether the whole site is paused."},
                    "functions": {
                        "type": "array",
                        "items": {"type": "string"},
                        "description": "Functions of which nothing new is taken.",
                    },
                },
            },
        },
    },
}
