from __future__ import annotations

import time
from fractions import Fraction

import numpy as np
import pytest

from headrace import Call, Device
from headrace.errors import CallStopped

LATER = 3600.0


class Words(str):
    __slots__ = ()


def call_with(soft: float = LATER, hard: float = LATER, report=None) -> Call:
    now = time.monotonic()
    return Call(job_id="j", attempt=2, soft_at=now + soft, deadline_at=now + hard, report=report)


def test_a_call_knows_itself_and_its_time():
    call = call_with(hard=100)
    assert (call.job_id, call.attempt) == ("j", 2)
    assert 99 < call.remaining() <= 100
    call.check()


def test_check_raises_past_the_soft_limit_and_past_the_deadline():
    with pytest.raises(CallStopped, match="soft limit"):
        call_with(soft=-1).check()
    late = call_with(hard=-1)
    with pytest.raises(CallStopped):
        late.check()
    assert late.remaining() == 0


def test_check_raises_once_stopped():
    call = call_with()
    call.stop()
    with pytest.raises(CallStopped, match="cancelled"):
        call.check()


def test_joined_calls_go_on_until_nobody_wants_any():
    whole = call_with()
    end = time.monotonic() + LATER
    left, right = (
        Call(job_id=name, attempt=1, soft_at=end, deadline_at=end, joined_to=whole) for name in "ab"
    )
    left.stop()
    left.check()
    assert (left.is_stopped, right.is_stopped, whole.is_stopped) == (True, False, False)
    whole.stop()
    for call in (left, right):
        assert call.is_stopped
        with pytest.raises(CallStopped, match="cancelled"):
            call.check()


def test_the_soft_limit_of_joined_calls_is_that_of_all():
    late = time.monotonic() - 1
    call = Call(job_id="a", attempt=1, soft_at=late, deadline_at=late, joined_to=call_with())
    call.check()
    assert call.remaining() == 0
    end = time.monotonic() + LATER
    call = Call(job_id="a", attempt=1, soft_at=end, deadline_at=end, joined_to=call_with(soft=-1))
    with pytest.raises(CallStopped, match="soft limit"):
        call.check()


def test_progress_is_reported_and_bounded():
    seen: list[tuple[float, str]] = []
    call = call_with(report=lambda fraction, message: seen.append((fraction, message)))
    call.progress(0)
    call.progress(0.5, "half")
    call.progress(1)
    assert seen == [(0.0, ""), (0.5, "half"), (1.0, "")]
    for fraction in (-0.1, 1.1, float("nan"), float("inf"), 10**400):
        with pytest.raises(ValueError, match="fraction must be 0 to 1"):
            call.progress(fraction)
    call_with().progress(0.5)


def test_progress_takes_numbers_of_any_kind_and_keeps_so_much_of_a_message():
    seen: list[tuple[float, str]] = []
    call = call_with(report=lambda fraction, message: seen.append((fraction, message)))
    call.progress(Fraction(1, 4), "a\x00b\x1b[31m\n")
    call.progress(np.float32(0.5), Words("kept"))
    call.progress(1, "x" * 499 + "\udcff" + "y")
    assert seen == [(0.25, "a\x00b\x1b[31m\n"), (0.5, "kept"), (1.0, "x" * 499 + "?")]
    assert {(type(fraction), type(message)) for fraction, message in seen} == {(float, str)}


@pytest.mark.parametrize("fraction", [True, None, "0.5", 0.5j, [0.5], np.True_])
def test_progress_is_a_real_number(fraction):
    call = call_with(report=lambda *_: pytest.fail("it is sent"))
    with pytest.raises(TypeError, match="fraction must be a real number from 0 to 1, not "):
        call.progress(fraction)


@pytest.mark.parametrize("message", [None, b"half", 7])
def test_what_is_told_of_progress_is_text(message):
    call = call_with(report=lambda *_: pytest.fail("it is sent"))
    with pytest.raises(TypeError, match="message must be a str, not "):
        call.progress(0.5, message)


@pytest.mark.parametrize(
    ("text", "device", "shown"),
    [
        ("cpu", Device("cpu"), "cpu"),
        ("cuda", Device("cuda", 0), "cuda:0"),
        ("cuda:0", Device("cuda", 0), "cuda:0"),
        ("cuda:12", Device("cuda", 12), "cuda:12"),
    ],
)
def test_devices_are_parsed_and_shown(text, device, shown):
    assert Device.parse(text) == device
    assert str(device) == shown


def test_auto_is_left_to_the_runner():
    assert Device.parse("auto") is None


@pytest.mark.parametrize("text", ["", "gpu", "cpu:0", "cuda:", "cuda:x", "cuda:-1", "CUDA", "cuda:٣"])
def test_what_is_no_device_is_refused(text):
    with pytest.raises(ValueError, match="is not a device; write auto, cpu, cuda or cuda:0"):
        Device.parse(text)
