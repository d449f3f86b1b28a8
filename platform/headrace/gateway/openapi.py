"""The OpenAPI 3.1 document: one path per registered function, built from its manifest alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from headrace.domain import Manifest
from headrace.gateway.openapi_answers import READ_PROBLEMS, ok, problem_responses, refer
from headrace.gateway.openapi_batches import (
    BATCH_RESPONSES,
    BATCH_SCHEMAS,
    batch_paths,
)
from headrace.gateway.openapi_jobs import (
    ACCEPTED_HEADERS,
    ASKING_PROBLEMS,
    JOB_RESPONSES,
    JOB_SCHEMAS,
    job_answer,
    jobs_paths,
)
from headrace.gateway.openapi_parts import FUNCTION_NAME, HEADERS, PARAMETERS, SCHEMAS
from headrace.gateway.problem_kinds import KINDS
from headrace.gateway.schema_refs import component_name, lift

Json = dict[str, Any]

CALL_PROBLEMS: Final = tuple(
    code for code in KINDS if code not in {"not-found", "method-not-allowed", *ASKING_PROBLEMS}
)
"""Of a known function, called by the right method."""

READ_ONE_PROBLEMS: Final = (*READ_PROBLEMS, "unknown-function", "function-retired")
PAGE_PROBLEMS: Final = ("not-found",)

_QUOTA_HEADERS: Final = ("RateLimit-Policy", "RateLimit")
_CALL_HEADERS: Final = (
    "X-Request-Id",
    "Server-Timing",
    "Preference-Applied",
    "Vary",
    "Headrace-Job-Id",
    "Idempotent-Replayed",
    *_QUOTA_HEADERS,
)
_TAGS: Final = (
    ("functions", "Calling functions and finding out about them."),
    ("jobs", "Calls that were recorded in the ledger: their states, results and events."),
    ("batches", "Many inputs accepted together: following, cancelling, results in order."),
    ("operation", "Health and measurements, for operators and their tools."),
    ("documents", "What you are reading, for humans and for programs."),
)
_DESCRIPTION: Final = """\
Every function is one URL: `POST /fn/{name}` takes its input as JSON and answers with its output as JSON.
What isn't done while its connection may be held becomes a job (202), which survives restarts and is followed
under `/jobs`; with `Prefer: respond-async` it is one from the start.
`POST /fn/{name}?explain=1` answers which way the call would go, and why, and executes nothing.
With `Accept: text/event-stream` it is answered while it runs, as server-sent events: `item` for each part of
the output of a function that streams, `progress`, and last `result` or `error` with what else is the body.

