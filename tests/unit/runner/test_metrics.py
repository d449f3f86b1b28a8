"""What a runner tells of its present state."""

from __future__ import annotations

from typing import Any

from gpu_runner.metrics import RunnerMetrics
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
