"""Several gateways that send calls to the same runners, each by what it knows: simulated, in virtual time.

A gateway's figure of a runner is what that said last, once a second and with each answer, corrected by what
the gateway has sent there since. Runners take everything, so that a bad choice is a long queue.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

REPORT_S: Final = 1.0


@dataclass(eq=False)
class Host:
    """A runner as it really is."""

    slots: int
    mean_s: float
    since: float = 0.0
    busy: int = 0
    ended: int = 0
    queue: deque[tuple[float, View]] = field(default_factory=deque[tuple[float, "View"]])
    longest_queue: int = 0

    @property
    def load(self) -> int:
        return self.busy + len(self.queue)


@dataclass(eq=False)
class View:
    """A runner as one gateway knows it."""

    host: Host
    gateways: int
    load: int = 0
    mean_s: float = 0.0
    in_flight: int = 0
    most_before_its_first: int = 0

    @property
    def slots(self) -> int:
        return self.host.slots

    @property
    def first_slots(self) -> int:
        return -(-self.slots // self.gateways)

    def told(self) -> None:
        self.load = self.host.load
        if self.host.ended:
            self.mean_s = self.host.mean_s


Rule = Callable[[Sequence[View]], View | None]


class Simulation:
    """Calls that come at random, at a rate, for some seconds.

    Args:
        hosts: the runners; those that come later can't be chosen before.
        gateways: how many there are.
        rule: by which each chooses.
        seed: of everything that is random.
        knows_all: whether gateways know at each moment how every runner stands.
    """

    def __init__(
        self, hosts: Sequence[Host], gateways: int, rule: Rule, seed: int, *, knows_all: bool = False
    ) -> None:
        self.hosts = hosts
        self.views = [[View(host, gateways) for host in hosts] for _ in range(gateways)]
        self.waits: list[float] = []
        self._rule = rule
        self._knows_all = knows_all
        self._random = random.Random(seed)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._now = 0.0

    def run(self, rate: float, seconds: float) -> Simulation:
        """Let so many calls a second come for so long, and all of them end."""
        self._rate, self._until = rate, seconds
        self._at(0.0, self._arrive)
        for number, gateway in enumerate(self.views):
            for view in gateway:
                self._at(view.host.since + REPORT_S * (number + 1) / len(self.views), self._report(view))
        while self._events:
            self._now, _, act = heapq.heappop(self._events)
            act()
        return self

    @property
    def mean_wait_s(self) -> float:
        return sum(self.waits) / len(self.waits)

    def _at(self, when: float, act: Callable[[], Any]) -> None:
        heapq.heappush(self._events, (when, next(self._order), act))

    def _report(self, view: View) -> Callable[[], None]:
        def report() -> None:
            view.told()
            if self._now < self._until:
                self._at(self._now + REPORT_S, report)

        return report

    def _arrive(self) -> None:
        gateway = self._random.choice(self.views)
        known = [view for view in gateway if view.host.since <= self._now]
        if self._knows_all:
            for view in known:
                view.load, view.mean_s = view.host.load, view.host.mean_s
        chosen = self._rule(known)
        assert chosen is not None
        chosen.load += 1
        chosen.in_flight += 1
        if not chosen.host.ended:
            chosen.most_before_its_first = max(chosen.most_before_its_first, chosen.in_flight)
        host = chosen.host
        host.queue.append((self._now, chosen))
        self._start(host)
        host.longest_queue = max(host.longest_queue, len(host.queue))
        when = self._now + self._random.expovariate(self._rate)
        if when < self._until:
            self._at(when, self._arrive)

    def _start(self, host: Host) -> None:
        while host.queue and host.busy < host.slots:
            came, view = host.queue.popleft()
            host.busy += 1
            self.waits.append(self._now - came)
            self._at(self._now + self._random.expovariate(1 / host.mean_s), lambda v=view: self._end(v))

    def _end(self, view: View) -> None:
        host = view.host
        host.busy -= 1
        host.ended += 1
        view.in_flight -= 1
        self._start(host)
        view.told()  # the answer says so
