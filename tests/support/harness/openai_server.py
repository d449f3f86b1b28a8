"""A server of OpenAI's protocol in a thread: what it is asked, how far it got, and who left."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

PAUSE_S = 0.005


@dataclass
class Request:
    """One that came, and what became of it: `complete` or `left`, with so many pieces sent before."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    pieces: int = 0
    ended: str = ""

    @property
    def prompt(self) -> str:
        return self.body["messages"][-1]["content"]


@dataclass
class OpenAIServer:
    """Answers by what the last message says.

    `endless`: a piece every few milliseconds until the client leaves; `silent`: a head and no piece;
    `mute`: not even a head; anything else is said back word by word. `answers` come first, each instead of
    one such answer: a status with headers and a body, or the raw lines of a stream.
    """

    url: str = ""
    requests: list[Request] = field(default_factory=list[Request])
    answers: deque[tuple[int, dict[str, str], str] | list[str]] = field(
        default_factory=deque[tuple[int, dict[str, str], str] | list[str]]
    )
    connections: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, with one request after another."""
        self.connections += 1
        try:
            while (request := await _read(reader)) is not None:
                self.requests.append(request)
                gone = asyncio.ensure_future(reader.read(1))  # clients say nothing before the answer's end
                answering = asyncio.ensure_future(self._answer(request, writer))
                await asyncio.wait((gone, answering), return_when=asyncio.FIRST_COMPLETED)
                if not answering.done():
                    answering.cancel()
                    request.ended = "left"
                    return
                gone.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    if await gone == b"":
                        return
                if answering.exception() is not None or not answering.result():
                    return
        finally:
            writer.close()

    async def _answer(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        if self.answers:
            answer = self.answers.popleft()
            if isinstance(answer, tuple):
                status, headers, body = answer
                _head(writer, status, {"Content-Length": str(len(body.encode())), **headers})
                writer.write(body.encode())
            else:
                _head(writer, 200, {"Content-Type": "text/event-stream", "Connection": "close"})
                writer.write("".join(f"{line}\n" for line in answer).encode())
            await writer.drain()
            request.ended = "complete"
            return isinstance(answer, tuple)
        if request.path == "/v1/embeddings":
            data = [
                {"index": n, "embedding": [float(len(t)), n]} for n, t in enumerate(request.body["input"])
            ]
            _json(writer, {"data": data[::-1]})
            request.ended = "complete"
            return True
        await self._chat(request, writer)
        request.ended = "complete"
        return True

    async def _chat(self, request: Request, writer: asyncio.StreamWriter) -> None:
        if request.prompt == "mute":
            await asyncio.Event().wait()
        _head(
            writer, 200, {"Content-Type": "text/event-stream; charset=utf-8", "Transfer-Encoding": "chunked"}
        )
        await writer.drain()
        if request.prompt == "silent":
            await asyncio.Event().wait()
        words = request.prompt.split(" ")
        while request.prompt == "endless" or request.pieces < len(words):
            word = words[request.pieces % len(words)]
            text = word if request.pieces == 0 else f" {word}"
            _event(writer, {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]})
            await writer.drain()
            request.pieces += 1
            await asyncio.sleep(PAUSE_S)
        _event(writer, {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        usage = {"prompt_tokens": 3, "completion_tokens": len(words), "total_tokens": 3 + len(words)}
        _event(writer, {"choices": [], "usage": usage})
        _chunk(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")
        await writer.drain()


@contextlib.contextmanager
def openai_server() -> Iterator[OpenAIServer]:
    """One that listens on a free port of the loopback interface."""
    server = OpenAIServer()
    loop = asyncio.new_event_loop()
    listening = loop.run_until_complete(asyncio.start_server(server.serve, "127.0.0.1", 0))
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1"
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def end() -> None:
        listening.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(end(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _read(reader: asyncio.StreamReader) -> Request | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    first, *lines = head.strip().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    body = await reader.readexactly(int(headers["content-length"]))
    return Request(first.split(" ")[1], headers, json.loads(body))


def _head(writer: asyncio.StreamWriter, status: int, headers: dict[str, str]) -> None:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(f"HTTP/1.1 {status} Status\r\n{lines}\r\n".encode())


def _json(writer: asyncio.StreamWriter, document: Any) -> None:
    body = json.dumps(document).encode()
    _head(writer, 200, {"Content-Type": "application/json", "Content-Length": str(len(body))})
    writer.write(body)


def _event(writer: asyncio.StreamWriter, document: Any) -> None:
    _chunk(writer, b"data: " + json.dumps(document, ensure_ascii=False).encode() + b"\n\n")


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))
