"""Batches on their way in: who waits for whom, and what becomes of one while Postgres is away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import msgspec
import pytest

from headrace.errors import DatabaseError, DatabaseUnavailable
from headrace.gateway import batch_call
from headrace.gateway.batch_call import BatchCalls
from headrace.gateway.exchange import ClientLeft
from headrace.gateway.problems import Problem
from headrace.gateway.refusals import never_fits
from headrace.ledger import batches
from headrace.ledger.batches import BatchReceipt, NewBatch, Room

NOTHING = cast("Any", None)
BATCH = NewBatch(
    batch_id="01900000-0000-7000-8000-000000000000",
    owner_id="o",
    function="echo",
    interface="i",
    digest=b"",
    costs=[1.0],
    size=1,
    attempts=1,
    queue_s=1,
    total_s=1,
    most_outstanding=1,
    most_waiting=1,
    key_ttl_s=1,
)


def calls() -> BatchCalls:
    return BatchCalls(NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, lambda: 0.0)


class Upload:
    async def parts(self, _job_ids: list[str]) -> AsyncIterator[Any]:
        return
        yield


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_call, "PATIENCE_S", 0.2)
    monkeypatch.setattr(batch_call, "_PAUSE_S", 0.01)


def record(monkeypatch: pytest.MonkeyPatch, *outcomes: BatchReceipt | Exception) -> Any:
    """What `_repeated` makes of what Postgres says; the last outcome is said again and again."""
    left = list(outcomes)

    async def submit_batch(*_: Any, within: float) -> BatchReceipt:
        outcome = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(batches, "submit_batch", submit_batch)

    async def scenario() -> BatchReceipt:
        return await calls()._repeated(BATCH, cast("Any", Upload()))

    return asyncio.run(scenario())


@pytest.mark.usefixtures("impatient")
def test_a_short_outage_is_ridden_out(monkeypatch: pytest.MonkeyPatch) -> None:
    receipt = BatchReceipt(batch_id=BATCH.batch_id)
    away = DatabaseUnavailable("away")
    assert record(monkeypatch, away, away, receipt) is receipt


@pytest.mark.usefixtures("impatient")
def test_after_a_long_outage_the_client_is_told_how_to_find_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Problem) as caught:
        record(monkeypatch, DatabaseUnavailable("away"))
    assert caught.value.code == "database-unavailable"
    assert caught.value.headers["Headrace-Batch-Id"] == caught.value.extra["batch_id"] == BATCH.batch_id
    assert f"GET /batches/{BATCH.batch_id}" in caught.value.detail


def test_all_tries_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_call, "PATIENCE_S", 0.3)
    monkeypatch.setattr(batch_call, "_PAUSE_S", 0.01)
    monkeypatch.setattr(batches, "longest_s", lambda _batch: 0.2)
    given: list[float] = []

    async def submit_batch(*_: Any, within: float) -> BatchReceipt:
        given.append(within)
        await asyncio.sleep(within)
        raise DatabaseUnavailable("no answer")

    monkeypatch.setattr(batches, "submit_batch", submit_batch)
    with pytest.raises(Problem) as caught:
        asyncio.run(calls()._repeated(BATCH, cast("Any", Upload())))
    assert caught.value.code == "database-unavailable"
    assert given[0] == pytest.approx(0.2)
    assert sum(given) <= 0.51


@pytest.mark.parametrize("idempotency_key", [None, "k"])
def test_a_client_that_leaves_takes_a_batch_without_a_key_along(
    monkeypatch: pytest.MonkeyPatch, idempotency_key: str | None
) -> None:
    receipt = BatchReceipt(batch_id=BATCH.batch_id)
    batch = msgspec.structs.replace(BATCH, idempotency_key=idempotency_key)

    async def scenario() -> None:
        began, may_end, ended = asyncio.Event(), asyncio.Event(), list[str]()

        async def submit_batch(*_: Any, within: float) -> BatchReceipt:
            began.set()
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise
            ended.append("recorded")
            return receipt

        async def receive() -> Any:
            await began.wait()
            return {"type": "http.disconnect"}

        monkeypatch.setattr(batches, "submit_batch", submit_batch)
        recording = asyncio.create_task(calls()._recorded(batch, cast("Any", Upload()), cast("Any", receive)))
        await began.wait()
        if idempotency_key is None:
            with pytest.raises(ClientLeft):
                await recording
            assert ended == ["cancelled"]
        else:
            may_end.set()
            assert await recording is receipt
            assert ended == ["recorded"]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("size", "cost", "said"),
    [
        (10, 1.0, "may have 9 unfinished jobs"),
        (9, 1.0, "8 jobs of echo may wait"),
        (8, 2.0, "may cost 15 together, not 16"),
        (7, 2.0, None),
    ],
)
def test_what_could_never_be_accepted_is_no_batch(size: int, cost: float, said: str | None) -> None:
    batch = msgspec.structs.replace(BATCH, costs=[cost] * size, most_outstanding=9)
    problem = never_fits(batch, Room(outstanding=0, refusal=None, most_waiting=8, most_cost=15.0))
    assert (problem is None) == (said is None)
    if problem is not None and said is not None:
        assert (problem.code, problem.status) == ("invalid-input", 422)
        assert said in problem.detail
        assert "Retry-After" not in problem.headers


def test_what_postgres_refuses_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DatabaseError, match="no"):
        record(monkeypatch, DatabaseError("no"), BatchReceipt(batch_id=BATCH.batch_id))
