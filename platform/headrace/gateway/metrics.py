"""What a gateway counts; what each call counts is bound in advance, and kept as plain numbers."""

from __future__ import annotations

from typing import Final, Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from headrace.gateway.predictions import Kept, Predictions
from headrace.gateway.problem_kinds import KINDS
from headrace.telemetry.tallies import Buckets, Distributions, Tallies, Tally
from headrace.usage.counts import kind_of
from headrace.usage.recording import Recorder

HandoverEnd = Literal["handed", "answered", "withdrawn", "fenced", "lost", "cut", "left", "deadline"]
"""What came of a handover: see `headrace_handovers` in docs/operations.md."""

_HANDOVER_ENDS: Final[tuple[HandoverEnd, ...]] = get_args(HandoverEnd)
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 55)


class FunctionMetrics:
    """The counters of one function."""

    __slots__ = ("_by_status", "_calls", "_name", "_usage", "predictions", "seconds")

    def __init__(
        self, name: str, calls: Tallies, seconds: Distributions, usage: Recorder, predictions: Kept
    ) -> None:
        self._name = name
        self._usage = usage
        self._calls = calls
        self._by_status: dict[int, Tally] = {}
        self.seconds: Buckets = seconds.labels(name)
        self.predictions = predictions

    def count(
        self,
        status: int,
        seconds: float,
        code: str = "",
        cost: float = 0.0,
        *,
        is_job: bool = False,
        was_job: bool = True,
    ) -> None:
        """A call was answered after so many seconds.

        Args:
            status: of the answer.
            seconds: since the call came.
            code: of the problem that was the answer, or ended a stream.
            cost: of the input, where it has one and was priced.
            is_job: it became a job that its client followed, or left: accepted, whatever became of the job.
            was_job: a job stood for it at all.
        """
        tally = self._by_status.get(status)
        if tally is None:
            tally = self._by_status[status] = self._calls.labels(self._name, str(status))
        tally.add()
        self.seconds.observe(seconds)
        counted = ("accepted", "") if is_job else kind_of(_meant(status, code), code, was_job=was_job)
        if self._name and counted:
            kind, reason = counted
            self._usage.observe(self._name, kind, seconds, cost, reason)


def _meant(status: int, code: str) -> int:
    """The status of the problem, where that came in a stream, after the 200."""
    kind = KINDS.get(code) if code else None
    return status if kind is None else kind.status


class GatewayMetrics:
    """All counters of one gateway."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.usage = Recorder()
        """What was asked for by minute, for Postgres."""
        self._calls = Tallies(
            "headrace_calls",
            "Calls answered, by function and HTTP status; function is empty where the call named none",
            ["function", "status"],
            self.registry,
        )
        self._seconds = Distributions(
            "headrace_call_seconds",
            "Time from a call's arrival to its answer",
            ["function"],
            _SECONDS,
            self.registry,
        )
        self._streams = Counter(
            "headrace_streams",
            "Calls answered by server-sent events, by function and end: a result, or the code of a problem",
            ["function", "end"],
            registry=self.registry,
        )
        self._items = Counter(
            "headrace_stream_items", "Items written to clients", ["function"], registry=self.registry
        )
        self._first_items = Histogram(
            "headrace_stream_first_item_seconds",
            "Time from a call's acceptance to the first item of its stream",
            ["function"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.retries = Counter(
            "headrace_call_restarts",
            "Calls started again after a lost process or a passing error",
            registry=self.registry,
        )
        self._became_jobs = Counter(
            "headrace_calls_became_jobs",
            "Direct calls that became jobs, by function and reason: handed over while they ran, or submitted",
            ["function", "reason"],
            registry=self.registry,
        )
        handovers = Counter(
            "headrace_handovers",
            "Running calls that runners were asked to record as jobs, by what came of it",
            ["end"],
            registry=self.registry,
        )
        self._handovers = {end: handovers.labels(end) for end in _HANDOVER_ENDS}
        self._handovers_pending = Gauge(
            "headrace_handovers_pending",
            "Running calls that runners were asked to record as jobs, and of which nothing was heard yet",
            registry=self.registry,
        )
        self._handover_seconds = Histogram(
            "headrace_handover_seconds",
            "Time from asking a runner to record a running call to hearing that it is recorded",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.in_flight = Gauge("headrace_calls_in_flight", "Calls not yet answered", registry=self.registry)
        self.submits = Counter(
            "headrace_submits", "Transactions in which jobs were submitted", registry=self.registry
        )
        self.submitted_jobs = Counter(
            "headrace_submitted_jobs",
            "Jobs submitted in them, refused ones too; by the number of submits: jobs per commit",
            registry=self.registry,
        )
        self.batches = Counter("headrace_batches", "Batches accepted", registry=self.registry)
        self.batch_jobs = Counter(
            "headrace_batch_jobs", "Jobs in the batches that were accepted", registry=self.registry
        )
        self.runners = Gauge(
            "headrace_runners_linked", "Runners with a link that is up", registry=self.registry
        )
        self.functions = Gauge("headrace_functions", "Functions in service", registry=self.registry)
        self.functions_paused = Gauge(
            "headrace_functions_paused", "Functions in service that take nothing new", registry=self.registry
        )
        self.database_up = Gauge("headrace_database_up", "Whether Postgres answers", registry=self.registry)
        self._predictions = Predictions()
        self.registry.register(self._predictions)
        # What isn't a function's counts together: names that callers make up would grow without bound.
        self.no_function = self.of("")

    def stream_ended(self, function: str, end: str, items: int, first_item_s: float | None = None) -> None:
        """A call that was to be answered by a stream has ended, after so many items."""
        self._streams.labels(function, end).inc()
        if items:
            self._items.labels(function).inc(items)
        if first_item_s is not None:
            self._first_items.labels(function).observe(first_item_s)

    def handover_begun(self) -> None:
        """A runner was asked to record a running call."""
        self._handovers_pending.inc()

    def handed_over(self, end: HandoverEnd, seconds: float) -> None:
        """A runner was asked so many seconds ago to record a running call, and this came of it."""
        self._handovers_pending.dec()
        self._handovers[end].inc()
        if end == "handed":
            self._handover_seconds.observe(seconds)

    def became_job(self, function: str, reason: str) -> None:
        """A direct call became a job."""
        self._became_jobs.labels(function, reason).inc()

    def of(self, function: str) -> FunctionMetrics:
        """The counters of one function."""
        predictions = self._predictions.of(function)
        return FunctionMetrics(function, self._calls, self._seconds, self.usage, predictions)
