"""Running calls that call others: what becomes of their questions, and of their slots."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from callee import Callee
from rig import Rig, runner

from gpu_runner.calls import LocalCall
from gpu_runner.executor.invoking import MOST_BYTES, Room
from headrace.link.frames import Call, Error, Lost, Result


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that is a coroutine, run to its end."""

    @functools.wraps(test)
    def run(**parameters: Any) -> None:
        asyncio.run(test(**parameters))

    return run


@asynccontextmanager
async def calling() -> AsyncIterator[tuple[Rig, Callee]]:
    async with runner("invoked_functions") as rig:
        callee = Callee()
        rig.supervisor.invoking.callee = callee
        yield rig, callee
        assert not rig.supervisor.invoking.open
        assert not rig.supervisor.placing.resting.open
        assert not rig.executor.resting


def send(rig: Rig, function: str, input: object) -> str:
    """As the rig's own `send`, which takes inputs that are objects."""
    name = f"call-{len(rig.gateway.answers)}"
    rig.gateway.answers[name] = asyncio.get_running_loop().create_future()
    interface = rig.supervisor._functions[function].manifest.interface
    data = msgspec.json.encode(input)
    rig.supervisor.take(Call(name, function, interface, data, "o", 1, 100_000, 10_000), rig.gateway)
    return name


async def value(rig: Rig, name: str) -> Any:
    answer = await rig.gateway.answer_to(name)
    assert isinstance(answer, Result), answer
    return msgspec.json.decode(answer.output)


@in_loop
async def test_a_call_that_waits_has_no_slot_and_gets_one_again() -> None:
    async with calling() as (rig, callee):
        first = send(rig, "asks", 1)
        await callee.until_asked(1)
        assert rig.executor.busy["asks"] == 0
        second = send(rig, "asks", 1)
        await callee.until_asked(2)
        callee.answer(1)
        assert await value(rig, second) == 0
        callee.answer(0)
        assert await value(rig, first) == 0


@in_loop
async def test_two_that_are_answered_go_on_one_after_the_other() -> None:
    """The second has its slot when the first has ended."""
    async with calling() as (rig, callee):
        names = [send(rig, "asks", 2) for _ in range(2)]
        await callee.until_asked(2)
        seen: list[int] = []
        started = rig.supervisor.placing.resting._take_slot

        def take_slot(call: LocalCall, executor: Any) -> None:
            started(call, executor)
            seen.append(executor.busy["asks"])

        rig.supervisor.placing.resting._take_slot = take_slot
        callee.answer(0)
        callee.answer(1)
        await callee.until_asked(4)
        callee.answer(2)
        callee.answer(3)
        assert [await value(rig, name) for name in names] == [1, 1]
        assert seen == [1, 1, 1, 1]


@in_loop
async def test_many_are_waited_for_at_once_and_answered_in_any_order() -> None:
    async with calling() as (rig, callee):
        name = send(rig, "asks_at_once", 5)
        await callee.until_asked(5)
        for number in (3, 0, 4, 1, 2):
            callee.answer(number)
        assert await value(rig, name) == [0, 1, 2, 3, 4]


@in_loop
async def test_the_same_question_is_told_apart_by_its_turn() -> None:
    async with calling() as (rig, callee):
        name = send(rig, "asks_twice_the_same", 7)
        await callee.until_asked(2)
        one, other = callee.asked
        assert (one.digest, one.same, other.same) == (other.digest, 0, 1)
        callee.answer(0)
        callee.answer(1)
        assert await value(rig, name) == [7, 7]


@in_loop
async def test_no_more_than_so_many_are_asked_at_once() -> None:
    async with calling() as (rig, callee):
        name = send(rig, "asks_at_once", 101)
        await callee.until_asked(100)
        callee.answer(0)
        await callee.until_asked(101)
        for number in range(1, 101):
            callee.answer(number)
        assert await value(rig, name) == list(range(101))


@in_loop
async def test_inputs_that_are_sent_at_once_have_a_bound() -> None:
    async with calling() as (rig, callee):
        name = send(rig, "asks_with_texts", [5 * 2**20, 3 * 2**20, 3, 3])
        await callee.until_asked(2)  # 8 MiB
        another = send(rig, "asks", 1)  # each call has a bound of its own
        await callee.until_asked(3)
        callee.answer(1)
        await callee.until_asked(5)
        asked = [(one.function, len(one.input)) for one in callee.asked]
        assert asked == [("echo", 5 * 2**20), ("echo", 3 * 2**20), ("plain", 1), ("echo", 3), ("echo", 3)]
        for number in (0, 2, 3, 4):
            callee.answer(number)
        assert await value(rig, name) == ["", "", "", ""]
        assert await value(rig, another) == 0


