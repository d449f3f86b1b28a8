"""`headrace status`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import click
from rich_click import RichCommand

if TYPE_CHECKING:
    from headrace.intake import Intake
    from headrace.ledger.status import LaneStatus
    from headrace.registry import Registry

_SILENT_S: Final = 3.0
_RUNNER_HEAD: Final = (
    "RUNNER",
    "POOL",
    "LABELS",
    "STATE",
    "EXECUTORS",
    "LOAD",
    "SEEN",
    "ADDRESS",
    "DEGRADED",
    "FUNCTIONS",
)


@click.command(cls=RichCommand)
@click.option("--json", "as_json", is_flag=True, help="Print all of it as JSON.")
def status(as_json: bool) -> None:
    """Show what is paused, what waits and what runs in each lane, and which runners and gateways live."""
    import asyncio  # noqa: PLC0415 - slow to load

    from headrace.cli.output import columns, show  # noqa: PLC0415

    intake, lanes, registry, gateways = asyncio.run(_read())
    if as_json:
        show({"intake": _intake(intake), **_document(lanes, registry, gateways)})
    else:
        width = columns(sys.stdout)
        parts = [_lanes(lanes, width), _runners(registry, width), _gateways(gateways, width)]
        click.echo("\n\n".join([*_pauses(intake), *parts]))


async def _read() -> tuple[Intake, Sequence[LaneStatus], Registry, Mapping[str, datetime]]:
    from headrace import intake, registry  # noqa: PLC0415 - slow to load
    from headrace.cli._site import database  # noqa: PLC0415
    from headrace.ledger.status import lanes  # noqa: PLC0415
    from headrace.settings import load_settings  # noqa: PLC0415

    async with database(load_settings()) as opened:
        return (
            await intake.load(opened),
            await lanes(opened),
            await registry.load(opened),
            await registry.gateways(opened),
        )


def _intake(intake: Intake) -> dict[str, Any]:
    from headrace.cli._table import moment  # noqa: PLC0415 - slow to load

    return {
        "pauses": [
            {
                "function": pause.function or None,
                "reason": pause.reason,
                "retry_after_s": pause.retry_after_s,
                "paused_at": moment(pause.changed_at),
                "paused_by": pause.changed_by,
            }
            for pause in intake.pauses
        ],
        "open": sorted(intake.open),
    }


def _pauses(intake: Intake) -> list[str]:
    """What is paused, as one part; none where nothing is."""
    from headrace.cli._table import moment  # noqa: PLC0415 - slow to load
    from headrace.cli.output import plain  # noqa: PLC0415

    told: list[str] = []
    for pause in intake.pauses:
        what = f"{pause.function} is paused" if pause.function else "the whole site is paused"
        reason = f": {plain(pause.reason)}" if pause.reason else ""
        told.append(f"{what} since {moment(pause.changed_at)} by {plain(pause.changed_by)}{reason}")
    if intake.open:
        told.append(f"open nonetheless: {', '.join(sorted(intake.open))}")
    return ["\n".join(told)] if told else []


def _document(
    lanes: Sequence[LaneStatus], registry: Registry, gateways: Mapping[str, datetime]
) -> dict[str, Any]:
    from headrace.cli._table import moment  # noqa: PLC0415

    return {
        "lanes": [
            {
                "function": lane.function,
                "waiting": lane.waiting,
                "oldest_s": lane.oldest_s,
                "running": lane.running,
                "runners": lane.runners,
                "most_waiting": lane.most_waiting,
                "most_cost": lane.most_cost,
                "most_age_s": lane.most_age_s,
            }
            for lane in lanes
        ],
        "runners": [
            {
                "runner_id": runner.runner_id,
                "pool": runner.pool,
                "labels": runner.labels,
                "address": runner.address,
                "functions": sorted(runner.interfaces),
                "capacity": registry.capacity[runner.runner_id],
                "seen_at": moment(registry.seen[runner.runner_id]),
                "draining": runner.runner_id in registry.draining,
            }
            for runner in registry.runners
        ],
        "gateways": [{"gateway_id": name, "seen_at": moment(seen)} for name, seen in gateways.items()],
    }


def _lanes(lanes: Sequence[LaneStatus], width: int | None) -> str:
    from headrace.cli._table import fitted  # noqa: PLC0415

    rows = [
        (
            lane.function,
            str(lane.waiting),
            "" if lane.oldest_s is None else f"{lane.oldest_s:.1f} s",
            str(lane.running),
            str(lane.runners),
            _bounds(lane),
        )
        for lane in lanes
    ]
    head = ("LANE", "WAITING", "OLDEST", "RUNNING", "RUNNERS", "BOUNDS")
    return fitted(head, rows, width, drop=("BOUNDS",), cut="LANE")


def _bounds(lane: LaneStatus) -> str:
    """What `headrace functions limit` has set; nothing where all is as the settings say."""
    given = {"waiting": lane.most_waiting, "cost": lane.most_cost, "age": lane.most_age_s}
    return ",".join(f"{name}={value:.10g}" for name, value in given.items() if value is not None)


def _runners(registry: Registry, width: int | None) -> str:
    from headrace.cli._table import fitted, short_id  # noqa: PLC0415
    from headrace.pools import write_labels  # noqa: PLC0415

    if not registry.runners:
        return "no runner lives: start one with `headrace up` or `headrace runner`"
    rows = [
        (
            runner.runner_id,
            runner.pool,
            write_labels(runner.labels),
            "drains" if runner.runner_id in registry.draining else "serves",
            str(registry.capacity[runner.runner_id].get("executors", "")),
            _load(registry.capacity[runner.runner_id]),
            _seen(registry.silent[runner.runner_id]),
            runner.address or "",
            ",".join(sorted(registry.capacity[runner.runner_id].get("degraded", ()))),
            ",".join(sorted(runner.interfaces)),
        )
        for runner in registry.runners
    ]
    drop = ("ADDRESS", "LABELS", "EXECUTORS", "POOL", "DEGRADED")
    return fitted(_RUNNER_HEAD, rows, width, shorten={"RUNNER": short_id}, drop=drop, cut="FUNCTIONS")


def _seen(seconds: float) -> str:
    """How long ago; a live one says so more often than each 3 s."""
    return f"{seconds:.0f} s ago{' (silent)' if seconds > _SILENT_S else ''}"


def _load(capacity: Mapping[str, Any]) -> str:
    """What each function's slots have to do; functions that share slots all say the same."""
    busy = {name: load for name, load in capacity.get("loads", {}).items() if load}
    return ",".join(f"{name}={load}" for name, load in sorted(busy.items())) or "idle"


def _gateways(gateways: Mapping[str, datetime], width: int | None) -> str:
    from headrace.cli._table import fitted, moment, short_id  # noqa: PLC0415

    if not gateways:
        return "no gateway lives: start one with `headrace up` or `headrace gateway`"
    rows = [(name, moment(seen)) for name, seen in gateways.items()]
    return fitted(("GATEWAY", "SEEN"), rows, width, shorten={"GATEWAY": short_id})
