"""`headrace call`."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich_click import RichCommand

if TYPE_CHECKING:
    from headrace.client import CallRefused

_NUMBERS = re.compile(r"\[\s+(-?[\d.eE+-]+(?:,\s+-?[\d.eE+-]+)*)\s+\]")


@click.command(cls=RichCommand)
@click.argument("name")
@click.argument("json_input", metavar="[JSON | - | @FILE]", default="{}")
@click.option("--url", envvar="HEADRACE_URL", help="The site's address; by default the one of this home.")
@click.option("--key", envvar="HEADRACE_KEY", help="An API key; by default the one of this home.")
def call(name: str, json_input: str, url: str | None, key: str | None) -> None:
    """Call the function NAME; the input is JSON, from an argument, standard input (-) or @FILE.

    Prints the answer as JSON: indented for people, on one line for programs.
    """
    from headrace.client import CallRefused, Client  # noqa: PLC0415 - slow to load

    body = _read(json_input)
    url, key = _site(url, key)
    try:
        with Client(url, key) as client:
            answer = client.call(name, body)
    except CallRefused as refusal:
        for line in _explain(refusal):
            click.echo(line, err=True)
        sys.exit(1)
    click.echo(_pretty(answer) if sys.stdout.isatty() else json.dumps(answer, ensure_ascii=False))


def _read(text: str) -> bytes:
    if text == "-":
        return sys.stdin.buffer.read()
    if text.startswith("@"):
        try:
            return Path(text[1:]).read_bytes()
        except OSError as error:
            raise click.UsageError(f"{text[1:]} can't be read: {error.strerror}") from None
    return text.encode(errors="surrogateescape")


def _site(url: str | None, key: str | None) -> tuple[str, str]:
    """Address and key as given, or else those of the local home; a key is never sent to another's address."""
    if url:
        return url, key or ""
    from headrace.settings import load_settings  # noqa: PLC0415 - slow to load
    from headrace.site import running_url  # noqa: PLC0415
    from headrace.site.address import base_url  # noqa: PLC0415
    from headrace.site.key_file import read_key  # noqa: PLC0415

    settings = load_settings()
    local = running_url(settings.home) or base_url(settings.host, settings.port)
    return local, key or read_key(settings.home) or ""


def _explain(refusal: CallRefused) -> list[str]:
    from headrace.gateway.problem_kinds import KINDS  # noqa: PLC0415 - slow to load

    lines = [f"headrace: {refusal}"]
    errors: list[dict[str, Any]] = refusal.problem.get("errors") or []
    lines += [f"  {' '.join(str(part) for part in error.values() if part)}" for error in errors]
    if kind := KINDS.get(refusal.code):
        lines.append(f"  {kind.remedy}")
    if refusal.retry_after is not None:
        lines.append(f"  Retry-After: {refusal.retry_after} s")
    if request := refusal.problem.get("request_id"):
        lines.append(f"  request id: {request}")
    return lines


def _pretty(answer: object) -> str:
    text = json.dumps(answer, ensure_ascii=False, indent=2)
    # A vector of hundreds of numbers is one line, not hundreds.
    return _NUMBERS.sub(lambda match: "[" + " ".join(match[1].split()) + "]", text)
