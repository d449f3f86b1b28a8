from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from headrace.gateway.server import allow_files


@pytest.fixture
def hard() -> Iterator[int]:
    """The hard limit of open files, with the soft one set low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, soft), hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_gateway_may_open_as_many_files_as_the_system_allows(hard: int) -> None:
    allow_files()
    most = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (most, hard)
