"""`headrace call`."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich_click import RichCommand

if TYPE_CHECKING:
    from headrace.client import CallRefused

_NUMBERS = re.compile(r"\[\s+(-?[\d.eE+-]+(?:,\s+-?[\d.eE+-]+)*)\s+\]")


@dataclass(frozen=True, slots=True)
class _Site:
    """Where a call goes, and with which key."""

    url: str
    key: str
    key_source: str = "the given key"
    missing: str = "none is given"


@click.command(cls=RichCommand)
@click.argument("name")
@click.argument("json_input", metavar="[JSON | - | @FILE]", default="{}")
@click.option("--url", envvar="HEADRACE_URL", help="The site's address; by default the one of this home.")
@click.option("--key", envvar="HEADRACE_KEY", help="An API key; by default the one of this home.")
def call(name: str, json_input: str, url: str | None, key: str | None) -> None:
    """Call the function NAME; the input is JSON, from an argument, standard input (-) or @FILE.

    Prints the answer as JSON: indented for people, on one line for programs.
    """
    from headrace.client import CallRefused, Client, Unreachable  # noqa: PLC0415 - slow to load

    body = _read(json_input)
    site = _given(url, key) if url else _local(key)
    try:
        with Client(site.url, site.key) as client:
            answer = client.call(name, body)
    except CallRefused as refusal:
        for line in _explain(refusal, site):
            click.echo(line, err=True)
        sys.exit(1)
    except Unreachable as error:
        if url or "refused" not in str(error):
            raise
        raise Unreachable(f"{error}: is `headrace up` running?") from None
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


def _given(url: str, key: str | None) -> _Site:
    """A key of the local home is never sent to an address that somebody gave."""
    return _Site(url.rstrip("/"), key or "")


def _local(key: str | None) -> _Site:
    from headrace.embedded.home import no_home  # noqa: PLC0415 - slow to load
    from headrace.settings import load_settings  # noqa: PLC0415
    from headrace.site import running_url  # noqa: PLC0415
    from headrace.site.address import base_url  # noqa: PLC0415
    from headrace.site.key_file import key_path, read_key  # noqa: PLC0415

    settings = load_settings()
    if not key and not settings.home.is_dir():
        raise no_home(settings.home, "HEADRACE_URL and HEADRACE_KEY")
    url = running_url(settings.home) or base_url(settings.host, settings.port)
    if key:
        return _Site(url, key)
    path = key_path(settings.home)
    return _Site(url, read_key(settings.home) or "", f"the key in {path}", f"there is none in {path}")


def _explain(refusal: CallRefused, site: _Site) -> list[str]:
    from headrace.gateway.problem_kinds import KINDS  # noqa: PLC0415 - slow to load

    kind = KINDS.get(refusal.code)
    if not refusal.code:
        return [f"headrace: the server at {site.url} is not a Headrace gateway (HTTP {refusal.status})"]
    lines = [f"headrace: {_heading(refusal, site)}", *_faults(refusal)]
    remedy, seconds = kind.remedy if kind else "", refusal.retry_after
    if seconds is not None:
        known = remedy.replace("`Retry-After` seconds", f"{seconds} s")
        remedy = known if known != remedy else f"{remedy} Try again after {seconds} s.".strip()
    if remedy:
        lines.append(f"  {remedy}")
    if request := refusal.problem.get("request_id"):
        lines.append(f"  request id: {request}")
    return lines


def _heading(refusal: CallRefused, site: _Site) -> str:
    if refusal.code == "invalid-key":
        return f"{site.key_source} is not valid for {site.url}"
    if refusal.code == "missing-key" and not site.key:
        return f"{site.url} asks for a key, but {site.missing}"
    return str(refusal.problem.get("title")) if len(_errors(refusal)) > 1 else str(refusal)


def _faults(refusal: CallRefused) -> list[str]:
    """A line for each of several faults; the detail has said a single one."""
    errors = _errors(refusal)
    if len(errors) == 1 and str(errors[0].get("message")) in str(refusal):
        return []
    return [f"  {': '.join(str(part) for part in error.values() if part)}" for error in errors]


def _errors(refusal: CallRefused) -> list[dict[str, Any]]:
    return refusal.problem.get("errors") or []


def _pretty(answer: object) -> str:
    text = json.dumps(answer, ensure_ascii=False, indent=2)
    # A vector of hundreds of numbers is one line, not hundreds.
    return _NUMBERS.sub(lambda match: "[" + " ".join(match[1].split()) + "]", text)
