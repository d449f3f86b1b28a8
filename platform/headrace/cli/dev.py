"""`headrace dev`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from rich_click import RichCommand

if TYPE_CHECKING:
    from headrace.settings import Settings


@click.command(cls=RichCommand)
@click.option("--host", help="Address to listen on, instead of HEADRACE_HOST.")
@click.option("--port", type=int, help="Port to listen on, instead of HEADRACE_PORT.")
@click.option("--runners", type=int, help="How many runners, instead of HEADRACE_RUNNERS.")
def dev(host: str | None, port: int | None, runners: int | None) -> None:
    """Serve as `up` does, and follow your files: a saved change is served within seconds.

    A version that doesn't import is shown and left out, and the one before goes on. Logs have the messages of
    functions' exceptions, unless HEADRACE_LOG_ERRORS says otherwise.
    """
    import asyncio  # noqa: PLC0415 - `headrace --help` must be quick

    from headrace.cli.up import serve, welcome  # noqa: PLC0415
    from headrace.settings import load_settings  # noqa: PLC0415
    from headrace.site.dev import DevSite  # noqa: PLC0415

    settings = _with_messages(load_settings(host=host, port=port, runners=runners))
    hint = "Save a change to a *.py file in this folder, and it is served within seconds."
    asyncio.run(serve(settings, DevSite, lambda started, seconds: welcome(settings, started, seconds, hint)))


def _with_messages(settings: Settings) -> Settings:
    """Log messages of exceptions, where nothing was said about it: inputs are the developer's own."""
    from headrace.settings import origins  # noqa: PLC0415

    if origins()["log_errors"] == "default":
        return settings.model_copy(update={"log_errors": True})
    return settings
