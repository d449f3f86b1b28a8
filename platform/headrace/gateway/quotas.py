"""What owners may use: rates, as a token bucket of each owner, and how quotas are told to clients.

The headers are those of draft-ietf-httpapi-ratelimit-headers-10. Where an answer is under both quotas, each
adds lines of its own, which form one list.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from headrace.errors import DatabaseBusy, DatabaseUnavailable
from headrace.gateway.problems import Problem, to_problem
from headrace.keys import KeyRow

Headers: TypeAlias = tuple[tuple[bytes, bytes], ...]

_MOST_OWNERS: Final = 10_000
# What time adds is rounded, and who comes when told must pass: the wait leads to a little more than it takes.
_ENOUGH: Final = 1 - 1e-6
_SURELY: Final = 1 - 1e-7


@dataclass(slots=True)
class _Bucket:
    """What an owner may still call, as of a moment."""

    tokens: float
    at: float


class Quotas:
    """Holds owners to their rates; forgets owners that have long not called when there are too many.

    A rate is an owner's over all gateways. Gateways don't talk about each call: each grants an equal part,
    so it takes a balancer that spreads calls evenly to get the whole.

    Args:
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.gateways = 1
        """How many gateways live, this one among them."""
        self._clock = clock
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def take(self, key: KeyRow) -> Headers:
        """Count one call of the key's owner.

        Returns:
            Headers for the call's answer, whatever that will be; none where the owner has no rate.

        Raises:
            Problem: `quota-exceeded`, and the call isn't counted.
        """
        if key.rate is None:
            return ()
        burst = key.burst or max(1, math.ceil(key.rate))
        rate = key.rate / self.gateways
        bucket = self._filled(key.owner_id, rate, max(1.0, burst / self.gateways))
        if bucket.tokens < _ENOUGH:
            raise _too_fast(key.rate, burst, math.ceil((_SURELY - bucket.tokens) / rate))
        bucket.tokens = max(0.0, bucket.tokens - 1)
        left = int(bucket.tokens)
        return _rate_headers(key.rate, burst, left, math.ceil((left + 1 - bucket.tokens) / rate))

    def _filled(self, owner_id: str, rate: float, room: float) -> _Bucket:
        """The owner's bucket as it is now; a full one where none is remembered."""
        now = self._clock()
        bucket = self._buckets.get(owner_id)
        if bucket is None:
            bucket = self._buckets[owner_id] = _Bucket(room, now)
            if len(self._buckets) > _MOST_OWNERS:
                self._buckets.popitem(last=False)
            return bucket
        self._buckets.move_to_end(owner_id)
        bucket.tokens = min(room, bucket.tokens + (now - bucket.at) * rate)
        bucket.at = now
        return bucket


def jobs_headers(most: int, outstanding: int) -> Headers:
    """The headers of an answer that is under the quota of unfinished jobs.

    Args:
        most: how many the owner may have.
        outstanding: how many it has now, the answered one among them.
    """
    return (
        (b"ratelimit-policy", b'"jobs";q=%d;qu="concurrent-requests"' % most),
        (b"ratelimit", b'"jobs";r=%d' % max(0, most - outstanding)),
    )


def too_many_jobs(most: int, retry_after: int) -> Problem:
    """The problem of an owner that has as many unfinished jobs as it may have.

    Args:
        most: how many it may have.
        retry_after: seconds after which one of them may have ended.
    """
    policy, limit = jobs_headers(most, most)
    headers = (policy, (limit[0], b"%b;t=%d" % (limit[1], retry_after)))
    return Problem(
        "quota-exceeded",
        f"The owner of the key may have {most} unfinished job{'s' if most > 1 else ''}, and has as many.",
        headers=merged({}, headers) | {"Retry-After": str(retry_after)},
        **{"violated-policies": ["jobs"]},
    )


def no_room_for_batch(most: int, outstanding: int, size: int, retry_after: int) -> Problem:
    """The problem of an owner whose batch would lead beyond the unfinished jobs that it may have.

    Args:
        most: how many it may have.
        outstanding: how many it has.
        size: how many the batch would add.
        retry_after: seconds after which some of them may have ended.
    """
    return Problem(
        "quota-exceeded",
        f"The key's owner may have {most} unfinished job{'s' if most > 1 else ''} and has {outstanding}; "
        f"a batch of {size} does not fit.",
        headers=merged({}, jobs_headers(most, outstanding)) | {"Retry-After": str(retry_after)},
        **{"violated-policies": ["jobs"]},
    )


def _too_fast(rate: float, burst: int, wait_s: int) -> Problem:
    wait_s = max(1, wait_s)
    return Problem(
        "quota-exceeded",
        f"The owner of the key may make {rate:.5g} calls a second, {burst} at once.",
        headers=merged({}, _rate_headers(rate, burst, 0, wait_s)) | {"Retry-After": str(wait_s)},
        **{"violated-policies": ["rate"]},
    )


def _rate_headers(rate: float, burst: int, left: int, wait_s: int) -> Headers:
    """The policy is the owner's over all gateways; what is left, and when there is more, is this one's."""
    window_s = max(1, math.ceil(burst / rate))
    return (
        (b"ratelimit-policy", b'"rate";q=%d;w=%d' % (burst, window_s)),
        (b"ratelimit", b'"rate";r=%d;t=%d' % (left, max(1, wait_s))),
    )


def merged(headers: Mapping[str, str], more: Headers) -> dict[str, str]:
    """Headers with others, those of one name on one line, for whoever can send only one of each."""
    lines = dict(headers)
    for encoded, value in more:
        name, line = _CANONICAL[encoded], value.decode("ascii")
        lines[name] = f"{lines[name]}, {line}" if name in lines else line
    return lines


@contextlib.contextmanager
def told(headers: Headers) -> Generator[None]:
    """Whatever is refused inside is told with these headers too."""
    try:
        yield
    except (Problem, DatabaseUnavailable, DatabaseBusy) as error:
        problem = to_problem(error)
        raise Problem(
            problem.code, problem.detail, headers=merged(problem.headers, headers), **problem.extra
        ) from None


_CANONICAL: Final = {b"ratelimit-policy": "RateLimit-Policy", b"ratelimit": "RateLimit"}
