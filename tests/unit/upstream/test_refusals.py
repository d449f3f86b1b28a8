"""When a server wants to be asked again, and what it says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from headrace.upstream.refusals import message_of, retry_after


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, 0),
        ("5", 5),
        (" 0.5", 0.5),
        ("-3", 0),
        ("nan", 0),
        ("inf", 3600),
        ("99999", 3600),
        ("soon", 0),
        ("Mon, 01 Jan 2001 00:00:00 GMT", 0),
    ],
)
def test_when_to_ask_again(header, seconds):
    assert retry_after(header) == seconds


def test_a_date_is_one_too():
    at = datetime.now(UTC) + timedelta(seconds=60)
    assert 50 < retry_after(format_datetime(at, usegmt=True)) <= 60


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "no\\n such model", "code": 404}}', "no such model"),
        (b'{"error": "busy"}', "busy"),
        (b'{"detail": "unknown field"}', "unknown field"),
        (b'{"detail": [{"loc": ["body"]}]}', ""),
        (b'{"error": {"message": "' + b"x" * 9000 + b'"}}', "x" * 500),
        (b"<html>", ""),
        (b"\xff\xfe", ""),
        (b"[1]", ""),
    ],
)
def test_what_a_server_says(body, message):
    assert message_of(body, "") == message
