"""`headrace up`."""

from __future__ import annotations

import json
import os
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich_click import RichCommand

if TYPE_CHECKING:
    from headrace.settings import Settings
    from headrace.site import Started


@click.command(cls=RichCommand)
@click.option("--host", help="Address to listen on, instead of HEADRACE_HOST.")
@click.option("--port", type=int, help="Port to listen on, instead of HEADRACE_PORT.")
@click.option("--runners", type=int, help="How many runners, instead of HEADRACE_RUNNERS.")
def up(host: str | None, port: int | None, runners: int | None) -> None:
    """Serve from this machine: Postgres, gateway and runners, until Ctrl-C; data stay."""
    import asyncio  # noqa: PLC0415 - `headrace --help` must be quick

    from headrace.settings import load_settings  # noqa: PLC0415

    asyncio.run(_up(load_settings(host=host, port=port, runners=runners)))


async def _up(settings: Settings) -> None:
    import asyncio  # noqa: PLC0415

    from headrace.cli.progress import Progress  # noqa: PLC0415
    from headrace.cli.signals import run_site  # noqa: PLC0415
    from headrace.site import Site  # noqa: PLC0415

    began = time.monotonic()
    with Progress() as progress:

        async def serve(started: Started) -> None:
            progress.finish()
            click.echo(_welcome(settings, started, time.monotonic() - began))
            await asyncio.Event().wait()

        await run_site(Site(settings, progress.tell), serve, lambda: progress.tell("stopping"))
        progress.tell("stopped; data stay in " + _short(settings.home))


def _welcome(settings: Settings, started: Started, seconds: float) -> str:
    home = _short(settings.home)
    return "\n".join(
        [
            f"Headrace serves at {started.url} (ready after {seconds:.1f} s)",
            f"  functions  {', '.join(sorted(started.functions)) or 'none'}",
            f"  key        {started.key} (also in {home}/key)",
            f"  logs       {home}/logs",
            f"  docs       {started.url}/docs",
            "Try it:",
            f"  {_curl(started)}",
            "Ctrl-C stops everything.",
        ]
    )


def _curl(started: Started) -> str:
    names = sorted(started.functions, key=lambda name: (name != "embed", name))
    if not names:
        return f"curl -s {started.url}/fn -H 'Authorization: Bearer {started.key}'"
    name = names[0]
    examples = started.functions[name].examples
    body = json.dumps(examples[0] if examples else {}, ensure_ascii=False)
    return (
        f"curl -s {started.url}/fn/{name} -H 'Authorization: Bearer {started.key}' "
        f"-H 'Content-Type: application/json' -d {shlex.quote(body)}"
    )


def _short(path: Path) -> str:
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
