"""`headrace keys`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click
from rich_click import RichCommand, RichGroup

if TYPE_CHECKING:
    from headrace.database import Database
    from headrace.keys import KeyInfo


@click.group(cls=RichGroup)
def keys() -> None:
    """Make, list and revoke API keys."""


@keys.command(cls=RichCommand)
@click.option(
    "--owner", default="default", show_default=True, help="Whom the key's calls and jobs belong to."
)
@click.option("--name", default="", help="What the key is for, shown in the list.")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    metavar="SCOPE",
    default=("call", "read"),
    show_default="call and read",
    help="What it may do, once for each: call (functions), read (functions and jobs), admin (the site).",
)
@click.option(
    "--function",
    "functions",
    multiple=True,
    metavar="NAME",
    help="A function that it may call, once for each; all of them by default.",
)
def create(owner: str, name: str, scopes: tuple[str, ...], functions: tuple[str, ...]) -> None:
    """Make a key and print it, once: only its hash is kept."""
    from headrace import registry  # noqa: PLC0415 - slow to load
    from headrace.cli._site import with_database  # noqa: PLC0415
    from headrace.keys import create_key  # noqa: PLC0415

    async def make(opened: Database) -> tuple[str, list[str]]:
        made = await create_key(opened, owner, name, scopes=scopes, functions=functions or None)
        known = await registry.load(opened)
        return made, [one for one in functions if one not in known.registered]

    secret, unknown = with_database(make)
    for one in unknown:
        click.echo(f"headrace: no function {one!r} is registered yet: see `headrace functions`", err=True)
    click.echo(secret)


@keys.command("list", cls=RichCommand)
def list_() -> None:
    """List all keys by their first characters, revoked ones too."""
    import asyncio  # noqa: PLC0415 - slow to load

    from headrace.cli._site import database  # noqa: PLC0415
    from headrace.cli._table import fitted, moment  # noqa: PLC0415
    from headrace.cli.output import columns, plain  # noqa: PLC0415
    from headrace.keys import list_keys  # noqa: PLC0415
    from headrace.settings import load_settings  # noqa: PLC0415

    async def read() -> list[KeyInfo]:
        async with database(load_settings()) as opened:
            return await list_keys(opened)

    rows = [
        (
            key.prefix,
            plain(key.owner),
            plain(key.name),
            ",".join(key.scopes),
            "*" if key.functions is None else ",".join(key.functions),
            moment(key.created_at),
            moment(key.revoked_at),
            key.key_id,
        )
        for key in asyncio.run(read())
    ]
    head = ("KEY", "OWNER", "NAME", "SCOPES", "FUNCTIONS", "CREATED", "REVOKED", "ID")
    click.echo(fitted(head, rows, columns(sys.stdout), drop=("ID", "CREATED"), cut="NAME"))


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
    from headrace.cli._table import moment  # noqa: PLC0415 - slow to load
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
