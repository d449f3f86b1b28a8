"""`headrace migrate`."""

from __future__ import annotations

import click
from rich_click import RichCommand


@click.command(cls=RichCommand)
@click.option(
    "--check", "only_check", is_flag=True, help="Change nothing; exit with 1 when something is missing."
)
def migrate(only_check: bool) -> None:
    """Bring the database's schema up to date; safe to run while others do."""
    from headrace import embedded, migrations  # noqa: PLC0415 - slow to load
    from headrace.settings import load_settings  # noqa: PLC0415

    with embedded.database(load_settings(), create=not only_check, visits=True) as settings:
        url = settings.database_direct_url
        if only_check:
            migrations.check(url)
        else:
            for step in migrations.migrate(url):
                click.echo(f"applied {step}")
    click.echo("the schema is up to date")
