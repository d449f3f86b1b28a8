"""What a runner counts, served for Prometheus by a thread of its own: no web framework is needed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from gpu_runner.residency.metrics import Housed, ModelMetrics
from gpu_runner.slots import Slots
from headrace.telemetry.tallies import Distributions, Tallies
from headrace.usage.recording import Recorder

_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_COSTS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576)
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Process(Protocol):
    """An executor, as far as it is counted."""

    @property
    def is_ready(self) -> bool:
        """Whether its models are loaded."""
        ...


class Watched(Housed, Protocol):
    """A supervisor, as far as it is counted."""

    @property
    def executors(self) -> Sequence[Process]:
        """All executors, ready or not."""
        ...

    def groups(self) -> Iterable[Slots]:
        """The groups of slots, each once."""
        ...


class RunnerMetrics:
    """Counters of one runner; of what is counted with each call, the children are bound in advance.

    Args:
        functions: names of what the runner serves.
    """

    def __init__(self, functions: Iterable[str]) -> None:
        self.registry = CollectorRegistry()
        self.device = ""
        """`cpu` or `cuda`, once an executor is ready."""
        self.usage = Recorder(lambda: self.device)
        """The same by minute, for Postgres."""
        self._ended = Tallies(
            "headrace_runner_executions",
            "Executions that ended, by outcome",
            ["function", "outcome"],
            self.registry,
        )
        self._refused = Counter(
            "headrace_runner_refusals",
            "Calls refused, by reason",
            ["function", "reason"],
            registry=self.registry,
        )
        execution = Distributions(
            "headrace_runner_execution_seconds",
            "Execution time of a call in its executor",
            ["function"],
            _SECONDS,
            self.registry,
        )
        wait = Distributions(
            "headrace_runner_wait_seconds",
            "Time from a call's arrival at the runner to its start",
            ["function"],
            _SECONDS,
            self.registry,
        )
        self._lot_calls = Histogram(
            "headrace_runner_batch_calls",
            "Calls that were joined into one execution",
            ["function"],
            buckets=_SIZES,
            registry=self.registry,
        )
        self._lot_cost = Histogram(
            "headrace_runner_batch_cost",
            "Cost of the calls that were joined into one execution",
            ["function"],
            buckets=_COSTS,
            registry=self.registry,
        )
        self._lot_passes = Counter(
            "headrace_runner_batch_passes",
            "Runs of a batched function's body: more than executions where some ran again in halves",
            ["function"],
            registry=self.registry,
        )
        self._restarts = Counter(
            "headrace_runner_executor_losses", "Executor processes that ended", registry=self.registry
        )
        self._jobs_claimed = Counter(
            "headrace_runner_jobs_claimed", "Jobs claimed", ["function"], registry=self.registry
        )
        self._jobs_finished = Counter(
            "headrace_runner_jobs_finished",
            "Starts of jobs whose end the ledger has taken, by outcome",
            ["function", "outcome"],
            registry=self.registry,
        )
        self._jobs_fenced = Counter(
            "headrace_runner_jobs_fenced",
            "Starts of jobs that were another's when they ended or were renewed",
            ["function"],
            registry=self.registry,
        )
        self._handed_over = Counter(
            "headrace_runner_handovers",
            "Direct calls that were to become jobs as their hold ended, by outcome",
            ["function", "outcome"],
            registry=self.registry,
        )
        self.handover_seconds = Histogram(
            "headrace_runner_handover_seconds",
            "Time from the request for a running call's handover to its commit",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.claim_seconds = Histogram(
            "headrace_runner_claim_seconds",
            "Time of one claim in Postgres",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._execution = {name: execution.labels(name) for name in functions}
        self._wait = {name: wait.labels(name) for name in functions}
        self._succeeded = {name: self._ended.labels(name, "succeeded") for name in functions}

    def watch(self, supervisor: Watched) -> None:
        """Serve a supervisor's present state as gauges."""
        self.registry.register(_State(supervisor))
        self.registry.register(ModelMetrics(supervisor))

    def started(self, function: str, waited_s: float, cost: float = 0.0) -> None:
        """A call, of an input of that cost, has started."""
        self._wait[function].observe(waited_s)
        self.usage.observe(function, "queue", waited_s, cost)

    def ended(self, function: str, outcome: str, seconds: float, cost: float = 0.0) -> None:
        """A call's execution has ended."""
        self._execution[function].observe(seconds)
        if outcome == "succeeded":
            self._succeeded[function].add()
            self.usage.observe(function, "execution", seconds, cost)
        else:
            self._ended.labels(function, outcome).add()
            self.usage.observe(function, "failure", seconds, cost, outcome)

    def lot_ended(self, function: str, calls: int, cost: float, passes: int) -> None:
        """Joined calls have ended, after so many runs of the body."""
        self._lot_calls.labels(function).observe(calls)
        self._lot_cost.labels(function).observe(cost)
        self._lot_passes.labels(function).inc(passes)
        self.usage.observe(function, "joined", calls, cost)

    def refused(self, function: str, reason: str) -> None:
        """A call was refused before its start."""
        self._refused.labels(function, reason).inc()

    def claimed(self, function: str) -> None:
        """A job was claimed."""
        self._jobs_claimed.labels(function).inc()

    def finished(self, function: str, outcome: str) -> None:
        """The ledger has taken how a job's start ended."""
        self._jobs_finished.labels(function, outcome).inc()

    def fenced(self, function: str) -> None:
        """A job's start isn't this runner's any more."""
        self._jobs_fenced.labels(function).inc()

    def handed_over(self, function: str, outcome: str) -> None:
        """A handover has come to something.

        Args:
            function: the call's.
            outcome: `recorded`; `withdrawn`, as the call hadn't started; `fenced`, as the job was there under
                another token; `answered`, as the call ended before it was known to be recorded.
        """
        self._handed_over.labels(function, outcome).inc()

    def restarted(self) -> None:
        """An executor's process has ended."""
        self._restarts.inc()


class _State(Collector):
    """Reads slots and executors when Prometheus asks."""

    def __init__(self, supervisor: Watched) -> None:
        self._supervisor = supervisor

    def collect(self) -> Iterable[Metric]:
        executors = self._supervisor.executors
        running = GaugeMetricFamily("headrace_runner_running_calls", "Calls that run", labels=["slots"])
        waiting = GaugeMetricFamily(
            "headrace_runner_waiting_calls", "Calls that wait for a slot", labels=["slots"]
        )
        total = GaugeMetricFamily("headrace_runner_slots", "Slots, busy or free", labels=["slots"])
        for slots in self._supervisor.groups():
            running.add_metric([slots.name], slots.running)
            waiting.add_metric([slots.name], len(slots.waiting))
        # Groups may share a room: its slots are counted once.
        for name, room in {slots.room.name: slots.room for slots in self._supervisor.groups()}.items():
            total.add_metric([name], room.per_executor * len(executors))
        ready = GaugeMetricFamily("headrace_runner_executors_ready", "Executors with their models loaded")
        ready.add_metric([], sum(executor.is_ready for executor in executors))
        return [running, waiting, total, ready]
