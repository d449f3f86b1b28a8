"""The OpenAPI 3.1 document: one path per registered function, built from its manifest alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from headrace.domain import Manifest
from headrace.gateway.openapi_parts import FUNCTION_NAME, HEADERS, PARAMETERS, SCHEMAS
from headrace.gateway.problem_kinds import KINDS
from headrace.gateway.problems import MEDIA_TYPE
from headrace.gateway.schema_refs import component_name, lift

Json = dict[str, Any]

CALL_PROBLEMS: Final = tuple(code for code in KINDS if code not in {"not-found", "method-not-allowed"})
"""Of a known function, called by the right method."""

READ_PROBLEMS: Final = (
    "malformed-header",
    "bad-request",
    "missing-key",
    "invalid-key",
    "forbidden",
    "internal-error",
    "database-unavailable",
)
READ_ONE_PROBLEMS: Final = (*READ_PROBLEMS, "unknown-function", "function-retired")
PAGE_PROBLEMS: Final = ("not-found",)

_CALL_HEADERS: Final = ("X-Request-Id", "Server-Timing", "Preference-Applied")
_TAGS: Final = (
    ("functions", "Calling functions and finding out about them."),
    ("operation", "Health and measurements, for operators and their tools."),
    ("documents", "What you are reading, for humans and for programs."),
)
_DESCRIPTION: Final = """\
Every function is one URL: `POST /fn/{name}` takes its input as JSON and answers with its output as JSON.

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
        "paths": paths | _static_paths(),
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
            "responses": _problem_responses("call", CALL_PROBLEMS)
            | _problem_responses("read", READ_PROBLEMS)
            | _problem_responses("read-one", READ_ONE_PROBLEMS)
            | _problem_responses("page", PAGE_PROBLEMS),
            "schemas": dict(sorted(schemas.items())) | SCHEMAS,
        },
    }


def _call(manifest: Manifest, schemas: Json, max_hold: float) -> Json:
    name = manifest.name
    components = {side: component_name(name, side) for side in ("input", "output")}
    schemas |= lift(manifest.input_schema, components["input"])
    schemas |= lift(manifest.output_schema, components["output"])
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
                "description": "The function's output.",
                "headers": {key: {"$ref": f"#/components/headers/{key}"} for key in _CALL_HEADERS},
                "content": {
                    "application/json": {"schema": {"$ref": f"#/components/schemas/{components['output']}"}}
                },
            },
            **_refer("call", CALL_PROBLEMS),
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
            "pool": manifest.pool,
        },
    }


def _describe(operation: str, summary: str, *parameters: Json) -> Json:
    return {
        "operationId": operation,
        "tags": ["functions"],
        "summary": summary,
        "description": "The function's manifest: schemas, budgets, limits and examples.",
        "security": [{"key": []}],
        "parameters": [*parameters, {"$ref": "#/components/parameters/X-Request-Id"}],
        "responses": {
            "200": _ok("application/json", {"$ref": "#/components/schemas/Function"}, "The manifest."),
            **_refer("read-one", READ_ONE_PROBLEMS),
        },
    }


def _static_paths() -> Json:
    name = {"name": "name", "in": "path", "required": True, "schema": FUNCTION_NAME}
    code = {"name": "code", "in": "path", "required": True, "schema": {"type": "string", "enum": list(KINDS)}}
    functions = _describe("list_functions", "List the functions")
    functions["description"] = "Every function that is registered and not retired."
    functions["responses"] = {
        "200": _ok("application/json", {"$ref": "#/components/schemas/FunctionList"}, "The functions."),
        **_refer("read", READ_PROBLEMS),
    }
    problem = _page("show_problem", "What a problem means", code)
    problem["responses"] |= _refer("page", PAGE_PROBLEMS)
    health = {"$ref": "#/components/schemas/Health"}
    readiness = {"$ref": "#/components/schemas/Readiness"}
    ready = _read("readyz", "operation", "Can it serve?", "application/json", readiness)
    ready["responses"]["503"] = {
        **_ok("application/json", readiness, "Not ready; the body says what is missing."),
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
        "responses": {"200": _ok(media_type, schema, summary)},
    }


def _ok(media_type: str, schema: Json, description: str) -> Json:
    return {"description": description, "content": {media_type: {"schema": schema}}}


def _by_status(codes: Iterable[str]) -> dict[int, list[str]]:
    grouped: dict[int, list[str]] = {}
    for code in codes:
        grouped.setdefault(KINDS[code].status, []).append(code)
    return grouped


def _refer(group: str, codes: Iterable[str]) -> Json:
    return {
        str(status): {"$ref": f"#/components/responses/{group}-{status}"}
        for status in sorted(_by_status(codes))
    }


def _problem_responses(group: str, codes: Iterable[str]) -> Json:
    responses: Json = {}
    for status, members in sorted(_by_status(codes).items()):
        names = ["X-Request-Id"]
        names += ["Retry-After"] * (status == 503)
        names += ["WWW-Authenticate"] * (status == 401)
        responses[f"{group}-{status}"] = {
            "description": "\n".join(f"`{code}`: {KINDS[code].meaning}" for code in members),
            "headers": {name: {"$ref": f"#/components/headers/{name}"} for name in names},
            "content": {
                MEDIA_TYPE: {
                    "schema": {
                        "$ref": "#/components/schemas/Problem",
                        "properties": {"code": {"enum": members}, "status": {"const": status}},
                    }
                }
            },
        }
    return responses
