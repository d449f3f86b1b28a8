"""The handover, explored from end to end: what docs/handover.md promises holds in every order of steps."""

from __future__ import annotations

import pytest
from harness.documents import table
from harness.handover_explored import Explored, explore
from harness.handover_model import KEPT, Rules

PAGE = "docs/handover.md"
MOST = 2
"""Faults in the quick tests: fewer, and some steps can't come."""
STATUSES = {"200", "202", "502", "503", "504"}


def check(explored: Explored) -> None:
    assert not explored.broken
    assert explored.states > 100


@pytest.mark.parametrize("attempts", [1, 2, 3])
@pytest.mark.parametrize("faults", range(MOST + 1))
def test_no_order_of_steps_breaks_a_promise(faults: int, attempts: int) -> None:
    check(explore(faults, attempts))


@pytest.mark.slow
@pytest.mark.parametrize("attempts", [1, 2, 3])
@pytest.mark.parametrize("faults", [3, 4])
def test_no_order_of_steps_with_more_faults_breaks_a_promise(faults: int, attempts: int) -> None:
    check(explore(faults, attempts))


def test_a_call_with_one_start_never_runs_once_more() -> None:
    assert explore(MOST, attempts=1).residual is None


def test_it_takes_two_faults_for_a_start_after_a_200() -> None:
    """What docs/guarantees.md says isn't promised, and no more than that."""
    assert explore(1, attempts=2).residual is None
    residual = explore(2, attempts=2).residual
    assert residual is not None
    assert "the reply of Postgres is lost" in residual
    assert "the runner sends RESULT unsettled" in residual


@pytest.mark.parametrize(
    ("rule", "faults", "attempts", "broken"),
    [
        ("tells_fenced", 2, 2, {"a client that is never answered"}),
        ("ignores_late_stop", 0, 2, {"started twice though nothing failed"}),
        ("names_token", 1, 1, {"a final state that isn't"}),
        ("joins", 1, 2, {"a final state that isn't", "more starts than attempts"}),
        ("looks", 1, 1, {"502 though the job is recorded"}),
    ],
)
def test_each_rule_is_needed(rule: str, faults: int, attempts: int, broken: set[str]) -> None:
    assert set(explore(faults, attempts, KEPT._replace(**{rule: False})).broken) == broken


def test_a_call_that_ended_unrecorded_has_to_be_settled() -> None:
    """Else one lost reply is enough for another start after a 200."""
    assert explore(1, 2, KEPT._replace(settles=False)).residual is not None


def test_every_rule_is_left_out_once() -> None:
    cases = test_each_rule_is_needed.pytestmark[0].args[1]  # pyright: ignore[reportFunctionMemberAccess]
    assert {case[0] for case in cases} | {"settles"} == set(Rules._fields)


def test_every_answer_comes_and_no_other() -> None:
    assert explore(0, 2).answers == {"200", "202", "504", "left"}
    found = set[str]().union(*(explore(MOST, attempts).answers for attempts in (1, 2)))
    assert found == STATUSES | {"left", "waiting"}  # of a gateway that died


def test_the_page_has_the_states_and_the_rules_of_the_model() -> None:
    explored = explore(MOST, 2)
    _, *states = table(PAGE, "the runner's state")
    assert {name.strip("`") for name, *_ in states} == explored.runner - {"unaware", "dead"}
    _, *answers = table(PAGE, "the client gets")
    assert {name for name, *_ in answers} == STATUSES
