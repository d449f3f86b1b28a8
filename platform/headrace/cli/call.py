"""`headrace call`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click
from rich_click import RichCommand

from headrace.cli._duration import Duration
from headrace.cli._remote import connected, site_options
from headrace.cli.output import on_one_line, show
from headrace.domain import Priority

if TYPE_CHECKING:
    from headrace.client import Stream


@click.command(cls=RichCommand)
@click.argument("name")
@click.argument("json_input", metavar="[JSON | - | @FILE]", default="{}")
@click.option("--async", "as_job", is_flag=True, help="Don't wait: submit a job, and print its id.")
@click.option("--stream", "as_stream", is_flag=True, help="Print the items of its output as they are made.")
@click.option("--idempotency-key", metavar="TEXT", help="Made again with it, the call is executed once.")
@click.option("--deadline", type=Duration(), metavar="TIME", help="It has to be done within it, as 90s, 5m.")
@click.option("--priority", type=click.Choice(get_args(Priority)), help="How urgent a job is.")
@site_options
def call(
    name: str,
    json_input: str,
    as_job: bool,
    as_stream: bool,
    url: str | None,
    key: str | None,
    **wishes: Any,
) -> None:
    """Call the function NAME; the input is JSON, from an argument, standard input (-) or @FILE [default: {}].

    Prints the answer as JSON: indented for people, on one line for programs. With --stream each item is a
    line, and Ctrl-C stops the function.
    """
    if as_stream and (as_job or wishes["idempotency_key"] is not None or wishes["priority"] is not None):
        raise click.UsageError("--stream is of a call that isn't a job: give it none of a job's options")
    body = _read(json_input)
    with connected(url, key) as client:
        if as_stream:
            _show_items(client.stream(name, body, deadline=wishes["deadline"]))
            return
        if not as_job:
            show(client.call(name, body, **wishes))
            return
        job_id = client.submit(name, body, **wishes)["job_id"]
        click.echo(job_id)
        if sys.stderr.isatty():
            click.echo(f"accepted; `headrace jobs follow {job_id}` waits for the result", err=True)


def _show_items(stream: Stream) -> None:
    """Print each item as a line, or the output of a function that has none."""
    has_items = False
    for item in stream:
        has_items = True
        click.echo(on_one_line(item))
    if not has_items:
        show(stream.result)


def _read(text: str) -> bytes:
    if text == "-":
        return sys.stdin.buffer.read()
    if text.startswith("@"):
        try:
            return Path(text[1:]).read_bytes()
        except OSError as error:
            raise click.UsageError(f"{text[1:]} can't be read: {error.strerror}") from None
    return text.encode(errors="surrogateescape")
