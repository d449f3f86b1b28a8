"""What can be called and who serves it: runners write it, gateways read it.

Starting a runner registers its functions; every gateway hears of it on `CHANNEL` and serves them. A
function stays listed when its last runner leaves. When two runners register different revisions of a
name, gateways serve the newest, or the newest they know whose interface a linked runner has. A retired
function is gone until a runner that starts afterwards registers it again.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec

from headrace import audit
from headrace.capacity import Report
from headrace.database import Database, Jsonb, Row, queries
from headrace.domain import Manifest, RunnerInfo

CHANNEL: Final = "headrace_registry"
"""Notified with `functions`, `runners` or `intake`, whichever changed."""

_log = logging.getLogger(__name__)
_SQL: Final = queries("registry")


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """One reading of the registry.

    Args:
        functions: manifests by name, retired ones left out.
        retired: when a function was retired, by name.
        registered: when a function last changed, by name; retired ones too.
        runners: those seen lately by the database's clock, in the order of their starts.
        draining: the ids of those among them that take nothing new.
        metrics: where to scrape them, by id.
        capacity: what they said with their last heartbeat, by id.
        seen: when that was, by id.
        silent: how many seconds ago that was, by id.
        last_seen: seconds since a runner that serves it was last there, by function and interface.
    """

    functions: Mapping[str, Manifest]
    retired: Mapping[str, datetime]
    registered: Mapping[str, datetime]
    runners: Sequence[RunnerInfo]
    draining: frozenset[str]
    metrics: Mapping[str, str]
    capacity: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    seen: Mapping[str, datetime] = field(default_factory=dict[str, datetime])
    silent: Mapping[str, float] = field(default_factory=dict[str, float])
    last_seen: Mapping[tuple[str, str], float] = field(default_factory=dict[tuple[str, str], float])

    @property
    def serving(self) -> list[RunnerInfo]:
        """The runners that take what is new."""
        return [runner for runner in self.runners if runner.runner_id not in self.draining]


class Heard(NamedTuple):
    """How a heartbeat was received.

    Args:
        known: whether the registry knows the runner; else it must register again.
        reported: whether the registry has a report of it; else the next heartbeat should bring one.
    """

    known: bool
    reported: bool


async def register(
    database: Database,
    runner: RunnerInfo,
    manifests: Sequence[Manifest],
    *,
    metrics_address: str | None = None,
) -> None:
    """Make a runner and its functions known, all or nothing. May be repeated.

    Gateways are told of the runner each time, of functions only when one of them changed.
    """
    await database.fetch(
        _SQL["register"],
        {
            "runner_id": runner.runner_id,
            "address": runner.address,
            "pool": runner.pool,
            "labels": Jsonb(runner.labels),
            "served": Jsonb(runner.interfaces),
            "metrics_address": metrics_address,
            "names": [manifest.name for manifest in manifests],
            "interfaces": [manifest.interface for manifest in manifests],
            "revisions": [manifest.revision for manifest in manifests],
            "manifests": [msgspec.json.encode(manifest) for manifest in manifests],
        },
    )


async def heartbeat(
    database: Database,
    runner_id: str,
    capacity: Mapping[str, Any],
    *,
    draining: bool = False,
    report: bytes | None = None,
) -> Heard:
    """Say that a runner lives; at least every few seconds, as it vanishes after 10 s of silence.

    Args:
        database: an open one.
        runner_id: the runner.
        capacity: what every reading of the registry has; small.
        draining: whether it takes nothing new.
        report: all that it tells of itself, as `capacity.encoded` makes it; None: as the last time.
    """
    rows = await database.fetch(
        _SQL["heartbeat"],
        {
            "runner_id": runner_id,
            "capacity": Jsonb(dict(capacity)),
            "draining": draining,
            "report": report,
        },
    )
    return Heard(rows[0]["known"], rows[0]["reported"])


async def unregister(database: Database, runner_id: str) -> None:
    """Note that a runner leaves; its functions stay listed."""
    await database.fetch(_SQL["unregister"], {"runner_id": runner_id})


async def gateway_seen(database: Database, gateway_id: str) -> int:
    """Say that a gateway lives, as `heartbeat` does for runners.

    Returns:
        How many gateways have said so in the last 10 s, this one among them.
    """
    return (await database.fetch(_SQL["gateway_seen"], {"gateway_id": gateway_id}))[0]["gateways"]


async def load(database: Database) -> Registry:
    """Read everything."""
    functions = await database.fetch(_SQL["functions"])
    runners = await database.fetch(_SQL["runners"])
    last_seen = await database.fetch(_SQL["last_seen"])
    manifests = (_manifest(row) for row in functions if row["retired_at"] is None)
    return Registry(
        functions={manifest.name: manifest for manifest in manifests if manifest is not None},
        retired={row["name"]: row["retired_at"] for row in functions if row["retired_at"] is not None},
        registered={row["name"]: row["registered_at"] for row in functions},
        runners=[
            RunnerInfo(row["runner_id"], row["address"], row["pool"], row["interfaces"], row["labels"])
            for row in runners
        ],
        draining=frozenset(row["runner_id"] for row in runners if row["draining"]),
        metrics={row["runner_id"]: row["metrics_address"] for row in runners if row["metrics_address"]},
        last_seen={(row["function"], row["interface"]): max(0.0, row["seconds"]) for row in last_seen},
        capacity={row["runner_id"]: row["capacity"] for row in runners},
        seen={row["runner_id"]: row["seen_at"] for row in runners},
        silent={row["runner_id"]: max(0.0, row["silent_s"]) for row in runners},
    )


async def reports(database: Database) -> dict[str, Report]:
    """What the runners that live tell of themselves, by id, in the order of their starts."""
    rows = await database.fetch(_SQL["reports"])
    read = ((row["runner_id"], _report(row)) for row in rows)
    return {runner_id: report for runner_id, report in read if report is not None}


async def gateways(database: Database) -> dict[str, datetime]:
    """The gateways that live, as far as is known, with when each was last seen."""
    return {row["gateway_id"]: row["seen_at"] for row in await database.fetch(_SQL["gateways"])}


async def retire(database: Database, name: str, *, actor: str | None = None) -> bool:
    """Take a function out of service; False when none of that name is in service.

    Calls of it are answered 410. A runner that registers the name afterwards brings it back.

    Args:
        database: an open one.
        name: the function's.
        actor: who does it, for the audit; by default whoever runs this program.
    """
    parameters = {"name": name, "actor": actor or audit.operator()}
    return (await database.fetch(_SQL["retire"], parameters))[0]["retired"]


async def link_secret(database: Database) -> bytes:
    """The 32 random bytes that both ends of a link must know; made on first use."""
    rows = await database.fetch(_SQL["secret"], {"name": "link", "proposed": secrets.token_bytes(32)})
    return rows[0]["value"]


def _report(row: Row) -> Report | None:
    try:
        return msgspec.json.decode(row["report"], type=Report)
    except msgspec.DecodeError as error:
        _log.warning("the report of runner %s can't be read: %s", row["runner_id"], error)
        return None


def _manifest(row: Row) -> Manifest | None:
    try:
        return msgspec.json.decode(row["manifest"], type=Manifest)
    except (msgspec.DecodeError, ValueError) as error:
        # One that another release wrote mustn't take the other functions with it.
        _log.error("the registered manifest of %s can't be read and is left out: %s", row["name"], error)
        return None
