"""`/docs` and `/problems` for people, `/openapi.json` for programs; they load nothing from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final, Protocol, cast
from urllib.parse import urlsplit

import msgspec
from litestar import HttpMethod, Response, route
from litestar.params import FromPath
from markupsafe import escape

from headrace.domain import Manifest
from headrace.gateway.openapi import build_document
from headrace.gateway.problem_kinds import KINDS
from headrace.gateway.problems import Problem
from headrace.gateway.reference import Reference, describe
from headrace.gateway.requests import AnyRequest
from headrace.gateway.templating import content_policy, environment

if TYPE_CHECKING:
    from litestar.handlers import HTTPRouteHandler

GetManifests = Callable[[], Mapping[str, Manifest]]
GetFault = Callable[[Manifest], str]

_READ: Final = [HttpMethod.GET, HttpMethod.HEAD]
_ORIGIN: Final = "http://origin.invalid"
"""Stands for the server's address in cached pages, until it is known from a request."""

_HOST: Final = re.compile(r"[A-Za-z0-9.:\[\]-]{1,255}")


class PageSettings(Protocol):
    """The part of the settings that the pages need."""

    @property
    def public_url(self) -> str:
        """What clients see before the path; empty where it isn't known."""
        ...

    @property
    def max_hold(self) -> float:
        """The longest time, in seconds, for which a connection is held."""
        ...


class Pages:
    """The rendered pages, kept until the functions change.

    Args:
        get_manifests: gives the functions as they are now.
        get_fault: gives the code of the problem that every call of a function gets now, or nothing.
        settings: the gateway's.
    """

    def __init__(self, get_manifests: GetManifests, get_fault: GetFault, settings: PageSettings) -> None:
        self._get_manifests = get_manifests
        self._get_fault = get_fault
        self._public_url = settings.public_url.rstrip("/")
        self._max_hold = settings.max_hold
        self._version = metadata.version("headrace")
        self._templates = environment()
        self._policy = content_policy()
        self._made_for: tuple[tuple[str, str, str], ...] | None = None
        self._document = b""
        self._reference: Reference | None = None
        self._faults: dict[str, str] = {}
        self._pages: dict[tuple[str, str], bytes] = {}

    def root(self, request: AnyRequest) -> Response[bytes]:
        """The way to the API reference, for whoever opens the bare address."""
        return Response(b"", status_code=307, headers={"Location": f"{self._base(request)}/docs"})

    def openapi(self) -> Response[bytes]:
        """The OpenAPI document."""
        self._refresh()
        return Response(self._document, media_type="application/json", headers={"Cache-Control": "no-cache"})

    def docs(self, request: AnyRequest) -> Response[bytes]:
        """The API reference."""
        self._refresh()
        self._refresh_faults()
        body = self._page("docs.html", "docs", request)
        return self._html(body.replace(_ORIGIN.encode(), str(escape(self._origin(request))).encode()))

    def problems(self, request: AnyRequest) -> Response[bytes]:
        """The list of all problem codes."""
        return self._html(self._page("problems.html", "problems", request, kinds=KINDS))

    def problem(self, request: AnyRequest, code: str) -> Response[bytes]:
        """What one problem code means."""
        kind = KINDS.get(code)
        if kind is None:
            raise Problem("not-found", "There is no problem of this code; `/problems` lists them all.")
        return self._html(self._page("problem.html", code, request, kind=kind, code=code))

    def _refresh(self) -> None:
        manifests = self._get_manifests()
        made_for = tuple((one.name, one.interface, one.revision) for one in manifests.values())
        if made_for != self._made_for:
            document = build_document(
                manifests, public_url=self._public_url, version=self._version, max_hold=self._max_hold
            )
            self._document = msgspec.json.encode(document)
            self._reference = describe(document)
            self._pages.clear()
            self._made_for = made_for

    def _refresh_faults(self) -> None:
        found = {name: self._get_fault(manifest) for name, manifest in self._get_manifests().items()}
        faults = {name: code for name, code in found.items() if code}
        if faults != self._faults:
            self._pages.clear()
            self._faults = faults

    def _page(self, template: str, name: str, request: AnyRequest, **values: Any) -> bytes:
        base = self._base(request)
        key = (name, base)
        if key not in self._pages:
            if template == "docs.html":
                values["reference"] = self._reference
                values["faults"] = self._faults
                values["origin"] = self._public_url or _ORIGIN + base
            text = self._templates.get_template(template).render(base=base, version=self._version, **values)
            self._pages[key] = text.encode()
        return self._pages[key]

    def _base(self, request: AnyRequest) -> str:
        """What precedes our paths in links: the root path, which the operator sets, never the client."""
        root = str(cast("dict[str, Any]", request.scope).get("root_path", ""))
        return (root or urlsplit(self._public_url).path).rstrip("/")

    def _origin(self, request: AnyRequest) -> str:
        host = request.headers.get("host", "")
        return f"{request.scope['scheme']}://{host if _HOST.fullmatch(host) else 'localhost'}"

    def _html(self, body: bytes) -> Response[bytes]:
        headers = {
            "Content-Security-Policy": self._policy,
            "Cache-Control": "no-cache",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }
        return Response(body, media_type="text/html", headers=headers)


def page_handlers(
    get_manifests: GetManifests, get_fault: GetFault, settings: PageSettings
) -> list[HTTPRouteHandler]:
    """Handlers for `/`, `/docs`, `/openapi.json`, `/problems` and `/problems/{code}`; none needs a key."""
    pages = Pages(get_manifests, get_fault, settings)

    @route("/", http_method=_READ)
    async def root(request: AnyRequest) -> Response[bytes]:
        return pages.root(request)

    @route("/openapi.json", http_method=_READ)
    async def openapi() -> Response[bytes]:
        return pages.openapi()

    @route("/docs", http_method=_READ)
    async def docs(request: AnyRequest) -> Response[bytes]:
        return pages.docs(request)

    @route("/problems", http_method=_READ)
    async def problems(request: AnyRequest) -> Response[bytes]:
        return pages.problems(request)

    @route("/problems/{code:str}", http_method=_READ)
    async def problem(request: AnyRequest, code: FromPath[str]) -> Response[bytes]:
        return pages.problem(request, code)

    return [root, openapi, docs, problems, problem]
