"""Every way a call can end badly, as a problem of RFC 9457: one exception, one encoding.

The core raises errors without a status; here, at the edge, each becomes a status once. An outcome that a
runner reports carries the same hyphenated code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException

from headrace.errors import DatabaseBusy, DatabaseUnavailable, InvalidInput, InvalidOutput
from headrace.gateway.problem_kinds import KINDS

MEDIA_TYPE: Final = "application/problem+json"


class Problem(Exception):
    """A problem on its way to the client.

    Args:
        code: a key of `KINDS`.
        detail: what is wrong with this request in particular; public.
        headers: headers to send with it; they win over the kind's own.
        extra: further members of the document, such as `errors`.
    """

    def __init__(
        self, code: str, detail: str = "", *, headers: Mapping[str, str] | None = None, **extra: object
    ) -> None:
        super().__init__(code, detail)
        self.code = code
        self.kind = KINDS[code]
        # A function's own message may hold what can't be encoded; it must not turn one error into another.
        self.detail = detail.encode("utf-8", "replace").decode() if detail else self.kind.meaning
        self.extra = extra
        self._headers = headers

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self.kind.status

    @property
    def headers(self) -> dict[str, str]:
        """The headers to send, without those that describe the body."""
        kind = self.kind
        if self._headers is None and kind.retry_after is None and not kind.headers:
            return {}
        headers = dict(kind.headers)
        if kind.retry_after is not None:
            headers["Retry-After"] = str(kind.retry_after)
        for name, value in (self._headers or {}).items():
            headers[_CANONICAL.get(name.lower(), name)] = value
        return headers

    def body(self, public_url: str = "", request_id: str = "") -> bytes:
        """The document as `application/problem+json`."""
        document: dict[str, object] = {
            "type": f"{public_url.rstrip('/')}/problems/{self.code}",
            "title": self.kind.title,
            "status": self.kind.status,
            "detail": self.detail,
            "code": self.code,
        }
        if request_id:
            document["request_id"] = request_id
        # The standard members win over extras of the same name.
        return msgspec.json.encode(document | self.extra | document)

    def asgi(
        self, public_url: str = "", request_id: str = ""
    ) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        """Status, headers and body for a plain ASGI answer."""
        body = self.body(public_url, request_id)
        headers = [
            (b"content-type", b"application/problem+json"),
            (b"content-length", b"%d" % len(body)),
            (b"cache-control", b"no-store"),
        ]
        headers += [
            (name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in self.headers.items()
        ]
        if request_id:
            headers.append((b"x-request-id", request_id.encode("latin-1")))
        return self.kind.status, headers, body


_CANONICAL: Final = {name.lower(): name for kind in KINDS.values() for name, _ in kind.headers} | {
    "retry-after": "Retry-After",
    "allow": "Allow",
}

_BY_STATUS: Final = {
    401: "missing-key",
    403: "forbidden",
    404: "not-found",
    405: "method-not-allowed",
    406: "not-acceptable",
    413: "payload-too-large",
    415: "unsupported-media-type",
    503: "busy",
}


def to_problem(error: Exception) -> Problem:
    """The problem that stands for any exception; what isn't known is `internal-error` and tells nothing."""
    match error:
        case Problem():
            return error
        case HTTPException():
            return _from_http(error)
        case InvalidInput():
            return Problem(
                "invalid-input", error.message, errors=[{"path": error.path, "message": error.message}]
            )
        case InvalidOutput():
            return Problem("invalid-output")
        case DatabaseUnavailable() | DatabaseBusy():
            return Problem("database-unavailable")
        case _:
            return Problem("internal-error")


def _from_http(error: HTTPException) -> Problem:
    code = _BY_STATUS.get(error.status_code)
    if code == "method-not-allowed":
        allowed = {name.lower(): value for name, value in (error.headers or {}).items()}.get("allow", "")
        names = set(filter(None, (method.strip() for method in allowed.split(","))))
        names |= {"HEAD"} if "GET" in names else set()
        methods = ", ".join(sorted(names))
        return Problem(code, f"The methods allowed here are {methods}.", headers={"Allow": methods})
    if code is not None:
        return Problem(code, headers=error.headers)
    if 400 <= error.status_code < 500:
        return Problem("bad-request", error.detail, headers=error.headers)
    return Problem("internal-error")


def exception_handlers(
    public_url: str, request_id: Callable[[Request[Any, Any, Any]], str]
) -> dict[int | type[Exception], Callable[[Request[Any, Any, Any], Exception], Response[bytes]]]:
    """Litestar's exception handlers for an app in which every error is a problem.

    Args:
        public_url: what precedes `/problems/{code}` in a problem's type.
        request_id: the id that was given to a request.
    """

    def answer(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
        problem = to_problem(error)
        identity = request_id(request)
        headers = {"Cache-Control": "no-store"} | problem.headers
        if identity:
            headers["X-Request-Id"] = identity
        return Response(
            problem.body(public_url, identity),
            status_code=problem.status,
            media_type=MEDIA_TYPE,
            headers=headers,
        )

    # Litestar looks a status up before it walks the exception's bases: both keys make one rule.
    return {HTTPException: answer, 500: answer, Exception: answer}
