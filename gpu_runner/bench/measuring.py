"""The course of a measurement: one executor at rest, by cost, joined, at once; then several executors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from gpu_runner.bench.figures import cost_text, count_text, figure, time_text
from gpu_runner.bench.inputs import Input, grows, sized
from gpu_runner.bench.points import ENOUGH, Plan, estimate, estimate_text, points_of, repeated
from gpu_runner.bench.rack import CallFailed, Rack
from gpu_runner.bench.results import Joined, Measured, Part, Rate, Timed, median, p95
from headrace.cores import threads_each
from headrace.errors import SetupError
from headrace.sdk import Function

OpenRack = Callable[[int, int], AbstractAsyncContextManager[Rack]]
"""Starts so many executors of that many threads."""


class Measuring:
    """Fills a `Measured` bit by bit, so that what there is can be shown whenever it ends.

    Args:
        function: what is measured.
        inputs: what it gets.
        plan: how.
        result: what is filled.
        open_rack: starts executors.
        tell: takes what is done, for people.
    """

    def __init__(
        self,
        function: Function[Any, Any],
        inputs: Sequence[Input],
        plan: Plan,
        result: Measured,
        open_rack: OpenRack,
        tell: Callable[[str], None],
    ) -> None:
        self._function = function
        self._inputs = inputs
        self._plan = plan
        self._result = result
        self._open_rack = open_rack
        self._tell = tell
        self._points = points_of(function, inputs, plan, result.cores)

    async def run(self, budget_of: Callable[[int], int]) -> None:
        """Measure it all.

        Args:
            budget_of: the bytes that all executors may take, where the device has that many in all.

        Raises:
            SetupError: the function can't be run, or a call of it fails.
        """
        result, points = self._result, self._points
        parts: list[tuple[Part, Sequence[Any]]] = [
            ("time of a call by its cost", points.costs),
            ("joined calls", points.joined),
            ("calls at once in one executor", points.at_once),
            ("several executors", points.executors),
        ]
        result.missing = [part for part, its_points in parts if its_points]
        self._tell(estimate_text(points, self._plan.seconds))
        self._tell("starting one executor, and loading its models")
        async with self._open_rack(1, threads_each(1)) as one:
            ready = one.readies[0]
            result.device, result.start_s, result.models = ready.device, ready.load_s, one.models
            result.budget = budget_of(ready.memory)
            single_s = await self._at_rest(one)
            rest_s = estimate(points, self._plan.seconds, single_s, self._inputs[0].cost)
            self._tell(f"about {figure(rest_s, 2)} s from here, and the starts of executors")
            await self._by_cost(one)
            result.missing.remove("time of a call by its cost")
            if points.joined:
                await self._joined(one)
                result.missing.remove("joined calls")
            if points.at_once:
                await self._at_once(one)
                result.missing.remove("calls at once in one executor")
        await self._by_executors()
        result.missing.remove("several executors")
        result.is_whole = True

    async def _at_rest(self, one: Rack) -> float:
        """What is in memory before and after the first calls; returns how long the first input takes then."""
        result = self._result
        before = await one.memory()
        for each in self._inputs:  # the first calls warm up, and show that inputs are right
            await self._once(one, 0, [each])
        single_s, _ = await self._once(one, 0, self._inputs[:1])
        after = await one.memory()
        result.resident, result.peak = before.resident, after.peak
        result.reserved, result.peak_reserved = before.reserved, after.peak_reserved
        self._note_peak(after.own_peak, after.peak_reserved)
        return single_s

    def _note_peak(self, own: int, reserved: int) -> None:
        is_cuda = self._result.device.startswith("cuda")
        self._result.each = max(self._result.each, reserved if is_cuda else own)

    async def _peak(self, one: Rack) -> int:
        """What the executor had at most since the last look, of what the budget is about."""
        found = await one.memory()
        result = self._result
        result.peak = max(result.peak, found.peak)
        result.peak_reserved = max(result.peak_reserved, found.peak_reserved)
        self._note_peak(found.own_peak, found.peak_reserved)
        return found.peak_reserved if result.device.startswith("cuda") else found.peak

    async def _once(self, rack: Rack, at: int, calls: Sequence[Input]) -> tuple[float, int]:
        if self._function.is_batched:
            return await rack.batch(at, [one.data for one in calls])
        return await rack.call(at, calls[0].data), 1

    # ------------------------------------------------------------------ one executor

    async def _by_cost(self, one: Rack) -> None:
        for each in self._sizes():
            self._tell(f"calls of cost {cost_text(each.cost)}")
            try:
                seconds, _ = await self._repeat(one, [each])
            except CallFailed as error:
                self._result.notes.append(f"calls of cost {cost_text(each.cost)} fail: {error.category}")
                return
            peak = await self._peak(one)
            timed = Timed(each.cost, len(seconds), median(seconds), p95(seconds), peak)
            self._result.by_cost.append(timed)
            if timed.median_s > ENOUGH * self._plan.seconds:
                self._result.notes.append(
                    f"calls of a higher cost than {cost_text(each.cost)} were left out: "
                    f"one takes {time_text(timed.median_s)}, more than {figure(ENOUGH)} times --seconds"
                )
                return

    def _sizes(self) -> Iterator[Input]:
        """The inputs by cost: as they are, or where they can grow, the first one larger and larger."""
        first = self._inputs[0]
        if not grows(self._function, first):
            yield from sorted(self._inputs, key=lambda one: one.cost)[:1]
            if self._plan.costs:
                self._result.notes.append("--costs is of no use: nothing of the input counts in its cost")
            return
        for cost in self._points.costs:
            try:
                yield sized(self._function, first, cost)
            except SetupError as error:
                self._result.notes.append(
                    f"calls of cost {cost_text(cost)} and more were left out: the first input was made "
                    f"larger to get them, and the function refuses what came of it ({error})"
                )
                return

    async def _repeat(self, one: Rack, calls: Sequence[Input]) -> tuple[list[float], int]:
        """Call again and again for the plan's seconds, three times at least where that isn't much longer."""
        _, passes = await self._once(one, 0, calls)
        seconds: list[float] = []
        began = time.monotonic()
        while (
            not seconds
            or (lasted := time.monotonic() - began) < self._plan.seconds
            or (len(seconds) < 3 and lasted < ENOUGH * self._plan.seconds)
        ):
            took, more = await self._once(one, 0, calls)
            seconds.append(took)
            passes = max(passes, more)
        return seconds, passes

    async def _joined(self, one: Rack) -> None:
        for count in self._points.joined:
            calls = repeated(self._inputs, count)
            cost = sum(each.cost for each in calls)
            self._tell(f"{count_text(count, 'call')} joined, cost {cost_text(cost)}")
            try:
                seconds, passes = await self._repeat(one, calls)
            except CallFailed as error:
                self._result.notes.append(f"batches of {count_text(count, 'call')} fail: {error.category}")
                return
            peak = await self._peak(one)
            self._result.joined.append(Joined(count, cost, median(seconds), passes, peak))
            if passes > 1:
                self._result.notes.append(
                    f"batches of {count_text(count, 'call')} were too large for the memory"
                )
                return
            if median(seconds) > ENOUGH * self._plan.seconds:
                self._result.notes.append(
                    f"more than {count_text(count, 'joined call')} were left out: so many take "
                    f"{time_text(median(seconds))}, more than {figure(ENOUGH)} times --seconds"
                )
                return

    async def _at_once(self, one: Rack) -> None:
        for count in self._points.at_once:
            self._tell(f"{count_text(count, 'call')} at once")
            self._result.at_once.append(await self._rate(one, threads_each(1), count))
        await self._peak(one)

    # ------------------------------------------------------------------ several

    async def _by_executors(self) -> None:
        result = self._result
        for number in self._points.executors:
            if number > result.fit:
                result.notes.append(
                    f"{number} executors don't fit: each takes up to {result.each >> 20} MiB "
                    f"of {result.budget >> 20} MiB"
                )
                return
            threads = threads_each(number)
            self._tell(f"executors: {number}, threads of each: {threads}")
            async with self._open_rack(number, threads) as several:
                for at in range(number):
                    await self._once(several, at, self._inputs[:1])
                result.by_executors.append(await self._rate(several, threads, self._slots()))

    def _slots(self) -> int:
        return 1 if self._function.is_batched else max(1, self._result.concurrency)

    async def _rate(self, several: Rack, threads: int, at_once: int) -> Rate:
        """Keep executors busy for the plan's seconds."""
        calls = self._full_batch() if self._function.is_batched else None
        ends_at = time.monotonic() + self._plan.seconds
        began, seconds, cost, count = time.monotonic(), list[float](), 0.0, 0

        async def caller(at: int, number: int) -> None:
            nonlocal cost, count
            while not seconds or time.monotonic() < ends_at:
                these = calls or [self._inputs[number % len(self._inputs)]]
                number += 1
                sent = time.monotonic()
                await self._once(several, at, these)
                seconds.append(time.monotonic() - sent)
                cost += sum(each.cost for each in these)
                count += len(these)

        executors = len(several.executors)
        async with asyncio.TaskGroup() as callers:
            for number in range(executors * at_once):
                callers.create_task(caller(number % executors, number))
        lasted = time.monotonic() - began
        return Rate(
            executors, threads, at_once, count / lasted, cost / lasted, median(seconds), len(calls or [0])
        )

    def _full_batch(self) -> list[Input]:
        """The batch that did the most in one executor."""
        joined = [one for one in self._result.joined if one.passes == 1]
        count = max(joined, key=lambda one: one.rate).calls if joined else 1
        return repeated(self._inputs, count)
