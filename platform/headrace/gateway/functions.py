"""`GET /fn` and `GET /fn/{name}`: what can be called, and how it stands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec
from litestar import Request, get
from litestar.params import FromPath

from headrace.admission import finish_s
from headrace.capacity import Capacity
from headrace.domain import Manifest
from headrace.gateway.auth import Authenticator, require
from headrace.gateway.directory import Directory
from headrace.gateway.explaining import prediction_of
from headrace.gateway.routing import Routing
from headrace.gateway.runners import RunnerLinks
from headrace.gateway.serving import Serving


class RunnerState(msgspec.Struct, kw_only=True):
    """How a function stands on one runner, as this gateway knows.

    Args:
        runner_id: the runner.
        load: calls that run or wait in the function's slots.
        capacity: what the runner said within the last second; None: nothing yet.
    """

    runner_id: str
    load: int
    capacity: Capacity | None


class FunctionState(msgspec.Struct, kw_only=True):
    """How a function stands on this gateway.

    Args:
        runners: those that are linked and can run it.
        slots: how many of its calls may run at once there.
        load: calls that run or wait in those slots.
        degraded: why other runners can't run it.
        predicted_wait_s: how long a call that came now should wait for a slot, by the means of what runs;
            None while nothing is known.
    """

    runners: int
    slots: int
    load: int
    degraded: list[str]
    predicted_wait_s: float | None


def state_of(manifest: Manifest, links: RunnerLinks) -> FunctionState:
    """The state of one function."""
    serving = links.serving(manifest.name, manifest.interface)
    sound = [one for one in serving if not one.degraded]
    return FunctionState(
        runners=len(sound),
        slots=sum(one.slots for one in sound),
        load=sum(one.load for one in sound),
        degraded=sorted({one.degraded for one in serving if one.degraded}),
        predicted_wait_s=_predicted_wait_s(sound),
    )


def _predicted_wait_s(serving: Sequence[Serving]) -> float | None:
    """Where it is shortest; loading what is missing counts."""
    waits = [
        finish_s(one.load, one.slots, one.mean_s)
        - one.mean_s
        + (one.capacity.load_s if one.capacity else 0.0)
        for one in serving
        if one.mean_s
    ]
    return round(min(waits), 3) if waits else None


def _runner_states(manifest: Manifest, links: RunnerLinks) -> list[RunnerState]:
    """How it stands on each runner."""
    return [
        RunnerState(runner_id=one.link.info.runner_id, load=one.load, capacity=one.capacity)
        for one in links.serving(manifest.name, manifest.interface)
    ]


def fault_of(manifest: Manifest, links: RunnerLinks) -> str:
    """The code of the problem that every call of the function gets now; empty where it can be called."""
    state = state_of(manifest, links)
    if state.runners:
        return ""
    return "function-degraded" if state.degraded else "no-runner"


def function_handlers(
    directory: Directory, authenticator: Authenticator, links: RunnerLinks, routing: Routing
) -> list[Any]:
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
                    "paused": directory.gate.is_shut(manifest.name),
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
        return {
            **msgspec.to_builtins(manifest),
            "state": state_of(manifest, links),
            "paused": directory.gate.is_shut(name),
            "predicted": prediction_of(routing.snapshot(manifest, 0.0).predicted),
            "lane": routing.lanes.of(name),
            "live": _runner_states(manifest, links),
        }

    return [list_functions, show_function]
