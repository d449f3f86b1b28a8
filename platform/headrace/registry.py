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
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import msgspec

from headrace.database import Database, Jsonb, Row, queries
from headrace.domain import Manifest, RunnerInfo

CHANNEL: Final = "headrace_registry"
"""Notified with `functions` or `runners`, whichever changed."""

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
    """

    functions: Mapping[str, Manifest]
    retired: Mapping[str, datetime]
    registered: Mapping[str, datetime]
    runners: Sequence[RunnerInfo]
    draining: frozenset[str]
    metrics: Mapping[str, str]


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
            "served": Jsonb(runner.interfaces),
            "metrics_address": metrics_address,
            "names": [manifest.name for manifest in manifests],
            "interfaces": [manifest.interface for manifest in manifests],
            "revisions": [manifest.revision for manifest in manifests],
            "manifests": [msgspec.json.encode(manifest) for manifest in manifests],
        },
    )


async def heartbeat(
    database: Database, runner_id: str, capacity: Mapping[str, Any], *, draining: bool = False
) -> bool:
    """Say that a runner lives; at least every few seconds, as it vanishes after 10 s of silence.

    Returns:
        False when the registry doesn't know it (any more): it must register again.
    """
    rows = await database.fetch(
        _SQL["heartbeat"], {"runner_id": runner_id, "capacity": Jsonb(dict(capacity)), "draining": draining}
    )
    return rows[0]["known"]


async def unregister(database: Database, runner_id: str) -> None:
    """Forget a runner that leaves; its functions stay listed."""
    await database.fetch(_SQL["unregister"], {"runner_id": runner_id})


async def load(database: Database) -> Registry:
    """Read everything."""
    functions = await database.fetch(_SQL["functions"])
    runners = await database.fetch(_SQL["runners"])
    manifests = (_manifest(row) for row in functions if row["retired_at"] is None)
    return Registry(
        functions={manifest.name: manifest for manifest in manifests if manifest is not None},
        retired={row["name"]: row["retired_at"] for row in functions if row["retired_at"] is not None},
        registered={row["name"]: row["registered_at"] for row in functions},
        runners=[
            RunnerInfo(row["runner_id"], row["address"], row["pool"], row["interfaces"]) for row in runners
        ],
        draining=frozenset(row["runner_id"] for row in runners if row["draining"]),
        metrics={row["runner_id"]: row["metrics_address"] for row in runners if row["metrics_address"]},
    )


async def retire(database: Database, name: str) -> bool:
    """Take a function out of service; False when none of that name is in service.

    Calls of it are answered 410. A runner that registers the name afterwards brings it back.
    """
    return (await database.fetch(_SQL["retire"], {"name": name}))[0]["retired"]


async def link_secret(database: Database) -> bytes:
    """The 32 random bytes that both ends of a link must know; made on first use."""
    rows = await database.fetch(_SQL["secret"], {"name": "link", "proposed": secrets.token_bytes(32)})
    return rows[0]["value"]


def _manifest(row: Row) -> Manifest | None:
    try:
        return msgspec.json.decode(row["manifest"], type=Manifest)
    except (msgspec.DecodeError, ValueError) as error:
        # One that another release wrote mustn't take the other functions with it.
        _log.error("the registered manifest of %s can't be read and is left out: %s", row["name"], error)
        return None
