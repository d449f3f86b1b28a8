"""`headrace resume`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from rich_click import RichCommand

if TYPE_CHECKING:
    from headrace.intake import Intake


@click.command(cls=RichCommand)
@click.argument("function", required=False)
def resume(function: str | None) -> None:
    """Take what is new again, after `headrace pause`: of FUNCTION, or of the whole site.

    Of one function also while the site is paused. Functions that were paused by name are resumed by name.
    """
    from headrace import intake  # noqa: PLC0415 - slow to load
    from headrace.cli._site import with_database  # noqa: PLC0415
    from headrace.database import Database  # noqa: PLC0415
    from headrace.errors import HeadraceError  # noqa: PLC0415

    async def work(opened: Database) -> tuple[intake.Resumed, intake.Intake]:
        return await intake.resume(opened, function), await intake.load(opened)

    outcome, now = with_database(work)
    if outcome == "unknown-function":
        raise HeadraceError(f"there is no function {function!r}: see `headrace functions`")
    whose = "at this site" if function is None else f"of {function}"
    again = "was taken already" if outcome == "was-on" else "is taken again"
    click.echo(f"what is new {whose} {again}{_left(function, now)}")


def _left(function: str | None, now: Intake) -> str:
    """What stays paused besides."""
    if function is not None:
        return "; the rest of the site stays paused" if now.site else ""
    return f"; still paused: {', '.join(sorted(now.functions))}" if now.functions else ""
