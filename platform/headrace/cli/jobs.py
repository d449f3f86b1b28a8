"""`headrace jobs`."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_args

import click
from rich_click import RichCommand, RichGroup

from headrace.cli._remote import connected, outage, site_options
from headrace.cli.output import columns, on_one_line, one_line, show
from headrace.domain import FINAL, State

if TYPE_CHECKING:
    from headrace.client import Client, Job

F = TypeVar("F", bound=Callable[..., Any])

_PAGE: Final = 100


class _JobId(click.ParamType[str]):
    """A UUID, told apart from a slip of the finger before anybody is asked."""

    name = "id"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return str(uuid.UUID(value))
        except ValueError:
            self.fail(f"{value!r} is no job id: `headrace jobs list` shows them", param, ctx)


_JOB_ID: Final = _JobId()


def _list_options(command: F) -> F:
    for option in (
        site_options,
        click.option("--json", "as_json", is_flag=True, help="Print a JSON array of whole jobs."),
        click.option("--cursor", help="Go on where another list ended."),
        click.option(
            "--limit", type=click.IntRange(1), default=20, show_default=True, help="How many at most."
        ),
    ):
        command = option(command)
    return command


@click.group(cls=RichGroup)
def jobs() -> None:
    """List, show, follow, cancel and retry jobs, those of the key's owner."""


@jobs.command("list", cls=RichCommand)
@click.option("--status", type=click.Choice(get_args(State)), help="Only jobs in this state.")
@click.option("--function", help="Only jobs of this function.")
@_list_options
def list_(status: str | None, function: str | None, as_json: bool, **listed: Any) -> None:
    """List jobs, the newest first."""
    from headrace.cli._jobs import rows  # noqa: PLC0415 - slow to load
    from headrace.cli._table import fitted, time_of_day  # noqa: PLC0415

    found, cursor = _listed(status=status, function=function, **listed)
    if as_json:
        show(found)
    else:
        head = ("JOB", "FUNCTION", "STATUS", "ATTEMPT", "CREATED", "FINISHED")
        shorten = {"FINISHED": time_of_day}
        drop = ("FINISHED", "ATTEMPT", "CREATED")
        told = fitted(head, rows(found), columns(sys.stdout), shorten=shorten, drop=drop, cut="FUNCTION")
        click.echo(told)
    _tell_of_more(listed["limit"], cursor)


@jobs.command(cls=RichCommand)
@click.option("--function", help="Only jobs of this function.")
@click.option("--category", metavar="CODE", help="Only jobs whose error is of this category.")
@_list_options
def dead(as_json: bool, **listed: Any) -> None:
    """List dead letters, the newest first: jobs that failed or expired and weren't retried."""
    from headrace.cli._jobs import dead_rows  # noqa: PLC0415 - slow to load
    from headrace.cli._table import fitted, time_of_day  # noqa: PLC0415

    found, cursor = _listed(dead=True, **listed)
    if as_json:
        show(found)
    else:
        head = ("JOB", "FUNCTION", "STATUS", "CATEGORY", "FINISHED", "MESSAGE")
        shorten = {"FINISHED": time_of_day}
        drop = ("FINISHED", "STATUS", "FUNCTION")
        click.echo(
            fitted(head, dead_rows(found), columns(sys.stdout), shorten=shorten, drop=drop, cut="MESSAGE")
        )
    _tell_of_more(listed["limit"], cursor)


@jobs.command("show", cls=RichCommand)
@click.argument("job_id", metavar="ID", type=_JOB_ID)
@click.option("--json", "as_json", is_flag=True, help="Print the job as JSON.")
@site_options
def show_(job_id: str, as_json: bool, url: str | None, key: str | None) -> None:
    """Show how the job ID stands."""
    from headrace.cli._jobs import lines  # noqa: PLC0415 - slow to load

    with connected(url, key) as client:
        job = client.job(job_id)
    if as_json:
        show(job)
    else:
        click.echo("\n".join(lines(job, columns(sys.stdout))))


@jobs.command(cls=RichCommand)
@click.argument("job_id", metavar="ID", type=_JOB_ID)
@click.option("--json", "as_json", is_flag=True, help="Print each event as a line of JSON, the result last.")
@site_options
def follow(job_id: str, as_json: bool, url: str | None, key: str | None) -> None:
    """Wait for the job ID: tell how it goes on, then print its result.

    Ends with 0 when the job succeeded, else with 1. Ctrl-C stops the waiting, not the job.
    """
    from headrace.cli._jobs import failure  # noqa: PLC0415 - slow to load

    with connected(url, key) as client:
        try:
            job = _watch(client, job_id, as_json)
        except KeyboardInterrupt:
            if sys.stderr.isatty():
                click.echo(err=True)  # after its own ^C
            click.echo(f"headrace: the job goes on; `headrace jobs follow {job_id}` waits again", err=True)
            sys.exit(130)
        if job["status"] == "succeeded":
            if not as_json:
                show(client.result(job_id))
            return
    for line in failure(job):
        click.echo(line, err=True)
    sys.exit(1)


