"""What commands share that look into the site's database. Imported inside command bodies: slow to load."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import starmap

from headrace import embedded
from headrace.database import Database
from headrace.migrations import check
from headrace.settings import Settings


@asynccontextmanager
async def database(settings: Settings) -> AsyncGenerator[Database]:
    """The site's database, embedded or not, with this program's schema in it.

    Raises:
        DatabaseUnavailable: Postgres can't be reached.
        SchemaMismatch: its schema isn't this program's.
        SetupError: the embedded Postgres can't start, or the given one is too old.
    """
    with embedded.database(settings) as effective:
        check(effective.database_direct_url)
        async with await Database.open(effective.database_url, application_name="headrace-cli") as opened:
            yield opened


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns; an empty cell is shown as a dash, so that every line has as many words."""
    lines = [head, *([cell or "-" for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(starmap(str.ljust, zip(line, widths, strict=True))).rstrip() for line in lines)


def moment(at: datetime | None) -> str:
    """An instant in UTC to the second, or nothing."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if at else ""
