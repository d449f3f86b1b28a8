"""What names a call that a call has made."""

from __future__ import annotations

import uuid

import msgspec
import pytest

from gpu_runner.frames import Invoke
from gpu_runner.invoking.identity import actor_of, callers_in, child_id
from headrace.ids import uuid7

ASKED = Invoke(uuid7(), 1, 0, "embed", "i1", b"1", b"d" * 32)


def test_another_attempt_asks_for_the_same_job() -> None:
    again = msgspec.structs.replace(ASKED, attempt=2, number=7)

    assert child_id(again, 0) == child_id(ASKED, 0)


@pytest.mark.parametrize(
    "change",
    [{"job_id": uuid7()}, {"function": "other"}, {"interface": "i2"}, {"digest": b"e" * 32}, {"same": 1}],
)
def test_whatever_else_differs_is_another_job(change: dict[str, object]) -> None:
    other = msgspec.structs.replace(ASKED, **change)

    assert child_id(other, 0) != child_id(ASKED, 0)
    assert child_id(ASKED, 1) != child_id(ASKED, 0)


def test_it_is_a_uuid7_of_the_time_of_its_parent() -> None:
    one = uuid.UUID(child_id(ASKED, 0))

    assert (one.version, one.variant) == (7, uuid.RFC_4122)
    assert one.int >> 80 == uuid.UUID(ASKED.job_id).int >> 80
    assert str(one) != ASKED.job_id


def test_the_chain_of_callers_is_read_as_it_was_written() -> None:
    assert callers_in(actor_of(ASKED.job_id, ["a", "b-c"])) == ("a", "b-c")
    for actor in (None, "key:0197", "owner:a/b", "gateway:g"):
        assert callers_in(actor) == ()
