"""`headrace models`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal

import click
from rich_click import RichCommand, RichGroup

from headrace.cli import _model_files

if TYPE_CHECKING:
    from headrace.capacity import Report
    from headrace.database import Database

_LOOK_EVERY_S: Final = 0.25
_NEWS_AFTER_S: Final = 2.5
"""So long after a request a report that was sent before it is no longer the last one."""


@click.group(cls=RichGroup, invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print all of it as JSON.")
@click.pass_context
def models(context: click.Context, as_json: bool) -> None:
    """Show which models are loaded where, and how much memory they take; load or unload one, or fetch it."""
    if context.invoked_subcommand is None:
        _list(as_json=as_json)
    elif as_json:
        raise click.UsageError("--json is for the list: leave it out")


def _list(*, as_json: bool) -> None:
    from headrace import registry  # noqa: PLC0415 - slow to load
    from headrace.cli._models import document, listed  # noqa: PLC0415
    from headrace.cli._site import with_database  # noqa: PLC0415
    from headrace.cli.output import columns, show  # noqa: PLC0415

    reports = with_database(registry.reports)
    if as_json:
        show(document(reports))
    else:
        click.echo(listed(reports, columns(sys.stdout)))


@models.command(cls=RichCommand)
@click.argument("name", metavar="MODEL|FUNCTION")
@click.option("--runner", metavar="RUNNER", help="Only there: its id, or the part that `status` shows.")
@click.option("--wait/--no-wait", default=True, help="Wait until it is loaded, or has failed (the default).")
def load(name: str, runner: str | None, wait: bool) -> None:
    """Load a model, or all that a function uses, in an executor of each runner that serves it.

    One that could not be loaded is tried again. To make room, idle models are unloaded, those in use never.
    """
    from headrace.cli._site import with_database  # noqa: PLC0415 - slow to load

    with_database(lambda opened: _change(opened, "load", name, runner, wait=wait))


@models.command(cls=RichCommand)
@click.argument("name", metavar="MODEL|FUNCTION")
@click.option("--runner", metavar="RUNNER", help="Only there: its id, or the part that `status` shows.")
def unload(name: str, runner: str | None) -> None:
    """Unload a model, or all that a function uses, until a call wants it again.

    One in use is unloaded when its calls have ended; others that want it start after that, and load it again.
    """
    from headrace.cli._site import with_database  # noqa: PLC0415 - slow to load

    with_database(lambda opened: _change(opened, "unload", name, runner, wait=False))


async def _change(
    database: Database, kind: Literal["load", "unload"], name: str, runner: str | None, *, wait: bool
) -> None:
    """Ask each runner in turn, and tell what each says.

    Raises:
        HeadraceError: the name means nothing, or a runner can't do it; the others are asked all the same.
    """
    from headrace import runner_requests  # noqa: PLC0415 - slow to load
    from headrace.cli._models import said, wanted_models  # noqa: PLC0415
    from headrace.errors import HeadraceError  # noqa: PLC0415

    reports = await _reports_of(database, runner)
    failures: list[str] = []
    for model, runner_ids in wanted_models(reports, name).items():
        answers = await runner_requests.ask_model(database, kind, runner_ids, model)
        for runner_id in runner_ids:
            answer = answers.get(runner_id)
            try:
                click.echo(said(model, runner_id, answer))
                if wait and answer is not None and answer.outcome == "loading":
                    await _until_loaded(database, model, runner_id)
            except HeadraceError as error:
                failures.append(str(error))
    if failures:
        raise HeadraceError("\n".join(failures))


async def _reports_of(database: Database, runner: str | None) -> Mapping[str, Report]:
    """Of all runners that live, or of the one that is named.

    Raises:
        HeadraceError: none is named so, or it has told nothing yet.
    """
    from headrace import registry  # noqa: PLC0415 - slow to load
    from headrace.cli._runners import named  # noqa: PLC0415

    reports = await registry.reports(database)
    if runner is None:
        return reports
    runner_id = named((await registry.load(database)).runners, runner).runner_id
    return {runner_id: reports[runner_id]} if runner_id in reports else {}


async def _until_loaded(database: Database, model: str, runner_id: str) -> None:
    """Follow a load to its end.

    Raises:
        HeadraceError: it has failed, or there was no room in time.
    """
    import asyncio  # noqa: PLC0415 - slow to load
    import time  # noqa: PLC0415

    from headrace import registry  # noqa: PLC0415
    from headrace.cli._models import end_of_load  # noqa: PLC0415

    began = time.monotonic()
    while True:
        report = (await registry.reports(database)).get(runner_id)
        is_news = time.monotonic() - began > _NEWS_AFTER_S
        if (end := end_of_load(model, runner_id, report, is_news=is_news)) is not None:
            click.echo(end)
            return
        await asyncio.sleep(_LOOK_EVERY_S)


for _command in (_model_files.fetch, _model_files.cached, _model_files.verify):
    models.add_command(_command)
