"""A site for all tests that only use one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness.postgres import Clones
from harness.site import Site, site


@pytest.fixture(scope="session")
def served(clones: Clones) -> Iterator[Site]:
    """A site with the test functions; a test that takes its processes away makes one of its own."""
    with clones.migrated() as url, site(url) as running:
        yield running
