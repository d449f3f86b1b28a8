"""What a batch's body becomes, and which bodies are none."""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import pytest
import site_functions

from headrace.gateway import batch_upload
from headrace.gateway.batch_upload import MOST_ITEMS, Upload, longest_wait, splitter_of
from headrace.gateway.directory import ServedFunction
from headrace.gateway.exchange import ClientLeft
from headrace.gateway.metrics import GatewayMetrics
from headrace.gateway.problems import Problem
from headrace.ledger.batches import Part

ECHO = ServedFunction(site_functions.echo.manifest, GatewayMetrics().of("echo"))
LINES = {b"content-type": b"application/x-ndjson"}
ARRAY = {b"content-type": b"application/json"}


class Client:
    """Sends a body piece by piece, as ASGI has it."""

    def __init__(self, pieces: Iterable[bytes], end: str = "end") -> None:
        self._messages = self._made(pieces, end)
        self.sent = 0

    async def receive(self) -> Any:
        self.sent += 1
        message = next(self._messages)
        return message or await asyncio.Event().wait()

    def _made(self, pieces: Iterable[bytes], end: str) -> Any:
        for piece in pieces:
            yield {"type": "http.request", "body": piece, "more_body": True}
        match end:
            case "leave":
                yield {"type": "http.disconnect"}
            case "hang":
                yield None
            case "stall":
                yield {"type": "http.request", "body": b"", "more_body": True}
            case _:
                yield {"type": "http.request", "body": b"", "more_body": False}


def read(
    client: Client, headers: dict[bytes, bytes] = LINES, most_bytes: int = 2**30
) -> tuple[Upload, list[Part]]:
    async def scenario() -> tuple[Upload, list[Part]]:
        with Upload(ECHO, most_bytes) as upload:
            await upload.read(cast("Any", client.receive), headers)
            return upload, [part async for part in upload.parts([str(n) for n in range(len(upload))])]

    return asyncio.run(scenario())


def refused(client: Client, headers: dict[bytes, bytes] = LINES, most_bytes: int = 2**30) -> Problem:
    with pytest.raises(Problem) as caught:
        read(client, headers, most_bytes)
    return caught.value


def line(text: str = "a") -> bytes:
    return json.dumps({"text": text}).encode() + b"\n"


@pytest.mark.parametrize("text", ["a", "a" * 9000])
def test_parts_hold_the_inputs_as_they_came_in_their_order(text: str) -> None:
    inputs = [b'{"text" : "%d%b"}' % (n, text.encode()) for n in range(1100)]
    upload, parts = read(Client([one + b"\r\n" for one in inputs]))

    assert [one for part in parts for one in part.inputs] == inputs
    assert [one for part in parts for one in part.job_ids] == [str(n) for n in range(1100)]
    assert all(len(part.inputs) <= 500 and sum(map(len, part.inputs)) <= 2**22 for part in parts)
    assert (len(upload), upload.size, upload.costs) == (1100, sum(map(len, inputs)), [1.0] * 1100)


def test_the_digest_is_that_of_what_the_inputs_say_and_of_their_order() -> None:
    def digest(body: bytes, headers: dict[bytes, bytes] = LINES) -> bytes:
        return read(Client([body]), headers)[0].digest

    first = digest(b'{"text": "a", "user": "b"}\n{"text": "c"}')
    assert digest(b'[ {"user":"b","text":"\\u0061"}, {"text":"c"} ]', ARRAY) == first
    assert digest(b'{"text": "c"}\n{"text": "a", "user": "b"}') != first
    assert digest(b'{"text": "a", "user": "b"}') != first


def test_bad_inputs_are_named_and_no_more_than_twenty_are_looked_for() -> None:
    good, bad = line(), b'{"text": 1, "top_k": "x"}\n'
    problem = refused(Client([good, bad, good, b"[]\n"]))
    assert problem.code == "invalid-input"
    assert "2 inputs are not valid, of 4" in problem.detail
    paths = [error["path"] for error in cast("Any", problem.extra["errors"])]
    assert sorted(paths) == ["/1/text", "/1/top_k", "/3"]
    assert "Connection" not in problem.headers

    client = Client([bad] * 100)
    problem = refused(client)
    assert "20 inputs are not valid, of 20" in problem.detail
    assert problem.headers["Connection"] == "close"
    assert client.sent == 20


@pytest.mark.parametrize("body", [b"", b" \n\n"])
def test_a_batch_has_inputs(body: bytes) -> None:
    assert refused(Client([body] if body else [])).code == "invalid-input"
    assert refused(Client([b"[]"]), ARRAY).code == "invalid-input"


def test_what_is_no_json_is_told_with_its_place() -> None:
    problem = refused(Client([line(), b"{'text': 1}\n"]))
    assert (problem.code, problem.headers["Connection"]) == ("malformed-json", "close")
    assert problem.detail == (
        "Item 1 (counted from 0), line 2 of the body: it is not valid JSON: key must be a string "
        "(column 2 of the item)."
    )
    duplicate = refused(Client([b'[{"text": "a"}, {"text": "a", "text": "b"}]']), ARRAY)
    assert "Item 1 (counted from 0): it is not" in duplicate.detail
    assert "twice" in duplicate.detail
    assert duplicate.detail.endswith("(line 1, column 22 of the item).")


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_bad_line_is_told_by_its_number_in_the_body(size: int) -> None:
    body = b"\n \r\n" + line() + b"\n\n" + line() + b"\n{\n"
    problem = refused(Client([body[at : at + size] for at in range(0, len(body), size)]))
    assert problem.detail.startswith("Item 2 (counted from 0), line 8 of the body: it is not valid JSON")


