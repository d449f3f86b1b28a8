"""Joined calls beside others, direct ones and jobs, whatever happens in whatever order."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from bench import Bench, Scripted, run
from lot_bench import answer, end, joined, lots, running
from test_turns_in_any_order import Chance

from gpu_runner.lots import Joined
from gpu_runner.slots import Slots
from headrace.link.frames import Error, Lost

NAMES = ["join", "pair", "hang_together", "plain"]
MODULES = ["joined_functions"]


class LotChance(Chance):
    """The same, with functions whose calls are joined."""

    def __init__(self, bench: Bench, seed: int) -> None:
        super().__init__(bench, seed, NAMES)
        self.steps = [
            self.pass_deadline,
            self.kill_lot,
            self.answer_one,
            self.end_lot,
            self.end_lot,
            self.end_lot,
        ]

    def step(self) -> None:
        if self.random.random() < 0.3:
            self.random.choice(self.steps)(self.random.choice(self.bench.executors))
        else:
            super().step()

    def input(self) -> dict[str, Any]:
        return {"text": "x" * self.random.choice([0, 1, 1, 2, 2, 3, 5, 9])}

    def answer(self, gots: dict[Slots, int]) -> None:
        for slots, got in gots.items():
            names = [name for name in NAMES if self.bench.supervisor.slots_of(name) is slots]
            for _ in range(got):
                name = self.random.choice(names)
                for _ in range(1 if name == "plain" else self.random.choice([1, 3, 10])):
                    self.take(name)
        for slots, asked in self.asked.items():
            self.placing.answered(slots, asked, min(asked, slots.turns.filled))
        self.asked = {}

    def finish(self, executor: Scripted) -> None:
        plain = [job for job in executor.calls if job not in {lot.job_id for lot in running(executor)}]
        if plain:
            executor.finish(plain[0], 0.0001)

    def end_lot(self, executor: Scripted) -> None:
        if started := [lot for lot in running(executor) if lot.started_at]:
            lot = self.random.choice(started)
            failed = {job: "stopped" for job, call in lot.calls.items() if call.stopped}
            end(executor, lot, self.random.choice([0.0001, 0.05]), **failed)

    def answer_one(self, executor: Scripted) -> None:
        for lot in running(executor):
            if lot.started_at and lot.calls:
                answer(
                    executor,
                    self.random.choice(list(lot.calls)),
                    category=self.random.choice(["", "invalid-input"]),
                )

    def pass_deadline(self, executor: Scripted) -> None:
        for lot in running(executor):
            if lot.calls and self.random.random() < 0.3:
                self.random.choice(list(lot.calls.values())).deadline_at = 0.0
        self.pass_time(executor)

    def kill_lot(self, executor: Scripted) -> None:
        if self.random.random() < 0.2 and (started := [lot for lot in running(executor) if lot.started_at]):
            executor.kill(started[0])

    async def finish_all(self) -> None:
        while any(executor.calls for executor in self.bench.executors) or self.placing.alone:
            for executor in self.bench.executors:
                self.finish(executor)
                self.end_lot(executor)
            if any(not lot.started_at for executor in self.bench.executors for lot in running(executor)):
                await self.bench.until(self.none_lingers)
            await self.bench.turn()

    def none_lingers(self) -> bool:
        return all(lot.started_at for executor in self.bench.executors for lot in running(executor))

    def has_started(self, executor: Scripted, job_id: str) -> bool:
        return job_id in executor.runs or any(job_id in ids for ids in joined(executor))

    def check(self) -> None:
        super().check()
        there: Counter[str] = Counter()
        for executor in self.bench.executors:
            for lot in running(executor):
                assert lot.calls or lot.started_at
                there.update(list(lot.calls))
                self.check_lot(lot)
        for slots in self.bench.supervisor.groups():
            for lot in [*slots.waiting, *slots.turns.arrived]:
                there.update(part.job_id for part in lot.parts)
        for lot in self.placing.alone:
            there.update(part.job_id for part in lot.parts)
        assert set(there) == set(self.bench.supervisor._calls) - self.handed_ahead() - self.plain_running()
        assert set(there.values()) <= {1}

    def handed_ahead(self) -> set[str]:
        return {call.job_id for executor in self.bench.executors for call in executor.ahead._calls}

    def plain_running(self) -> set[str]:
        return {job for executor in self.bench.executors for job in executor.calls}

    def check_lot(self, lot: Any) -> None:
        batch = lot.manifest.batch
        calls = list(lot.calls.values())
        assert all(isinstance(call, Joined) and call.lot is lot for call in calls)
        if len(calls) > 1 and not lot.started_at:
            assert sum(call.cost for call in calls) == lot.cost
        if lot.started_with > 1 or len(calls) > 1:
            assert lot.cost <= batch.max_cost
            assert not lot.alone


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_each_call_is_answered_once_and_slots_hold(seed: int) -> None:
    async def scenario(bench: Bench) -> None:
        chance = LotChance(bench, seed)
        for _ in range(300):
            chance.step()
            await bench.turn()
            chance.check()
        await chance.settle()
        chance.check()
        await chance.go_on()
        chance.check()
        supervisor = bench.supervisor
        assert not supervisor._calls
        assert not supervisor._parked
        assert set(supervisor.loads().values()) == {0}
        assert all(
            slots.running_s == slots._waiting_s == slots._waiting_bytes == 0 for slots in supervisor.groups()
        )
        assert not supervisor.joining._lingering
        assert not supervisor.joining._open
        assert all(bench.told(call) is not None for call in chance.calls if call not in chance.stopped)
        assert [len(job.answers) for job in chance.jobs] == [1] * len(chance.jobs)
        check_starts(bench, chance)

    run(scenario, executors=2, modules=MODULES)


def check_starts(bench: Bench, chance: LotChance) -> None:
    """Lots were formed; nothing ran oftener than it was given; whoever was told of a start had one."""
    started = Counter(
        item.job_id for executor in bench.executors for lot in lots(executor) for item in lot.items
    )
    given = Counter([job.job_id for job in chance.jobs] + list(bench.gateway.answers))
    assert started <= given
    sizes = Counter(len(lot.items) for executor in bench.executors for lot in lots(executor))
    assert max(sizes) > 1
    ran = set(started) | {job for executor in bench.executors for job in executor.runs}
    for told in [*bench.gateway.order, *(job.answers[0] for job in chance.jobs)]:
        if (isinstance(told, Lost) and told.charged) or isinstance(told, Error):
            assert told.job_id in ran


def test_direct_calls_start_in_the_order_in_which_they_came() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        chance = LotChance(bench, seed=0)
        for _ in range(300):
            if chance.random.random() < 0.6:
                chance.calls.append(bench.gateway.send("join", **chance.input()))
            else:
                chance.end_lot(executor)
        await chance.finish_all()
        assert [call for lot in joined(executor) for call in lot] == chance.calls
        assert 20 < len(lots(executor)) < 150

    run(scenario, modules=MODULES, brief_wait=1000.0)
