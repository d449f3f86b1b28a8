"""Jobs and direct calls over the same slots, whatever happens in whatever order.

Some calls must run alone; in some layouts slots are reserved, and the calls that use models are capped.
"""

from __future__ import annotations

import itertools
import random
from typing import Any

import msgspec
import pytest
from bench import MODULES, Bench, Scripted, run

from gpu_runner.frames import Failed, Reported
from gpu_runner.slots import MAIN, Slots
from headrace.link.frames import Answer, Call, Started

NAMES = ["echo", "whoami", "one", "many", "together", "main"]
RESERVED = ["long", "short", "measure", "measure_many"]
LAYOUTS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "plain": (NAMES, {}),
    "reserved": ([*NAMES, *RESERVED], {"modules": [*MODULES, "reserved_functions"]}),
    "capped": ([*NAMES, *RESERVED], {"modules": [*MODULES, "reserved_functions"], "device_cap": 2}),
}
_ids = itertools.count()


class Job:
    """Somebody who holds a job."""

    def __init__(self, job_id: str, function: str, attempt: int) -> None:
        self.job_id = job_id
        self.function = function
        self.attempt = attempt
        self.ended_by = ""
        self.answers: list[Answer] = []

    def answer(self, frame: Answer | Started) -> None:
        if not isinstance(frame, Started):
            self.answers.append(frame)

    def tell(self, frame: Reported) -> None: ...