@jobs.command(cls=RichCommand)
@click.argument("job_ids", metavar="ID...", type=_JOB_ID, nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print each job as a line of JSON.")
@site_options
def cancel(job_ids: tuple[str, ...], as_json: bool, url: str | None, key: str | None) -> None:
    """Cancel the jobs with these IDs, and print how each stands then.

    A running one is told to stop and is `cancel_requested` until it has.
    """
    sys.exit(_each(job_ids, url, key, lambda client, job_id: _cancelled(client, job_id, as_json)))


def _cancelled(client: Client, job_id: str, as_json: bool) -> str:
    job = client.cancel(job_id)
    return on_one_line(job) if as_json else f"{job_id} {job['status']}"


@jobs.command(cls=RichCommand)
@click.argument("job_ids", metavar="ID...", type=_JOB_ID, nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print each new job as a line of JSON.")
@site_options
def retry(job_ids: tuple[str, ...], as_json: bool, url: str | None, key: str | None) -> None:
    """Have the jobs with these IDs done again, and print the ID of each new one.

    Only jobs that failed, expired or were cancelled; each once: again, it is the same new job.
    """
    sys.exit(_each(job_ids, url, key, lambda client, job_id: _retried(client, job_id, as_json)))


def _retried(client: Client, job_id: str, as_json: bool) -> str:
    job = client.retry(job_id)
    return on_one_line(job) if as_json else job["job_id"]


@jobs.command(cls=RichCommand)
@click.argument("job_id", metavar="ID", type=_JOB_ID)
@click.option("--json", "as_json", is_flag=True, help="Print each event as a line of JSON.")
@site_options
def events(job_id: str, as_json: bool, url: str | None, key: str | None) -> None:
    """Show the states that the job ID has gone through so far, with when, by whom and why."""
    from headrace.cli._jobs import on_a_line, recorded, transitions  # noqa: PLC0415 - slow to load
    from headrace.cli._table import fitted, short_id, time_of_day  # noqa: PLC0415

    with connected(url, key) as client:
        found = recorded(client, job_id)
    if as_json:
        for event in found:
            click.echo(on_a_line(event))
        return
    told = fitted(
        ("AT", "FROM", "TO", "ATTEMPT", "WHO", "WHY"),
        transitions(event.data for event in found),
        columns(sys.stdout),
        shorten={"WHO": short_id, "AT": time_of_day},
        drop=("FROM",),
        cut="WHY",
    )
    click.echo(told)


def _each(job_ids: Sequence[str], url: str | None, key: str | None, do: Callable[[Client, str], str]) -> int:
    """Print what comes of each job; 1 where one was refused."""
    from headrace.client import CallRefused  # noqa: PLC0415 - slow to load

    refused = 0
    with connected(url, key) as client:
        for job_id in job_ids:
            try:
                click.echo(do(client, job_id))
            except CallRefused as refusal:
                if refusal.status not in {404, 409}:  # these are about this job alone
                    raise
                click.echo(f"headrace: {job_id}: {refusal}", err=True)
                refused = 1
    return refused


def _listed(
    *, limit: int, cursor: str | None, url: str | None, key: str | None, **filters: Any
) -> tuple[list[Job], str | None]:
    """At most so many jobs, and the cursor of what follows them."""
    found: list[Job] = []
    with connected(url, key) as client:
        while len(found) < limit:
            page = client.jobs(limit=min(limit - len(found), _PAGE), cursor=cursor, **filters)
            found += page.items
            if (cursor := page.cursor) is None:
                break
    return found, cursor


def _tell_of_more(limit: int, cursor: str | None) -> None:
    if cursor is not None:
        click.echo(f"more: --limit {2 * limit}, or --cursor {cursor} for what follows", err=True)


def _watch(client: Client, job_id: str, as_json: bool) -> Job:
    """The job as it ended, after its way has been told: to a person what is news, to a program everything."""
    from headrace.cli._jobs import on_a_line, step, with_result  # noqa: PLC0415 - slow to load
    from headrace.cli.progress import Progress  # noqa: PLC0415

    job = client.job(job_id)
    if job["status"] in FINAL and not as_json:
        return job
    if as_json:
        for event in client.events(job_id, on_outage=lambda error: click.echo(outage(error), err=True)):
            click.echo(on_a_line(with_result(client, job_id, event)))
        return client.job(job_id)
    room = columns(sys.stderr)
    with Progress(job["status"]) as progress:
        for event in client.events(job_id, on_outage=lambda error: progress.tell(outage(error))):
            if text := step(event):
                # The spinner takes two characters.
                progress.tell(one_line(text, room and room - 2))
    return client.job(job_id)
