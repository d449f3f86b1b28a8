from __future__ import annotations

import math
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.gateway import quotas
from headrace.gateway.problems import Problem
from headrace.gateway.quotas import Headers, Quotas, jobs_headers, too_many_jobs
from headrace.keys import KeyRow

POLICY = re.compile(r'"rate";q=(\d{1,15});w=([1-9]\d{0,14})')
LIMIT = re.compile(r'"rate";r=(\d{1,15});t=([1-9]\d{0,14})')


class Clock:
    def __init__(self) -> None:
        self.now = 1e6

    def __call__(self) -> float:
        return self.now


def key(rate: float | None, burst: int | None = None, owner: str = "o") -> KeyRow:
    return KeyRow("k", owner, owner, rate=rate, burst=burst)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def left(headers: Headers) -> int:
    """What the answer says is left."""
    match = LIMIT.fullmatch(dict(headers)[b"ratelimit"].decode())
    assert match is not None
    return int(match[1])


def wait(quota: Quotas, caller: KeyRow) -> int:
    """The seconds that a refused call is told to wait."""
    with pytest.raises(Problem) as caught:
        quota.take(caller)
    assert (caught.value.code, caught.value.status) == ("quota-exceeded", 429)
    headers = caught.value.headers
    assert headers["RateLimit"] == f'"rate";r=0;t={headers["Retry-After"]}'
    return int(headers["Retry-After"])


def test_without_a_rate_nothing_is_counted_or_kept(clock: Clock) -> None:
    quota = Quotas(clock)
    assert [quota.take(key(None)) for _ in range(1000)] == [()] * 1000
    assert not quota._buckets


def test_a_burst_passes_and_then_the_rate_decides(clock: Clock) -> None:
    quota = Quotas(clock)
    assert [left(quota.take(key(2, 5))) for _ in range(5)] == [4, 3, 2, 1, 0]
    assert wait(quota, key(2, 5)) == 1
    clock.now += 0.5
    assert left(quota.take(key(2, 5))) == 0
    assert wait(quota, key(2, 5)) == 1
    clock.now += 2.25
    assert [left(quota.take(key(2, 5))) for _ in range(4)] == [3, 2, 1, 0]
    clock.now += 3600
    assert left(quota.take(key(2, 5))) == 4  # never more than the burst


def test_a_refused_call_costs_nothing(clock: Clock) -> None:
    quota = Quotas(clock)
    quota.take(key(1))
    for _ in range(1000):
        wait(quota, key(1))
    clock.now += 1
    quota.take(key(1))


@pytest.mark.parametrize(
    ("rate", "burst", "policy"),
    [
        (10, None, '"rate";q=10;w=1'),
        (10, 50, '"rate";q=50;w=5'),
        (100, 1, '"rate";q=1;w=1'),
        (2.5, None, '"rate";q=3;w=2'),
        (0.1, None, '"rate";q=1;w=10'),
        (1e-5, None, '"rate";q=1;w=100000'),
        (1e6, None, '"rate";q=1000000;w=1'),
        (1e-5, 1_000_000, '"rate";q=1000000;w=100000000000'),
    ],
)
def test_the_policy_is_a_burst_and_the_time_in_which_it_comes_back(
    clock: Clock, rate: float, burst: int | None, policy: str
) -> None:
    quota = Quotas(clock)
    headers = dict(quota.take(key(rate, burst)))
    assert headers[b"ratelimit-policy"].decode() == policy
    assert POLICY.fullmatch(policy)
    assert LIMIT.fullmatch(headers[b"ratelimit"].decode())
    quota = Quotas(clock)
    quota.gateways = 7  # what clients are told of the owner's quota is the same
    assert dict(quota.take(key(rate, burst)))[b"ratelimit-policy"].decode() == policy


def test_owners_have_buckets_of_their_own_and_an_owners_keys_share_one(clock: Clock) -> None:
    quota = Quotas(clock)
    quota.take(key(1, owner="ada"))
    quota.take(key(1, owner="bob"))
    wait(quota, KeyRow("another", "ada", "ada", rate=1))


def test_a_rate_is_shared_by_the_gateways(clock: Clock) -> None:
    quota = Quotas(clock)
    quota.gateways = 4
    assert [left(quota.take(key(8))) for _ in range(2)] == [1, 0]
    assert wait(quota, key(8)) == 1
    clock.now += 0.5  # at two a second
    quota.take(key(8))
    wait(quota, key(8))


def test_each_gateway_grants_one_call_at_least(clock: Clock) -> None:
    quota = Quotas(clock)
    quota.gateways = 10
    assert left(quota.take(key(0.5, 3))) == 0
    assert wait(quota, key(0.5, 3)) == 20
    clock.now += 20
    quota.take(key(0.5, 3))