class Chance:
    """Does anything that may happen, in any order; claims are answered when they are, or not at all."""

    def __init__(self, bench: Bench, seed: int, names: list[str], device_cap: int = 0) -> None:
        self.bench = bench
        self.names = names
        self.device_cap = device_cap
        self.placing = bench.supervisor.placing
        self.random = random.Random(seed)
        self.jobs: list[Job] = []
        self.calls: list[str] = []
        self.stopped: set[str] = set()
        self.asked: dict[Slots, int] = {}

    def step(self) -> None:
        steps = [
            self.call,
            self.call,
            self.finish,
            self.finish,
            self.finish,
            self.hear,
            self.claim,
            self.claim,
        ]
        step = self.random.choice(
            [*steps, self.let_go, self.stop, self.stop_job, self.kill_job, self.turn, self.pass_time]
        )
        step(self.random.choice(self.bench.executors))

    def call(self, _: Scripted) -> None:
        alone = self.random.random() < 0.1
        name = self.random.choice(self.names)
        self.calls.append(self.bench.gateway.send(name, alone=alone, **self.input()))

    def input(self) -> dict[str, Any]:
        return {}

    def hear(self, _: Scripted) -> None:
        self.placing.hear([self.bench.supervisor.slots_of(self.random.choice(self.names))])

    def claim(self, _: Scripted) -> None:
        if not self.asked:
            self.ask()
            return
        self.answer({slots: self.random.randint(0, asked) for slots, asked in self.asked.items()})

    def ask(self) -> None:
        self.placing.wanted.clear()
        self.asked = {
            slots: asked for slots in self.bench.supervisor.groups() if (asked := slots.turns.ask())
        }

    def answer(self, gots: dict[Slots, int]) -> None:
        functions = {self.bench.supervisor.slots_of(name): name for name in self.names}
        for slots, got in gots.items():
            for _ in range(got):
                self.take(functions[slots])
        for slots, got in gots.items():
            self.placing.answered(slots, self.asked[slots], got)
        self.asked = {}

    def take(self, function: str) -> None:
        again = [job for job in self.jobs if job.function == function]
        if again and self.random.random() < 0.2:  # given again, before its earlier start has ended, or after
            before = self.random.choice(again)
            job = Job(before.job_id, function, before.attempt + 1)
        else:
            job = Job(f"job-of-ledger-{next(_ids)}", function, 1)
        for older in self.jobs:
            if older.job_id == job.job_id:  # whoever holds the job lets go of its earlier starts
                self.bench.supervisor.stop(older.job_id, older)
        self.jobs.append(job)
        interface = self.bench.supervisor._functions[function].manifest.interface
        alone = self.random.random() < 0.1
        data = msgspec.json.encode(self.input())
        frame = Call(job.job_id, function, interface, data, "o", job.attempt, 100_000, 0, alone=alone)
        self.bench.supervisor.take_job(frame, job)

    def let_go(self, _: Scripted) -> None:
        if self.random.random() < 0.2:
            self.placing.let_jobs_go()

    def finish(self, executor: Scripted) -> None:
        ended = [job for job in executor.calls if executor.ahead.running is executor.calls[job]]
        ended += [job for job in executor.calls if job not in ended and self.random.random() < 0.5]
        if ended:
            job = self.random.choice(ended)
            if executor.calls[job].stopped and self.random.random() < 0.5:
                executor.say(Failed(job, "stopped", "", 0.1))
            else:
                executor.finish(job, self.random.choice([0.0001, 0.05]))

    def pass_time(self, _: Scripted) -> None:
        """Some that wait have waited as long as they may."""
        supervisor = self.bench.supervisor
        for call in supervisor._calls.values():
            if call.executor is None and not call.is_job and self.random.random() < 0.2:
                call.wait_until = call.frame.wait_ms = 0
        if supervisor._ticking is not None:
            supervisor._ticking.cancel()
        supervisor._tick()

    def stop(self, _: Scripted) -> None:
        if self.calls:
            job = self.random.choice(self.calls)
            self.stopped.add(job)
            self.bench.gateway.stop(job)

    def stop_job(self, _: Scripted) -> None:
        if self.jobs:
            job = self.random.choice(self.jobs)
            self.bench.supervisor.stop(job.job_id, job)

    def kill_job(self, _: Scripted) -> None:
        if self.jobs and self.random.random() < 0.2:
            job = self.random.choice(self.jobs)
            self.bench.supervisor.kill(job.job_id, job)

    def turn(self, executor: Scripted) -> None:
        if executor.is_ready and self.random.random() < 0.7:
            return
        if executor.is_ready or executor.killed_for:
            executor.lose()
        else:
            executor.become_ready()
        executor.killed_for = None

    async def settle(self) -> None:
        for executor in self.bench.executors:
            if not executor.is_ready:
                executor.lose()
                executor.become_ready()
        await self.finish_all()
        while self.asked or self.placing.wanted.is_set():
            if not self.asked:
                self.ask()
            self.answer(dict.fromkeys(self.asked, 0))
            await self.finish_all()

    async def finish_all(self) -> None:
        while any(executor.calls for executor in self.bench.executors) or self.placing.alone:
            for executor in self.bench.executors:
                for job in list(executor.calls)[:1]:
                    executor.finish(job)
            await self.bench.turn()

    async def go_on(self) -> None:
        """Whatever came before, a direct call starts at once, and beside it a job that is heard of."""
        for name in self.names:
            slots = self.bench.supervisor.slots_of(name)
            call = self.bench.gateway.send(name)
            assert call in self.bench.supervisor._calls
            assert slots.running == 1
            before = len(self.jobs)
            self.placing.hear([slots])
            assert self.placing.wanted.is_set()
            self.ask()
            self.answer({group: int(group is slots) for group in self.asked})
            new = self.jobs[before:]
            executors = self.bench.executors
            assert any(self.has_started(executor, job.job_id) for job in new for executor in executors)
            await self.settle()
            assert self.bench.told(call) is not None

    def has_started(self, executor: Scripted, job_id: str) -> bool:
        return job_id in executor.runs

    def check(self) -> None:
        for group in self.bench.supervisor.groups():
            executors = [one for one in self.bench.executors if one.is_ready and one.closed_for is None]
            busy = [executor.busy[group.room.name] for executor in self.bench.executors]
            assert sum(one.running for one in group.room.groups) == sum(busy)
            assert all(0 <= count <= group.per_executor for count in busy)
            ahead = sum(len(executor.ahead) for executor in self.bench.executors)
            assert group.ahead == (ahead if group.name == MAIN else 0)
            self.check_bounds(group)
            turns = group.turns
            assert min(turns.reserved, turns.asked) >= 0
            if turns.reserved > turns.asked:  # nobody else would ask for a job to fill it
                assert self.placing.wanted.is_set()
            free = sum(group.per_executor - executor.busy[group.room.name] for executor in executors)
            if free > self.kept(group) and not self.is_at_cap(group):  # what isn't kept is used
                assert not group.waiting
                assert not turns.arrived
            if not turns.contended:
                assert not turns.may_wait
                assert turns.asked == turns.reserved == len(turns.arrived) == 0

    def kept(self, group: Slots) -> int:
        return sum(
            one.turns.reserved
            + (0 if one is group else max(0, one.reserve - one.running - one.turns.reserved))
            for one in group.room.groups
        )

    def is_at_cap(self, group: Slots) -> bool:
        users = [one for one in self.bench.supervisor.groups() if one.cap]
        return bool(group.cap) and sum(one.running + one.turns.reserved for one in users) >= self.device_cap

    def check_bounds(self, group: Slots) -> None:
        """Reserves and the cap hold, and nothing else is in an executor that is closed for a call."""
        groups = group.room.groups
        most = group.per_executor * len(self.bench.executors)
        assert sum(one.running for one in groups if one is not group) <= most - group.reserve
        if self.device_cap:
            capped = [one.running for one in self.bench.supervisor.groups() if one.cap]
            assert sum(capped) <= self.device_cap
        for executor in self.bench.executors:
            alone = executor.closed_for
            if alone is not None and alone.job_id in executor.calls:
                assert list(executor.calls) == [alone.job_id]
                assert not executor.ahead
        assert sum(executor.closed_for is not None for executor in self.bench.executors) <= 1
        if self.placing.alone and all(one.is_ready for one in self.bench.executors):
            assert any(one.closed_for is not None for one in self.bench.executors)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seed", range(10))
def test_whatever_happens_slots_hold_and_everybody_is_answered_once(seed: int, layout: str) -> None:
    names, options = LAYOUTS[layout]

    async def scenario(bench: Bench) -> None:
        chance = Chance(bench, seed, names, options.get("device_cap", 0))
        for _ in range(300):
            chance.step()
            await bench.turn()
            chance.check()
        await chance.settle()
        chance.check()
        await chance.go_on()
        chance.check()
        assert not bench.supervisor._calls
        assert not bench.supervisor._parked
        assert set(bench.supervisor.loads().values()) == {0}
        assert all(bench.told(call) is not None for call in chance.calls if call not in chance.stopped)
        assert [len(job.answers) for job in chance.jobs] == [1] * len(chance.jobs)
        assert sum(len(executor.runs) for executor in bench.executors) > 30

    run(scenario, executors=3 if options else 2, **options)
