"""Memory and models as Prometheus is told. Read by its thread, while the event loop changes them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.registry import Collector

from gpu_runner.residency.book import Book, State
from gpu_runner.residency.failures import Failures
from gpu_runner.residency.standing import MemoryStanding


class Residents(Protocol):
    """Who keeps models, as far as is told."""

    book: Book
    failures: Failures

    def memory(self, device: str) -> MemoryStanding:
        """The budget of the device that executors compute on, and what they take of it."""
        ...


class Housed(Protocol):
    """A supervisor, as far as its models are told of."""

    device: str
    """What its executors compute on; empty until one is ready."""

    @property
    def models(self) -> Residents:
        """Who keeps them."""
        ...


class ModelMetrics(Collector):
    """Reads budget, models and what has become of them when Prometheus asks."""

    def __init__(self, housed: Housed) -> None:
        self._housed = housed

    def collect(self) -> Iterable[Metric]:
        """All of it."""
        yield from self._memory()
        yield from self._present()
        yield from self._past()

    def _memory(self) -> Iterable[Metric]:
        budget = GaugeMetricFamily(
            "headrace_runner_memory_budget_bytes",
            "What executors may take of their device, models included",
            labels=["device"],
        )
        used = GaugeMetricFamily(
            "headrace_runner_memory_used_bytes",
            "What executors take of their device, models included",
            labels=["device"],
        )
        if device := self._housed.device:
            standing = self._housed.models.memory(device)
            budget.add_metric([device], standing.budget)
            used.add_metric([device], standing.used)
        return budget, used

    def _present(self) -> Iterable[Metric]:
        book = self._housed.models.book
        size = GaugeMetricFamily(
            "headrace_runner_model_bytes",
            "What a model takes in all executors that have it loaded",
            labels=["model"],
        )
        loaded = GaugeMetricFamily(
            "headrace_runner_model_loaded", "Executors that have a model loaded", labels=["model"]
        )
        held = [one for place in book.places for one in tuple(place.held.values())]
        for model in book.specs:
            sizes = [one.bytes for one in held if one.model == model and one.state is State.RESIDENT]
            size.add_metric([model], sum(sizes))
            loaded.add_metric([model], len(sizes))
        return size, loaded

    def _past(self) -> Iterable[Metric]:
        book, failures = self._housed.models.book, self._housed.models.failures
        loads = SummaryMetricFamily(
            "headrace_runner_model_load_seconds", "Loads of a model, and their time", labels=["model"]
        )
        unloads = CounterMetricFamily(
            "headrace_runner_model_unloads", "Times that a model was unloaded", labels=["model"]
        )
        failed = CounterMetricFamily(
            "headrace_runner_model_failures", "Times that a model couldn't be loaded", labels=["model"]
        )
        for model in book.specs:
            number = sum(book.loads[place.index, model] for place in book.places)
            loads.add_metric([model], number, book.loading_s[model])
            unloads.add_metric([model], book.unloads[model])
            failed.add_metric([model], failures.number[model])
        return loads, unloads, failed
