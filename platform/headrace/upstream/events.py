"""An answer as it streams: server-sent events, each a piece of OpenAI's `chat.completion.chunk`.

https://html.spec.whatwg.org/multipage/server-sent-events.html,
https://platform.openai.com/docs/api-reference/chat/streaming
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from headrace.errors import PermanentError, TransientError

_LONGEST_LINE: Final = 2**20


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens read and generated, as the server counts them."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that was added; of the last piece, which has none, why the text ends there.

    `finish_reason` is the server's word, as `stop` or `length`; `usage` is None where it doesn't count.
    """

    text: str
    finish_reason: str | None = None
    usage: Usage | None = None


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Error(msgspec.Struct):
    message: str = ""
    code: object = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: _Error | str | None = None


_decode: Final = msgspec.json.Decoder(_Chunk).decode


class ChatEvents:
    """Makes pieces of the bytes of one stream, however those are cut.

    Args:
        secret: what messages must not show.
    """

    def __init__(self, secret: str = "") -> None:
        self._secret = secret
        self._buffer = bytearray()
        self._finish_reason: str | None = None
        self._usage: Usage | None = None
        self.is_done = False
        """Whether the server has said that nothing follows."""

    def feed(self, data: bytes) -> Iterator[Piece]:
        """The texts that these bytes complete.

        Raises:
            PermanentError: this is no such stream, or the server gives up on the request for good.
            TransientError: it gives up for now.
        """
        self._buffer += data
        # By line feeds only: what else counts as the end of a line elsewhere may be inside of a text.
        *lines, rest = self._buffer.split(b"\n")
        if len(rest) > _LONGEST_LINE:
            raise _malformed("a line of it is too long")
        self._buffer = rest
        for line in lines:
            if line.startswith(b"data:") and not self.is_done:
                yield from self._read(bytes(line[5:].strip()))

    def end(self) -> Piece:
        """The last piece, when nothing more comes.

        Raises:
            TransientError: the stream was cut off before its end.
        """
        if not self.is_done and self._finish_reason is None:
            raise TransientError("the upstream's answer ended before it was complete")
        return Piece("", self._finish_reason or "stop", self._usage)

    def _read(self, event: bytes) -> Iterator[Piece]:
        if event == b"[DONE]":
            self.is_done = True
            return
        try:
            chunk = _decode(event)
        except msgspec.DecodeError as error:
            raise _malformed(self._masked(str(error))) from None
        if chunk.error is not None:
            raise self._failed(chunk.error)
        if chunk.usage is not None:
            self._usage = Usage(chunk.usage.prompt_tokens, chunk.usage.completion_tokens)
        for choice in chunk.choices:
            if choice.index:
                continue  # of several answers one is read
            self._finish_reason = choice.finish_reason or self._finish_reason
            if choice.delta is not None and choice.delta.content:
                yield Piece(choice.delta.content)

    def _failed(self, error: _Error | str) -> PermanentError | TransientError:
        """An error within the stream, after a status that promised well."""
        message, code = (error, None) if isinstance(error, str) else (error.message, error.code)
        is_for_good = isinstance(code, int) and 400 <= code < 500 and code not in {408, 429}
        kind = PermanentError if is_for_good else TransientError
        return kind(f"the upstream gave up: {self._masked(message)[:500]}")

    def _masked(self, text: str) -> str:
        return text.replace(self._secret, "***") if self._secret else text


def _malformed(why: str) -> PermanentError:
    return PermanentError(f"the upstream's answer isn't a stream of OpenAI's protocol: {why}")
