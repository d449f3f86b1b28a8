"""`headrace gateway`."""

from __future__ import annotations

import click
from rich_click import RichCommand


@click.command(cls=RichCommand)
@click.option("--host", help="Address to listen on, instead of HEADRACE_HOST.")
@click.option("--port", type=int, help="Port to listen on, instead of HEADRACE_PORT.")
def gateway(host: str | None, port: int | None) -> None:
    """Serve HTTP until SIGTERM; needs HEADRACE_DATABASE_URL or a home whose Postgres can be started."""
    from headrace.embedded import database  # noqa: PLC0415 - slow to load
    from headrace.process import die_with_parent  # noqa: PLC0415
    from headrace.settings import load_settings  # noqa: PLC0415

    die_with_parent()
    with database(load_settings(host=host, port=port)) as settings:
        from headrace.gateway.server import serve  # noqa: PLC0415

        serve(settings)
