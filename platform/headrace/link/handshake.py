"""Both ends prove that they know the link secret, before anything else is said.

The runner speaks first (`Hello` with its nonce). The gateway answers with its own nonce and
HMAC-SHA-256(secret, "gateway" + runner's nonce + gateway's nonce); the runner with
HMAC-SHA-256(secret, "runner" + gateway's nonce + runner's nonce) and what it serves. Nonces are fresh for
each connection, and the roles are part of what is hashed, so a proof can be neither replayed nor reflected.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Callable

from headrace.errors import LinkError
from headrace.link.frames import VERSION, Frame, Hello, Service, decode
from headrace.link.stream import MAX_FRAME, FrameStream

NONCE_BYTES = 32
TIMEOUT_S = 3.0
_MAX_HELLO = 2**20  # before the proof, nobody may make this process hold more


def proof(secret: bytes, role: str, theirs: bytes, ours: bytes) -> bytes:
    """The proof that the speaker in `role` knows the secret (RFC 2104)."""
    return hmac.new(secret, role.encode() + theirs + ours, hashlib.sha256).digest()


def _check(hello: Frame, secret: bytes, role: str, ours: bytes) -> None:
    if not isinstance(hello, Hello):
        raise LinkError("the other end spoke before it proved itself")
    if not hmac.compare_digest(hello.proof, proof(secret, role, ours, hello.nonce)):
        raise LinkError("the other end doesn't know the link secret")


def _check_version(hello: Frame) -> Hello:
    if not isinstance(hello, Hello):
        raise LinkError("the other end spoke before its HELLO")
    if hello.version != VERSION:
        raise LinkError(f"the other end speaks version {hello.version} of the link, this one {VERSION}")
    if len(hello.nonce) != NONCE_BYTES:
        raise LinkError("the other end's nonce has the wrong length")
    return hello


class GatewayHandshake:
    """The gateway's side of one connection.

    Args:
        secret: the link secret.
        on_frame: as of `FrameStream`, once the runner has proved itself.
        on_lost: likewise.
    """

    def __init__(
        self,
        secret: bytes,
        on_frame: Callable[[Frame], None],
        on_lost: Callable[[Exception | None], None],
    ) -> None:
        self._secret = secret
        self._on_frame = on_frame
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._runner_nonce: bytes | None = None
        self._on_lost = on_lost
        self._done: asyncio.Future[Hello] = asyncio.get_running_loop().create_future()
        self.stream: FrameStream[Frame] = FrameStream(decode, self._receive, self._lost, max_frame=_MAX_HELLO)

    async def complete(self) -> Hello:
        """Wait for the runner's proof; returns its last HELLO.

        Raises:
            LinkError: the runner couldn't prove itself, or not in time.
        """
        try:
            async with asyncio.timeout(TIMEOUT_S):
                hello = await self._done
        except TimeoutError:
            self.stream.abort()
            raise LinkError("the runner didn't complete the handshake in time") from None
        return hello

    def _receive(self, frame: Frame) -> None:
        if self._runner_nonce is None:
            hello = _check_version(frame)
            self._runner_nonce = hello.nonce
            mine = proof(self._secret, "gateway", hello.nonce, self._nonce)
            self.stream.send(Hello(VERSION, self._nonce, mine))
            return
        hello = _check_version(frame)
        if hello.nonce != self._runner_nonce:
            raise LinkError("the runner changed its nonce")
        _check(hello, self._secret, "runner", self._nonce)
        if not self._done.done():
            self._done.set_result(hello)
        # At once: more may follow in the same chunk, before `complete` gets its turn.
        self.stream.max_frame = MAX_FRAME
        self.stream.on_frame = self._on_frame
        self.stream.on_lost = self._on_lost

    def _lost(self, error: Exception | None) -> None:
        if not self._done.done():  # else it was given up
            self._done.set_exception(LinkError(f"no link: {error or 'the runner closed the connection'}"))
            self._done.exception()  # whoever waited may have left; then nobody else would look at it


class RunnerHandshake:
    """The runner's side of one connection; says its HELLO as soon as it is connected.

    Args:
        secret: the link secret.
        runner_id: this runner's id.
        services: what this runner serves, asked when the gateway has proved itself.
        on_ready: called once with the proven stream; it sets `on_frame` and `on_lost` there.
        on_refused: called when the connection ends before the proof.
        hands_over: whether this runner can record running calls as jobs.
    """

    def __init__(
        self,
        secret: bytes,
        runner_id: str,
        services: Callable[[], tuple[Service, ...]],
        on_ready: Callable[[FrameStream[Frame]], None],
        on_refused: Callable[[Exception], None],
        *,
        hands_over: bool = False,
    ) -> None:
        self._secret = secret
        self._runner_id = runner_id
        self._services = services
        self._on_ready = on_ready
        self._on_refused = on_refused
        self._hands_over = hands_over
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self.stream: FrameStream[Frame] = _Greeting(self)
        self._timer = asyncio.get_running_loop().call_later(TIMEOUT_S, self._give_up)

    def greet(self) -> None:
        """Say the first HELLO."""
        self.stream.send(Hello(VERSION, self._nonce))

    def receive(self, frame: Frame) -> None:
        """Check the gateway's proof and answer with this runner's own."""
        hello = _check_version(frame)
        _check(hello, self._secret, "gateway", self._nonce)
        self._timer.cancel()
        mine = proof(self._secret, "runner", hello.nonce, self._nonce)
        self.stream.send(
            Hello(VERSION, self._nonce, mine, self._runner_id, self._services(), self._hands_over)
        )
        self.stream.max_frame = MAX_FRAME
        self._on_ready(self.stream)

    def lost(self, error: Exception | None) -> None:
        """The connection ended before the proof."""
        self._timer.cancel()
        if error is not None:
            self._on_refused(error)

    def _give_up(self) -> None:
        self.stream.abort(LinkError("the gateway didn't complete the handshake in time"))


class _Greeting(FrameStream[Frame]):
    """A stream that greets when it is connected."""

    def __init__(self, handshake: RunnerHandshake) -> None:
        super().__init__(decode, handshake.receive, handshake.lost, max_frame=_MAX_HELLO)
        self._handshake = handshake

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._handshake.greet()
