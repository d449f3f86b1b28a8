"""`headrace call`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, get_args

import click
from rich_click import RichCommand

from headrace.cli._duration import Duration
from headrace.cli._remote import connected, site_options
from headrace.cli.output import show
from headrace.domain import Priority


@click.command(cls=RichCommand)
@click.argument("name")
@click.argument("json_input", metavar="[JSON | - | @FILE]", default="{}")
@click.option("--async", "as_job", is_flag=True, help="Don't wait: submit a job, and print its id.")
@click.option("--idempotency-key", metavar="TEXT", help="Made again with it, the call is executed once.")
@click.option("--deadline", type=Duration(), metavar="TIME", help="It has to be done within it, as 90s, 5m.")
@click.option("--priority", type=click.Choice(get_args(Priority)), help="How urgent a job is.")
@site_options
def call(
    name: str,
    json_input: str,
    as_job: bool,
    url: str | None,
    key: str | None,
    **wishes: Any,
) -> None:
    """Call the function NAME; the input is JSON, from an argument, standard input (-) or @FILE [default: {}].

    Prints the answer as JSON: indented for people, on one line for programs.
    """
    body = _read(json_input)
    with connected(url, key) as client:
        if not as_job:
            show(client.call(name, body, **wishes))
            return
        job_id = client.submit(name, body, **wishes)["job_id"]
        click.echo(job_id)
        if sys.stderr.isatty():
            click.echo(f"accepted; `headrace jobs follow {job_id}` waits for the result", err=True)


def _read(text: str) -> bytes:
    if text == "-":
        return sys.stdin.buffer.read()
    if text.startswith("@"):
        try:
            return Path(text[1:]).read_bytes()
        except OSError as error:
            raise click.UsageError(f"{text[1:]} can't be read: {error.strerror}") from None
    return text.encode(errors="surrogateescape")
