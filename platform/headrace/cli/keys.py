"""`headrace keys`."""

from __future__ import annotations

import click
from rich_click import RichCommand, RichGroup


@click.group(cls=RichGroup)
def keys() -> None:
    """Make, list and revoke API keys."""


@keys.command(cls=RichCommand)
@click.option(
    "--owner", default="default", show_default=True, help="Whom the key's calls and jobs belong to."
)
@click.option("--name", default="", help="What the key is for, shown in the list.")
def create(owner: str, name: str) -> None:
    """Make a key and print it, once: only its hash is kept."""
    import asyncio  # noqa: PLC0415 - slow to load

    from headrace.cli._site import database  # noqa: PLC0415
    from headrace.keys import create_key  # noqa: PLC0415
    from headrace.settings import load_settings  # noqa: PLC0415

    async def make() -> str:
        async with database(load_settings()) as opened:
            return await create_key(opened, owner, name)

    try:
        secret = asyncio.run(make())
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    click.echo(secret)


@keys.command("list", cls=RichCommand)
def list_() -> None:
    """List all keys by their first characters, revoked ones too."""
    import asyncio  # noqa: PLC0415 - slow to load

    from headrace.cli._site import database, moment, table  # noqa: PLC0415
    from headrace.keys import KeyInfo, list_keys  # noqa: PLC0415
    from headrace.settings import load_settings  # noqa: PLC0415

    async def read() -> list[KeyInfo]:
        async with database(load_settings()) as opened:
            return await list_keys(opened)

    rows = [
        (key.prefix, key.owner, key.name, moment(key.created_at), moment(key.revoked_at), key.key_id)
        for key in asyncio.run(read())
    ]
    click.echo(table(("KEY", "OWNER", "NAME", "CREATED", "REVOKED", "ID"), rows))


@keys.command(cls=RichCommand)
@click.argument("key")
def revoke(key: str) -> None:
    """Revoke the KEY with that id or first characters, as the list shows them; it stops working at once."""
    import asyncio  # noqa: PLC0415 - slow to load

    from headrace.cli._site import database  # noqa: PLC0415
    from headrace.errors import HeadraceError  # noqa: PLC0415
    from headrace.keys import revoke_key  # noqa: PLC0415
    from headrace.settings import load_settings  # noqa: PLC0415

    async def take_back() -> bool:
        async with database(load_settings()) as opened:
            return await revoke_key(opened, key)

    if not asyncio.run(take_back()):
        raise HeadraceError(
            "there is no key in force with that id or first characters: see `headrace keys list`"
        )
    click.echo("revoked")
