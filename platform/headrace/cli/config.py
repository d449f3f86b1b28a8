"""`headrace config`."""

from __future__ import annotations

import click
from rich_click import RichCommand


@click.command(cls=RichCommand)
def config() -> None:
    """Print the settings in force and where each comes from, passwords masked."""
    from headrace.settings import Settings, load_settings, origins, variable  # noqa: PLC0415 - slow to load

    values, sources = load_settings().masked(), origins()
    width = max(len(f"{variable(name)}={value}") for name, value in values.items())
    for name, value in values.items():
        setting = f"{variable(name)}={value}".ljust(width)
        about = Settings.model_fields[name].description
        click.echo(f"{setting}  # {sources[name]}: {about}")
