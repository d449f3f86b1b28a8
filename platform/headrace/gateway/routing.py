"""Which way a call goes: what runners have said is put before the rule of `headrace.admission`."""

from __future__ import annotations

from collections.abc import Callable

from headrace.admission import Decision, Predicted, Snapshot, Span, Wish, decide, predict
from headrace.domain import Manifest
from headrace.gateway.explaining import explanation
from headrace.gateway.outage import answers
from headrace.gateway.runners import RunnerLinks


class Routing:
    """Decides over the calls of one gateway.

    Args:
        links: to the runners.
        brief_wait: the longest wait for a slot on the direct path, in seconds.
        database_away: seconds since Postgres last answered.
    """

    def __init__(self, links: RunnerLinks, brief_wait: float, database_away: Callable[[], float]) -> None:
        self._links = links
        self._brief_wait = brief_wait
        self.database_away = database_away

    def snapshot(self, manifest: Manifest, cost: float) -> Snapshot:
        """How a function stands for an input of that cost."""
        serving = self._links.serving(manifest.name, manifest.interface)
        sound = [one for one in serving if not one.degraded]
        predicted: Predicted | None = predict(sound, manifest.budget, cost)
        degraded = bool(serving) and not sound
        return Snapshot(predicted, self._brief_wait, degraded, answers(self.database_away()))

    def explain(self, manifest: Manifest, span: Span, wish: Wish, cost: float) -> bytes:
        """What would become of a call now, and why, as JSON."""
        snapshot = self.snapshot(manifest, cost)
        return explanation(span, snapshot, decide(span, wish, snapshot))

    def decide(self, manifest: Manifest, span: Span, wish: Wish, cost: float) -> Decision:
        """What becomes of a call now."""
        return decide(span, wish, self.snapshot(manifest, cost))
