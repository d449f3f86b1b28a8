"""A site for all tests that only use one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import site_functions
from harness.ledger_runner import LedgerRunner
from harness.postgres import Clones, query
from harness.site import Site, eventually, site
from harness.up import Folder, developers_folder


@pytest.fixture(scope="session")
def served(clones: Clones) -> Iterator[Site]:
    """A site with the test functions; a test that takes its processes away makes one of its own."""
    with clones.migrated() as url, site(url) as running:
        yield running


@pytest.fixture(scope="session")
def quiet(clones: Clones) -> Iterator[Site]:
    """A site whose only runner is the test: what becomes of a job, and when, is in its hands."""
    with clones.migrated() as url, site(url, runners=0, settings={"HEADRACE_BACKLOG": "20"}) as running:
        yield running


CANCEL_ALL = "SELECT cancel_v1(id, owner_id, 'test') FROM job WHERE finished_at IS NULL"
END_ALL = (
    "SELECT lost_start_v1(job, 'lost', 'worker-lost', 'The test has ended.', 'test', 'left behind')"
    " FROM job WHERE state = 'cancel_requested'"
)


@pytest.fixture
def runner(quiet: Site) -> Iterator[LedgerRunner]:
    """The quiet site's runner. What a test leaves behind ends with it: the next one would get it."""
    served = (site_functions.echo, site_functions.nap, site_functions.count, site_functions.halve)
    made = LedgerRunner(quiet.database_url, [function.manifest for function in served])
    made.register()
    eventually(lambda: quiet.get("/fn/halve").status_code == 200, "the functions are served")
    yield made
    query(quiet.database_url, CANCEL_ALL)
    query(quiet.database_url, END_ALL)


@pytest.fixture
def folder() -> Iterator[Folder]:
    """A developer's folder; nothing of it may run on at the end."""
    with developers_folder() as made:
        yield made
