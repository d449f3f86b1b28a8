"""What commands share that speak to a gateway: its address, the key, and how a refusal is told."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from headrace.cli.output import one_line, plain

if TYPE_CHECKING:
    from headrace.client import CallRefused, Client, ClientError

_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Target:
    """Where a request goes, and with which key."""

    url: str
    key: str
    key_source: str
    missing: str = "none is given"
    is_local: bool = False


def site_options(command: _F) -> _F:
    """Add `--url` and `--key`; both are handed to `connected`."""
    command = click.option(
        "--key",
        envvar="HEADRACE_KEY",
        help="An API key, or HEADRACE_KEY; by default this home's, which is never sent to a given --url.",
    )(command)
    return click.option(
        "--url",
        envvar="HEADRACE_URL",
        callback=_check_url,
        help="The site's address, or HEADRACE_URL; by default this home's. It needs a --key of that site.",
    )(command)


@contextmanager
def connected(url: str | None, key: str | None) -> Generator[Client]:
    """A client of the site; a refusal in here is told with what can be done, and ends the command with 1."""
    from headrace.client import CallRefused, Client, Unreachable  # noqa: PLC0415 - slow to load

    source = _source_of_key()
    target = _given(url, key, source) if url else _local(key, source)
    try:
        with Client(target.url, target.key) as client:
            yield client
    except CallRefused as refusal:
        for line in explain(refusal, target):
            click.echo(line, err=True)
        sys.exit(1)
    except Unreachable as error:
        if not target.is_local or "refused" not in str(error):
            raise
        raise Unreachable(f"{error}: is `headrace up` running?") from None


def outage(error: ClientError) -> str:
    """A line, indented so that it stays, about a site that is waited for."""
    from headrace.client import PATIENCE_S, Unreachable  # noqa: PLC0415 - slow to load

    said = "the gateway does not answer" if isinstance(error, Unreachable) else str(error)
    return f"  {one_line(said, None)}, waiting up to {PATIENCE_S:.0f} s"


def explain(refusal: CallRefused, target: Target) -> list[str]:
    """Lines for people: what was refused, each fault, and what can be done."""
    from headrace.cli._advice import advice  # noqa: PLC0415 - slow to load

    if not refusal.code:
        return [f"headrace: the server at {target.url} is not a Headrace gateway (HTTP {refusal.status})"]
    lines = [f"headrace: {_heading(refusal, target)}", *_faults(refusal)]
    if known := advice(refusal.code, refusal.retry_after):
        lines.append(f"  {known}")
    if request := refusal.problem.get("request_id"):
        lines.append(f"  request id: {request}")
    return [plain(line) for line in lines]


def _check_url(_context: click.Context, _option: click.Parameter, url: str | None) -> str | None:
    if url and not url.lower().startswith(("http://", "https://")):
        raise click.BadParameter(f"{url!r} is no address: write it like http://127.0.0.1:8000")
    return url


def _source_of_key() -> str:
    """Where the key of the running command came from, if one was given."""
    from click.core import ParameterSource  # noqa: PLC0415 - only here

    given = click.get_current_context().get_parameter_source("key")
    return "the key in HEADRACE_KEY" if given is ParameterSource.ENVIRONMENT else "the key given by --key"


def _given(url: str, key: str | None, source: str) -> Target:
    """A key of the local home is never sent to an address that somebody gave."""
    return Target(url.rstrip("/"), key or "", source)


def _local(key: str | None, source: str) -> Target:
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
        return Target(url, key, source, is_local=True)
    path = key_path(settings.home)
    found = read_key(settings.home) or ""
    return Target(url, found, f"the key in {path}", f"there is none in {path}", is_local=True)


def _heading(refusal: CallRefused, target: Target) -> str:
    if refusal.code == "invalid-key":
        return f"{target.key_source} is not valid for {target.url}"
    if refusal.code == "missing-key" and not target.key:
        return f"{target.url} asks for a key, but {target.missing}"
    return str(refusal.problem.get("title")) if len(_errors(refusal)) > 1 else str(refusal)


def _faults(refusal: CallRefused) -> list[str]:
    """A line for each of several faults; the detail has said a single one."""
    errors = _errors(refusal)
    if len(errors) == 1 and str(errors[0].get("message")) in str(refusal):
        return []
    return [f"  {': '.join(str(part) for part in error.values() if part)}" for error in errors]


def _errors(refusal: CallRefused) -> list[dict[str, Any]]:
    return refusal.problem.get("errors") or []
