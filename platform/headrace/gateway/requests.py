"""Around every route but the hot path: a request id, an access line, and HEAD for every GET."""

from __future__ import annotations

import time
from collections.abc import Awaitable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import structlog
from litestar import Request, Response

from headrace.gateway import preferences
from headrace.gateway.exchange import wanted_headers

if TYPE_CHECKING:
    from litestar.types import ASGIApp, Receive, Scope, Send

AnyRequest: TypeAlias = Request[Any, Any, Any]

access: Any = structlog.get_logger("access")

_REQUEST_ID = "headrace.request_id"
_IS_HEAD = "headrace.is_head"
_QUIET = frozenset({"/healthz", "/readyz", "/metrics"})  # asked each second, and worth no line


def request_id_of(request: AnyRequest) -> str:
    """The id that `Requests` gave to a request; a call that Litestar refuses by itself has none yet."""
    given = cast("Any", request.scope).get(_REQUEST_ID)
    return given or preferences.request_id(request.headers.get("x-request-id", "").encode("latin-1"))


def is_head(request: AnyRequest) -> bool:
    """Whether the client asked by HEAD, for a handler whose content has no end of its own."""
    return bool(cast("Any", request.scope).get(_IS_HEAD))


def root_of(request: AnyRequest) -> str:
    """What the proxy has taken from the front of the path."""
    return str(cast("Any", request.scope).get("root_path", ""))


def headers_of(request: AnyRequest) -> dict[bytes, bytes]:
    """The headers that matter."""
    return wanted_headers(cast("Any", request.scope)["headers"])


def json_answer(body: bytes, status: int, headers: dict[str, str]) -> Response[bytes]:
    """An answer in JSON."""
    return Response(body, status_code=status, media_type="application/json", headers=headers)


class Requests:
    """Wraps the application; calls of functions go past it, since they do all this themselves.

    Litestar's routing would be a twelfth of what a call costs this process.

    Args:
        app: the application.
        calls: answers `POST /fn/{name}`; finds the name where Litestar puts it, in the scope's `path_params`.
    """

    def __init__(self, app: ASGIApp, calls: ASGIApp) -> None:
        self._app = app
        self._calls = calls

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Called by the server; not a coroutine itself, to cost calls next to nothing."""
        if scope["type"] != "http":
            return self._app(scope, receive, send)
        if scope["method"] == "POST":
            name = _called(scope["path"], scope.get("root_path", ""))
            if name is not None:
                scope["path_params"] = {"name": name}
                return self._calls(scope, receive, send)
        return self._answer(scope, receive, send)

    async def _answer(self, scope: Any, receive: Receive, send: Any) -> None:
        began = time.perf_counter()
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), None)
        request_id = preferences.request_id(given)
        method, path = scope["method"], scope["path"]
        status = 0

        async def pass_on(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [pair for pair in message["headers"] if pair[0].lower() != b"x-request-id"]
                if method == "OPTIONS":
                    headers = [_with_head(*pair) for pair in headers]
                message = {**message, "headers": [*headers, (b"x-request-id", request_id.encode())]}
            elif method == "HEAD":
                message = {**message, "body": b""}
            await send(message)

        # RFC 9110, section 9.3.2: HEAD is GET without the content.
        inner = {**scope, _REQUEST_ID: request_id, _IS_HEAD: method == "HEAD"}
        inner["method"] = "GET" if method == "HEAD" else method
        await self._app(cast("Any", inner), receive, pass_on)
        if path not in _QUIET:
            access.info(
                "request",
                request_id=request_id,
                method=method,
                path=path,
                status=status,
                total_ms=round((time.perf_counter() - began) * 1000, 3),
            )


@lru_cache
def _called(path: str, root: str) -> str | None:
    """The name in `/fn/{name}`, with empty segments left out as Litestar does; None: it is another path."""
    segments = [segment for segment in path.removeprefix(root).split("/") if segment]
    return segments[1] if len(segments) == 2 and segments[0] == "fn" else None


def _with_head(name: bytes, value: bytes) -> tuple[bytes, bytes]:
    """The header; in `Allow`, with HEAD beside GET, which Litestar doesn't know of."""
    methods = value.decode("latin-1").split(", ")
    if name.lower() != b"allow" or "GET" not in methods:
        return name, value
    return name, ", ".join(sorted({*methods, "HEAD"})).encode("latin-1")
