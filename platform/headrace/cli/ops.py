"""`headrace ops`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from rich_click import RichCommand, RichGroup

from headrace.cli._category import Category
from headrace.cli._duration import Duration

if TYPE_CHECKING:
    from headrace.database import Database
    from headrace.ledger.bulk import Apply, Command, Selection, Tally

F = TypeVar("F", bound=Callable[..., Any])

_DONE: Final = {"cancel": "cancelled", "retry": "retried", "move": "moved"}
_ALIVE_S: Final = 10.0
"""A runner that was seen so lately lives."""


@click.group(cls=RichGroup)
def ops() -> None:
    """Operate on jobs of all owners, many at a time: cancel, retry or move them, list dead letters.

    They work in the database, in small steps: a command that was interrupted is given again, and goes on.
    """


def _filters(*states: str, function: bool = True, category: bool = False) -> Callable[[F], F]:
    """Add the options that pick jobs."""

    def add(command: F) -> F:
        older = "Only jobs that were accepted so long ago, such as 90s, 30m, 1h, 2d."
        command = click.option("--older", type=Duration(), metavar="TIME", help=older)(command)
        command = click.option("--batch", type=click.UUID, metavar="ID", help="Only jobs of this batch.")(
            command
        )
        if category:
            why = "Only jobs whose error is of this category."
            command = click.option("--category", type=Category(), metavar="CODE", help=why)(command)
        if states:
            chosen = click.Choice(states)
            command = click.option("--status", type=chosen, help="Only jobs in this state.")(command)
        command = click.option("--owner", metavar="NAME", help="Only jobs of this owner.")(command)
        if function:
            command = click.option("--function", metavar="NAME", help="Only jobs of this function.")(command)
        return command

    return add


def _bulk(command: F) -> F:
    """Add the options of commands that change jobs."""
    command = click.option("--yes", is_flag=True, help="Don't ask.")(command)
    command = click.option("--all", "every", is_flag=True, help="All jobs, where no filter is given.")(
        command
    )
    return click.option("--limit", type=click.IntRange(1), help="At most so many, the oldest first.")(command)


@ops.command(cls=RichCommand)
@_filters("queued", "running")
@_bulk
def cancel(limit: int | None, every: bool, yes: bool, **filters: Any) -> None:
    """Cancel jobs: those that wait at once, those that run as soon as they have stopped."""
    from headrace.ledger import bulk  # noqa: PLC0415 - slow to load

    selection = _selection(filters, every)
    _carry_out(bulk.Command("cancel", selection, bulk.cancel_these), limit, yes=yes)


@ops.command(cls=RichCommand)
@_filters("failed", "expired", "cancelled", category=True)
@_bulk
def retry(limit: int | None, every: bool, yes: bool, **filters: Any) -> None:
    """Do jobs again that failed or expired, or with `--status cancelled` were cancelled; each once.

    The new jobs are held to the quotas of their owners and the bounds of their functions; what is refused now
    can be retried by the same command later.
    """
    from headrace.cli._site import with_database  # noqa: PLC0415 - slow to load
    from headrace.ledger import bulk  # noqa: PLC0415

    selection = _selection(filters, every)
    apply = with_database(_retrying)
    _carry_out(bulk.Command("retry", selection, apply), limit, yes=yes)


@ops.command(cls=RichCommand)
@click.option("--function", required=True, metavar="NAME", help="The function that they wait for.")
@click.option("--to", "target", required=True, metavar="NAME", help="The one that is to execute them.")
@_filters(function=False)
@_bulk
def move(target: str, limit: int | None, every: bool, yes: bool, **filters: Any) -> None:
    """Have another function of the same inputs and outputs execute jobs that wait.

    They keep their deadlines, their attempts and their cost, and go behind what their owners have there.
    """
    from headrace.cli._site import with_database  # noqa: PLC0415 - slow to load
    from headrace.ledger import bulk  # noqa: PLC0415

    source = filters["function"]
    selection = _selection(filters, every)
    interface = with_database(lambda opened: _shared_interface(opened, source, target))
    apply = bulk.move_to(source, target)
    _carry_out(bulk.Command("move", selection, apply, interface, {"to": target}), limit, yes=yes)


@ops.command(cls=RichCommand)
@_filters("failed", "expired", category=True)
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="How many at most.")
@click.option("--json", "as_json", is_flag=True, help="Print each job as a line of JSON.")
def dead(limit: int, as_json: bool, **filters: Any) -> None:
    """List dead letters, the newest first: jobs that failed or expired and weren't retried."""
    import msgspec  # noqa: PLC0415 - slow to load

    from headrace.cli._site import with_database  # noqa: PLC0415
    from headrace.cli._table import fitted, moment, short_id, time_of_day  # noqa: PLC0415
    from headrace.cli.output import columns, on_one_line, plain  # noqa: PLC0415
    from headrace.ledger import bulk  # noqa: PLC0415

    selection = _selection(filters, every=True)
    found = with_database(lambda opened: bulk.dead(opened, selection, limit))
    if not found:
        _tell_of_unknown_function(selection)
    if as_json:
        for one in found:
            click.echo(on_one_line(msgspec.to_builtins(one)))
        return
    rows = [
        (
            one.job_id,
            plain(one.owner),
            one.function,
            one.state,
            one.category,
            moment(one.finished_at),
            plain(one.message),
        )
        for one in found
    ]
    told = fitted(
        ("JOB", "OWNER", "FUNCTION", "STATUS", "CATEGORY", "FINISHED", "MESSAGE"),
        rows,
        columns(sys.stdout),
        shorten={"FINISHED": time_of_day, "JOB": short_id},
        drop=("FINISHED", "STATUS", "OWNER"),
        cut="MESSAGE",
    )
    click.echo(told)


