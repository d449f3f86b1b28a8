"""How long a call should take that came now: from what runners report, without asking anybody.

The figures are the runners' own: means that follow a change within some ten executions, and 95th percentiles
of the last few hundred, by the input's cost where it has one. They forget by being used: what nobody calls
keeps its last figures. While there are none, the prediction is made of the declared budget, and says so:
nobody is sent away because nothing is known.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

from headrace.admission.choosing import RunnerLoad
from headrace.capacity import Capacity, CostTime
from headrace.domain import Budget
from headrace.histograms import cost_bucket

FEW: Final = 5
"""Fewer executions say nothing. Until there are `ENOUGH`, runners leave the slowest out of their percentile:
it mostly is the first, and others shall not become jobs for that."""

ENOUGH: Final = 20
"""With fewer of a cost, nothing is told of other costs: a slow first one would count by the ratio of both."""

_WARM: Final = "warm"
_BEHIND_ALL_S: Final = 1e9


class Candidate(RunnerLoad, Protocol):
    """What is seen of a runner that could take the call."""

    @property
    def is_full(self) -> bool:
        """Whether it has said so within the last moment, and not a second ago as its reports may have."""
        ...

    @property
    def capacity(self) -> Capacity | None:
        """What it said last; None: nothing yet."""
        ...


class Predicted(NamedTuple):
    """What a call should take that came now, in seconds.

    Args:
        wait_s: until a slot is free for it, by the last report.
        load_s: until its models are loaded after that; 0: they are.
        exec_s: its execution, on average.
        exec_p95_s: what 95 of 100 such executions don't exceed.
        is_known: both of these are measured; else the budget's.
        has_room: a slot is free, by the last report.
        is_cold: its models, or the process, have to be loaded first: it may wait there as long as its hold.
        knows_wait: what runs there has been measured, and the runner has just said that it is full.
    """

    wait_s: float
    load_s: float
    exec_s: float
    exec_p95_s: float
    is_known: bool = True
    has_room: bool = True
    is_cold: bool = False
    knows_wait: bool = True

    @property
    def total_s(self) -> float:
        """From its arrival to its answer, as far as that is known: what isn't counts nothing."""
        wait_s = self.wait_s if self.knows_wait else 0.0
        return wait_s + self.load_s + (self.exec_p95_s if self.is_known else 0.0)

    @property
    def known_p95_s(self) -> float | None:
        """What 95 of 100 executions don't exceed, where that is measured; None: it isn't."""
        return self.exec_p95_s if self.is_known else None


def predict(
    runners: Iterable[Candidate], budget: Budget, cost: float = 0.0, jobs: int = 0
) -> Predicted | None:
    """What a call should take where it should end first; None where nobody could take it.

    Args:
        runners: those that can run the function.
        budget: the function's.
        cost: the input's; 0: it has none.
        jobs: those that wait for a slot too: while there are any, every other start is one of them.
    """
    best: tuple[Candidate, tuple[float, float], bool, int, float, float] | None = None
    soonest = math.inf
    for runner in runners:  # of each call: nothing is built here but for the best of them
        capacity = runner.capacity
        ahead = runner.load + 1 - runner.slots
        load_s, known = 0.0, None
        if capacity is not None:
            if ahead > 0:
                # Some of the slots that others share may be kept for it: more are free than the load says.
                ahead = min(ahead, runner.load + 1 - capacity.free - capacity.busy)
            if capacity.warmth != _WARM:
                load_s = capacity.load_s
            known = execution_s(capacity, cost)
        if ahead > 0 and jobs:
            ahead += min(ahead, jobs)
        wait_s = 0.0 if ahead <= 0 else ahead / runner.slots * runner.mean_s
        times = prior_s(budget) if known is None else known
        end = wait_s + load_s + times[0]
        if ahead > 0 and wait_s == 0:
            end += _BEHIND_ALL_S  # nothing at all is known of its wait
        if end < soonest:
            soonest, best = end, (runner, times, known is not None, ahead, wait_s, load_s)
    if best is None:
        return None
    runner, times, is_known, ahead, wait_s, load_s = best
    return Predicted(
        wait_s,
        load_s,
        *times,
        is_known,
        ahead <= 0,
        runner.capacity is not None and runner.capacity.warmth != _WARM,
        ahead <= 0 or (runner.mean_s > 0 and runner.is_full),
    )


def execution_s(capacity: Capacity | None, cost: float) -> tuple[float, float] | None:
    """Mean and 95th percentile of executions of inputs of about that cost; None while too few are known."""
    if capacity is None:
        return None
    if cost > 0 and capacity.by_cost:
        bucket = cost_bucket(cost)
        for one in capacity.by_cost:
            if one.cost == bucket and one.known >= FEW:
                return one.mean_s, one.p95_s
        nearest = _nearest(capacity.by_cost, cost)
        if nearest is not None and capacity.cost_s:
            mean_s = capacity.cost_s * cost
            return mean_s, mean_s * max(1.0, nearest.p95_s / nearest.mean_s)
    if capacity.known < FEW:
        return None
    return capacity.mean_s, capacity.p95_s


def prior_s(budget: Budget) -> tuple[float, float]:
    """What an execution is taken for before any: whoever declares a budget means to keep it."""
    longest = min(budget.sync, budget.soft_limit)
    return longest / 2, longest


def _nearest(times: Iterable[CostTime], cost: float) -> CostTime | None:
    """The bucket of the costs that are most like this one."""
    known = [one for one in times if one.known >= ENOUGH and one.mean_s > 0]
    return min(known, key=lambda one: abs(math.log2(one.cost / cost)), default=None)
