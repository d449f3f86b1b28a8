"""`headrace audit`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click
from rich_click import RichCommand

if TYPE_CHECKING:
    from headrace.audit import AuditEntry


@click.command(cls=RichCommand)
@click.option("--subject", help="Only changes of this: a key's first characters, a name, an id.")
@click.option("--actor", help="Only changes by this one, such as operator:ada or key:ID.")
@click.option("--action", help="Only changes of this kind, such as key.revoke.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="How many at most.")
@click.option("--json", "as_json", is_flag=True, help="Print each change as a line of JSON.")
def audit(subject: str | None, actor: str | None, action: str | None, limit: int, as_json: bool) -> None:
    """Show who changed what, the newest first: keys, owners, functions, jobs.

    Operators are named as they are logged in on the machine where they gave the command.
    """
    from headrace.audit import ACTIONS, list_audit  # noqa: PLC0415 - slow to load
    from headrace.cli._site import with_database  # noqa: PLC0415
    from headrace.cli._table import fitted, short_id, time_of_day  # noqa: PLC0415
    from headrace.cli.output import columns, on_one_line  # noqa: PLC0415

    found = with_database(
        lambda opened: list_audit(opened, subject=subject, actor=actor, action=action, limit=limit)
    )
    if not found and action is not None and action not in ACTIONS:
        click.echo(f"headrace: there is no action {action!r}: there are {', '.join(ACTIONS)}", err=True)
    if as_json:
        for entry in found:
            click.echo(on_one_line(_document(entry)))
        return
    told = fitted(
        ("AT", "WHO", "ACTION", "SUBJECT", "DETAIL"),
        [_cells(entry) for entry in found],
        columns(sys.stdout),
        shorten={"WHO": short_id, "SUBJECT": short_id, "AT": time_of_day},
        cut="DETAIL",
    )
    click.echo(told)


def _document(entry: AuditEntry) -> dict[str, object]:
    from headrace.cli._table import exact_moment  # noqa: PLC0415 - slow to load

    return {
        "id": entry.id,
        "at": exact_moment(entry.at),
        "actor": entry.actor,
        "action": entry.action,
        "subject": entry.subject,
        "detail": entry.detail,
    }


def _cells(entry: AuditEntry) -> tuple[str, ...]:
    from headrace.cli._table import moment  # noqa: PLC0415 - slow to load
    from headrace.cli.output import on_one_line, plain  # noqa: PLC0415

    detail = on_one_line(entry.detail) if entry.detail else ""
    return moment(entry.at), plain(entry.actor), entry.action, plain(entry.subject), detail
