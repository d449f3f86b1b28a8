"""`Upstream`: a remote server that does a function's work, and stops when nobody wants it any more."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import random
import re
import ssl
import time
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict, TypeVar
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import msgspec

from headrace.errors import PermanentError, TransientError
from headrace.sdk.call import Call
from headrace.upstream.events import ChatEvents, Piece, Usage
from headrace.upstream.refusals import BUSY, error_of, retry_after

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")

log = logging.getLogger(__name__)

_FIRST_PAUSE_S: Final = 0.2
_REST_S: Final = 0.25  # for a response to end after its stream: then the connection can be used again
_MOST_ERROR_BYTES: Final = 2**16
_MOST_BYTES: Final = 2**28
_MOST_KEPT: Final = 32  # connections that wait for their next request
_KEY: Final = re.compile(r"[!-~]*")
_OURS: Final = frozenset({"messages", "stream", "stream_options", "input", "encoding_format"})


class Message(TypedDict):
    """One turn of a conversation."""

    role: str
    content: Any


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer; fields as of `Piece`."""

    text: str
    finish_reason: str
    usage: Usage | None


class _Vector(msgspec.Struct):
    index: int
    embedding: list[float]


class _Vectors(msgspec.Struct):
    data: list[_Vector]


class Upstream:
    """A server that speaks OpenAI's protocol: Ollama, vLLM, llama.cpp's, or OpenAI's own.

    Make one beside the function that uses it. Whatever ends a call, be it its cancel, a limit, its deadline
    or a client that leaves, closes the connection, and by that the server stops. Answers are streamed from
    the server also where they are wanted whole, as some notice only then that nobody reads any more. A
    request is made again only while nothing was generated: when the server can't be reached, or is busy.

    Args:
        url: up to `/v1`, as "http://127.0.0.1:11434/v1".
        model: by the server's name for it; an option `model` of a request names another.
        key: sent as a bearer token; better left to `key_setting`.
        key_setting: the environment variable that has the key.
        connect: the longest wait for a connection, in seconds.
        retries: how often a request is made again.
        patience: the longest wait for a busy server, in seconds, with the call in its slot; where it asks for
            more, the call fails for now, and the runner takes no others of this function meanwhile.
        proxy: what to go through; variables such as HTTPS_PROXY aren't looked at.
        ca: a PEM file with the authorities to trust in place of the public ones, or a context, which may also
            hold the certificate of this client; variables such as SSL_CERT_FILE aren't looked at.
        counts: ask for the number of tokens too; False for servers that refuse `stream_options`.

    Raises:
        ValueError: the URL is none, a number makes no sense, or no key can be this one.
    """

    def __init__(  # noqa: PLR0913 - all but one have a default
        self,
        url: str,
        *,
        model: str = "",
        key: str = "",
        key_setting: str = "",
        connect: float = 2.0,
        retries: int = 2,
        patience: float = 2.0,
        proxy: str | None = None,
        ca: str | Path | ssl.SSLContext | None = None,
        counts: bool = True,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"{url!r} is not an http:// or https:// URL that paths can be added to")
        if parts.username is not None or parts.password is not None:
            raise ValueError("the URL must not hold a user or password: name the key in key_setting")
        if retries < 0 or not 0 < connect < math.inf or not 0 <= patience < math.inf:
            raise ValueError("retries and patience are 0 or more, connect is more than 0, all are finite")
        if not _KEY.fullmatch(key := key.strip()):
            raise ValueError("key holds characters that no key can have")
        self.url = url.rstrip("/")
        self.model = model
        self._key = key
        self._key_setting = key_setting
        self._connect = connect
        self._retries = retries
        self._patience = patience
        self._proxy = proxy
        self._ca = ca
        self._counts = counts
        self._busy_until = 0.0
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, httpx2.AsyncClient] = WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"<Upstream {self.url}>"

    async def chat(
        self, call: Call, messages: Sequence[Message | Mapping[str, Any]], **options: Any
    ) -> Reply:
        """The whole answer in a conversation; arguments and errors as of `stream`."""
        texts: list[str] = []
        last = Piece("")
        async with aclosing(self.stream(call, messages, **options)) as pieces:
            async for last in pieces:
                texts.append(last.text)
        return Reply("".join(texts), last.finish_reason or "stop", last.usage)

    async def stream(
        self, call: Call, messages: Sequence[Message | Mapping[str, Any]], **options: Any
    ) -> AsyncGenerator[Piece, None]:
        """The answer in a conversation, piece by piece; the last piece tells why it ends.

        Args:
            call: the running one, whose remaining time bounds the request.
            messages: the conversation, the oldest turn first.
            options: fields of the request that the server knows, as `temperature`, `max_tokens`, `stop`.

        Raises:
            CallStopped: the call was cancelled, or has no time left.
            PermanentError: the server refuses the request for good, with its message; or its answer is no
                stream of the protocol.
            TransientError: it can't be reached, is busy, or has failed or ended amid its answer.
        """
        body = {**self._options(options), "messages": list(messages), "stream": True}
        if self._counts:
            body["stream_options"] = {"include_usage": True}
        key = self._secret()
        response = await self._ask(call, "/chat/completions", body, key)
        try:
            kind = response.headers.get("content-type", "").partition(";")[0].strip()
            if kind != "text/event-stream":
                raise PermanentError(
                    f"the upstream answered with {kind or 'something'} instead of a stream of events"
                )
            events = ChatEvents(key)
            chunks = response.aiter_bytes()
            while not events.is_done and (data := await self._within(call, anext(chunks, None))) is not None:
                for piece in events.feed(data):
                    call.check()
                    yield piece
            if events.is_done:
                with contextlib.suppress(TimeoutError, TransientError):
                    async with asyncio.timeout(_REST_S):
                        while await self._within(call, anext(chunks, None)) is not None:
                            pass
            yield events.end()
        finally:
            # Closes the connection, unless all was read. A read that was cancelled has closed it already;
            # where `call.check()` or a reader ends this, it would stay open while anybody keeps the frame, as
            # the exception's traceback does.
            await response.aclose()

    async def embeddings(self, call: Call, texts: Sequence[str], **options: Any) -> list[list[float]]:
        """A vector for each text, in their order; arguments and errors as of `stream`."""
        body = {**self._options(options), "input": list(texts), "encoding_format": "float"}
        response = await self._ask(call, "/embeddings", body, self._secret())
        data = await self._read(call, response, _MOST_BYTES)
        try:
            vectors = sorted(msgspec.json.decode(data, type=_Vectors).data, key=lambda one: one.index)
        except msgspec.DecodeError as error:
            raise PermanentError(f"the upstream's answer isn't one of OpenAI's protocol: {error}") from None
        if [one.index for one in vectors] != list(range(len(texts))):
            raise PermanentError(f"the upstream gave {len(vectors)} vectors for {len(texts)} texts")
        return [one.embedding for one in vectors]

    async def aclose(self) -> None:
        """Close the connections of this event loop; an executor's are closed when it ends."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()

    # ------------------------------------------------------------------ requests

    async def _ask(self, call: Call, path: str, body: Mapping[str, Any], key: str) -> httpx2.Response:
        """The answer to a request, if it is 200: its head only; whoever gets it has to close it."""
        import httpx2  # noqa: PLC0415 - only functions with an upstream pay for it

        for left in range(self._retries, -1, -1):
            await self._wait_while_busy(call)
            pause = _FIRST_PAUSE_S * 2 ** (self._retries - left) * random.uniform(0.5, 1.5)  # noqa: S311
            try:
                response = await self._within(call, self._send(path, body, key))
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                if (mistrust := _mistrust(error)) is not None:
                    log.warning("upstream %s isn't trusted: %s", self.url, mistrust)
                    raise PermanentError(
                        f"the upstream server's certificate isn't trusted: {mistrust}"
                    ) from None
                log.warning("upstream %s can't be reached: %s", self.url, str(error) or type(error).__name__)
                failure = TransientError(f"{self.url} can't be reached")
            else:
                if response.status_code == 200:
                    return response
                failure = await self._refused(call, response, key)
                pause = failure.retry_after or pause
            if not left or pause > self._patience or pause >= call.remaining():
                raise failure
            await asyncio.sleep(pause)
        raise AssertionError("the last try raises")

    async def _send(self, path: str, body: Mapping[str, Any], key: str) -> httpx2.Response:
        """The head of the answer; asked again where the server has just closed a connection that was kept."""
        import httpx2  # noqa: PLC0415

        client = self._client()
        data = msgspec.json.encode(body)
        headers = {"Content-Type": "application/json"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        is_new = False

        async def trace(event: str, _: Any) -> None:
            nonlocal is_new
            is_new = is_new or event == "connection.connect_tcp.started"

        for left in range(_MOST_KEPT, -1, -1):
            request = client.build_request(
                "POST", self.url + path, content=data, headers=headers, extensions={"trace": trace}
            )
            try:
                return await client.send(request, stream=True)
            except (httpx2.ReadError, httpx2.WriteError, httpx2.RemoteProtocolError):
                if is_new or not left:
                    raise
        raise AssertionError("the last try raises")

    async def _refused(self, call: Call, response: httpx2.Response, key: str) -> TransientError:
        """What to raise if it isn't asked again.

        Raises:
            PermanentError, TransientError: it isn't to be asked again.
        """
        status = response.status_code
        if status not in BUSY:
            raise error_of(status, await self._read(call, response, _MOST_ERROR_BYTES), key)
        await response.aclose()
        seconds = retry_after(response.headers.get("retry-after"))
        self._busy_until = max(self._busy_until, time.monotonic() + seconds)
        return self._busy(seconds)

    async def _wait_while_busy(self, call: Call) -> None:
        """Nobody asks while the server wants to be left alone."""
        call.check()
        seconds = self._busy_until - time.monotonic()
        if seconds <= 0:
            return
        if seconds > self._patience or seconds >= call.remaining():
            raise self._busy(seconds)
        await asyncio.sleep(seconds)
        call.check()

    def _busy(self, seconds: float) -> TransientError:
        return TransientError(f"{self.url} is busy", retry_after=seconds or None)

    async def _read(self, call: Call, response: httpx2.Response, most: int) -> bytes:
        """The body up to so many bytes; the connection is of no more use if there are more."""
        data = bytearray()
        try:
            chunks = response.aiter_bytes()
            while len(data) < most and (chunk := await self._within(call, anext(chunks, None))) is not None:
                data += chunk
        finally:
            await response.aclose()
        return bytes(data)

    async def _within(self, call: Call, step: Awaitable[T]) -> T:
        """The result of one step, which may take as long as the call has left."""
        import httpx2  # noqa: PLC0415

        try:
            async with asyncio.timeout(call.remaining()):
                return await step
        except TimeoutError:
            call.check()  # its deadline has passed
            raise TransientError(f"{self.url} took too long") from None
        except (httpx2.ConnectError, httpx2.ConnectTimeout):
            raise
        except httpx2.LocalProtocolError:
            # Not the cause: it quotes what can't be sent.
            raise TransientError(f"{self.url} can't be asked so") from None
        except httpx2.TransportError as error:
            raise TransientError(f"{self.url} broke off: {type(error).__name__}") from error

    def _client(self) -> httpx2.AsyncClient:
        """This loop's connections."""
        import httpx2  # noqa: PLC0415

        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            client = self._clients[loop] = httpx2.AsyncClient(
                timeout=httpx2.Timeout(None, connect=self._connect),
                limits=httpx2.Limits(max_connections=None, max_keepalive_connections=_MOST_KEPT),
                trust_env=False,
                verify=self._trusted(),
                proxy=self._proxy,
            )
        return client

    def _trusted(self) -> ssl.SSLContext | bool:
        """The certificates to trust; True: those of the public authorities.

        Raises:
            PermanentError: the file with them can't be read.
        """
        if self._ca is None:
            return True
        if isinstance(self._ca, ssl.SSLContext):
            return self._ca
        try:
            return ssl.create_default_context(cafile=self._ca)
        except (OSError, ssl.SSLError) as error:
            raise PermanentError(f"the certificates in ca can't be read: {error}") from None

    def _secret(self) -> str:
        """The key as it is sent; its message never shows it.

        Raises:
            PermanentError: it isn't set, or can be none.
        """
        if self._key or not self._key_setting:
            return self._key
        if not (key := os.environ.get(self._key_setting, "").strip()):
            raise PermanentError(f"{self._key_setting}, the upstream server's key, isn't set")
        if not _KEY.fullmatch(key):
            raise PermanentError(f"{self._key_setting} holds characters that no key can have")
        return key

    def _options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        if taken := _OURS & options.keys():
            raise TypeError(f"{', '.join(sorted(taken))} can't be given as options of a request")
        found = {"model": self.model, **options} if self.model else dict(options)
        return {name: value for name, value in found.items() if value is not None}


def _mistrust(error: BaseException) -> str | None:
    """Why the server's certificate isn't trusted, if that is what went wrong."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return cause.verify_message
        cause = cause.__cause__ or cause.__context__
    return None
