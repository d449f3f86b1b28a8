"""`headrace functions`."""

from __future__ import annotations

import click
from rich_click import RichCommand, RichGroup

_HASH_SHOWN = 12


@click.group(cls=RichGroup, invoke_without_command=True)
@click.pass_context
def functions(context: click.Context) -> None:
    """List the registered functions, or retire one."""
    if context.invoked_subcommand is None:
        context.invoke(list_)


@functions.command("list", cls=RichCommand)
def list_() -> None:
    """List all functions that runners have registered, retired ones too."""
    import asyncio  # noqa: PLC0415 - slow to load
    from collections import Counter  # noqa: PLC0415

    from headrace.cli._site import database, moment, table  # noqa: PLC0415
    from headrace.registry import Registry, load  # noqa: PLC0415
    from headrace.settings import load_settings  # noqa: PLC0415

    async def read() -> Registry:
        async with database(load_settings()) as opened:
            return await load(opened)

    registry = asyncio.run(read())
    runners = Counter(served for runner in registry.runners for served in runner.interfaces.items())
    rows: list[tuple[str, ...]] = []
    for name, changed in registry.registered.items():
        if (manifest := registry.functions.get(name)) is not None:
            live = runners[name, manifest.interface]
            hashes = (manifest.interface[:_HASH_SHOWN], manifest.revision[:_HASH_SHOWN])
            rows.append(
                (name, "served" if live else "no-runner", str(live), manifest.pool, *hashes, moment(changed))
            )
        else:
            state = "retired" if name in registry.retired else "unreadable"
            rows.append((name, state, "", "", "", "", moment(registry.retired.get(name, changed))))
    click.echo(table(("NAME", "STATE", "RUNNERS", "POOL", "INTERFACE", "REVISION", "SINCE"), rows))


@functions.command(cls=RichCommand)
@click.argument("name")
def retire(name: str) -> None:
    """Take the function NAME out of service; a runner that starts with it later brings it back."""
    import asyncio  # noqa: PLC0415 - slow to load

    from headrace import registry  # noqa: PLC0415
    from headrace.cli._site import database  # noqa: PLC0415
    from headrace.errors import HeadraceError  # noqa: PLC0415
    from headrace.settings import load_settings  # noqa: PLC0415

    async def take_out() -> bool:
        async with database(load_settings()) as opened:
            return await registry.retire(opened, name)

    if not asyncio.run(take_out()):
        raise HeadraceError(f"there is no function {name!r} in service: see `headrace functions`")
    click.echo(f"{name} is retired")
