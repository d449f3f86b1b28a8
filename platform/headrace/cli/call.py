"""`headrace call`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click
from rich_click import RichCommand

from headrace.cli._duration import Duration
from headrace.cli._remote import connected, outage, site_options
from headrace.cli.output import on_one_line, plain, show
from headrace.domain import Priority

if TYPE_CHECKING:
    from headrace.client import CallRefused, ClientError, Stream


@click.command(cls=RichCommand)
@click.argument("name")
@click.argument("json_input", metavar="[JSON | - | @FILE]", default="{}")
@click.option("--async", "as_job", is_flag=True, help="Don't wait: submit a job, and print its id.")
@click.option("--stream", "as_stream", is_flag=True, help="Print the items of its output as they are made.")
@click.option("--idempotency-key", metavar="TEXT", help="Made again with it, the call is executed once.")
@click.option("--deadline", type=Duration(), metavar="TIME", help="It has to be done within it, as 90s, 5m.")
@click.option("--priority", type=click.Choice(get_args(Priority)), help="How urgent a job is.")
@click.option(
    "--patience",
    type=Duration(),
    default=0.0,
    metavar="TIME",
    help="For so long, come back when the site says, with the place in line, after any 429 or 503 that says "
    "when (no room, a quota, no runner, a pause, Postgres away).",
)
@site_options
def call(
    name: str,
    json_input: str,
    as_job: bool,
    as_stream: bool,
    url: str | None,
    key: str | None,
    patience: float,
    **wishes: Any,
) -> None:
    """Call the function NAME; the input is JSON, from an argument, standard input (-) or @FILE [default: {}].

    Prints the answer as JSON: indented for people, on one line for programs. With --stream each item is a
    line, and Ctrl-C stops the function. With an idempotency key the stream is that of a job: it goes on over
    lost connections, and so does the function after Ctrl-C.
    """
    if as_stream and (as_job or (wishes["priority"] is not None and wishes["idempotency_key"] is None)):
        raise click.UsageError(
            "--stream is of a call that isn't a job: give it none of a job's options, or an --idempotency-key"
        )
    if as_stream and patience:
        raise click.UsageError("--patience is of a call without --stream")
    body = _read(json_input)
    with connected(url, key) as client:
        client.on_wait = _tell_of_wait
        if as_stream:
            wanted = {one: wishes[one] for one in ("idempotency_key", "deadline", "priority")}
            anew = _tell_of_restart if sys.stdout.isatty() else None  # a program would take the items twice
            _show_items(client.stream(name, body, **wanted, on_restart=anew, on_outage=_tell_of_outage))
            return
        if not as_job:
            show(client.call(name, body, patience=patience, **wishes))
            return
        job_id = client.submit(name, body, patience=patience, **wishes)["job_id"]
        click.echo(job_id)
        if sys.stderr.isatty():
            click.echo(f"accepted; `headrace jobs follow {job_id}` waits for the result", err=True)


def _show_items(stream: Stream) -> None:
    """Print each item as a line, or the output of a function that has none."""
    has_items = False
    try:
        for item in stream:
            has_items = True
            click.echo(on_one_line(item))
    except KeyboardInterrupt:
        if stream.job_id:
            follow = f"`headrace jobs follow {stream.job_id}` waits for its result"
            click.echo(f"headrace: the job goes on; {follow}", err=True)
        raise
    if not has_items:
        show(stream.result)


def _tell_of_wait(refusal: CallRefused) -> None:
    if sys.stderr.isatty():
        title = plain(str(refusal.problem.get("title") or "No room"))
        click.echo(f"  {title}: coming back in {refusal.retry_after} s", err=True)


def _tell_of_restart(void: int) -> None:
    click.echo(f"  started again: forget the {void} items above", err=True)


def _tell_of_outage(error: ClientError) -> None:
    click.echo(outage(error), err=True)


def _read(text: str) -> bytes:
    if text == "-":
        return sys.stdin.buffer.read()
    if text.startswith("@"):
        try:
            return Path(text[1:]).read_bytes()
        except OSError as error:
            raise click.UsageError(f"{text[1:]} can't be read: {error.strerror}") from None
    return text.encode(errors="surrogateescape")
