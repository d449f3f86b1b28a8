"""Fixtures that all tests share.

`database_url` is a real Postgres database with the newest schema, the test's own: cloned from a template
before, dropped after. A test that leaves a connection open fails. `HEADRACE_TEST_DATABASE_URL` names
another server to run on (a role that may create databases); without it an embedded one is started once.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from harness import postgres
from harness.site import NotInTimeError

TESTS = Path(__file__).parent
SLOWEST_FIRST = ("faults", "acceptance", "integration/packaging")
"""Folders that begin before the others: where files run side by side, none is left over at the end."""
WAITED_IN_VAIN = [NotInTimeError, TimeoutError, httpx2.TimeoutException, subprocess.TimeoutExpired]
WRONG = ["^AssertionError", r"\b(is|are) final$"]
"""Tests in faults and acceptance kill and time real processes. A shared machine that stalls for seconds can
fail one of them that is right, so those are tried once more; the summary names them: each is worth a look. In
what proves a promise (faults, and what docs/guarantees.md names) only what was waited for in vain is tried
again, never a wrong state or count, or a job that doesn't end."""
PARSER_LOST_COUNT = ["SystemError: AST constructor recursion depth mismatch"]
"""What Python 3.11 raises at times from an import while garbage is collected; the next import works."""
PROMISES = frozenset(re.findall(r"tests/[\w/]+\.py", (TESTS.parent / "docs/guarantees.md").read_text()))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def is_in(item: pytest.Item, folder: str) -> bool:
        return item.path.is_relative_to(TESTS / folder)

    def turn(item: pytest.Item) -> int:
        return next(
            (number for number, folder in enumerate(SLOWEST_FIRST) if is_in(item, folder)), len(SLOWEST_FIRST)
        )

    items.sort(key=turn)
    for item in items:
        if is_in(item, "faults") or str(item.path.relative_to(TESTS.parent)) in PROMISES:
            item.add_marker(pytest.mark.flaky(reruns=1, only_rerun=WAITED_IN_VAIN, rerun_except=WRONG))
        elif is_in(item, "acceptance"):
            item.add_marker(pytest.mark.flaky(reruns=1))
        else:
            item.add_marker(pytest.mark.flaky(reruns=1, only_rerun=PARSER_LOST_COUNT))


@pytest.fixture(scope="module", params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> str:
    """Each kind of device, for tests about devices; CUDA only where torch sees one."""
    kind: str = request.param
    if kind == "cuda" and not pytest.importorskip("torch").cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    return kind


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
