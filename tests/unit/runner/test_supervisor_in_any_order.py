"""The supervisor's bookkeeping, whatever happens in whatever order."""

from __future__ import annotations

import random

import pytest
from bench import Bench, Scripted, run

from gpu_runner.slots import MAIN


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
            self.bench.gateway.stop(job)

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