@in_loop
async def test_an_input_past_its_functions_limit_is_not_sent() -> None:
    async with calling() as (rig, callee):
        name = send(rig, "asks_with_texts", [5 * 2**20 + 1])
        assert await value(rig, name) == ["payload-too-large"]
        assert callee.asked == []


@in_loop
async def test_room_for_questions_is_given_in_order_and_back() -> None:
    """Also by those that are cancelled while they wait, and as their turn comes."""
    room = Room()
    seen: list[str] = []

    async def ask(name: str, size: int, until: asyncio.Event) -> None:
        async with room.taken(size):
            seen.append(name)
            await until.wait()

    ends = {name: asyncio.Event() for name in "bcde"}
    sizes = {"b": MOST_BYTES, "c": MOST_BYTES, "d": 1, "e": 1}
    async with room.taken(2 * MOST_BYTES):  # alone, as it is larger than all may be together
        tasks = {name: asyncio.create_task(ask(name, sizes[name], ends[name])) for name in "bcde"}
        await turn()
        tasks["b"].cancel()
        await turn()
        assert seen == []
    tasks["c"].cancel()  # its turn has come, and it hasn't run since
    await turn()
    assert seen == ["d", "e"]
    for name in "de":
        ends[name].set()
        await tasks[name]
    async with asyncio.timeout(20), room.taken(MOST_BYTES), asyncio.TaskGroup() as group:
        waiting = group.create_task(ask("f", 1, asyncio.Event()))
        await turn()
        waiting.cancel()
        room._let_in()  # before the task learns that it is cancelled
    assert seen == ["d", "e"]
    assert (room._open, room._bytes, list(room._waiting)) == (0, 0, [])


async def turn() -> None:
    """Let all tasks go on that can."""
    for _ in range(5):
        await asyncio.sleep(0)


@in_loop
async def test_a_body_that_gives_up_has_its_slot_and_ends_what_it_called() -> None:
    async with calling() as (rig, callee):
        name = send(rig, "gives_up", 10)
        assert await value(rig, name) == "gave up"
        await callee.until_cancelled(1)


@in_loop
async def test_a_stop_ends_what_was_called() -> None:
    async with calling() as (rig, callee):
        name = send(rig, "asks", 1)
        await callee.until_asked(1)
        rig.gateway.stop(name)
        answer = await rig.gateway.answer_to(name)
        assert isinstance(answer, Error)
        assert answer.category == "cancelled"
        await callee.until_cancelled(1)


@in_loop
async def test_what_a_lost_call_has_called_goes_on() -> None:
    async with calling() as (rig, callee):
        name = send(rig, "asks", 1)
        await callee.until_asked(1)
        os.kill(rig.pid(), signal.SIGKILL)
        assert isinstance(await rig.gateway.answer_to(name), Lost)
        await rig.ready()
        assert callee.cancelled == []


@pytest.mark.parametrize(
    ("is_passing", "category", "is_retryable"), [(True, "transient", True), (False, "function-failed", False)]
)
@pytest.mark.parametrize("function", ["passes_on", "passes_on_in_a_group"])
@in_loop
async def test_a_failure_that_is_let_pass_is_the_callers(
    function: str, is_passing: bool, category: str, is_retryable: bool
) -> None:
    async with calling() as (rig, callee):
        name = send(rig, function, 1)
        await callee.until_asked(1)
        callee.answer(0, category="backlog-full", message="No room.", is_passing=is_passing)
        answer = await rig.gateway.answer_to(name)
        assert isinstance(answer, Error)
        assert (answer.category, answer.retryable) == (category, is_retryable)
        assert ("No room." in answer.message) == (not is_passing)  # only what is for good is told


@in_loop
async def test_a_body_is_told_why() -> None:
    async with calling() as (rig, callee):
        name = send(rig, "tells", 1)
        await callee.until_asked(1)
        callee.answer(0, category="invalid-input", message="No.")
        assert await value(rig, name) == "invalid-input"


@in_loop
async def test_joined_calls_ask_and_rest_together() -> None:
    async with calling() as (rig, callee):
        names = [send(rig, "asks_joined", number) for number in (4, 5)]
        await callee.until_asked(2)
        assert not any(rig.executor.busy.values())
        callee.answer(0)
        callee.answer(1)
        assert [await value(rig, name) for name in names] == [4, 5]
        async with asyncio.timeout(20):
            while not rig.idle():  # their lot ends after the last answer
                await asyncio.sleep(0.001)


@in_loop
async def test_without_a_ledger_nobody_can_be_called() -> None:
    async with runner("invoked_functions") as rig:
        assert await value(rig, send(rig, "tells", 1)) == "no-ledger"