Every error is an `application/problem+json` document (RFC 9457) with a stable `code`; each code has a page
under `/problems/{code}`. Every GET also answers HEAD. `X-Request-Id` is taken over from the request, or made,
and returned with every answer."""


def build_document(
    manifests: Mapping[str, Manifest], *, public_url: str = "", version: str, max_hold: float = math.inf
) -> Json:
    """The document for these functions.

    Args:
        manifests: the functions by name.
        public_url: the address that clients use; empty makes the server relative to the document.
        version: the platform's version.
        max_hold: the longest time, in seconds, for which a connection is held.
    """
    paths: Json = {}
    schemas: Json = {}
    for name in sorted(manifests):
        manifest = manifests[name]
        paths[f"/fn/{name}"] = {
            "get": _describe(f"describe_{name}", f"Describe {name}"),
            "post": _call(manifest, schemas, max_hold),
        }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Headrace", "version": version, "description": _DESCRIPTION},
        "servers": [{"url": public_url.rstrip("/") or "/"}],
        "tags": [{"name": name, "description": description} for name, description in _TAGS],
        "security": [],
        "paths": paths | jobs_paths(sorted(manifests)) | batch_paths(manifests) | _static_paths(),
        "components": {
            "securitySchemes": {
                "key": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "An API key, made by an operator with `headrace keys create`.",
                }
            },
            "parameters": PARAMETERS,
            "headers": HEADERS,
            "responses": problem_responses("call", CALL_PROBLEMS)
            | problem_responses("read", READ_PROBLEMS)
            | problem_responses("read-one", READ_ONE_PROBLEMS)
            | JOB_RESPONSES
            | BATCH_RESPONSES
            | problem_responses("page", PAGE_PROBLEMS),
            "schemas": dict(sorted(schemas.items())) | SCHEMAS | JOB_SCHEMAS | BATCH_SCHEMAS,
        },
    }


def _call(manifest: Manifest, schemas: Json, max_hold: float) -> Json:
    name = manifest.name
    components = {side: component_name(name, side) for side in ("input", "output", "item")}
    schemas |= lift(manifest.input_schema, components["input"])
    schemas |= lift(manifest.output_schema, components["output"])
    if manifest.item_schema is not None:
        schemas |= lift(manifest.item_schema, components["item"])
    summary = manifest.description.strip().partition("\n")[0]
    body: Json = {"schema": {"$ref": f"#/components/schemas/{components['input']}"}}
    if manifest.examples:
        body["examples"] = {
            f"example-{number}": {"value": example} for number, example in enumerate(manifest.examples, 1)
        }
    return {
        "operationId": f"call_{name}",
        "tags": ["functions"],
        "summary": summary or f"Call {name}",
        "description": manifest.description.strip(),
        "security": [{"key": []}],
        "parameters": [{"$ref": f"#/components/parameters/{key}"} for key in PARAMETERS],
        "requestBody": {
            "required": True,
            "description": f"At most {manifest.limits.input:,} bytes.",
            "content": {"application/json": body},
        },
        "responses": {
            "200": {
                "description": "The function's output; for `Accept: text/event-stream` what is said of the "
                "call while it runs, and its outcome as the last event.",
                "headers": {key: {"$ref": f"#/components/headers/{key}"} for key in _CALL_HEADERS},
                "content": {
                    "application/json": {"schema": {"$ref": f"#/components/schemas/{components['output']}"}},
                    "text/event-stream": _events(manifest, components["item"]),
                },
            },
            "202": {
                **job_answer(
                    "The call is a job now; follow it at `Location`. It asked for that, should take longer "
                    "than its connection may be held, or has taken longer and goes on."
                ),
                "headers": {
                    key: {"$ref": f"#/components/headers/{key}"}
                    for key in (*ACCEPTED_HEADERS, "Vary", *_QUOTA_HEADERS)
                },
            },
            "204": {"description": "You have the last event of the stream that `Last-Event-ID` is of."},
            **refer("call", CALL_PROBLEMS),
        },
        "x-headrace": {
            "interface": manifest.interface,
            "revision": manifest.revision,
            "budget": {
                "hold": min(manifest.budget.sync, max_hold),
                "sync": manifest.budget.sync,
                "queue": manifest.budget.queue,
                "soft": manifest.budget.soft_limit,
                "hard": manifest.budget.hard,
                "margin": manifest.budget.margin,
                "total": manifest.budget.total,
            },
            "limits": {"input": manifest.limits.input, "output": manifest.limits.output},
            "attempts": manifest.attempts,
            "concurrency": manifest.concurrency,
            "reserve": manifest.reserve,
            "pool": manifest.pool,
        },
    }


def _events(manifest: Manifest, item: str) -> Json:
    """The answer as a stream, for which OpenAPI 3.1 has no words of its own."""
    if manifest.item_schema is None:
        return {"schema": {}}
    return {"schema": {}, "x-item-schema": {"$ref": f"#/components/schemas/{item}"}}


def _describe(operation: str, summary: str, *parameters: Json) -> Json:
    return {
        "operationId": operation,
        "tags": ["functions"],
        "summary": summary,
        "description": "The function's manifest: schemas, budgets, limits and examples.",
        "security": [{"key": []}],
        "parameters": [*parameters, {"$ref": "#/components/parameters/X-Request-Id"}],
        "responses": {
            "200": ok("application/json", {"$ref": "#/components/schemas/Function"}, "The manifest."),
            **refer("read-one", READ_ONE_PROBLEMS),
        },
    }


def _static_paths() -> Json:
    name = {"name": "name", "in": "path", "required": True, "schema": FUNCTION_NAME}
    code = {"name": "code", "in": "path", "required": True, "schema": {"type": "string", "enum": list(KINDS)}}
    functions = _describe("list_functions", "List the functions")
    functions["description"] = "Every function that is registered and not retired."
    functions["responses"] = {
        "200": ok("application/json", {"$ref": "#/components/schemas/FunctionList"}, "The functions."),
        **refer("read", READ_PROBLEMS),
    }
    problem = _page("show_problem", "What a problem means", code)
    problem["responses"] |= refer("page", PAGE_PROBLEMS)
    health = {"$ref": "#/components/schemas/Health"}
    readiness = {"$ref": "#/components/schemas/Readiness"}
    ready = _read("readyz", "operation", "Can it serve?", "application/json", readiness)
    ready["responses"]["503"] = {
        **ok("application/json", readiness, "Not ready; the body says what is missing."),
        "headers": {"Retry-After": {"$ref": "#/components/headers/Retry-After"}},
    }
    return {
        "/fn": {"get": functions},
        "/fn/{name}": {"get": _describe("describe", "Describe a function", name)},
        "/healthz": {"get": _read("healthz", "operation", "Is it alive?", "application/json", health)},
        "/readyz": {"get": ready},
        "/metrics": {
            "get": _read("metrics", "operation", "Prometheus metrics", "text/plain", {"type": "string"})
        },
        "/problems": {"get": _page("list_problems", "Every problem code")},
        "/problems/{code}": {"get": problem},
        "/docs": {"get": _page("docs", "The API reference")},
        "/openapi.json": {
            "get": _read(
                "openapi", "documents", "All of this as OpenAPI 3.1", "application/json", {"type": "object"}
            )
        },
    }


def _page(operation: str, summary: str, *parameters: Json) -> Json:
    page = _read(operation, "documents", summary, "text/html", {"type": "string"})
    return page | {"parameters": list(parameters)} if parameters else page


def _read(operation: str, tag: str, summary: str, media_type: str, schema: Json) -> Json:
    return {
        "operationId": operation,
        "tags": [tag],
        "summary": summary,
        "responses": {"200": ok(media_type, schema, summary)},
    }
