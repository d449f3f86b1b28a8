"""What a gateway counts, with the children bound in advance (1 us a count, 3 us otherwise)."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 55)


class FunctionMetrics:
    """The counters of one function."""

    __slots__ = ("_by_status", "_calls", "_name", "seconds")

    def __init__(self, name: str, calls: Counter, seconds: Histogram) -> None:
        self._name = name
        self._calls = calls
        self._by_status: dict[int, Counter] = {}
        self.seconds = seconds.labels(name)

    def count(self, status: int, seconds: float) -> None:
        """A call was answered with this status after so many seconds."""
        counter = self._by_status.get(status)
        if counter is None:
            counter = self._by_status[status] = self._calls.labels(self._name, str(status))
        counter.inc()
        self.seconds.observe(seconds)


class GatewayMetrics:
    """All counters of one gateway."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._calls = Counter(
            "headrace_calls",
            "Calls answered, by function and HTTP status; function is empty where the call named none",
            ["function", "status"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            "headrace_call_seconds",
            "Time from a call's arrival to its answer",
            ["function"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.retries = Counter(
            "headrace_call_restarts",
            "Calls started again after a lost process or a passing error",
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
        self.database_up = Gauge("headrace_database_up", "Whether Postgres answers", registry=self.registry)
        # What isn't a function's counts together: names that callers make up would grow without bound.
        self.no_function = FunctionMetrics("", self._calls, self._seconds)

    def of(self, function: str) -> FunctionMetrics:
        """The counters of one function."""
        return FunctionMetrics(function, self._calls, self._seconds)
