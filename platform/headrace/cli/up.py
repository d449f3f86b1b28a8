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
    from collections.abc import Callable

    from headrace.settings import Settings
    from headrace.site import Site, Started


@click.command(cls=RichCommand)
@click.option("--host", help="Address to listen on, instead of HEADRACE_HOST.")
@click.option("--port", type=int, help="Port to listen on, instead of HEADRACE_PORT.")
@click.option("--runners", type=int, help="How many runners, instead of HEADRACE_RUNNERS.")
def up(host: str | None, port: int | None, runners: int | None) -> None:
    """Serve from this machine: Postgres, gateway and runners, until Ctrl-C; data stay."""
    import asyncio  # noqa: PLC0415 - `headrace --help` must be quick

    from headrace.settings import load_settings  # noqa: PLC0415
    from headrace.site import Site  # noqa: PLC0415

    settings = load_settings(host=host, port=port, runners=runners)
    asyncio.run(serve(settings, Site, lambda started, seconds: welcome(settings, started, seconds)))


async def serve(
    settings: Settings,
    make: Callable[[Settings, Callable[[str], None]], Site],
    greet: Callable[[Started, float], str],
) -> None:
    """Run a site until a signal, and say what goes on.

    Args:
        settings: the site's.
        make: makes it, with what tells of each step.
        greet: says how to use it, and after how many seconds it was ready.
    """
    from headrace.cli.output import say  # noqa: PLC0415
    from headrace.cli.progress import Progress  # noqa: PLC0415
    from headrace.cli.signals import run_site  # noqa: PLC0415
    from headrace.cores import crowded  # noqa: PLC0415

    began = time.monotonic()
    with Progress() as progress:
        if warning := crowded(settings.executors * settings.runners):
            progress.tell(f"  {warning}")  # indented, it stays

        site = make(settings, progress.tell)

        async def show(started: Started) -> None:
            progress.finish()
            say(greet(started, time.monotonic() - began))
            await site.failed()

        await run_site(site, show, lambda: progress.tell("stopping"))
        progress.finish()
        progress.tell("stopped; data stay in " + _short(settings.home))


def welcome(settings: Settings, started: Started, seconds: float, *more: str) -> str:
    """What a developer needs to know of a site that serves; `more` comes last."""
    home = _short(settings.home)
    if started.functions:
        first = f"Headrace serves at {started.url} (ready after {seconds:.1f} s)"
    else:
        first = f"Headrace answers at {started.url}, but no function can be served"
    log = f"{home}/logs/runner-{1 if settings.runners == 1 else '*'}.log"
    lines = [
        first,
        f"  functions  {', '.join(sorted(started.functions)) or 'none'}",
        *(f"  degraded   {name}: {reason} (log: {log})" for name, reason in sorted(started.degraded.items())),
        f"  key        {started.key} (also in {home}/key)",
        f"  logs       {home}/logs",
        f"  docs       {started.url}/docs",
    ]
    if started.functions:
        lines += ["Try it:", f"  {_curl(started, f'{home}/key')}"]
    return "\n".join([*lines, *more, "Ctrl-C stops everything."])


def _curl(started: Started, key_file: str) -> str:
    """A line to paste that calls a function, or lists them when none has an example."""
    # The key itself would end up in the shell's history.
    authorization = f'-H "Authorization: Bearer $(cat {shlex.quote(key_file)})"'
    names = [name for name, manifest in started.functions.items() if manifest.examples]
    if not names:
        return f"curl -s {started.url}/fn {authorization}"
    name = min(names, key=lambda name: (name != "embed", name))
    body = json.dumps(started.functions[name].examples[0], ensure_ascii=False)
    return (
        f"curl -s {started.url}/fn/{name} {authorization} "
        f"-H 'Content-Type: application/json' -d {shlex.quote(body)}"
    )


def _short(path: Path) -> str:
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
