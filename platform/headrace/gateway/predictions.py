"""How true predictions were: what a call was told to take, beside what it took, for its line and the counts.

Kept as plain numbers that are made into metrics when somebody scrapes them: the four counts of a call cost
0.7 us together, and with the library's own objects 2.5.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate
from typing import Final, Literal, NamedTuple

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from headrace.admission import Predicted

Way = Literal["direct", "job"]
_WAYS: Final[tuple[Way, ...]] = ("direct", "job")

NEAR: Final = (0.20, 0.050)
"""What the error of half of the waits shall not exceed: a share of the measured one, or seconds if more."""

FAR: Final = (0.60, 0.200)
"""What that of 95 of 100 shall not."""

_WITHIN: Final = ("near", "far", "off")
_BOUNDS_S: Final = (0.01, 0.05, 0.2, 0.5, 1.0, 5.0, 30.0)


class Forecast(NamedTuple):
    """What a call was to take when it was decided where it goes, in seconds; None: not known.

    Args:
        wait_s: until its start.
        exec_s: its execution, on average.
        exec_p95_s: what 95 of 100 such executions don't exceed.
        load_s: between both, where the wait is not until the models are loaded.
    """

    wait_s: float | None
    exec_s: float | None
    exec_p95_s: float | None
    load_s: float = 0.0

    def told(self) -> dict[str, float]:
        """The members of the access line; what isn't known has none."""
        wait_s, exec_s, _, load_s = self
        if wait_s is None:
            return {}
        told = {"predicted_wait_ms": round(wait_s * 1000, 3)}
        if exec_s is not None:
            told["predicted_ms"] = round((wait_s + load_s + exec_s) * 1000, 3)
        return told


def of_call(predicted: Predicted, brief_wait: float) -> Forecast:
    """The forecast for a call that a runner gets, which waits there no longer than briefly if it is warm."""
    wait_s, load_s, exec_s, exec_p95_s, is_known, has_room, is_cold, _ = predicted
    wait = None
    if is_cold:
        wait = wait_s + load_s if load_s else None
    elif has_room or wait_s:
        wait = min(wait_s, brief_wait)
    return Forecast(wait, exec_s, exec_p95_s) if is_known else Forecast(wait, None, None)


def of_job(predicted: Predicted | None, wait_s: float | None) -> Forecast:
    """The forecast for a job: the ledger knows what waits before it, the runners how long it takes."""
    if predicted is None or not predicted.is_known:
        return Forecast(wait_s, None, None)
    return Forecast(wait_s, predicted.exec_s, predicted.exec_p95_s, predicted.load_s)


class Errors:
    """How far off some predictions were, in seconds: a histogram."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(_BOUNDS_S) + 1)
        self.total = 0.0

    def observe(self, error_s: float) -> None:
        """Count one."""
        self.counts[bisect_left(_BOUNDS_S, error_s)] += 1
        self.total += error_s

    def add_to(self, family: HistogramMetricFamily, labels: list[str]) -> None:
        """Tell it, unless it is empty."""
        upto = list(accumulate(self.counts))
        if upto[-1]:
            bounds = [*map(str, _BOUNDS_S), "+Inf"]
            family.add_metric(labels, list(zip(bounds, upto, strict=True)), self.total)


class Kept:
    """What became of the predictions of one function."""

    __slots__ = ("executions", "over_p95", "wait_errors", "waits", "within_p95")

    def __init__(self) -> None:
        self.wait_errors: dict[Way, Errors] = {way: Errors() for way in _WAYS}
        self.waits: dict[Way, list[int]] = {way: [0] * len(_WITHIN) for way in _WAYS}
        self.executions = Errors()
        self.within_p95 = self.over_p95 = 0

    def waited(self, forecast: Forecast, way: Way, wait_s: float) -> None:
        """A call has waited so long for its first start."""
        if forecast.wait_s is not None:
            error_s = abs(forecast.wait_s - wait_s)
            self.wait_errors[way].observe(error_s)
            within = 0 if error_s <= _most(NEAR, wait_s) else 1 if error_s <= _most(FAR, wait_s) else 2
            self.waits[way][within] += 1

    def waits_on(self, forecast: Forecast, way: Way, waited_s: float) -> None:
        """A call has waited so long, and hasn't started: more isn't heard of it here."""
        if forecast.wait_s is not None and waited_s - forecast.wait_s > _most(FAR, waited_s):
            self.waits[way][-1] += 1  # however long it waits on

    def ran(self, forecast: Forecast, exec_s: float) -> None:
        """Its execution took so long."""
        _, mean_s, p95_s, _ = forecast
        if mean_s is not None and p95_s is not None:
            self.executions.observe(abs(mean_s - exec_s))
            if exec_s > p95_s:
                self.over_p95 += 1
            else:
                self.within_p95 += 1

    def outlasted(self, forecast: Forecast, ran_s: float) -> None:
        """A call goes on as a job that has run so long: more isn't heard of it here."""
        if forecast.exec_p95_s is not None and ran_s > forecast.exec_p95_s:
            self.over_p95 += 1


def _most(bound: tuple[float, float], measured_s: float) -> float:
    share, least_s = bound
    return max(share * measured_s, least_s)


class Predictions(Collector):
    """What became of the predictions of all functions of a gateway, for Prometheus."""

    def __init__(self) -> None:
        self._kept: dict[str, Kept] = {}

    def of(self, function: str) -> Kept:
        """Those of one function."""
        return self._kept.setdefault(function, Kept())

    def collect(self) -> Iterable[CounterMetricFamily | HistogramMetricFamily]:
        """The metrics, as they stand."""
        waits = CounterMetricFamily(
            "headrace_predicted_waits",
            "Calls whose wait was predicted, by how near that was: near (the error is at most 20% of the "
            "measured wait, or 50 ms), far (60%, or 200 ms) or off",
            labels=["function", "way", "within"],
        )
        executions = CounterMetricFamily(
            "headrace_predicted_executions",
            "Calls whose execution was predicted, by whether it took at most the predicted 95th percentile",
            labels=["function", "within"],
        )
        wait_errors = HistogramMetricFamily(
            "headrace_predicted_wait_error_seconds",
            "Difference of predicted and measured waits, either way",
            labels=["function", "way"],
        )
        execution_errors = HistogramMetricFamily(
            "headrace_predicted_execution_error_seconds",
            "Difference of expected and measured executions, either way",
            labels=["function"],
        )
        for function, kept in self._kept.items():
            for way in _WAYS:
                kept.wait_errors[way].add_to(wait_errors, [function, way])
                if any(kept.waits[way]):
                    for within, count in zip(_WITHIN, kept.waits[way], strict=True):
                        waits.add_metric([function, way, within], count)
            kept.executions.add_to(execution_errors, [function])
            if kept.within_p95 or kept.over_p95:
                executions.add_metric([function, "p95"], kept.within_p95)
                executions.add_metric([function, "over"], kept.over_p95)
        return (waits, executions, wait_errors, execution_errors)
