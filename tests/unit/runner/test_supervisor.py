"""The supervisor's bookkeeping, over executors that only record what they are told."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest
from rig import Gateway

from gpu_runner import supervisor as module
from gpu_runner.ahead import Ahead
from gpu_runner.frames import Done, Failed, Ready, Reported, Run, Stop
from gpu_runner.metrics import RunnerMetrics
from gpu_runner.slots import MAIN
from gpu_runner.supervisor import Supervisor
from headrace.link.frames import Call, Lost, Refused, Result
from headrace.sdk.discovery import discover


class Scripted:
    """An executor as the supervisor knows it."""

    def __init__(self, index: int, supervisor: Supervisor) -> None:
        self.index = index
        self.supervisor = supervisor
        self.calls: dict[str, Any] = {}
        self.busy: Counter[str] = Counter()
        self.ahead = Ahead()
        self.is_ready = False
        self.killed_for: Any = None
        self.sent: list[Run | Stop] = []

    def send(self, frame: Any) -> None:
        self.sent.append(frame)

    def kill(self, culprit: Any = None) -> None:
        self.killed_for = self.killed_for or culprit
        self.is_ready = False

    def become_ready(self, **degraded: str) -> None:
        self.killed_for = None
        self.is_ready = True
        self.supervisor.executor_ready(self, Ready("cpu", 0.7, degraded))  # type: ignore[arg-type]

    def lose(self) -> None:
        self.is_ready = False
        self.supervisor.executor_lost(self)  # type: ignore[arg-type]

    def say(self, frame: Any) -> None:
        self.supervisor.executor_said(self, frame)  # type: ignore[arg-type]

    def finish(self, job_id: str, seconds: float = 0.1) -> None:
        self.say(Done(job_id, b"{}", seconds))

    @property
    def runs(self) -> list[str]:
        return [frame.job_id for frame in self.sent if isinstance(frame, Run)]

    @property
    def stops(self) -> list[str]:
        return [frame.job_id for frame in self.sent if isinstance(frame, Stop)]


class Bench:
    def __init__(self, executors: int, brief_wait: float) -> None:
        functions = discover(["executor_functions", "parallel_functions"])
        self.changes = 0
        self.supervisor = Supervisor(functions, RunnerMetrics(functions), brief_wait, self._changed)
        self.executors = [Scripted(index, self.supervisor) for index in range(executors)]
        self.supervisor.executors += self.executors  # type: ignore[arg-type]
        self.gateway = Gateway(self.supervisor)

    def _changed(self) -> None:
        self.changes += 1

    def load(self, function: str = "echo") -> int:
        return self.supervisor.loads()[function]

    def told(self, job_id: str) -> Any:
        """The answer, if there is one."""
        future = self.gateway.answers[job_id]
        return future.result() if future.done() else None


def run(scenario: Any, *, executors: int = 1, brief_wait: float = 10.0, ready: bool = True) -> None:
    async def limited() -> None:
        bench = Bench(executors, brief_wait)
        if ready:
            for executor in bench.executors:
                executor.become_ready()
        async with asyncio.timeout(20):
            await scenario(bench)

    asyncio.run(limited())


def test_calls_start_in_the_order_in_which_they_came() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        jobs = [bench.gateway.send(name) for name in ("echo", "whoami", "one", "echo")]
        for position, job in enumerate(jobs):
            assert executor.runs == jobs[: position + 1]
            assert bench.load() == len(jobs) - position
            executor.finish(job)
            assert isinstance(bench.told(job), Result)
            assert bench.told(job).load == bench.load()
        assert executor.stops == []

    run(scenario)


def test_what_is_not_served_here_is_refused() -> None:
    async def scenario(bench: Bench) -> None:
        assert bench.told(bench.gateway.send("unheard_of")).reason == "unknown-interface"
        frame = Call("old", "echo", "another", b"{}", "o", 1, 1000, 250)
        bench.gateway.answers["old"] = asyncio.get_running_loop().create_future()
        bench.supervisor.take(frame, bench.gateway)
        assert bench.told("old").reason == "unknown-interface"
        assert bench.load() == 0

    run(scenario)


def test_a_full_runner_refuses_with_the_predicted_wait() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        executor.finish(bench.gateway.send("echo"), seconds=4.0)  # so long does it take
        running = bench.gateway.send("echo")
        refused = bench.told(bench.gateway.send("echo"))
        assert (refused.reason, refused.load, refused.retry_after_s) == ("full", 1, 4.0)
        assert bench.load() == 1
        executor.finish(running)

    run(scenario, brief_wait=1.0)


def test_a_wait_is_brief_and_never_longer_than_the_connection() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        running = bench.gateway.send("echo")
        for wait in (0.0, 0.02):
            refused = await bench.gateway.call("echo", wait=wait)
            assert (refused.reason, bench.load()) == ("full", 1)
        refused = await bench.gateway.call("echo", wait=100)  # the brief wait ends it
        assert refused.reason == "full"
        executor.finish(running)

    run(scenario, brief_wait=0.05)


def test_while_nothing_is_ready_calls_wait_as_long_as_their_connection() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        patient, hasty = bench.gateway.send("echo", wait=100), bench.gateway.send("echo", wait=0.01)
        refused = await bench.gateway.answer_to(hasty)
        assert (refused.reason, refused.load) == ("cold", 1)
        assert refused.retry_after_s > 0
        assert not bench.supervisor.ready.is_set()
        executor.become_ready()
        assert bench.supervisor.ready.is_set()
        assert executor.runs == [patient]
        executor.finish(patient)

    run(scenario, brief_wait=0.0, ready=False)


def test_a_stop_of_a_waiting_call_forgets_it() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        running, waiting, last = (bench.gateway.send("echo") for _ in range(3))
        bench.supervisor.stop(waiting)
        bench.supervisor.stop("unknown")
        assert bench.load() == 2
        executor.finish(running)
        assert executor.runs == [running, last]
        assert bench.told(waiting) is None
        assert executor.stops == []
        executor.finish(last)

    run(scenario)


def test_a_lost_gateway_stops_its_own_calls_only() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        other = Gateway(bench.supervisor)
        mine, waiting, theirs = bench.gateway.send("many"), bench.gateway.send("echo"), other.send("many")
        queued = bench.gateway.send("echo")
        bench.supervisor.caller_lost(bench.gateway)
        assert executor.stops == [mine, waiting]
        assert bench.load() == 1  # the queued one is gone
        executor.finish(theirs)
        assert isinstance(other.answers[theirs].result(), Result)
        for job in (mine, waiting):
            executor.say(Failed(job, "stopped", "", 0.1))
            assert bench.told(job).category == "cancelled"
        assert bench.told(queued) is None
        assert not bench.supervisor._calls

    run(scenario)


def test_the_same_job_a_second_time_stops_the_first_and_is_refused() -> None:
    """A gateway that lost the link comes back before this end has noticed the loss."""

    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        bench.gateway.send("echo", job_id="job")
        again = Gateway(bench.supervisor)
        again.send("echo", job_id="job")
        assert isinstance(again.answers["job"].result(), Refused)
        assert executor.stops == ["job"]
        executor.say(Failed("job", "stopped", "", 0.1))
        assert not bench.supervisor._calls
        again.send("echo", job_id="job")
        executor.finish("job")
        assert isinstance(again.answers["job"].result(), Result)

    run(scenario)


def test_an_answer_of_a_killed_executor_starts_nothing_on_it() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        held = [bench.gateway.send("many") for _ in range(3)]
        waiting = bench.gateway.send("many")
        executor.kill(bench.supervisor._calls[held[0]])
        executor.finish(held[1])  # on its way before the end
        assert executor.runs == held
        executor.lose()
        assert bench.told(held[0]).category in {"hard-limit-exceeded", "deadline-exceeded"}
        assert bench.told(held[2]) == Lost(held[2], 1, charged=False, load=bench.told(held[2]).load)
        executor.become_ready()
        assert executor.runs == [*held, waiting]
        executor.finish(waiting)

    run(scenario)


def test_a_crash_charges_all_and_the_waiting_are_given_to_the_next_life() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        jobs = [bench.gateway.send("many"), bench.gateway.send("echo")]
        waiting = bench.gateway.send("echo")
        executor.lose()
        for job in jobs:
            assert bench.told(job).charged
        assert bench.load() == 1
        executor.become_ready()
        assert executor.runs[-1] == waiting
        executor.finish(waiting)
        assert bench.load() == 0

    run(scenario)


def test_short_calls_are_handed_ahead_and_wait_again_when_the_executor_dies() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        executor.finish(bench.gateway.send("echo"), seconds=0.0001)
        jobs = [bench.gateway.send("echo") for _ in range(6)]
        assert executor.runs[1:] == jobs[:4]  # one that runs and three ahead of it
        assert bench.load() == 6
        bench.supervisor.stop(jobs[2])
        executor.finish(jobs[0], seconds=0.0001)
        assert bench.told(jobs[0]).load == 5
        executor.lose()
        assert bench.told(jobs[1]) == Lost(jobs[1], 1, charged=True, load=bench.told(jobs[1]).load)
        assert [bench.told(job) for job in jobs[2:]] == [None] * 4  # never started, never charged
        executor.sent.clear()
        executor.become_ready()
        assert executor.runs == [jobs[3]]
        for job in jobs[3:]:
            executor.finish(job, seconds=0.0001)
            assert isinstance(bench.told(job), Result)
        assert not bench.supervisor._calls
        assert bench.load() == 0

    run(scenario)


def test_a_slow_call_announces_itself_once() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        slow = bench.gateway.send("echo")
        async with asyncio.timeout(10):
            while not bench.gateway.started:
                await asyncio.sleep(0.005)
        quick = bench.gateway.send("many")
        executor.finish(quick)
        await asyncio.sleep(2.5 * module._TICK_S)  # it would be said again by now
        assert bench.gateway.started == [slow]
        executor.finish(slow)

    run(scenario)


def test_progress_and_strangers_are_ignored() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        job = bench.gateway.send("echo")
        executor.say(Reported(job, 0.5, "half"))
        executor.finish("stranger")
        assert bench.told(job) is None
        executor.finish(job)
        executor.finish(job)  # twice: the second is a stranger
        assert bench.load() == 0

    run(scenario)


def test_what_is_degraded_is_told_and_may_recover() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        assert bench.changes == 0
        executor.lose()
        executor.become_ready(echo="no weights")
        executor.lose()
        executor.become_ready(echo="no weights")
        assert bench.changes == 1  # told once
        refused = bench.told(bench.gateway.send("echo"))
        assert (refused.reason, refused.detail) == ("degraded", "no weights")
        executor.lose()
        executor.become_ready()
        assert bench.changes == 2
        executor.finish(bench.gateway.send("echo"))

    run(scenario)


def test_draining_finishes_what_there_is_and_takes_nothing() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        await bench.supervisor.drain(0)  # nothing to do
        bench.supervisor.draining = False
        running, waiting = bench.gateway.send("echo"), bench.gateway.send("echo")
        draining = asyncio.ensure_future(bench.supervisor.drain(10))
        await asyncio.sleep(0)
        assert bench.told(bench.gateway.send("echo")).reason == "draining"
        executor.finish(running)
        await asyncio.sleep(0)
        assert not draining.done()
        executor.finish(waiting)
        await draining
        assert isinstance(bench.told(waiting), Result)

    run(scenario)


def test_draining_does_not_wait_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(bench: Bench) -> None:
        bench.gateway.send("echo")
        await bench.supervisor.drain(0.01)
        assert "1 calls are cut off" in caplog.text
        bench.executors[0].lose()

    run(scenario)


class Chance:
    """Does anything that may happen, in any order."""

    def __init__(self, bench: Bench, seed: int) -> None:
        self.bench = bench
        self.random = random.Random(seed)
        self.jobs: list[str] = []
        self.stopped: set[str] = set()

    def step(self) -> None:
        step = self.random.choice(
            [self.call, self.call, self.call, self.finish, self.finish, self.stop, self.turn]
        )
        step(self.random.choice(self.bench.executors))

    def call(self, _: Scripted) -> None:
        names = ["echo", "whoami", "one", "many", "together", "main"]
        self.jobs.append(self.bench.gateway.send(self.random.choice(names)))

    def finish(self, executor: Scripted) -> None:
        # The main thread runs in order; the others end as they like.
        ended = [job for job in executor.calls if executor.ahead.running is executor.calls[job]]
        ended += [job for job in executor.calls if job not in ended and self.random.random() < 0.5]
        if ended:
            executor.finish(self.random.choice(ended), self.random.choice([0.0001, 0.05]))

    def stop(self, _: Scripted) -> None:
        if self.jobs:
            job = self.random.choice(self.jobs)
            self.stopped.add(job)
            self.bench.supervisor.stop(job)

    def turn(self, executor: Scripted) -> None:
        if not executor.is_ready:
            executor.become_ready()
            return
        if executor.calls and self.random.random() < 0.5:
            executor.kill(self.random.choice(list(executor.calls.values())))
        executor.lose()

    def settle(self) -> None:
        for executor in self.bench.executors:
            if not executor.is_ready:
                executor.become_ready()
        while any(executor.calls for executor in self.bench.executors):
            for executor in self.bench.executors:
                for job in list(executor.calls)[:1]:
                    executor.finish(job)

    def check(self) -> None:
        executors = self.bench.executors
        for group in self.bench.supervisor.groups():
            busy = [executor.busy[group.name] for executor in executors]
            assert group.running == sum(busy)
            assert all(0 <= count <= group.per_executor for count in busy)
            assert group.ahead == (sum(len(one.ahead) for one in executors) if group.name == MAIN else 0)
            free = [one for one in executors if one.is_ready and one.busy[group.name] < group.per_executor]
            assert not (group.waiting and free)  # nobody waits beside a free slot


@pytest.mark.parametrize("seed", range(30))
def test_whatever_happens_slots_hold_and_every_call_is_settled_once(seed: int) -> None:
    async def scenario(bench: Bench) -> None:
        chance = Chance(bench, seed)
        for _ in range(300):
            chance.step()
            chance.check()
        chance.settle()
        chance.check()
        assert not bench.supervisor._calls
        assert set(bench.supervisor.loads().values()) == {0}
        assert all(bench.told(job) is not None for job in chance.jobs if job not in chance.stopped)

    run(scenario, executors=2)
