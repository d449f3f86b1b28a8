"""`GET /fn` and `GET /fn/{name}`: what can be called, and how it stands."""

from __future__ import annotations

from typing import Any, cast

import msgspec
from litestar import Request, get
from litestar.params import FromPath

from headrace.domain import Manifest
from headrace.gateway.auth import Authenticator, require
from headrace.gateway.directory import Directory
from headrace.gateway.runners import RunnerLinks


class FunctionState(msgspec.Struct, kw_only=True):
    """How a function stands on this gateway: its linked runners, their slots, running and waiting calls."""

    runners: int
    slots: int
    load: int
    degraded: list[str]


def state_of(manifest: Manifest, links: RunnerLinks) -> FunctionState:
    """The state of one function."""
    serving = links.serving(manifest.name, manifest.interface)
    sound = [one for one in serving if not one.degraded]
    return FunctionState(
        runners=len(sound),
        slots=sum(one.slots for one in sound),
        load=sum(one.load for one in sound),
        degraded=sorted({one.degraded for one in serving if one.degraded}),
    )


def fault_of(manifest: Manifest, links: RunnerLinks) -> str:
    """The code of the problem that every call of the function gets now; empty where it can be called."""
    state = state_of(manifest, links)
    if state.runners:
        return ""
    return "function-degraded" if state.degraded else "no-runner"


def function_handlers(directory: Directory, authenticator: Authenticator, links: RunnerLinks) -> list[Any]:
    """The two routes, for callers with a key; one that may call a few functions only sees all of them too."""

    async def authenticate(request: Request[Any, Any, Any]) -> None:
        header = request.headers.get("authorization")
        key = await authenticator.owner(None if header is None else header.encode("latin-1"))
        require(key, "read", "call")

    @get("/fn")
    async def list_functions(request: Request[Any, Any, Any]) -> dict[str, Any]:
        """All functions in service, in the order of their names."""
        await authenticate(request)
        root = cast("Any", request.scope).get("root_path", "")
        return {
            "items": [
                {
                    "name": manifest.name,
                    "description": manifest.description,
                    "url": f"{root}/fn/{manifest.name}",
                    "budget": msgspec.to_builtins(manifest.budget),
                    "limits": msgspec.to_builtins(manifest.limits),
                    "state": state_of(manifest, links),
                }
                for _, manifest in sorted(directory.manifests.items())
            ],
            "next": None,
        }

    @get("/fn/{name:str}")
    async def show_function(request: Request[Any, Any, Any], name: FromPath[str]) -> dict[str, Any]:
        """One function: its contract, its budget and how it stands."""
        await authenticate(request)
        manifest = directory.find(name).manifest
        return {**msgspec.to_builtins(manifest), "state": state_of(manifest, links)}

    return [list_functions, show_function]
