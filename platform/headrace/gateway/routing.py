"""Which way a call goes: what runners and the ledger say is put before the rule of `headrace.admission`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from headrace.admission import (
    Decision,
    Snapshot,
    Span,
    Wish,
    back_s,
    decide,
    mended_s,
    predict,
)
from headrace.domain import Manifest
from headrace.gateway.call_problems import unreachable
from headrace.gateway.explaining import explanation
from headrace.gateway.lanes import Lanes
from headrace.gateway.outage import answers
from headrace.gateway.runners import RunnerLinks
from headrace.gateway.serving import Serving


class Routing:
    """Decides over the calls of one gateway.

    Args:
        links: to the runners.
        brief_wait: the longest wait for a slot on the direct path, in seconds.
        database_away: seconds since Postgres last answered.
        lanes: what waits in the ledger, as it was last told; by default nothing.
        away_s: how long a function of some interface has had no runner; None: it never had one.
    """

    def __init__(
        self,
        links: RunnerLinks,
        brief_wait: float,
        database_away: Callable[[], float],
        lanes: Lanes | None = None,
        away_s: Callable[[str, str], float | None] = lambda _name, _interface: None,
    ) -> None:
        self._links = links
        self._brief_wait = brief_wait
        self.database_away = database_away
        self.lanes = lanes or Lanes()
        self._away_s = away_s

    def snapshot(self, manifest: Manifest, cost: float) -> Snapshot:
        """How a function stands for an input of that cost."""
        serving = self._links.serving(manifest.name, manifest.interface)
        sound = [one for one in serving if not one.degraded]
        lane = self.lanes.of(manifest.name)
        jobs = 0 if lane is None else lane.waiting
        predicted = predict(sound, manifest.budget, cost, jobs)
        records = answers(self.database_away())
        if predicted is None:
            return Snapshot(None, self._brief_wait, bool(serving), records, self._back_s(manifest, serving))
        clear_s = 0.0 if lane is None or self._turns_come(sound) else lane.clear_s
        return Snapshot(predicted, self._brief_wait, False, records, clear_s=clear_s, jobs=jobs)

    def _turns_come(self, serving: Iterable[Serving]) -> bool:
        """Whether a direct call gets a slot by waiting briefly while jobs wait: every other start is one."""
        return any(one.mean_s and 2 * one.mean_s / one.slots <= self._brief_wait for one in serving)

    def _back_s(self, manifest: Manifest, broken: Iterable[Serving]) -> float:
        """Seconds until one of these, or some other runner, should be able to run the function."""
        load_s = self._links.load_s.get(manifest.name, 0.0)
        mended = [mended_s(one.broken_s, load_s) for one in broken]
        return min(mended) if mended else self.back_s(manifest)

    def require_time(self, manifest: Manifest, total: float, cost: float) -> None:
        """Pass unless half of the executions take longer than a call has that is to be a job.

        All pass where a direct call would be tried. None is that one: nobody knows when they start.

        Raises:
            Problem: `deadline-unreachable`: it would be executed in vain.
        """
        serving = self._links.serving(manifest.name, manifest.interface)
        expected_s = min((one.expected_s(cost) for one in serving), default=0.0)
        if total < expected_s and not any(one.is_to_be_tried for one in serving):
            raise unreachable(manifest.name, total, expected_s)

    def back_s(self, manifest: Manifest) -> float:
        """Seconds until a runner of the function should be there, where none is."""
        load_s = self._links.load_s.get(manifest.name, 0.0)
        return back_s(self._away_s(manifest.name, manifest.interface), load_s)

    def explain(self, manifest: Manifest, span: Span, wish: Wish, cost: float) -> bytes:
        """What would become of a call now, and why, as JSON."""
        snapshot = self.snapshot(manifest, cost)
        return explanation(span, snapshot, decide(span, wish, snapshot), self.lanes.of(manifest.name))

    def decide(self, manifest: Manifest, span: Span, wish: Wish, cost: float) -> Decision:
        """What becomes of a call now."""
        return decide(span, wish, self.snapshot(manifest, cost))
