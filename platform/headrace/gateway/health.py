"""`/healthz`: the process lives. `/readyz`: calls can be executed. `/metrics`: what was counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from litestar import Response, get
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from headrace.gateway.directory import Directory
from headrace.gateway.functions import state_of
from headrace.gateway.metrics import GatewayMetrics
from headrace.gateway.runners import RunnerLinks


def health_handlers(
    directory: Directory,
    links: RunnerLinks,
    metrics: GatewayMetrics,
    database_away: Callable[[], float],
    outage_grace: float,
) -> list[Any]:
    """The three routes; they need no key, and hold nothing that does."""

    def paused() -> list[str]:
        return [name for name in sorted(directory.functions) if directory.gate.is_shut(name)]

    @get("/healthz")
    async def healthz() -> dict[str, str]:
        """The process lives and its event loop turns."""
        return {"status": "ok"}

    @get("/readyz")
    async def readyz() -> Response[dict[str, Any]]:
        """Whether at least one function can be executed now; the body has the state of each.

        Not all of them: one function without a runner mustn't take the others out of service. Nor does it
        matter whether intake is paused: jobs and results must be reached then too.
        """
        functions = {
            name: state_of(manifest, links) for name, manifest in sorted(directory.manifests.items())
        }
        missing: list[str] = []
        if database_away() > outage_grace:
            missing.append("Postgres does not answer")
        if not functions:
            missing.append("no function is registered: start a runner")
        elif not any(state.runners for state in functions.values()):
            missing.append("no function has a runner that can execute it")
        return Response(
            {
                "ready": not missing,
                "missing": missing,
                "functions": functions,
                "runners": links.ids(),
                "intake": {"paused": directory.gate.intake.site is not None, "functions": paused()},
            },
            status_code=503 if missing else 200,
            headers={"Cache-Control": "no-store"} | ({"Retry-After": "1"} if missing else {}),
        )

    @get("/metrics")
    async def show_metrics() -> Response[bytes]:
        """The counters in Prometheus' text format."""
        metrics.database_up.set(database_away() < 5)
        metrics.functions.set(len(directory.functions))
        metrics.functions_paused.set(len(paused()))
        metrics.runners.set(links.count())
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return [healthz, readyz, show_metrics]
