"""In which order a runner leaves, and how soon where a second signal wants it to."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from gpu_runner.link_server import Session
from gpu_runner.runner import Runner
from gpu_runner.tasks import Step
from headrace.link.frames import Lost
from headrace.settings import load_settings

LONG_S = 60.0
STEPS = ("give back", "hang up", "unregister")


class Executor:
    """With a call that doesn't end."""

    calls = ("job",)

    def __init__(self, said: list[str]) -> None:
        self._said = said

    def retire(self) -> None:
        pass

    def kill(self) -> None:
        self._said.append("kill calls")


class Parts:
    """A runner's parts: they tell what they are asked, and hang in one of the steps.

    Args:
        hangs_in: that step.
        hurry: called when they do.
    """

    draining = False

    def __init__(self, hangs_in: str, hurry: Any) -> None:
        self.said: list[str] = []
        self.executors = [Executor(self.said)]
        self._hangs_in = hangs_in
        self._hurry = hurry

    async def _do(self, step: str) -> None:
        self.said.append(step)
        if step == self._hangs_in:
            self._hurry()
            await asyncio.sleep(LONG_S)

    # ------------------------------------------------------------------ of a supervisor and a registration

    async def drain(self, seconds: float | None = None) -> None:
        pass

    async def end(self) -> None:
        await self._do("unregister")

    # ------------------------------------------------------------------ of a link server

    def say_goodbye(self) -> None:
        pass

    def leave(self) -> None:
        self.said.append("leave")

    async def emptied(self, seconds: float) -> None:
        if "kill calls" in self.said:
            await self._do("hang up")

    # ------------------------------------------------------------------ of the jobs

    async def stop_claiming(self, seconds: float) -> None:
        pass

    async def give_back(self, step: Step) -> None:
        await step(self._do("give back"))


class Registered:
    """A registration of those parts: its drain isn't one to wait for."""

    def __init__(self, parts: Parts) -> None:
        self.end = parts.end

    def drain(self) -> None:
        pass


def left(hangs_in: str = "", *, hurries: bool = True) -> tuple[list[str], float]:
    """What a runner did when it left, and how long that took."""

    async def scenario() -> tuple[list[str], float]:
        runner = Runner(load_settings(), {})
        parts: Any = Parts(hangs_in, runner._hurrying.set if hurries else lambda: None)
        runner._link = runner._jobs = parts
        began = time.monotonic()
        async with asyncio.timeout(LONG_S):
            await runner._leave(parts, Registered(parts))  # type: ignore[arg-type]
        return parts.said, time.monotonic() - began

    return asyncio.run(scenario())


ALL = ["leave", "give back", "kill calls", "hang up", "unregister"]


def test_gateways_calls_are_lost_with_those_jobs_that_are_killed_only_after_it_leaves() -> None:
    assert left()[0] == ALL


@pytest.mark.parametrize("step", STEPS)
def test_a_second_signal_is_heard_in_each_step(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_runner.runner._GIVE_BACK_S", LONG_S)
    said, seconds = left(step)
    assert said == ALL
    assert 0.5 <= seconds + 0.01 < 5


@pytest.mark.parametrize("step", STEPS)
def test_without_one_each_step_takes_its_time_and_no_more(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_runner.runner._GIVE_BACK_S", 0.7)
    monkeypatch.setattr("gpu_runner.runner._HURRIED_S", 0.0)
    said, seconds = left(step, hurries=False)
    assert said == ALL
    assert 0.7 <= seconds + 0.01 < 5


def test_whoever_is_lost_as_a_runner_leaves_is_no_suspect() -> None:
    class Stream:
        on_frame = on_lost = None

        def __init__(self) -> None:
            self.sent: list[Any] = []

        def send(self, frame: Any) -> None:
            self.sent.append(frame)

    async def scenario() -> None:
        stream: Any = Stream()
        supervisor: Any = None
        session = Session(stream, supervisor, lambda _: None)
        lost = Lost("job", 1, charged=True, load=2)
        session.answer(lost)
        session.is_leaving = True
        session.answer(lost)
        session._liveness.end()
        answers = [frame for frame in stream.sent if isinstance(frame, Lost)]
        assert answers == [lost, Lost("job", 1, charged=False, load=2, suspect=False)]

    asyncio.run(scenario())
