"""A site for all tests that only use one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness.postgres import Clones
from harness.site import Site, site
from harness.up import Folder, developers_folder


@pytest.fixture(scope="session")
def served(clones: Clones) -> Iterator[Site]:
    """A site with the test functions; a test that takes its processes away makes one of its own."""
    with clones.migrated() as url, site(url) as running:
        yield running


@pytest.fixture
def folder() -> Iterator[Folder]:
    """A developer's folder; nothing of it may run on at the end."""
    with developers_folder() as made:
        yield made
