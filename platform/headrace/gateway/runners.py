"""The gateway's links to runners: dialled when a runner registers, dialled again when lost."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection, Iterable, Sequence

from headrace.domain import RunnerInfo
from headrace.errors import LinkError, SettingsError
from headrace.gateway.call_stream import CallStream
from headrace.gateway.pending import PendingCall
from headrace.gateway.serving import Serving
from headrace.link.address import Address
from headrace.link.frames import (
    Answer,
    Call,
    Credit,
    Error,
    Fenced,
    Frame,
    Handed,
    Handover,
    Hello,
    Item,
    Lost,
    Ping,
    Pong,
    Progress,
    Refused,
    Result,
    Started,
    Stop,
)
from headrace.link.handshake import TIMEOUT_S, GatewayHandshake
from headrace.link.liveness import Liveness
from headrace.link.stream import FrameStream

log = logging.getLogger(__name__)

_ANSWERS = (Result, Error, Refused, Lost, Handed, Fenced)
_WITHOUT_LOAD = (Handed, Fenced)
_SHORTEST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0


class RunnerLink:
    """The connection to one runner.

    Args:
        info: the runner as it registered itself.
        secret: the link secret.
        links: whom to tell when the link comes and goes.
    """

    def __init__(self, info: RunnerInfo, secret: bytes, links: RunnerLinks) -> None:
        self.info = info
        self.services: dict[str, Serving] = {}
        self._secret = secret
        self._links = links
        self._pending: dict[str, PendingCall] = {}
        self._stream: FrameStream[Frame] | None = None
        self._leaving = False
        self._hands_over = False
        self._liveness: Liveness | None = None
        self._lost = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.create_task(self._keep())

    def loads(self, function: str, seconds: float) -> None:
        """Its models are being loaded, or are to be, and this should take so many seconds."""
        self._links.load_s[function] = seconds

    @property
    def gateways(self) -> int:
        """How many gateways send calls to the runner."""
        return self._links.gateways

    @property
    def is_up(self) -> bool:
        """Whether calls can be sent."""
        return self._stream is not None and not self._leaving

    @property
    def is_linked(self) -> bool:
        """Whether the runner is there: one that leaves may still have calls to answer."""
        return self._stream is not None

    @property
    def is_congested(self) -> bool:
        """Whether what was sent waits to leave: better send elsewhere, if there is an elsewhere."""
        return self._stream is not None and self._stream.congested

    # ------------------------------------------------------------------ calls

    def call(self, frame: Call, stream: CallStream | None = None) -> PendingCall:
        """Send a call; its answer arrives in the returned object, and what comes before it in the stream."""
        assert self._stream is not None
        hand_over = self._hand_over if self._hands_over else None
        pending = self._pending[frame.job_id] = PendingCall(frame, self._loop, stream, hand_over)
        if stream is not None:
            stream.open(lambda credit: self._grant(pending, credit))
        self.services[frame.function].load += 1
        self._stream.send(frame)
        return pending

    def _grant(self, pending: PendingCall, credit: int) -> None:
        job_id = pending.frame.job_id
        if self._stream is not None and self._pending.get(job_id) is pending:
            self._stream.send(Credit(job_id, credit))

    def _hand_over(self, frame: Handover) -> None:
        if self._stream is not None and frame.job_id in self._pending:
            self._stream.send(frame)

    def stop(self, job_id: str) -> None:
        """Nobody waits for the call any more."""
        pending = self._pending.pop(job_id, None)
        if pending is not None and self._stream is not None:
            self._settle_load(pending)
            self._stream.send(Stop(job_id))
            self._hang_up_when_done()

    def _answered(self, frame: Answer) -> None:
        pending = self._pending.pop(frame.job_id, None)
        if pending is None:
            return  # it was stopped
        if not isinstance(frame, _WITHOUT_LOAD):
            self._settle_load(pending, frame.load)
        elif isinstance(frame, Fenced) or frame.withdrawn:
            self._settle_load(pending)  # else it goes on there, in its slot
        if serving := self.services.get(pending.frame.function):
            if isinstance(frame, Result):
                serving.executed(frame)
            elif isinstance(frame, Refused):
                serving.refused(frame)
        pending.deliver(frame)
        self._hang_up_when_done()

    def _hang_up_when_done(self) -> None:
        if self._leaving and not self._pending and self._stream is not None:
            self._stream.close()

    def _settle_load(self, pending: PendingCall, reported: int | None = None) -> None:
        serving = self.services.get(pending.frame.function)
        if serving is not None:
            serving.load = max(0, serving.load - 1) if reported is None else reported

    def _receive(self, frame: Frame) -> None:
        if self._liveness is not None:
            self._liveness.heard()
        if isinstance(frame, _ANSWERS):
            self._answered(frame)
            return
        match frame:
            case Item() | Progress() | Started():
                if pending := self._pending.get(frame.job_id):  # else it was stopped
                    pending.take(frame)
            case Ping():
                if self._stream is not None:
                    self._stream.send(Pong())
            case Pong():
                self._told(frame)
            case _:
                raise LinkError(f"a runner doesn't send {type(frame).__name__} in this version")

    def _told(self, state: Pong) -> None:
        for function, serving in self.services.items():
            serving.told(state, function)
        if state.draining and not self._leaving:
            self._leaving = True
            self._links.changed()
        self._hang_up_when_done()

    # ------------------------------------------------------------------ coming and going

    def close(self) -> None:
        """End the link and don't dial again."""
        self._task.cancel()

    async def _keep(self) -> None:
        failures = 0
        while True:
            try:
                await self._live()
                failures = 0
                if self._leaving:
                    return  # a runner's id doesn't come back
            except (OSError, LinkError, SettingsError) as error:
                failures += 1
                if failures == 1:
                    log.warning("runner %s at %s: %s", self.info.runner_id, self.info.address, error)
            pause = min(_LONGEST_PAUSE_S, _SHORTEST_PAUSE_S * 2**failures)
            await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - spreads load, guards nothing

    async def _live(self) -> None:
        self._lost.clear()
        handshake = GatewayHandshake(self._secret, self._receive, self._ended)
        async with asyncio.timeout(TIMEOUT_S):  # a TimeoutError is an OSError
            await Address.parse(self.info.address or "").connect(lambda: handshake.stream)
        try:
            hello = await handshake.complete()
            self._open(hello, handshake.stream)
            await self._lost.wait()
        finally:
            handshake.stream.close()

    def _open(self, hello: Hello, stream: FrameStream[Frame]) -> None:
        if hello.runner_id != self.info.runner_id:
            raise LinkError(f"another runner, {hello.runner_id}, answers there")
        self._stream = stream
        self._leaving = False
        self._hands_over = hello.hands_over
        self._liveness = Liveness(stream)
        self.services = {
            service.function: Serving(self, service.interface, service.slots, service.degraded)
            for service in hello.services
        }
        log.info("runner %s at %s is linked", self.info.runner_id, self.info.address)
        self._links.changed()

    def _ended(self, error: Exception | None) -> None:
        self._lost.set()
        if self._stream is None:
            return  # it was another runner
        self._stream = None
        if self._liveness is not None:
            self._liveness.end()
        self.services = {}
        pending, self._pending = self._pending, {}
        for call in pending.values():
            call.cut()
        if self._leaving:
            log.info("runner %s has left", self.info.runner_id)
        else:
            log.warning("runner %s is lost: %s", self.info.runner_id, error or "it closed the link")
        self._links.changed()


