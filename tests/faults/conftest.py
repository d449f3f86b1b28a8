"""A witness that no fault reaches."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness.postgres import Clones
from harness.witness import Witness, witness


@pytest.fixture
def seen(clones: Clones) -> Iterator[Witness]:
    """What this test's functions have really done, on the session's server."""
    with clones.empty() as url:
        yield witness(url)
