"""Calls of a function's remote server: each on a loop of its own, with what it returns or fails with."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from harness.openai_server import OpenAIServer
from headrace import Call
from headrace.errors import FunctionError
from headrace.upstream import Upstream

SAY = [{"role": "user", "content": "one two three"}]


def said(content: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": content}]


def call_for(seconds: float = 30.0) -> Call:
    end = time.monotonic() + seconds
    return Call(job_id="j", attempt=1, soft_at=end, deadline_at=end)


def with_upstream(
    remote: OpenAIServer, scenario: Callable[[Upstream], Coroutine[Any, Any, Any]], **options: Any
):
    """What the scenario returns, on a loop of its own."""

    async def run() -> Any:
        server = Upstream(remote.url, **{"model": "m", **options})
        try:
            async with asyncio.timeout(20):
                return await scenario(server)
        finally:
            await server.aclose()

    return asyncio.run(run())


def chatted(remote: OpenAIServer, content: str = "one two three", **options: Any):
    return with_upstream(remote, lambda server: server.chat(call_for(), said(content)), **options)


def failure(
    remote: OpenAIServer, kind: type[FunctionError], content: str = "hi", **options: Any
) -> FunctionError:
    with pytest.raises(kind) as caught:
        chatted(remote, content, **options)
    return caught.value
