from __future__ import annotations

import math
from collections import deque

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gpu_runner.calls import LocalCall
from gpu_runner.slots import MAIN, Slots, slots_for
from headrace.domain import LANE_NAME, Budget, Cost, Limits, Manifest
from headrace.link.frames import Call
from headrace.sdk.discovery import discover

MANIFEST = Manifest(
    name="echo",
    interface="1234",
    revision="r",
    description="",
    input_schema={},
    output_schema={},
    budget=Budget(),
    limits=Limits(),
    attempts=1,
    concurrency=1,
    cost=Cost(),
    pool="default",
    examples=[],
)


class Nobody:
    def answer(self, frame: object) -> None: ...

    def tell(self, frame: object) -> None: ...


def a_call(expected_s: float = 0.0, size: int = 2, wait_until: float = 0.0) -> LocalCall:
    frame = Call("job", "echo", "1234", b"x" * size, "o", 1, 1000, 250)
    call = LocalCall(frame, Nobody(), MANIFEST)
    call.expected_s, call.wait_until = expected_s, wait_until
    return call


class SlotsMachine(RuleBasedStateMachine):
    """`Slots` against a list of what runs, what was handed ahead, and a queue of what waits."""

    def __init__(self) -> None:
        super().__init__()
        self.slots = Slots("group", 2)
        self.running: list[LocalCall] = []
        self.ahead: list[LocalCall] = []
        self.waiting: deque[LocalCall] = deque()

    @rule(expected=st.floats(0, 100), size=st.integers(0, 1000), wait=st.integers(0, 10))
    def push(self, expected: float, size: int, wait: int) -> None:
        call = a_call(expected, size, wait)
        self.slots.push(call)
        self.waiting.append(call)

    @precondition(lambda self: self.waiting)
    @rule()
    def start_the_oldest(self) -> None:
        call = self.slots.pop()
        assert call is self.waiting.popleft()
        self.slots.started(call)
        self.running.append(call)

    @rule(expected=st.floats(0, 100))
    def start_at_once(self, expected: float) -> None:
        call = a_call(expected)
        self.slots.started(call)
        self.running.append(call)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        call = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        self.slots.ended(call)

    @rule(expected=st.floats(0, 100))
    def hand_ahead(self, expected: float) -> None:
        call = a_call(expected)
        self.slots.handed_ahead(call)
        self.ahead.append(call)

    @precondition(lambda self: self.ahead)
    @rule()
    def promote(self) -> None:
        self.slots.promoted()
        self.running.append(self.ahead.pop(0))

    @precondition(lambda self: self.ahead)
    @rule()
    def take_back(self) -> None:
        call = self.ahead.pop()
        self.slots.returned(call)
        self.slots.push_back(call)
        self.waiting.appendleft(call)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def stop_one_that_waits(self, data: st.DataObject) -> None:
        call = data.draw(st.sampled_from(list(self.waiting)))
        self.slots.remove(call)
        self.waiting.remove(call)

    @rule(now=st.integers(0, 10))
    def expire(self, now: int) -> None:
        overdue = [call for call in self.waiting if call.wait_until <= now]
        assert list(self.slots.overdue(now)) == overdue
        self.waiting = deque(call for call in self.waiting if call.wait_until > now)

    @invariant()
    def the_counts_are_those_of_the_model(self) -> None:
        slots = self.slots
        assert (slots.running, slots.ahead) == (len(self.running), len(self.ahead))
        assert list(slots.waiting) == list(self.waiting)
        assert slots.load == len(self.running) + len(self.ahead) + len(self.waiting)
        assert slots._waiting_bytes == sum(len(call.frame.input) for call in self.waiting)

    @invariant()
    def the_predicted_wait_is_what_is_ahead(self) -> None:
        ahead = sum(call.expected_s for call in [*self.running, *self.ahead, *self.waiting])
        for executors in (1, 3):
            predicted = self.slots.predicted_wait(executors)
            assert math.isclose(predicted, ahead / (2 * executors), abs_tol=1e-9)
        if not self.slots.load:
            assert self.slots.predicted_wait(1) == 0.0  # no rounding is carried on


TestSlots = SlotsMachine.TestCase


def test_waiting_inputs_are_bounded_in_bytes() -> None:
    slots = Slots("group", 1)
    big = a_call(size=40 * 2**20)
    assert slots.has_memory_for(big)
    slots.push(big)
    assert not slots.has_memory_for(a_call(size=24 * 2**20 + 1))
    assert slots.has_memory_for(a_call(size=24 * 2**20))
    slots.remove(big)
    assert slots.has_memory_for(a_call(size=64 * 2**20))


def test_there_is_a_prediction_without_executors() -> None:
    slots = Slots("group", 1)
    slots.push(a_call(expected_s=3.0))
    assert slots.predicted_wait(0) == 3.0


def test_who_shares_slots() -> None:
    slots = slots_for(discover(["parallel_functions"]).values())
    assert slots["one"] is slots["other"]
    assert (slots["one"].name, slots["one"].per_executor) == (MAIN, 1)
    assert (slots["many"].name, slots["many"].per_executor) == ("many", 3)
    assert (slots["together"].name, slots["together"].per_executor) == ("together", 8)
    assert (slots["main"].name, slots["main"].per_executor) == ("main", 4)
    assert LANE_NAME.fullmatch(MAIN) is None