def test_what_gateways_grant_follows_how_many_there_are(clock: Clock) -> None:
    quota = Quotas(clock)
    assert left(quota.take(key(1, 100))) == 99
    quota.gateways = 2
    assert left(quota.take(key(1, 100))) == 49
    quota.gateways = 1
    clock.now += 10
    assert left(quota.take(key(1, 100))) == 58


def test_a_changed_quota_holds_at_the_next_call(clock: Clock) -> None:
    quota = Quotas(clock)
    quota.take(key(0.01))
    assert wait(quota, key(0.01)) == 100
    assert wait(quota, key(10)) == 1  # nothing is given for the past at the new rate
    clock.now += 0.1
    quota.take(key(10))
    quota.take(key(None))


def test_the_wait_counts_what_has_come_back_already(clock: Clock) -> None:
    quota = Quotas(clock)
    quota.take(key(0.1))
    waits: list[int] = []
    for _ in range(10):
        waits.append(wait(quota, key(0.1)))
        clock.now += 1
    assert waits == [10, 9, 8, 7, 6, 5, 4, 3, 2, 1]
    quota.take(key(0.1))


def test_what_is_kept_is_bounded(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "_MOST_OWNERS", 3)
    quota = Quotas(clock)
    for owner in ("a", "b", "c", "a", "d"):
        quota.take(key(2, 5, owner))
    assert list(quota._buckets) == ["c", "a", "d"]  # the one that has been silent for longest is forgotten
    assert left(quota.take(key(2, 5, "a"))) == 2


rates = st.floats(1e-5, 1e6)
pauses = st.lists(st.floats(0, 1e5), max_size=20)


@given(rates, st.none() | st.integers(1, 1_000_000), st.integers(1, 50), pauses)
def test_who_waits_as_told_passes(rate: float, burst: int | None, gateways: int, pauses: list[float]) -> None:
    clock = Clock()
    quota = Quotas(clock)
    quota.gateways = gateways
    for pause in pauses:
        clock.now += pause
        try:
            quota.take(key(rate, burst))
        except Problem as refused:
            clock.now += int(refused.headers["Retry-After"])
            assert left(quota.take(key(rate, burst))) >= 0


@given(st.floats(0.01, 1000), st.integers(1, 100), st.lists(st.floats(0, 5), min_size=1, max_size=200))
def test_never_more_pass_than_burst_and_rate_allow(rate: float, burst: int, pauses: list[float]) -> None:
    clock = Clock()
    quota = Quotas(clock)
    began, passed = clock.now, 0
    for pause in pauses:
        clock.now += pause
        try:
            quota.take(key(rate, burst))
        except Problem:
            continue
        passed += 1
    assert passed <= math.floor(burst + (clock.now - began) * rate + 0.01)


def test_the_problem_names_the_rate_and_the_policy(clock: Clock) -> None:
    quota = Quotas(clock)
    quota.take(key(0.5))
    with pytest.raises(Problem) as caught:
        quota.take(key(0.5))
    document: dict[str, Any] = msgspec.json.decode(caught.value.body())
    assert document["detail"] == "The owner of the key may make 0.5 calls a second, 1 at once."
    assert document["violated-policies"] == ["rate"]
    names = [name for name, _ in caught.value.asgi()[1]]
    assert {b"ratelimit", b"ratelimit-policy", b"retry-after"} <= set(names)


def test_the_jobs_headers_say_how_many_more_may_be_unfinished() -> None:
    assert dict(jobs_headers(10, 3)) == {
        b"ratelimit-policy": b'"jobs";q=10;qu="concurrent-requests"',
        b"ratelimit": b'"jobs";r=7',
    }
    assert dict(jobs_headers(10, 12))[b"ratelimit"] == b'"jobs";r=0'  # its quota was lowered


def test_the_problem_of_too_many_jobs_says_when_to_try_again() -> None:
    refused = too_many_jobs(10, retry_after=4)
    assert refused.headers == {
        "RateLimit-Policy": '"jobs";q=10;qu="concurrent-requests"',
        "RateLimit": '"jobs";r=0;t=4',
        "Retry-After": "4",
    }
    document: dict[str, Any] = msgspec.json.decode(refused.body())
    assert document["detail"] == "The owner of the key may have 10 unfinished jobs, and has as many."
    assert "1 unfinished job," in msgspec.json.decode(too_many_jobs(1, retry_after=4).body())["detail"]
    assert document["violated-policies"] == ["jobs"]
