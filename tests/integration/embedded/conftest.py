"""A home for each test."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.prepared import put_data

from headrace.embedded import EmbeddedPostgres


@pytest.fixture
def home(empty_home: Path) -> Path:
    """The same with data that an earlier start has left."""
    put_data(empty_home)
    return empty_home


@pytest.fixture
def empty_home() -> Iterator[Path]:
    """A folder whose path is short, and open to the user that Postgres runs as under root."""
    folder = Path(tempfile.mkdtemp(prefix="hr-", dir="/tmp")).resolve()
    try:
        yield folder
    finally:
        if EmbeddedPostgres(folder).is_running():
            with EmbeddedPostgres(folder):
                pass  # takes over what a failed test left running, and stops it
        shutil.rmtree(folder, ignore_errors=True)
