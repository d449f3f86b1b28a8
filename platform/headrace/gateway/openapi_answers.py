"""Answers of the OpenAPI document: good ones, and those of problems."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from headrace.gateway.problem_kinds import KINDS
from headrace.gateway.problems import MEDIA_TYPE

Json = dict[str, Any]

READ_PROBLEMS: Final = (
    "malformed-header",
    "bad-request",
    "missing-key",
    "invalid-key",
    "forbidden",
    "internal-error",
    "database-unavailable",
)
"""Of whatever needs a key."""


def ok(media_type: str, schema: Json, description: str) -> Json:
    """A good answer, without headers."""
    return {"description": description, "content": {media_type: {"schema": schema}}}


def _by_status(codes: Iterable[str]) -> dict[int, list[str]]:
    grouped: dict[int, list[str]] = {}
    for code in codes:
        grouped.setdefault(KINDS[code].status, []).append(code)
    return grouped


def refer(group: str, codes: Iterable[str]) -> Json:
    """The answers of these problems, which `problem_responses` made under that group."""
    return {
        str(status): {"$ref": f"#/components/responses/{group}-{status}"}
        for status in sorted(_by_status(codes))
    }


def problem_responses(group: str, codes: Iterable[str]) -> Json:
    """An answer for each status of these problems, for the components of the document."""
    responses: Json = {}
    for status, members in sorted(_by_status(codes).items()):
        names = ["X-Request-Id"]
        names += ["Retry-After"] * (status in {429, 503})
        names += ["Headrace-Place"] * ("no-capacity" in members and group == "call")
        names += ["RateLimit-Policy", "RateLimit"] * (status == 429)
        names += ["Idempotent-Replayed"] * (group == "call")
        names += ["WWW-Authenticate"] * (status in {401, 403})
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
