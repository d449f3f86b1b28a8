"""Callers who come when they come, and come back when they are told to."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, get_args

from first_come import Arrival
from wire import Wire

Mode = Literal["place", "key", "neither", "constant"]
MODES: Final[tuple[Mode, ...]] = get_args(Mode)
"""What a caller who is refused does: come back when told, with its place, with its `Idempotency-Key`, or as
somebody new; or, whatever it is told, after a second."""

_CONSTANT_S: Final = 1.0


class Try(NamedTuple):
    """One request.

    Args:
        at: when it was made, in seconds from the beginning.
        code: what came of it: `accepted`, the code of a problem, or `no answer`.
        told_s: `Retry-After`; 0: none.
        has_place: the answer gave one.
    """

    at: float
    code: str
    told_s: float = 0.0
    has_place: bool = False


@dataclass
class Story:
    """What became of a call.

    Args:
        call: when it was to come, and how long its execution takes.
        tries: all of its requests.
        job_id: once it was accepted.
        started_at: when its execution began, in seconds from the beginning; None: it didn't.
        excess_s: by how much the execution was longer than it had to be.
        status: of its job.
    """

    call: Arrival
    tries: list[Try] = field(default_factory=list[Try])
    job_id: str = ""
    started_at: float | None = None
    excess_s: float = 0.0
    status: str = ""

    @property
    def wait_s(self) -> float | None:
        """From the first try until its execution began."""
        return None if self.started_at is None else self.started_at - self.tries[0].at


class Comers:
    """Makes calls, and again.

    Args:
        wires: the gateways; the tries of a call go to each in turn.
        mode: what its callers do.
        patience_s: how long one goes on with a call.
    """

    def __init__(self, wires: Sequence[Wire], mode: Mode, patience_s: float) -> None:
        self.stories: list[Story] = []
        self.began_at = 0.0  # seconds since 1970
        self._wires = wires
        self._mode = mode
        self._patience_s = patience_s

    async def all(self, calls: Iterator[Arrival], load_s: float) -> None:
        """Make the calls at their times, until all are accepted or given up that come within so many seconds.

        What comes after these comes meanwhile, so that they don't have the site for themselves.
        """
        began = time.monotonic()
        self.began_at = time.time()
        now: Callable[[], float] = lambda: time.monotonic() - began  # noqa: E731 - short for what follows
        async with asyncio.TaskGroup() as tasks:
            loaded: set[asyncio.Task[None]] = set()
            for call in calls:
                await asyncio.sleep(call.at - now())
                if call.at >= load_s and not loaded:
                    break
                self.stories.append(Story(call))
                task = tasks.create_task(self._pursue(self.stories[-1], len(self.stories), now))
                if call.at < load_s:
                    loaded.add(task)
                    task.add_done_callback(loaded.discard)

    async def _pursue(self, story: Story, number: int, now: Callable[[], float]) -> None:
        """Call until it is accepted, or patience ends."""
        headers = {"Prefer": "respond-async"}
        if self._mode == "key":
            headers["Idempotency-Key"] = f'"{uuid.uuid4()}"'
        while True:
            wire = self._wires[(number + len(story.tries)) % len(self._wires)]
            place = await self._try(story, wire, headers, now)
            if story.job_id:
                return
            headers.pop("Headrace-Place", None)
            if place and self._mode == "place":
                headers["Headrace-Place"] = place
            told_s = story.tries[-1].told_s or _CONSTANT_S
            pause_s = _CONSTANT_S if self._mode == "constant" else told_s
            if now() + pause_s > story.tries[0].at + self._patience_s:
                return
            await asyncio.sleep(pause_s)

    async def _try(self, story: Story, wire: Wire, headers: dict[str, str], now: Callable[[], float]) -> str:
        """One request; returns the place that it was given, or nothing."""
        at = now()
        try:
            answer = await wire.request("POST", "/fn/doze", {"seconds": story.call.seconds}, headers)
        except (OSError, EOFError):
            story.tries.append(Try(at, "no answer"))
            return ""
        place = answer.headers.get("headrace-place", "")
        if answer.status == 202:
            story.job_id = answer.headers["headrace-job-id"]
            story.tries.append(Try(at, "accepted"))
        else:
            code = answer.json().get("code", str(answer.status))
            told_s = float(answer.headers.get("retry-after", "0"))
            story.tries.append(Try(at, code, told_s, bool(place)))
        return place


def codes(stories: Sequence[Story]) -> Counter[str]:
    """How often each answer came."""
    return Counter(one.code for story in stories for one in story.tries)
