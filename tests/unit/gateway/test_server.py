from __future__ import annotations

import asyncio
import resource
from collections.abc import Iterator

import pytest

from headrace.database import Database
from headrace.gateway.app import Gateway
from headrace.gateway.server import allow_files
from headrace.maintenance import Maintenance
from headrace.settings import load_settings


@pytest.fixture
def hard() -> Iterator[int]:
    """The hard limit of open files, with the soft one set low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, soft), hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_gateway_may_open_as_many_files_as_the_system_allows(hard: int) -> None:
    allow_files()
    most = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (most, hard)


def test_a_gateway_whose_maintenance_has_ended_is_broken(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would go on to answer, and nobody would know that nothing is settled any more."""

    async def ends(_maintenance: Maintenance) -> None:
        raise ZeroDivisionError("a fault of the program")

    async def scenario() -> None:
        monkeypatch.setattr(Maintenance, "run", ends)
        async with await Database.open(database_url, application_name="headrace-test") as database:
            gateway = Gateway(load_settings(database_url=database_url), database)
            await gateway.start()
            try:
                with pytest.raises(ZeroDivisionError):
                    async with asyncio.timeout(5):
                        await gateway.broken()
            finally:
                await gateway.stop()

    asyncio.run(scenario())