def _selection(filters: dict[str, Any], every: bool) -> Selection:
    """What the options pick.

    Raises:
        click.UsageError: none is given, and all weren't asked for.
    """
    from headrace.ledger.bulk import Selection  # noqa: PLC0415 - slow to load

    picked = Selection(
        function=filters.get("function"),
        owner=filters["owner"],
        state=filters.get("status"),
        category=filters.get("category"),
        batch_id=str(filters["batch"]) if filters["batch"] else None,
        older_s=filters["older"],
    )
    if picked == Selection() and not every:
        raise click.UsageError("that would be all jobs: give a filter, or --all")
    return picked


def _carry_out(command: Command, limit: int | None, *, yes: bool) -> None:
    """Say how many jobs match, ask, and do it."""
    from headrace.audit import operator  # noqa: PLC0415 - slow to load
    from headrace.cli._site import with_database  # noqa: PLC0415
    from headrace.cli.progress import Progress  # noqa: PLC0415
    from headrace.ledger import bulk  # noqa: PLC0415

    found = with_database(
        lambda opened: bulk.find(opened, command.kind, command.selection, command.interface)
    )
    most = found.matching if limit is None else min(limit, found.matching)
    click.echo(f"{_jobs(found.matching)} match{'es' if found.matching == 1 else ''}", err=True)
    if not most:
        _tell_of_unknown_function(command.selection)
        return
    what = _jobs(most) if most == found.matching else f"the {most} oldest"
    if not yes and not _agrees(f"{command.kind.capitalize()} {what}?"):
        click.echo("headrace: nothing was done", err=True)
        sys.exit(1)
    done = _DONE[command.kind]

    async def carry_out(opened: Database, progress: Progress) -> Tally:
        def tell(tally: Tally) -> None:
            progress.tell(f"{done} {tally.changed}, looked at {tally.seen} of {most}")

        return await bulk.run(opened, command, found, actor=operator(), limit=limit, tell=tell)

    try:
        with Progress() as progress:
            tally = with_database(lambda opened: carry_out(opened, progress))
    except KeyboardInterrupt:
        click.echo("headrace: stopped; the same command goes on", err=True)
        raise
    click.echo(f"{done} {_jobs(tally.changed)}")
    refused = +tally.refused
    for reason, count in sorted(refused.items()):
        click.echo(f"headrace: {_jobs(count)} refused for now: {reason}", err=True)
    sys.exit(1 if refused else 0)


def _agrees(question: str) -> bool:
    """Ask; where there is nobody to answer, that is a no."""
    try:
        return click.confirm(question, err=True)
    except click.Abort as end:
        if isinstance(end.__context__, EOFError):
            click.echo(err=True)  # the question's line has no other end
            return False
        raise  # Ctrl-C


def _tell_of_unknown_function(selection: Selection) -> None:
    """Say, of what nothing has matched, that no function is called so."""
    from headrace import registry  # noqa: PLC0415 - slow to load
    from headrace.cli._site import with_database  # noqa: PLC0415

    name = selection.function
    if name is not None and name not in with_database(registry.load).registered:
        click.echo(f"headrace: there is no function {name!r}: see `headrace functions`", err=True)


async def _retrying(opened: Database) -> Apply:
    """What does jobs again that a runner would execute: one that lives, or did within their queue budget."""
    from headrace import registry  # noqa: PLC0415 - slow to load
    from headrace.ledger.bulk import retry_with  # noqa: PLC0415
    from headrace.ledger.retrying import Original, bounds_of  # noqa: PLC0415
    from headrace.settings import load_settings  # noqa: PLC0415

    settings, known = load_settings(), await registry.load(opened)

    def is_served(old: Original) -> bool:
        ago = known.last_seen.get((old.function, old.interface), float("inf"))
        return old.function in known.functions and ago <= max(old.queue_s, _ALIVE_S)

    return retry_with(bounds_of(settings), is_served)


async def _shared_interface(opened: Database, source: str, target: str) -> str:
    """The interface of the function `target`, which that of `source` must be too, where it is in service."""
    from headrace import registry  # noqa: PLC0415 - slow to load
    from headrace.errors import HeadraceError  # noqa: PLC0415

    known = (await registry.load(opened)).functions
    if target not in known:
        raise HeadraceError(f"there is no function {target!r} in service: see `headrace functions`")
    if source == target:
        raise HeadraceError("the jobs are there already")
    interface = known[target].interface
    if source in known and known[source].interface != interface:
        raise HeadraceError(f"{source} and {target} don't have the same inputs and outputs")
    return interface


def _jobs(count: int) -> str:
    return f"{count} job{'' if count == 1 else 's'}"