class RunnerLinks:
    """All links of this gateway, and who serves what.

    Args:
        on_change: called when a link has come or gone, or takes no more calls.

    `gateways` is how many there are, as Postgres last told; `load_s` how long the models of a function were
    last said to take to load, in seconds.
    """

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self.gateways = 1
        self.load_s: dict[str, float] = {}
        self._on_change = on_change
        self._links: dict[str, RunnerLink] = {}
        self._serving: dict[tuple[str, str], list[Serving]] = {}  # those that are up
        self._change = asyncio.Event()

    def update(self, runners: Iterable[RunnerInfo], secret: bytes) -> None:
        """Dial runners that are new, and let go of those that are gone from the registry and lost.

        A runner that is out of the registry but still linked is kept: the link knows better.
        """
        listed = {runner.runner_id: runner for runner in runners if runner.address}
        for runner_id, info in listed.items():
            if runner_id not in self._links:
                self._links[runner_id] = RunnerLink(info, secret, self)
        for runner_id in [known for known in self._links if known not in listed]:
            if not self._links[runner_id].is_linked:
                self._links.pop(runner_id).close()

    def changed(self) -> None:
        """A link has come or gone, or takes no more calls."""
        self._serving = {}
        for link in self._links.values():
            for function, serving in link.services.items() if link.is_up else ():
                self._serving.setdefault((function, serving.interface), []).append(serving)
        self._on_change()
        change, self._change = self._change, asyncio.Event()
        change.set()

    def serving(self, function: str, interface: str, without: Collection[Serving] = ()) -> Sequence[Serving]:
        """Who can take a call of this interface now."""
        serving = self._serving.get((function, interface), [])
        return [one for one in serving if one not in without] if without else serving

    async def next_change(self, seconds: float) -> bool:
        """Wait until a link comes or goes; False after so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                await self._change.wait()
        except TimeoutError:
            return False
        return True

    def count(self) -> int:
        """Links that are up."""
        return len(self.ids())

    def ids(self) -> list[str]:
        """The runners that calls can be sent to, sorted."""
        return sorted(runner_id for runner_id, link in self._links.items() if link.is_up)

    def close(self) -> None:
        """End all links."""
        for link in self._links.values():
            link.close()
