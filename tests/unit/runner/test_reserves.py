"""Which functions a runner serves, and whether what they reserve leaves room to the others."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from gpu_runner.pools import of_pool
from gpu_runner.reserves import check_reserves
from headrace import Function, function
from headrace.errors import SetupError


def declared(name: str, **options: Any) -> Function[Any, Any]:
    def body(input: int) -> int:
        return input

    return function(name=name, **options)(body)


def asynchronous(name: str, **options: Any) -> Function[Any, Any]:
    async def body(input: int) -> int:
        return input

    return function(name=name, **options)(body)


@pytest.mark.parametrize(
    ("reserves", "executors"),
    [((0,), 1), ((0, 0), 1), ((1,), 1), ((3,), 3), ((1, 0), 2), ((1, 1), 2), ((1, 1, 0), 3), ((2, 0, 0), 3)],
)
def test_reserves_that_leave_a_slot_to_the_others(reserves: tuple[int, ...], executors: int) -> None:
    functions = [declared(f"f{at}", reserve=reserve) for at, reserve in enumerate(reserves)]
    check_reserves([*functions, asynchronous("apart"), declared("wide", concurrency=2)], executors)


@pytest.mark.parametrize(
    ("reserves", "executors", "message"),
    [
        ((1, 0), 1, "f0 reserves 1 of the 1 slot that f0 and f1 share: set HEADRACE_EXECUTORS=2 or"),
        ((2,), 1, "f0 reserves 2 of the 1 slot that it alone runs in: set HEADRACE_EXECUTORS=2 or "),
        ((1, 1, 0), 2, "f0 and f1 reserve 2 of the 2 slots that f0, f1 and f2 share: set HEADRACE_EXECUTOR"),
        ((1, 0, 0, 0, 0, 0), 1, "that f0, f1, f2, f3 and 2 others share: set HEADRACE_EXECUTORS=2 or "),
    ],
)  # fmt: skip
def test_reserves_that_take_all(reserves: tuple[int, ...], executors: int, message: str) -> None:
    functions = [declared(f"f{at}", reserve=reserve) for at, reserve in enumerate(reserves)]
    with pytest.raises(SetupError) as caught:
        check_reserves([*functions, asynchronous("apart")], executors)
    assert message in str(caught.value)
    assert str(caught.value).endswith(" or leave out reserve=")


def functions() -> dict[str, Function[Any, Any]]:
    made = [
        declared("echo"),
        declared("embed", pool="gpu"),
        declared("score", pool="gpu"),
        declared("chat", pool="gpu=h200,zone=a"),
    ]
    return {one.name: one for one in made}


def test_a_runner_serves_its_pool_and_what_its_labels_satisfy(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert list(of_pool(functions(), "gpu", {"gpu": "h200", "zone": "a", "rack": "7"})) == [
            "embed",
            "score",
            "chat",
        ]
    assert caplog.messages == [
        "not served here, with pool gpu, labels gpu=h200,rack=7,zone=a: echo asks for pool default"
    ]


def test_a_runner_of_every_pool_serves_all_and_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert list(of_pool(functions(), "*", {})) == ["echo", "embed", "score", "chat"]
    assert caplog.messages == []


def test_a_runner_with_nothing_to_serve_says_what_was_asked_for() -> None:
    with pytest.raises(SetupError) as caught:
        of_pool(functions(), "cpu", {"zone": "b"})
    assert str(caught.value) == (
        "none of its functions asks for this runner, which has pool cpu, labels zone=b: echo asks for pool "
        "default; embed, score ask for pool gpu; chat asks for labels gpu=h200,zone=a. Set HEADRACE_POOL or "
        "HEADRACE_LABELS (--pool, --label) to one of these, or HEADRACE_POOL=* to serve all"
    )
