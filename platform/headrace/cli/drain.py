"""`headrace drain`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click
from rich_click import RichCommand

if TYPE_CHECKING:
    from headrace.database import Database
    from headrace.registry import Registry
    from headrace.runner_requests import DrainAnswer

_LOOK_EVERY_S: Final = 0.5
_SILENT_S: Final = 3.0


@click.command(cls=RichCommand)
@click.argument("runner", metavar="RUNNER")
@click.option("--wait", is_flag=True, help="Wait until it has left, and say how many calls still run.")
def drain(runner: str, wait: bool) -> None:
    """Have a runner finish what it runs, take nothing new, and end.

    RUNNER is its id, or the part of it that `headrace status` shows. What isn't finished within the runner's
    HEADRACE_DRAIN_SECONDS starts elsewhere, uncharged. `headrace up` doesn't start it again.
    """
    from headrace.cli._site import with_database  # noqa: PLC0415 - slow to load

    with_database(lambda opened: _drain(opened, runner, wait=wait))


async def _drain(database: Database, name: str, *, wait: bool) -> None:
    from headrace import registry, runner_requests  # noqa: PLC0415 - slow to load
    from headrace.cli._runners import named  # noqa: PLC0415
    from headrace.cli._table import short_id  # noqa: PLC0415

    known = await registry.load(database)
    runner_id = named(known.runners, name).runner_id
    answer = await runner_requests.ask_drain(database, runner_id)
    if answer is None:
        await _explain_silence(database, runner_id)
        return
    click.echo(f"runner {short_id(runner_id)} {_begun(answer)}")
    if wait:
        await _until_left(database, runner_id)


def _begun(answer: DrainAnswer) -> str:
    verb = "drains already" if answer.already else "drains"
    if not answer.calls:
        return f"{verb}; nothing runs there"
    calls = _calls(answer.calls)
    if not answer.seconds:
        return f"{verb}; {calls} given back at once"
    return f"{verb}; {calls} may end within {answer.seconds:g} s"


async def _explain_silence(database: Database, runner_id: str) -> None:
    """Say what to do about a runner that hasn't answered, unless that is because it has left.

    Raises:
        HeadraceError: it is there.
    """
    from headrace import registry, runner_requests  # noqa: PLC0415 - slow to load
    from headrace.cli._table import short_id  # noqa: PLC0415
    from headrace.errors import HeadraceError  # noqa: PLC0415

    if await runner_requests.has_left(database, runner_id):
        click.echo(f"runner {short_id(runner_id)} has left")
        return
    silent = (await registry.load(database)).silent.get(runner_id)
    seen = "is silent" if silent is None else f"was seen {silent:.0f} s ago"
    within, valid = runner_requests.ANSWERED_WITHIN_S, runner_requests.DRAIN_VALID_S
    raise HeadraceError(
        f"runner {short_id(runner_id)} hasn't answered within {within:g} s; it {seen}\n"
        f"it may be frozen, or without its connection to Postgres: back within {valid:g} s, it drains\n"
        "if it stays away, end its process by SIGKILL: its jobs start elsewhere"
    )


async def _until_left(database: Database, runner_id: str) -> None:
    """Follow a runner to its end.

    Raises:
        HeadraceError: it fell silent instead of leaving.
    """
    import asyncio  # noqa: PLC0415 - slow to load

    from headrace import registry, runner_requests  # noqa: PLC0415
    from headrace.cli._table import short_id  # noqa: PLC0415
    from headrace.errors import HeadraceError  # noqa: PLC0415

    told = ""
    while True:
        known = await registry.load(database)
        if runner_id not in known.capacity:
            break
        now = _progress(known, runner_id)
        if now != told:
            click.echo(now)
            told = now
        await asyncio.sleep(_LOOK_EVERY_S)
    if not await runner_requests.has_left(database, runner_id):
        raise HeadraceError(
            f"runner {short_id(runner_id)} fell silent while it drained: its log may tell why; "
            "its jobs start elsewhere"
        )
    click.echo(f"runner {short_id(runner_id)} has left")


def _progress(known: Registry, runner_id: str) -> str:
    if known.silent[runner_id] > _SILENT_S:
        return "  it is silent"
    calls = known.capacity[runner_id].get("calls", 0)
    return f"  {_calls(calls)} left" if calls else "  nothing runs any more"


def _calls(count: int) -> str:
    return f"{count} call{'' if count == 1 else 's'}"
