from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from harness.listening import hearing
from harness.postgres import query, wait_until

from headrace import registry
from headrace.capacity import Capacity, Report, encoded
from headrace.database import Database
from headrace.domain import Budget, Cost, Limits, Manifest, RunnerInfo
from headrace.errors import DatabaseError
from headrace.ledger.settling import forget_runners

EIGHT_DAYS_AGO = "UPDATE runner SET seen_at = clock_timestamp() - interval '8 days' WHERE id = %s::uuid"
SILENT = "UPDATE runner SET seen_at = clock_timestamp() - interval '10.1 seconds'"
ALMOST_SILENT = "UPDATE runner SET seen_at = clock_timestamp() - interval '8 seconds'"

BLOCKED = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
)


async def opened(url: str) -> Database:
    return await Database.open(url, application_name="headrace-test")


def manifest(name: str = "echo", **changes: Any) -> Manifest:
    made = Manifest(
        name=name,
        interface="1f" * 16,
        revision="2e" * 16,
        description="Says it again.",
        input_schema={"type": "object", "properties": {"z": {"const": "\0"}, "a": {}}},
        output_schema={},
        budget=Budget(sync=3, hard=9),
        limits=Limits(input="1KiB"),
        attempts=2,
        concurrency=1,
        cost=Cost.items("texts") + Cost.chars("words.w", 0.5),
        pool="default",
        examples=[{"z": "\0"}],
    )
    return msgspec.structs.replace(made, **changes)


def runner(address: str | None = "tcp://127.0.0.1:9001", **interfaces: str) -> RunnerInfo:
    return RunnerInfo(str(uuid.uuid4()), address, "default", interfaces or {"echo": "1f" * 16})


def test_what_was_registered_is_loaded_unchanged(database_url: str) -> None:
    async def scenario() -> None:
        async with await opened(database_url) as database:
            empty = await registry.load(database)
            assert (dict(empty.functions), list(empty.runners)) == ({}, [])
            first, second = runner(), replace(runner(None), pool="*", labels={"gpu": "h200", "a": "1"})
            await registry.register(
                database, first, [manifest(), manifest("upper")], metrics_address="127.0.0.1:9100"
            )
            await registry.register(database, second, [manifest()])
            loaded = await registry.load(database)
            assert loaded.functions == {"echo": manifest(), "upper": manifest("upper")}
            assert list(loaded.functions["echo"].input_schema["properties"]) == ["z", "a"]
            assert loaded.runners == [first, second]
            moved = replace(first, pool="gpu", labels={"zone": "b"})
            await registry.register(database, moved, [manifest()])
            assert (await registry.load(database)).runners == [moved, second]
            assert loaded.metrics == {first.runner_id: "127.0.0.1:9100"}
            assert loaded.retired == {}
            assert loaded.registered.keys() == {"echo", "upper"}

    asyncio.run(scenario())


def test_gateways_hear_of_it_and_only_of_what_changed(database_url: str) -> None:
    async def scenario() -> None:
        async with await opened(database_url) as database, hearing(database_url, registry.CHANNEL) as heard:

            async def next_two() -> set[str]:
                async with asyncio.timeout(5):
                    return {await heard.get(), await heard.get()}

            await registry.register(database, runner(), [manifest(), manifest("upper")])
            assert await next_two() == {"functions", "runners"}
            restarted = runner()
            await registry.register(database, restarted, [manifest(), manifest("upper")])
            await registry.unregister(database, restarted.runner_id)
            await registry.unregister(database, restarted.runner_id)
            await registry.retire(database, "echo")
            async with asyncio.timeout(5):
                assert [await heard.get() for _ in range(3)] == ["runners", "runners", "functions"]
            await registry.retire(database, "echo")
            await registry.register(database, runner(), [manifest("upper", revision="new")])
            assert await next_two() == {"functions", "runners"}
            assert heard.empty()

    asyncio.run(scenario())


def test_newest_registration_is_served_while_both_runners_stay(database_url: str) -> None:
    async def scenario() -> None:
        async with await opened(database_url) as database:
            old, new = runner(echo="old"), runner(echo="new")
            await registry.register(database, old, [manifest(interface="old")])
            await registry.register(database, new, [manifest(interface="new", description="Better.")])
            loaded = await registry.load(database)
            assert loaded.functions["echo"].interface == "new"
            assert loaded.functions["echo"].description == "Better."
            assert [one.interfaces for one in loaded.runners] == [{"echo": "old"}, {"echo": "new"}]

    asyncio.run(scenario())


