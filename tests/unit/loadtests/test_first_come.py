"""The queue that serves as calls come, against what is known of such queues."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from first_come import DISTRIBUTIONS, Arrival, Distribution, arrivals, busiest, first_come, mean, percentile

CALLS = 80_000
SQUARED_VARIATION = {"erlang": 1 / 16, "exponential": 1.0, "lognormal": math.e - 1}


def drawn(distribution: Distribution, load: float, servers: int, calls: int = CALLS) -> list[Arrival]:
    """Calls of one second on average, which use so much of what the servers can do."""
    found = arrivals(distribution, 1.0, [(load * servers, math.inf)], random.Random(7))
    return list(itertools.islice(found, calls))


def erlang_wait_s(load: float, servers: int) -> float:
    """The mean wait of Markovian calls of one second, by Erlang's formula."""
    offered = load * servers
    terms = [offered**n / math.factorial(n) for n in range(servers)]
    last = offered**servers / math.factorial(servers) / (1 - load)
    return last / (sum(terms) + last) / (servers - offered)


def test_calls_wait_for_the_first_server_that_is_free() -> None:
    calls = [Arrival(0, 5), Arrival(0, 3), Arrival(1, 1), Arrival(2, 1), Arrival(20, 1)]
    assert first_come(calls, 2) == [0, 0, 2, 2, 0]


@pytest.mark.parametrize(("load", "servers"), [(0.7, 1), (0.8, 4)])
def test_markovian_calls_wait_as_by_erlangs_formula(load: float, servers: int) -> None:
    waits = first_come(drawn("exponential", load, servers), servers)
    assert mean(waits) == pytest.approx(erlang_wait_s(load, servers), rel=0.05)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_calls_of_any_kind_wait_as_by_pollaczeks_formula(distribution: Distribution) -> None:
    load = 0.6
    waits = first_come(drawn(distribution, load, 1), 1)
    expected = load / (1 - load) * (1 + SQUARED_VARIATION[distribution]) / 2
    assert mean(waits) == pytest.approx(expected, rel=0.07)


def test_calls_of_equal_length_wait_half_as_long() -> None:
    load = 0.7
    calls = [Arrival(call.at, 1.0) for call in drawn("exponential", load, 1)]
    assert mean(first_come(calls, 1)) == pytest.approx(load / (1 - load) / 2, rel=0.05)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_executions_take_as_long_as_they_should_on_average(distribution: Distribution) -> None:
    lengths = [call.seconds for call in drawn(distribution, 0.5, 1)]
    assert mean(lengths) == pytest.approx(1, rel=0.02)
    variation = mean([(one - 1) ** 2 for one in lengths])
    assert variation == pytest.approx(SQUARED_VARIATION[distribution], rel=0.1)


def test_phases_follow_each_other_and_the_last_ends_where_it_says() -> None:
    calls = list(arrivals("erlang", 1.0, [(100, 10), (20, 30)], random.Random(1)))
    early = sum(call.at < 10 for call in calls)
    assert [call.at for call in calls] == sorted(call.at for call in calls)
    assert early == pytest.approx(1000, rel=0.1)
    assert len(calls) - early == pytest.approx(400, rel=0.15)
    assert 25 < calls[-1].at < 30


def test_the_busiest_second_may_begin_at_any_instant() -> None:
    assert busiest([0.2, 0.75, 1.25, 1.5, 0.8, 2.5, 7.5]) == 4
    assert busiest([0.0, 1.0, 2.0]) == 1
    assert busiest([]) == 0


def test_percentiles_are_values_that_came() -> None:
    assert percentile([3.0, 1.0, 2.0, 4.0], 0.5) == 2.0
    assert percentile(list(range(1, 101)), 0.95) == 95
    assert math.isnan(percentile([], 0.5))
