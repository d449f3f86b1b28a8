"""`headrace owners`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_args

import click
from rich_click import RichCommand, RichGroup

from headrace.cli.output import plain
from headrace.domain import Priority

if TYPE_CHECKING:
    from headrace.database import Database
    from headrace.owners import OwnerInfo

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS: Final = {
    "outstanding": ("N|default", "Most unfinished jobs; `default` is the site's HEADRACE_OWNER_JOBS."),
    "rate": ("R|none", "Calls per second, over all gateways; `none` is any number."),
    "burst": ("N|default", "Calls at once within the rate; `default` is one second's worth, at least one."),
}


@click.group(cls=RichGroup, invoke_without_command=True)
@click.pass_context
def owners(context: click.Context) -> None:
    """List owners, make them, and set how much they may use."""
    if context.invoked_subcommand is None:
        context.invoke(list_)


@owners.command("list", cls=RichCommand)
def list_() -> None:
    """List all owners with their quotas, their keys in force and their unfinished jobs."""
    from headrace.cli._site import with_database  # noqa: PLC0415 - slow to load
    from headrace.cli._table import moment, table  # noqa: PLC0415
    from headrace.owners import list_owners  # noqa: PLC0415

    def cells(owner: OwnerInfo) -> tuple[str, ...]:
        return (
            owner.name,
            str(owner.keys),
            str(owner.outstanding),
            *_cells(owner),
            moment(owner.created_at),
        )

    rows = [cells(owner) for owner in with_database(list_owners)]
    head = ("OWNER", "KEYS", "OUTSTANDING", "MOST OUTSTANDING", "RATE", "BURST", "PRIORITY", "CREATED")
    click.echo(table(head, rows))


def _quota_options(command: F) -> F:
    highest = "The most urgent class that its calls may ask for; `high` unless it is set."
    command = click.option("--highest-priority", type=click.Choice(get_args(Priority)), help=highest)(command)
    for name, (metavar, text) in reversed(_OPTIONS.items()):
        command = click.option(f"--{name}", metavar=metavar, help=text)(command)
    return command


@owners.command(cls=RichCommand)
@click.argument("name")
@_quota_options
def create(name: str, **options: str | None) -> None:
    """Make an owner called NAME; `headrace keys create` makes one too, with the first key."""
    from headrace.cli._site import with_database  # noqa: PLC0415 - slow to load
    from headrace.errors import HeadraceError  # noqa: PLC0415
    from headrace.owners import create_owner  # noqa: PLC0415

    quota = _quota(options)
    if not with_database(lambda opened: create_owner(opened, name, **quota)):
        raise HeadraceError(f"there is an owner {name!r} already: `headrace owners set` changes its quota")
    click.echo("created")


@owners.command("set", cls=RichCommand)
@click.argument("name")
@_quota_options
def set_(name: str, **options: str | None) -> None:
    """Change the quota of the owner NAME, in what is given; prints all of it. Gateways follow at once."""
    from headrace.cli._site import with_database  # noqa: PLC0415 - slow to load

    if not (quota := _quota(options)):
        raise click.UsageError("nothing to set: give --outstanding, --rate, --burst or --highest-priority")
    now = with_database(lambda opened: _changed(opened, name, quota))
    told = zip(("outstanding", "rate", "burst", "highest priority"), _cells(now), strict=True)
    click.echo(f"{plain(name)}: {', '.join(f'{what} {value}' for what, value in told)}")


async def _changed(opened: Database, name: str, quota: dict[str, Any]) -> OwnerInfo:
    from headrace.owners import list_owners, set_quota  # noqa: PLC0415 - slow to load

    await set_quota(opened, name, **quota)
    return next(owner for owner in await list_owners(opened) if owner.name == name)


def _cells(owner: OwnerInfo) -> tuple[str, str, str, str]:
    """A quota in words that the options take."""
    return (
        "default" if owner.most_outstanding is None else str(owner.most_outstanding),
        "none" if owner.rate is None else f"{owner.rate:g}",
        "default" if owner.burst is None else str(owner.burst),
        owner.highest_priority,
    )


def _quota(options: dict[str, str | None]) -> dict[str, Any]:
    """What the given options say, by their names in Python: numbers, None for a word, the class."""
    quota: dict[str, Any] = {}
    for name, text in options.items():
        if text is None:
            continue
        if name == "highest_priority":
            quota[name] = text
            continue
        word = _OPTIONS[name][0].partition("|")[2]
        try:
            number = None if text == word else float(text) if name == "rate" else int(text)
        except ValueError:
            kind = "a number" if name == "rate" else "a whole number"
            wrong = f"{text!r} is neither {kind} nor {word!r}"
            raise click.BadParameter(wrong, param_hint=f"--{name}") from None
        quota["most_outstanding" if name == "outstanding" else name] = number
    return quota