def test_silent_runner_vanishes_by_the_databases_clock_and_its_functions_stay(database_url: str) -> None:
    async def scenario() -> None:
        async with await opened(database_url) as database:
            silent = runner()
            await registry.register(database, silent, [manifest()])
            await database.execute(ALMOST_SILENT)
            assert (await registry.load(database)).runners == [silent]
            await database.execute(SILENT)
            loaded = await registry.load(database)
            assert loaded.runners == []
            assert loaded.functions.keys() == {"echo"}
            async with hearing(database_url, registry.CHANNEL) as heard, asyncio.timeout(5):
                assert (await registry.heartbeat(database, silent.runner_id, {"slots": 4})).known
                assert await heard.get() == "runners"
            assert (await registry.load(database)).runners == [silent]

    asyncio.run(scenario())


def test_heartbeats_are_quiet_until_the_runner_drains(database_url: str) -> None:
    async def scenario() -> None:
        async with await opened(database_url) as database:
            mine = runner()
            await registry.register(database, mine, [manifest()])
            async with hearing(database_url, registry.CHANNEL) as heard, asyncio.timeout(5):
                for busy in range(3):
                    assert (await registry.heartbeat(database, mine.runner_id, {"busy": busy})).known
                assert (await registry.load(database)).draining == frozenset()
                assert (await registry.heartbeat(database, mine.runner_id, {"busy": 9}, draining=True)).known
                assert await heard.get() == "runners"
                assert heard.empty()
            assert (await registry.load(database)).draining == {mine.runner_id}
            rows = await database.fetch("SELECT capacity FROM runner")
            assert rows == [{"capacity": {"busy": 9}}]

    asyncio.run(scenario())


def test_a_report_is_kept_until_the_runner_leaves(database_url: str) -> None:
    async def scenario() -> None:
        async with await opened(database_url) as database:
            mine = runner()
            unknown = await registry.heartbeat(database, mine.runner_id, {}, report=b"{}")
            assert unknown == (False, False)
            await registry.register(database, mine, [manifest()])
            assert await registry.heartbeat(database, mine.runner_id, {}) == (True, False)
            report = Report(functions={"echo": Capacity(slots=2, mean_s=0.5)})
            told = await registry.heartbeat(database, mine.runner_id, {}, report=encoded(report, 1000))
            assert told == await registry.heartbeat(database, mine.runner_id, {}) == (True, True)
            assert await registry.reports(database) == {mine.runner_id: report}
            await registry.heartbeat(database, mine.runner_id, {}, report=b"[]")
            assert await registry.reports(database) == {}  # of another version, maybe
            await registry.unregister(database, mine.runner_id)
            assert await database.fetch("SELECT FROM runner_report") == []

    asyncio.run(scenario())


def test_forgotten_runner_is_told_to_register_again(database_url: str) -> None:
    async def scenario() -> None:
        async with await opened(database_url) as database:
            forgotten, other = runner(), runner()
            assert not (await registry.heartbeat(database, forgotten.runner_id, {})).known
            await registry.register(database, forgotten, [manifest()])
            await registry.register(database, other, [manifest()])
            await database.execute(EIGHT_DAYS_AGO, (forgotten.runner_id,))
            assert await forget_runners(database) == 1
            assert not (await registry.heartbeat(database, forgotten.runner_id, {})).known
            await registry.register(database, forgotten, [manifest()])
            assert (await registry.heartbeat(database, forgotten.runner_id, {})).known

    asyncio.run(scenario())


def test_a_heartbeat_and_the_end_of_its_runner_do_not_lock_each_other_out(database_url: str) -> None:
    """Both take the runner's row first, then its report's."""

    async def scenario() -> None:
        async with await opened(database_url) as database, asyncio.timeout(20):
            mine = runner()
            await registry.register(database, mine, [manifest()])
            await registry.heartbeat(database, mine.runner_id, {}, report=b"{}")
            async with database.transaction() as beating:
                await beating.fetch("SELECT heartbeat_v1(%s::uuid, '{}', false)", [mine.runner_id])
                leaving = asyncio.create_task(registry.unregister(database, mine.runner_id))
                assert await asyncio.to_thread(
                    wait_until, lambda: query(database_url, BLOCKED) == [(1,)], seconds=10
                )
                await beating.fetch(
                    "SELECT * FROM heartbeat_v2(%s::uuid, '{}', false, '[]')", [mine.runner_id]
                )
            await leaving
            assert not await registry.reports(database)

    asyncio.run(scenario())
    assert query(database_url, "SELECT count(*) FROM runner_report") == [(0,)]


