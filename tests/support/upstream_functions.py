"""Functions whose work a remote server does, for tests; UPSTREAM_URL is where it is."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

from pydantic import BaseModel

from headrace import Budget, Call, function
from headrace.upstream import Upstream

SOFT_S = 0.5

server = Upstream(os.environ["UPSTREAM_URL"], model="m", patience=0.1)
other = Upstream(os.environ["UPSTREAM_URL"], model="m", patience=0.1)
third = Upstream(os.environ["UPSTREAM_URL"], model="m", patience=0.1)


class Ask(BaseModel):
    prompt: str


class Answer(BaseModel):
    text: str


def joined(items: list[Answer]) -> Answer:
    return Answer(text="".join(item.text for item in items))


def said(ask: Ask) -> list[dict[str, str]]:
    return [{"role": "user", "content": ask.prompt}]


@function(concurrency=16, budget=Budget(sync=20, queue=60, soft=50, hard=60), attempts=3)
async def whole(input: Ask, *, call: Call) -> Answer:
    return Answer(text=(await server.chat(call, said(input))).text)


@function(concurrency=16, budget=Budget(sync=2, queue=60, soft=50, hard=60))
async def throttled(input: Ask, *, call: Call) -> Answer:
    return Answer(text=(await other.chat(call, said(input))).text)


@function(concurrency=16, budget=Budget(sync=2, queue=60, soft=50, hard=60), attempts=1)
async def once(input: Ask, *, call: Call) -> Answer:
    return Answer(text=(await third.chat(call, said(input))).text)


@function(concurrency=16, budget=Budget(sync=20, soft=50, hard=60), collect=joined)
async def pieces(input: Ask, *, call: Call) -> AsyncIterator[Answer]:
    async for piece in server.stream(call, said(input)):
        if piece.text:
            yield Answer(text=piece.text)


@function(concurrency=16, budget=Budget(sync=20, soft=SOFT_S, hard=60))
async def brief(input: Ask, *, call: Call) -> Answer:
    return Answer(text=(await server.chat(call, said(input))).text)
