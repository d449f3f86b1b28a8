"""What a gateway counts of an answer, for usage."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.gateway.metrics import GatewayMetrics


@pytest.mark.parametrize(
    ("status", "code", "kind", "reason"),
    [
        (200, "", "served", ""),
        (200, "function-failed", "failed", "function-failed"),
        (200, "busy", "refused", "busy"),
        (200, "deadline-exceeded", "expired", ""),
        (200, "client-left", "abandoned", ""),
        (200, "invalid-input", None, ""),  # found by the runner, after the first event
        (422, "invalid-input", None, ""),
        (500, "function-failed", "failed", "function-failed"),
    ],
)
def test_a_problem_counts_as_its_own_status_wherever_it_came(
    status: int, code: str, kind: str | None, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics, seen = GatewayMetrics(), list[Any]()
    monkeypatch.setattr(metrics.usage, "observe", lambda *counted: seen.append(counted))
    metrics.of("count_up").count(status, 0.5, code)
    assert seen == ([] if kind is None else [("count_up", kind, 0.5, 0.0, reason)])
