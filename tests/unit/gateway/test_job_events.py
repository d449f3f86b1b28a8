"""Frames of server-sent events, and where a reader left off."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.gateway.exchange import Exchange
from headrace.gateway.job_events import goes_on_after, last_event_id
from headrace.gateway.problems import Problem
from headrace.gateway.sse import frame


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"{}", b"id: 7\nevent: state\ndata: {}\n\n"),
        (b'{"a":\n1}', b'id: 7\nevent: state\ndata: {"a":\ndata: 1}\n\n'),
        (b"[1,\r\n2,\r3]", b"id: 7\nevent: state\ndata: [1,\ndata: 2,\ndata: 3]\n\n"),
    ],
)
def test_a_line_break_in_the_data_breaks_no_frame(data: bytes, text: bytes) -> None:
    assert frame("state", 7, data) == text


def test_unicode_line_separators_are_not_line_breaks() -> None:
    data = '{"a": "\u2028\x85"}'.encode()
    assert frame("state", 7, data) == b"id: 7\nevent: state\ndata: " + data + b"\n\n"


@pytest.mark.parametrize(
    ("header", "parameter", "number"),
    [
        (None, None, 0),
        ("", "", 0),
        ("3", None, 3),
        (None, "4", 4),
        ("3", "4", 3),
        ("", "4", 4),
        ("007", None, 7),
    ],
)
def test_the_header_is_newer_than_the_address(header: str | None, parameter: str | None, number: int) -> None:
    assert last_event_id(header, parameter) == number


@pytest.mark.parametrize("value", ["x", "-1", "1.0", "1234567890", "٣", "1 2"])
def test_what_is_no_number(value: str) -> None:
    with pytest.raises(Problem, match="malformed-header"):
        last_event_id(value, None)
    with pytest.raises(Problem, match="bad-request"):
        last_event_id(None, value)


def exchange_of(headers: dict[bytes, bytes]) -> Exchange:
    nothing: Any = None
    return Exchange(headers, "j", "r", nothing, nothing, nothing)


@pytest.mark.parametrize(("header", "number"), [(None, 0), (b"", 0), (b"0", 0), (b"7", 7)])
def test_a_call_with_a_key_goes_on_after_an_event(header: bytes | None, number: int) -> None:
    exchange = exchange_of({} if header is None else {b"last-event-id": header})
    assert goes_on_after(exchange, "k") == number


def test_a_call_without_a_key_goes_on_after_none() -> None:
    for headers in ({}, {b"last-event-id": b"0"}):
        assert goes_on_after(exchange_of(headers), None) == 0
    for header in (b"7", b"x", b"1, 2", b"\xe9"):
        with pytest.raises(Problem, match="malformed-header"):
            goes_on_after(exchange_of({b"last-event-id": header}), None)