@pytest.mark.parametrize("body", [b'[{"text": "a"}]', b'[\n{"text": "a"}\n]', b'["a",\n"b"]'])
def test_an_array_that_is_sent_as_lines_is_recognised(body: bytes) -> None:
    hint = "The body looks like a JSON array: send that as `application/json`."
    assert refused(Client([body])).detail.endswith(f". {hint}")
    assert hint not in refused(Client([line(), body])).detail
    assert hint not in refused(Client([b"[[]]"]), ARRAY).detail


def test_a_batch_has_an_end() -> None:
    inputs = [line()] * MOST_ITEMS
    assert len(read(Client([b"".join(inputs)]))[0]) == MOST_ITEMS
    problem = refused(Client([b"".join(inputs), line()]))
    assert (problem.code, problem.headers["Connection"]) == ("invalid-input", "close")
    assert problem.detail == "a batch has at most 10000 inputs"


@pytest.mark.parametrize("declared", [{}, {b"content-length": b"1001"}])
def test_a_body_has_a_limit(declared: dict[bytes, bytes]) -> None:
    client = Client([b"%-99b\n" % line().strip()] * 11)
    problem = refused(client, LINES | declared, 1000)
    assert (problem.code, problem.headers["Connection"]) == ("payload-too-large", "close")
    assert client.sent == (0 if declared else 11)


def test_an_input_has_the_limit_of_the_function() -> None:
    problem = refused(Client([line(), line("a" * 2**14)]))
    assert problem.detail == "Item 1 is over the function's limit of 16384 bytes."


def test_a_client_that_stalls_or_leaves() -> None:
    assert refused(Client([line()], "stall")).code == "request-timeout"
    with pytest.raises(ClientLeft):
        read(Client([line()], "leave"))


@pytest.mark.timeout(20)
def test_a_client_that_was_fast_before_may_not_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_upload, "_GRACE_S", 0.05)
    problem = refused(Client([line("a" * 9000)] * 5, "hang"))
    assert (problem.code, problem.headers["Connection"]) == ("request-timeout", "close")


@pytest.mark.timeout(20)
def test_a_client_that_trickles_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Trickling(Client):
        async def receive(self) -> Any:
            await asyncio.sleep(0.01)
            return await super().receive()

    monkeypatch.setattr(batch_upload, "_GRACE_S", 0.1)
    client = Trickling(itertools.repeat(b" "))
    assert refused(client).code == "request-timeout"
    assert 1 < client.sent <= 11


def test_a_longer_batch_may_take_longer() -> None:
    assert longest_wait(0) == longest_wait(15 * 2**20) == 30
    assert longest_wait(256 * 2**20) == 512


def test_a_full_disk_is_told_before_anything_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when all that the disk has no room for is still buffered."""

    def full(**_: Any) -> Any:
        return Path("/dev/full").open("w+b")

    monkeypatch.setattr(batch_upload.tempfile, "SpooledTemporaryFile", full)

    async def scenario() -> None:
        with Upload(ECHO, 1000) as upload:
            await upload.read(cast("Any", Client([line()]).receive), LINES)
            pytest.fail("it has room")

    with pytest.raises(Problem, match="No space left on device") as caught:
        asyncio.run(scenario())
    assert caught.value.code == "busy"


class BrokenDisk:
    """A file that can't be read back, nor closed."""

    def seek(self, _offset: int) -> int:
        return 0

    def read(self, _size: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    def close(self) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_disk_that_breaks_afterwards_is_told_as_well() -> None:
    async def scenario() -> None:
        with Upload(ECHO, 1000) as upload:
            await upload.read(cast("Any", Client([line()]).receive), LINES)
            upload._file.close()
            upload._file = cast("Any", BrokenDisk())
            async for _ in upload.parts(["j"]):
                pass

    with pytest.raises(Problem, match="Input/output error") as caught:
        asyncio.run(scenario())
    assert caught.value.code == "busy"


@pytest.mark.parametrize(
    ("content_type", "kind"),
    [
        (b"application/json", "ArraySplitter"),
        (b"application/json; charset=utf-8", "ArraySplitter"),
        (b"application/x-ndjson", "LineSplitter"),
        (b"Application/JSONL", "LineSplitter"),
        (b"application/x-ndjson; charset=utf-8", "LineSplitter"),
        (b"application/x-ndjson; charset=latin-1", None),
        (b"text/csv", None),
        (None, None),
    ],
)
def test_the_content_type_says_how_inputs_are_told_apart(
    content_type: bytes | None, kind: str | None
) -> None:
    if kind is None:
        with pytest.raises(Problem) as caught:
            splitter_of(content_type, 1)
        assert caught.value.code == "unsupported-media-type"
        if content_type != b"application/x-ndjson; charset=latin-1":
            assert "an input a line as `application/x-ndjson`" in caught.value.detail
            assert caught.value.headers["Accept"] == "application/json, application/x-ndjson"
    else:
        assert type(splitter_of(content_type, 1)).__name__ == kind
