"""`headrace functions`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
from rich_click import RichCommand, RichGroup

from headrace.cli._duration import Duration, seconds

if TYPE_CHECKING:
    from headrace.database import Database
    from headrace.ledger.bounds import LaneBounds

_HASH_SHOWN = 12


@click.group(cls=RichGroup, invoke_without_command=True)
@click.pass_context
def functions(context: click.Context) -> None:
    """List the registered functions, show what runners can do and what was asked for, bound or retire one."""
    if context.invoked_subcommand is None:
        context.invoke(list_)


@functions.command("list", cls=RichCommand)
def list_() -> None:
    """List all functions that runners have registered, retired ones too."""
    import asyncio  # noqa: PLC0415 - slow to load
    from collections import Counter  # noqa: PLC0415

    from headrace.cli._site import database  # noqa: PLC0415
    from headrace.cli._table import moment, table  # noqa: PLC0415
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
@click.option(
    "--waiting", metavar="N|none", help="Most jobs that wait; `none` is the site's HEADRACE_BACKLOG."
)
@click.option(
    "--cost", metavar="C|none", help="Most cost that waits; `none` is the site's HEADRACE_BACKLOG_COST."
)
@click.option(
    "--age",
    metavar="TIME|none",
    help="The longest wait with which others are accepted, such as 90s, 10m; `none` is the site's "
    "HEADRACE_BACKLOG_AGE.",
)
def limit(name: str, waiting: str | None, cost: str | None, age: str | None) -> None:
    """Bound what may wait for the function NAME, in what is given; prints all that is in force then.

    Over a bound, calls that are to be jobs get 503; gateways follow at once. `headrace status` shows what is
    set.
    """
    from headrace.cli._site import with_database  # noqa: PLC0415 - slow to load
    from headrace.errors import HeadraceError  # noqa: PLC0415

    changes = {
        "most_waiting": _bound("waiting", waiting, int),
        "most_cost": _bound("cost", cost, float),
        "most_age_s": _bound("age", age, seconds),
    }
    given: dict[str, Any] = {what: value[0] for what, value in changes.items() if value}
    if not given:
        raise click.UsageError("nothing to set: give --waiting, --cost or --age")
    if (now := with_database(lambda opened: _bounded(opened, name, given))) is None:
        raise HeadraceError(f"there is no function {name!r}: see `headrace functions`")
    age = None if now.most_age_s is None else f"{now.most_age_s:.10g}s"
    told = {"waiting": now.most_waiting, "cost": now.most_cost, "age": age}
    click.echo(f"{name}: {', '.join(f'{what} {_shown(value)}' for what, value in told.items())}")


async def _bounded(opened: Database, name: str, given: dict[str, Any]) -> LaneBounds | None:
    from headrace.ledger.bounds import bounds_in_force, set_bounds  # noqa: PLC0415 - slow to load

    return await bounds_in_force(opened, name) if await set_bounds(opened, name, **given) else None


def _shown(value: float | str | None) -> str:
    return "none" if value is None else value if isinstance(value, str) else f"{value:.10g}"


def _bound(name: str, text: str | None, read: Callable[[str], float]) -> tuple[float | None] | None:
    """What an option says, where it is given: a number, or None for `none`."""
    if text is None:
        return None
    try:
        return (None if text == "none" else read(text),)
    except ValueError:
        kind = (
            "a whole number"
            if read is int
            else "a number"
            if read is float
            else "a duration such as 90s, 10m"
        )
        raise click.BadParameter(f"{text!r} is neither {kind} nor 'none'", param_hint=f"--{name}") from None


@functions.command(cls=RichCommand)
@click.option("--json", "as_json", is_flag=True, help="Print all of it as JSON.")
def capacity(as_json: bool) -> None:
    """Show what each runner can do: slots, what waits, how long executions take, what is loaded.

    Functions that share slots tell the same of them. Inputs have a cost where calls are joined.
    """
    from headrace import registry  # noqa: PLC0415 - slow to load
    from headrace.cli._capacity import document, listed  # noqa: PLC0415
    from headrace.cli._site import with_database  # noqa: PLC0415
    from headrace.cli.output import columns, show  # noqa: PLC0415

    reports = with_database(registry.reports)
    if as_json:
        show(document(reports))
    else:
        click.echo(listed(reports, columns(sys.stdout)))


@functions.command(cls=RichCommand)
@click.argument("name", required=False)
@click.option(
    "--since", type=Duration(), default="1h", show_default=True, help="Of how long, such as 30m, 7d."
)
@click.option("--json", "as_json", is_flag=True, help="Print all that was counted as JSON.")
def usage(name: str | None, since: float, as_json: bool) -> None:
    """Show how often functions were called, what became of the calls, and how long they took.

    Minutes of the last 7 days are kept, and hours of the last 25 months: what begins before the last 7 days
    begins with a whole hour (UTC). What was counted in the present minute isn't in it yet.
    """
    from headrace.cli._site import with_database  # noqa: PLC0415 - slow to load
    from headrace.cli._usage import document, listed, since_then  # noqa: PLC0415
    from headrace.cli.output import columns, show  # noqa: PLC0415

    counted = with_database(lambda opened: since_then(opened, since, name))
    if as_json:
        show(document(counted))
    else:
        click.echo(listed(counted, columns(sys.stdout)))


@functions.command(cls=RichCommand)
@click.argument("name")
def retire(name: str) -> None:
    """Take the function NAME out of service; a runner that starts with it later brings it back."""
    from headrace import registry  # noqa: PLC0415 - slow to load
    from headrace.cli._site import with_database  # noqa: PLC0415
    from headrace.errors import HeadraceError  # noqa: PLC0415

    if not with_database(lambda opened: registry.retire(opened, name)):
        raise HeadraceError(f"there is no function {name!r} in service: see `headrace functions`")
    click.echo(f"{name} is retired")
