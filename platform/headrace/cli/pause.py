"""`headrace pause`."""

from __future__ import annotations

import click
from rich_click import RichCommand

from headrace.cli._duration import Duration


@click.command(cls=RichCommand)
@click.argument("function", required=False)
@click.option("--reason", default="", help="Why; callers are told.")
@click.option(
    "--retry-after",
    type=Duration(),
    metavar="TIME",
    help="When callers should come back at the latest, such as 90s, 10m; 30s by default, 10m at most.",
)
def pause(function: str | None, reason: str, retry_after: float | None) -> None:
    """Take nothing new of FUNCTION, or of the whole site: calls, jobs and batches get 503.

    What was accepted goes on, and results can be fetched. Gateways follow at once; `headrace status` shows
    what is paused, and `headrace resume` ends it. Given again, it replaces the reason and the time.
    """
    from headrace import intake  # noqa: PLC0415 - slow to load
    from headrace.cli._site import with_database  # noqa: PLC0415
    from headrace.database import Database  # noqa: PLC0415
    from headrace.errors import HeadraceError  # noqa: PLC0415

    async def work(opened: Database) -> intake.Intake | None:
        known = await intake.pause(opened, function, reason=reason, retry_after_s=retry_after)
        return await intake.load(opened) if known else None

    if (now := with_database(work)) is None:
        raise HeadraceError(f"there is no function {function!r}: see `headrace functions`")
    whose = "at this site" if function is None else f"of {function}"
    click.echo(f"nothing new is taken {whose}; what was accepted goes on")
    if function is None and now.open:
        click.echo(f"resumed before, and open still: {', '.join(sorted(now.open))}")
