"""`headrace keys`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from rich_click import RichCommand, RichGroup

if TYPE_CHECKING:
    from headrace.keys import KeyInfo


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
    from headrace.keys import list_keys  # noqa: PLC0415
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
    from headrace.keys import list_keys, revoke_key  # noqa: PLC0415
    from headrace.settings import load_settings  # noqa: PLC0415

    async def take_back() -> list[KeyInfo] | None:
        async with database(load_settings()) as opened:
            return None if await revoke_key(opened, key) else await list_keys(opened)

    if (known := asyncio.run(take_back())) is not None:
        raise HeadraceError(_why_not(key, known))
    click.echo("revoked")


def _why_not(key: str, known: list[KeyInfo]) -> str:
    """Why the key that somebody meant can't be revoked."""
    from headrace.cli._site import moment  # noqa: PLC0415 - slow to load
    from headrace.keys import PREFIX_LENGTH  # noqa: PLC0415

    for one in known:
        if one.revoked_at is not None and (key.lower() == one.key_id or key.startswith(one.prefix)):
            return f"the key {one.prefix} is revoked since {moment(one.revoked_at)}"
    if key and any(one.prefix.startswith(key) or key.startswith(one.prefix) for one in known):
        return (
            f"that is no whole key: give its first {PREFIX_LENGTH} characters, which "
            "`headrace keys list` shows, or all of it"
        )
    return "there is no key with that id or those first characters: see `headrace keys list`"
