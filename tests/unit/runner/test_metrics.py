"""What a runner tells of its present state."""

from __future__ import annotations

from typing import Any

from bench import Bench
from bench import run as run_bench

from gpu_runner.frames import Loaded, LoadFailed, Loading, Unloaded
from gpu_runner.metrics import RunnerMetrics
from gpu_runner.residency.residence import Residence
from gpu_runner.slots import MAIN, MODELS, Slots, slots_for
from headrace.sdk.discovery import discover


class Executor:
    def __init__(self, *, is_ready: bool) -> None:
        self.is_ready = is_ready


class Supervisor:
    """One with three executors."""

    def __init__(self, device_cap: int) -> None:
        self.executors = [Executor(is_ready=at > 0) for at in range(3)]
        self._slots = slots_for(discover(["reserved_functions"]).values(), device_cap)
        self.device = ""
        self.models = Residence({}, [], tuple, lambda: None)

    def groups(self) -> set[Slots]:
        return set(self._slots.values())


def told(supervisor: Any, name: str) -> dict[str, float]:
    metrics = RunnerMetrics([])
    metrics.watch(supervisor)
    samples = [one for metric in metrics.registry.collect() for one in metric.samples]
    return {one.labels.get("slots", ""): one.value for one in samples if one.name == name}


def test_slots_that_groups_share_are_counted_once() -> None:
    supervisor = Supervisor(device_cap=2)
    assert told(supervisor, "headrace_runner_slots") == {MAIN: 3, "measure_many": 9}
    for gauge in ("headrace_runner_running_calls", "headrace_runner_waiting_calls"):
        assert told(supervisor, gauge).keys() == {MAIN, MODELS, "short", "measure_many"}
    assert told(supervisor, "headrace_runner_executors_ready") == {"": 2}


def test_models_and_their_memory_are_told() -> None:
    async def scenario(bench: Bench) -> None:
        metrics = RunnerMetrics([])
        supervisor = bench.supervisor
        metrics.watch(supervisor)

        def seen(name: str, **labels: str) -> float | None:
            return metrics.registry.get_sample_value(f"headrace_runner_{name}", labels)

        def of(model: str) -> list[float | None]:
            """Its loads and their time, its unloads and failures; where it is now, and how large."""
            past = ("load_seconds_count", "load_seconds_sum", "unloads_total", "failures_total")
            names = (*past, "loaded", "bytes")
            return [seen(f"model_{name}", model=f"resident_functions:{model}") for name in names]

        first, second = bench.executors
        assert of("first") == [0, 0, 0, 0, 0, 0]  # before anything is ready
        assert seen("memory_used_bytes", device="cpu") is None
        first.become_ready()
        second.become_ready()
        supervisor.models.book.budget = 1000
        for executor, seconds in ((first, 0.5), (second, 0.25)):
            executor.say(Loading("resident_functions:first"))
            assert of("first")[4] == executor.index  # not before it is there
            executor.say(Loaded("resident_functions:first", 40, seconds))
        assert of("first") == [2, 0.75, 0, 0, 2, 80]
        assert seen("memory_budget_bytes", device="cpu") == 1000
        assert seen("memory_used_bytes", device="cpu") == 80

        first.say(Unloaded("resident_functions:first", 40))
        assert of("first") == [2, 0.75, 1, 0, 1, 40]
        second.lose()
        assert of("first") == [2, 0.75, 1, 0, 0, 0]
        for number in (1, 2):
            first.say(Loading("resident_functions:broken"))
            first.say(LoadFailed("resident_functions:broken", "no weights here"))
            assert of("broken") == [0, 0, 0, number, 0, 0]
        supervisor.models.failures.failed_for_good("resident_functions:huge", "it is too large")
        assert of("huge") == [0, 0, 0, 1, 0, 0]

    run_bench(scenario, modules=["resident_functions"], executors=2, ready=False)
