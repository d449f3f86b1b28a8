"""Among several runners, by one of several gateways: by two that are drawn, and without a herd."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

import pytest
from harness.many_gateways import Host, Rule, Simulation
from hypothesis import given
from hypothesis import strategies as st

from headrace.admission import choose, finish_s, most_room

GATEWAYS = 4
SEEDS = range(6, 18)


@dataclass(eq=False)
class Runner:
    load: int
    slots: int
    mean_s: float = 0.5
    first_slots: int = 1


RUNNERS = st.lists(
    st.builds(Runner, st.integers(0, 100), st.integers(1, 64), st.just(0.0) | st.floats(1e-6, 1e4)),
    min_size=1,
    max_size=9,
)
DRAWS = st.lists(st.floats(0, 1, exclude_max=True), min_size=2, max_size=2)


@given(RUNNERS, DRAWS, st.booleans())
def test_somebody_is_chosen_and_a_free_one_where_there_is_one(
    runners: list[Runner], draws: list[float], others_full: bool
) -> None:
    best = choose(runners, others_full=others_full, draw=iter(draws).__next__)
    is_new_and_full = [one for one in runners if not one.mean_s and one.load >= one.first_slots]
    if best is None:
        assert others_full
        assert is_new_and_full == runners
        return
    assert best in runners
    free = [one for one in runners if one.load < one.slots and one not in is_new_and_full]
    if free and best.load >= best.slots:  # it ends there before it would at any free one
        known = [one.mean_s for one in runners if one.mean_s and one not in is_new_and_full]
        unknown_s = sum(known) / len(known) if known else 1.0
        end = finish_s(best.load, best.slots, best.mean_s or unknown_s)
        assert all(end < one.mean_s or not one.mean_s for one in free)


@given(RUNNERS, DRAWS)
def test_a_new_one_gets_no_more_than_its_part_while_others_take_calls(
    runners: list[Runner], draws: list[float]
) -> None:
    best = choose([*runners, Runner(100, 1)], draw=iter(draws).__next__)
    assert best is not None
    assert best.mean_s or best.load < best.first_slots


def test_of_nobody_nobody_is_chosen() -> None:
    assert choose([]) is None


def test_a_new_one_alone_is_asked_whatever_it_has() -> None:
    new = Runner(9, 2, 0.0)
    assert choose([new]) is new  # it says itself when it is full


@pytest.mark.parametrize(("load", "is_asked"), [(1, True), (2, False)])
def test_where_others_are_full_a_new_one_gets_as_many_as_it_has_slots(load: int, is_asked: bool) -> None:
    new = Runner(load, 2, 0.0)
    assert choose([new], others_full=True) is (new if is_asked else None)


def test_two_are_drawn_by_what_they_get_done() -> None:
    runners = [Runner(0, 8, 0.5), Runner(0, 1, 0.5), Runner(0, 1, 0.5), Runner(0, 1, 0.5)]
    draw = random.Random(1).random
    chosen = Counter[int]()
    for _ in range(1000):
        best = choose(runners, draw=draw)
        assert best is not None
        chosen[runners.index(best)] += 1
    assert chosen[0] > 500  # eight of eleven calls, were it by speed alone
    assert min(chosen.values()) > 30


def test_not_all_gateways_choose_the_one_that_looks_best() -> None:
    """By old figures it does so to all of them; two that are drawn leave it out as often as not."""
    runners = [Runner(1, 4) for _ in range(5)] + [Runner(0, 4)]
    draw = random.Random(2).random
    chosen = sum(choose(runners, draw=draw) is runners[-1] for _ in range(1000))
    assert 250 < chosen < 420  # a third; all of them by the full choice
    assert all(most_room(runners) is runners[-1] for _ in range(20))


def test_two_equal_runners_are_taken_in_no_order() -> None:
    runners = [Runner(1, 4), Runner(1, 4)]
    assert {runners.index(best) for _ in range(200) if (best := choose(runners))} == {0, 1}


# ---------------------------------------------------------------------- several gateways


def simulated(rule: Rule, seed: int, *, knows_all: bool = False) -> tuple[Simulation, Host]:
    """Five runners and a slow one at 80 %, and a seventh that joins after half a minute."""
    random.seed(seed)  # that of the rule too
    hosts = [*[Host(4, 0.5) for _ in range(5)], Host(4, 1.5), Host(4, 0.5, since=30.0)]
    rate = 0.8 * sum(host.slots / host.mean_s for host in hosts[:-1])
    return Simulation(hosts, GATEWAYS, rule, seed, knows_all=knows_all).run(rate, 60), hosts[-1]


def sent_at_first(simulation: Simulation) -> int:
    """Calls on their way to the new runner, of all gateways, before it has answered one."""
    return sum(views[-1].most_before_its_first for views in simulation.views)


def test_no_herd_meets_a_new_runner() -> None:
    for seed in SEEDS:
        simulation, new = simulated(choose, seed)
        assert 0 < sent_at_first(simulation) <= new.slots
        assert new.longest_queue <= 2 * new.slots
    assert any(sent_at_first(simulated(most_room, seed)[0]) > 4 for seed in SEEDS)


def test_waits_are_near_those_of_a_choice_among_all_that_knew_all() -> None:
    def mean_wait_s(rule: Rule, *, knows_all: bool = False) -> float:
        waits = [simulated(rule, seed, knows_all=knows_all)[0].mean_wait_s for seed in SEEDS]
        return sum(waits) / len(waits)

    # Executions take half a second. Sent anywhere, calls wait for seconds.
    assert mean_wait_s(choose) < mean_wait_s(most_room, knows_all=True) + 0.075
    assert mean_wait_s(random.choice) > 1
