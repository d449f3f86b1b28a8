"""Logs for people at a terminal."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest

from headrace.telemetry import logs


@pytest.fixture(autouse=True)
def root_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_warnings_are_plain_text_and_the_rest_is_not_shown() -> None:
    stream = io.StringIO()
    logs.configure_plain(stream)
    log = logging.getLogger("headrace.test")
    log.info("loaded")
    log.warning("model %s took more than declared", "minilm")
    try:
        raise ValueError("a prompt")
    except ValueError:
        log.exception("it failed")
    assert stream.getvalue() == (
        "warning: model minilm took more than declared\nerror: it failed (ValueError)\n"
    )
