"""What waits between a runner and a client that reads at its own pace."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.gateway.call_stream import WINDOW, CallStream, Event
from headrace.link.frames import Item, Progress, Started


def item(number: int = 0, size: int = 1) -> Item:
    return Item("job", number, b"x" * size)


def taken_from(stream: CallStream) -> list[Event]:
    events: list[Event] = []
    while (event := stream.next()) is not None:
        events.append(event)
    return events


def test_events_are_kept_in_order_and_of_progress_the_newest() -> None:
    stream = CallStream()

    stream.take(Progress("job", 0.1, "a"))
    stream.take(Progress("job", 0.2, "b"))
    stream.take(item())
    stream.take(Progress("job", 0.3, "c"))
    stream.take(Progress("job", 1.0, "d"))
    stream.end("result", b"2")

    assert taken_from(stream) == [
        Event("progress", b'{"fraction":0.2,"message":"b"}'),
        Event("item", b"x", 1),
        Event("progress", b'{"fraction":1.0,"message":"d"}'),
        Event("result", b"2"),
    ]
    assert stream.items == 1


@pytest.mark.parametrize(("size", "credit"), [(0, 1), (1, 1), (2**16, 1), (2**16 + 1, 2), (2**20, 16)])
def test_an_item_takes_credit_by_its_size(size: int, credit: int) -> None:
    stream = CallStream()
    stream.take(item(size=size))
    assert [event.credit for event in taken_from(stream)] == [credit]


def test_credit_is_granted_in_groups_and_none_is_lost() -> None:
    stream, granted = CallStream(), list[int]()
    stream.open(granted.append)

    for _ in range(2 * WINDOW):
        stream.taken(1)
    assert sum(granted) == 2 * WINDOW
    assert len(granted) == 8
    stream.taken(3 * WINDOW)  # one large item
    assert granted[8:] == [3 * WINDOW]


def test_a_runner_without_credit_always_gets_some_when_all_is_taken() -> None:
    for spent in range(WINDOW, 3 * WINDOW):  # it stops when it has spent them all, or more by a large item
        stream, granted = CallStream(), list[int]()
        stream.open(granted.append)
        for _ in range(spent):
            stream.taken(1)
        assert WINDOW - spent + sum(granted) > 0


def test_a_new_start_has_a_whole_window() -> None:
    stream, first, second = CallStream(), list[int](), list[int]()
    stream.taken(1)  # nobody has it yet
    stream.open(first.append)
    stream.taken(10)
    stream.open(second.append)
    stream.taken(WINDOW)
    assert (first, second) == ([], [WINDOW])


def test_news_come_at_once_or_when_there_are_some_or_not_in_time() -> None:
    async def scenario() -> None:
        stream = CallStream()
        assert not await stream.news(0.01)
        waiting: asyncio.Future[Any] = asyncio.ensure_future(stream.news(10))
        await asyncio.sleep(0)
        stream.take(Started("job", 1))
        assert await waiting
        assert not await stream.news(0)  # that it runs is told once
        stream.take(item())
        assert await stream.news(0)
        assert await stream.news(0)  # as long as it is there

    asyncio.run(scenario())
