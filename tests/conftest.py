"""Fixtures that all tests share.

`database_url` is a real Postgres database with the newest schema, the test's own: cloned from a template
before, dropped after. A test that leaves a connection open fails. `HEADRACE_TEST_DATABASE_URL` names
another server to run on (a role that may create databases); without it an embedded one is started once.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness import postgres


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of the session's server, with the database `postgres`."""
    with postgres.server() as url:
        yield url


@pytest.fixture(scope="session")
def clones(postgres_server: str) -> Iterator[postgres.Clones]:
    """The maker of databases, for tests that need more than one."""
    with postgres.clones(postgres_server) as made:
        yield made


@pytest.fixture
def database_url(clones: postgres.Clones) -> Iterator[str]:
    """The URL of a migrated database, this test's own."""
    with clones.migrated() as url:
        yield url


@pytest.fixture
def empty_database_url(clones: postgres.Clones) -> Iterator[str]:
    """The URL of an empty database, this test's own."""
    with clones.empty() as url:
        yield url
