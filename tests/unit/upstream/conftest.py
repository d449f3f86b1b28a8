"""The remote server that these tests call."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness.openai_server import OpenAIServer, openai_server


@pytest.fixture
def remote() -> Iterator[OpenAIServer]:
    with openai_server() as server:
        yield server
