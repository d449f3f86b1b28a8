"""`headrace debug`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click
from rich_click import RichCommand, RichGroup

if TYPE_CHECKING:
    from headrace.database import Database
    from headrace.runner_requests import Holder, Standing


@click.group(cls=RichGroup)
def debug() -> None:
    """Look into what runs."""


@debug.command(cls=RichCommand)
@click.argument("job", metavar="JOB", type=click.UUID)
@click.option("--all", "every", is_flag=True, help="Show all threads whole, the executor's own too.")
@click.option("--json", "as_json", is_flag=True, help="Print all of it as JSON.")
def stack(job: UUID, every: bool, as_json: bool) -> None:
    """Show where a running job or direct call is, and why it isn't ending.

    JOB is the id of a job, or of a direct call, which the runner's log names. The stacks hold names of files
    and functions, and no values.
    """
    import msgspec  # noqa: PLC0415 - slow to load

    from headrace.cli._site import with_database  # noqa: PLC0415
    from headrace.cli._standing import described  # noqa: PLC0415
    from headrace.cli.output import columns, show  # noqa: PLC0415

    runner_id, standing = with_database(lambda opened: _find(opened, str(job)))
    if as_json:
        document: dict[str, Any] = {"runner_id": runner_id, **msgspec.to_builtins(standing)}
        show(document)
    else:
        click.echo(described(runner_id, standing, columns(sys.stdout), every=every))


async def _find(database: Database, job_id: str) -> tuple[str, Standing]:
    """How the call stands, and in which runner.

    Raises:
        HeadraceError: it isn't running, or whoever runs it doesn't say.
    """
    from headrace import registry, runner_requests  # noqa: PLC0415 - slow to load
    from headrace.cli._table import short_id  # noqa: PLC0415
    from headrace.errors import HeadraceError  # noqa: PLC0415

    held = await runner_requests.holder(database, job_id)
    if held is not None and held.session_id is None:
        raise HeadraceError(f"job {job_id} doesn't run: {_resting(held)}")
    if held is not None and held.session_id is not None:
        asked = [held.session_id]
    else:
        asked = [one.runner_id for one in (await registry.load(database)).runners]
    answers = await runner_requests.ask_stack(database, asked, job_id)
    for runner_id, standing in answers.items():
        if standing is not None:
            return runner_id, standing
    silent = " ".join(short_id(runner_id) for runner_id in asked if runner_id not in answers)
    if silent:
        who = "the runner of the job," if held else "of the runners,"
        raise HeadraceError(
            f"{who} {silent} didn't answer within {runner_requests.ANSWERED_WITHIN_S:g} s: "
            "frozen, lost, or without its connection to Postgres"
        )
    if held is not None:
        raise HeadraceError(f"runner {short_id(asked[0])} doesn't run job {job_id} any more: ask again")
    raise HeadraceError(
        f"no job and no running call is named {job_id}: of a direct call that has ended, only logs tell"
    )


def _resting(held: Holder) -> str:
    if held.state == "queued":
        return f"it waits in the lane of {held.function}; `headrace status` shows the lane"
    return f"it is {held.state}; `headrace jobs show ID` says more"
