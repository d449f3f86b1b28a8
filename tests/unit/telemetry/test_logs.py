from __future__ import annotations

import asyncio
import io
import json
import logging
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import structlog

from headrace.telemetry import logs


class Output(io.BytesIO):
    """A stream that counts how often something was written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0

    def write(self, data: Any) -> int:
        self.writes += 1
        return super().write(data)

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.getvalue().splitlines()]


@pytest.fixture
def output() -> Iterator[Output]:
    """Where this process logs to, while a test lasts."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    binary = Output()
    text = io.TextIOWrapper(binary, encoding="utf-8", write_through=True)
    logs.configure(text)
    yield binary
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()
    logs._output.loop = None
    logs._output.flush()
    logs._output.stream = sys.stdout.buffer
    text.detach()


def test_both_libraries_write_one_json_object_a_line(output: Output) -> None:
    before = time.time()
    logging.getLogger("headrace.some").info("runner %s is linked", "r-1")
    structlog.get_logger("access").info("call", status=200, total_ms=1.5, function="echo")
    logging.getLogger("x").warning("two\nlines \u2028 ü")
    plain, access, odd = output.lines
    assert plain == {
        "at": plain["at"],
        "level": "info",
        "event": "runner r-1 is linked",
        "logger": "headrace.some",
    }
    assert access == {
        "at": access["at"],
        "level": "info",
        "event": "call",
        "status": 200,
        "total_ms": 1.5,
        "function": "echo",
    }
    assert odd["event"] == "two\nlines \u2028 ü"
    for line in (plain, access):
        at = datetime.strptime(line["at"], "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC).timestamp()
        assert len(line["at"]) == 24  # to the millisecond
        assert before - 0.002 <= at <= time.time()


def test_levels(output: Output) -> None:
    for level in ("debug", "info", "warning", "error", "critical"):
        getattr(logging.getLogger("std"), level)(level)
    assert [line["level"] for line in output.lines] == ["info", "warning", "error", "critical"]
    logging.getLogger("httpx").info("chatter")
    logging.getLogger("asyncio").info("chatter")
    assert len(output.lines) == 4


def test_an_exception_gives_its_kind_and_place_but_not_its_message(output: Output) -> None:
    def deep() -> None:
        raise ValueError("secret prompt")

    try:
        deep()
    except ValueError:
        logging.getLogger("x").exception("call broke, request %s", "r")
    assert b"secret" not in output.getvalue()
    (line,) = output.lines
    assert (line["event"], line["error"], line["level"]) == ("call broke, request r", "ValueError", "error")
    assert line["where"][-1].endswith(" deep")
    assert __file__ in line["where"][-1]
    logging.getLogger("x").error("no exception here", exc_info=True)  # noqa: LOG014 - that is the case
    assert "error" not in output.lines[1]


def test_values_without_json_are_written_as_text(output: Output) -> None:
    structlog.get_logger().info("call", path=io, when={1: "a"}, kind=ValueError)
    assert "module" in output.lines[0]["path"]


def test_several_loggers_share_one_output_and_keep_their_fields_apart(output: Output) -> None:
    first: Any = structlog.get_logger("one").bind(gateway="g1")
    second: Any = structlog.get_logger("two").bind(runner="r1")
    first.info("a")
    second.info("b")
    first.info("c", extra=1)
    assert [(line["event"], line.get("gateway"), line.get("runner")) for line in output.lines] == [
        ("a", "g1", None),
        ("b", None, "r1"),
        ("c", "g1", None),
    ]


def test_without_a_loop_each_line_is_written_at_once(output: Output) -> None:
    log: Any = structlog.get_logger()
    for number in range(3):
        log.info("line", number=number)
        assert len(output.lines) == number + 1


def test_joined_lines_come_within_fifty_milliseconds_in_one_write(output: Output) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        logs.join_lines(loop)
        one: Any = structlog.get_logger("one")
        two: Any = structlog.get_logger("two")
        for round_ in range(1, 4):
            written, began = output.writes, loop.time()
            for number in range(10):
                (one if number % 2 else two).info("line", number=number)
            assert len(output.lines) == 10 * (round_ - 1)  # not yet
            async with asyncio.timeout(5):
                while output.writes == written:
                    await asyncio.sleep(0.001)
            assert 0.03 < loop.time() - began < 0.5
            assert output.writes == written + 1
            assert [line["number"] for line in output.lines[-10:]] == list(range(10))

    asyncio.run(scenario())


def test_many_lines_do_not_wait(output: Output) -> None:
    async def scenario() -> None:
        logs.join_lines(asyncio.get_running_loop())
        log: Any = structlog.get_logger()
        for number in range(150):
            log.info("line", number=number)
        assert 100 < len(output.lines) < 150
        logs.flush()
        assert [line["number"] for line in output.lines] == list(range(150))
        written = output.writes
        logs.flush()
        assert output.writes == written

    asyncio.run(scenario())


def test_a_line_after_the_loops_end_is_written_too(output: Output) -> None:
    async def scenario() -> None:
        logs.join_lines(asyncio.get_running_loop())

    asyncio.run(scenario())
    log: Any = structlog.get_logger()
    log.info("late")
    log.info("later")
    assert [line["event"] for line in output.lines] == ["late", "later"]


@pytest.mark.parametrize("ending", ["", "sys.exit(3)", "raise ValueError('secret')"])
def test_what_waits_is_written_when_the_process_ends(ending: str) -> None:
    script = textwrap.dedent(
        f"""
        import asyncio, sys
        import structlog
        from headrace.telemetry import logs

        async def main():
            logs.join_lines(asyncio.get_running_loop())
            structlog.get_logger().info("last words")
            {ending}

        logs.configure()
        asyncio.run(main())
        """
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert json.loads(done.stdout)["event"] == "last words"