def test_it_is_known_how_long_ago_a_function_was_served_last(database_url: str) -> None:
    async def scenario() -> None:
        async with await opened(database_url) as database:
            gone = runner()
            await registry.register(database, gone, [manifest()])
            await database.execute(SILENT)
            await registry.unregister(database, gone.runner_id)
            reading = await registry.load(database)
            assert not reading.runners
            assert set(reading.last_seen) == set(gone.interfaces.items())
            assert all(0 <= seconds < 5 for seconds in reading.last_seen.values())  # it left just now

    asyncio.run(scenario())


def test_retired_function_is_gone_until_a_runner_registers_it_again(database_url: str) -> None:
    async def scenario() -> None:
        async with await opened(database_url) as database:
            mine = runner()
            await registry.register(database, mine, [manifest(), manifest("upper")])
            assert await registry.retire(database, "echo")
            assert not await registry.retire(database, "echo")
            assert not await registry.retire(database, "nobody")
            await registry.heartbeat(database, mine.runner_id, {})
            loaded = await registry.load(database)
            assert loaded.functions.keys() == {"upper"}
            assert loaded.retired.keys() == {"echo"}

            await registry.register(database, runner(), [manifest()])
            loaded = await registry.load(database)
            assert loaded.functions.keys() == {"echo", "upper"}
            assert loaded.retired == {}

    asyncio.run(scenario())


def test_registration_is_all_or_nothing(database_url: str) -> None:
    async def scenario() -> None:
        async with await opened(database_url) as database:
            with pytest.raises(DatabaseError, match="check constraint"):
                await registry.register(database, runner(), [manifest(), manifest("Not A Lane")])
            with pytest.raises(DatabaseError, match="check constraint"):
                await registry.register(database, runner("ftp://elsewhere"), [manifest()])
            loaded = await registry.load(database)
            assert (dict(loaded.functions), list(loaded.runners)) == ({}, [])

    asyncio.run(scenario())


def test_runners_that_start_together_do_not_deadlock(database_url: str) -> None:
    names = [f"f{number}" for number in range(30)]

    async def scenario() -> None:
        async with await opened(database_url) as database:
            for revision in range(5):
                manifests = [manifest(name, revision=str(revision)) for name in names]
                both = [manifests, manifests[::-1]]
                await asyncio.gather(*(registry.register(database, runner(), some) for some in both * 2))
            assert (await registry.load(database)).functions.keys() == set(names)

    asyncio.run(scenario())


def test_unreadable_manifest_leaves_the_others(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with await opened(database_url) as database:
            await registry.register(database, runner(), [manifest(), manifest("upper"), manifest("lower")])
            await database.execute("UPDATE function SET manifest = '{\"name\": 3}' WHERE name = 'upper'")
            await database.execute("UPDATE function SET manifest = '' WHERE name = 'lower'")
            assert (await registry.load(database)).functions.keys() == {"echo"}

    asyncio.run(scenario())
    assert "the registered manifest of upper can't be read" in caplog.text


def test_a_manifest_of_an_earlier_release_reserves_nothing(database_url: str) -> None:
    async def scenario() -> None:
        async with await opened(database_url) as database:
            await registry.register(database, runner(), [manifest(reserve=3)])
            assert (await registry.load(database)).functions["echo"].reserve == 3
            older = msgspec.json.decode(msgspec.json.encode(manifest()))
            del older["reserve"]
            await database.execute("UPDATE function SET manifest = %s", (msgspec.json.encode(older),))
            assert (await registry.load(database)).functions["echo"].reserve == 0

    asyncio.run(scenario())


def test_link_secret_is_made_once(database_url: str) -> None:
    async def scenario() -> None:
        async with await opened(database_url) as first, await opened(database_url) as second:
            secrets = await asyncio.gather(
                *(registry.link_secret(database) for database in (first, second) * 4)
            )
            assert len(set(secrets)) == 1
            assert len(secrets[0]) == 32

    asyncio.run(scenario())
    assert query(database_url, "SELECT name FROM secret") == [("link",)]
