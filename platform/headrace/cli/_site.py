"""What commands share that look into the site's database. Imported inside command bodies: slow to load."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import click

from headrace import embedded
from headrace.database import Database
from headrace.migrations import check
from headrace.settings import Settings, load_settings

T = TypeVar("T")


@asynccontextmanager
async def database(settings: Settings) -> AsyncGenerator[Database]:
    """The site's database, embedded or not, with this program's schema in it.

    Raises:
        DatabaseUnavailable: Postgres can't be reached.
        SchemaMismatch: its schema isn't this program's.
        SetupError: the embedded Postgres can't start, or the given one is too old.
    """
    with embedded.database(settings, visits=True) as effective:
        check(effective.database_direct_url)
        async with await Database.open(effective.database_url, application_name="headrace-cli") as opened:
            yield opened


def with_database(work: Callable[[Database], Coroutine[Any, Any, T]]) -> T:
    """What `work` returns on the site's database; a ValueError in it is wrong usage of the command."""

    async def connected() -> T:
        async with database(load_settings()) as opened:
            return await work(opened)

    try:
        return asyncio.run(connected())
    except ValueError as error:
        raise click.UsageError(str(error)) from error
