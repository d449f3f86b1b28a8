"""Where gateways dial this runner: each connection proves itself and becomes a session."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from gpu_runner.frames import Reported, Streamed
from gpu_runner.supervisor import Supervisor
from headrace.errors import LinkError
from headrace.link.address import Address
from headrace.link.frames import (
    Answer,
    Call,
    Credit,
    Frame,
    Handover,
    Item,
    Lost,
    Ping,
    Pong,
    Progress,
    Started,
    Stop,
)
from headrace.link.handshake import RunnerHandshake
from headrace.link.liveness import Liveness
from headrace.link.stream import FrameStream

log = logging.getLogger(__name__)


class LinkServer:
    """Listens for gateways.

    Args:
        supervisor: who takes the calls.
        runner_id: this runner's id.
        secret: the link secret.
    """

    def __init__(self, supervisor: Supervisor, runner_id: str, secret: bytes) -> None:
        self._supervisor = supervisor
        self._runner_id = runner_id
        self._secret = secret
        self._sessions: set[Session] = set()
        self._emptied = asyncio.Event()
        self._server: asyncio.Server | None = None

    async def listen(self, address: Address) -> Address:
        """Start listening; returns the address with its actual port.

        Raises:
            OSError: the address can't be used.
        """
        self._server, actual = await address.listen(self._handshake)
        return actual

    def _handshake(self) -> FrameStream[Frame]:
        return RunnerHandshake(
            self._secret,
            self._runner_id,
            self._supervisor.services,
            self._open,
            self._refused,
            hands_over=self._supervisor.on_handover is not None,
        ).stream

    def _open(self, stream: FrameStream[Frame]) -> None:
        session = Session(stream, self._supervisor, self._ended)
        self._sessions.add(session)
        self._emptied.clear()

    def _ended(self, session: Session) -> None:
        self._sessions.discard(session)
        if not self._sessions:
            self._emptied.set()

    def _refused(self, error: Exception) -> None:
        log.warning("a connection to the link was refused: %s", error)

    def tell_state(self) -> None:
        """Tell gateways at once what they would hear within a second: something can't run, or can again."""
        for session in self._sessions:
            session.answer(self._supervisor.state())

    def say_goodbye(self) -> None:
        """Stop listening, and tell gateways to send no more calls and to hang up when all are answered."""
        if self._server is not None:
            self._server.close()
        for session in self._sessions:
            session.answer(self._supervisor.state())

    def leave(self) -> None:
        """From now on, calls are lost through this runner's own end: that counts as no start of theirs."""
        for session in self._sessions:
            session.is_leaving = True

    async def emptied(self, seconds: float) -> None:
        """Return when all gateways have hung up, or after so many seconds.

        Whoever ends a link may lose a call that is on its way; only the gateway knows that there is none.
        """
        if self._sessions:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._emptied.wait()

    def close(self) -> None:
        """Stop listening and end all sessions."""
        if self._server is not None:
            self._server.close()
        for session in list(self._sessions):
            session.close()


class Session:
    """One gateway's connection; the `Caller` of the calls that came over it."""

    def __init__(
        self, stream: FrameStream[Frame], supervisor: Supervisor, on_end: Callable[[Session], None]
    ) -> None:
        self._stream = stream
        self._supervisor = supervisor
        self._on_end = on_end
        self.is_leaving = False
        self._liveness = Liveness(stream)
        stream.on_frame = self._receive
        stream.on_lost = self._lost

    def answer(self, frame: Answer | Started | Pong) -> None:
        """Send a frame to the gateway."""
        if self.is_leaving and isinstance(frame, Lost):
            frame = Lost(frame.job_id, frame.attempt, charged=False, load=frame.load, suspect=False)
        self._stream.send(frame)

    def tell(self, frame: Reported | Streamed) -> None:
        """Tell the gateway how far a call is, or send it an item of the call's stream."""
        if isinstance(frame, Streamed):
            self._stream.send(Item(frame.job_id, frame.sequence, frame.item))  # its credit bounds them
        elif not self._stream.congested:  # else another one comes, and nobody misses this
            self._stream.send(Progress(frame.job_id, frame.fraction, frame.message))

    def close(self) -> None:
        """Send what is queued, then end."""
        self._stream.close()

    def _receive(self, frame: Frame) -> None:
        self._liveness.heard()
        match frame:
            case Call():
                self._supervisor.take(frame, self)
            case Stop():
                self._supervisor.stop(frame.job_id, self)
            case Handover():
                self._supervisor.hand_over(frame, self)
            case Credit():
                self._supervisor.grant(frame.job_id, frame.items, self)
            case Ping():
                self._stream.send(self._supervisor.state())
            case Pong():
                pass
            case _:
                raise LinkError(f"a gateway doesn't send {type(frame).__name__} in this version")

    def _lost(self, error: Exception | None) -> None:
        self._liveness.end()
        self._on_end(self)
        self._supervisor.caller_lost(self)
        if error is not None:
            log.warning("a gateway's link was lost: %s", error)
