"""What is said of a call that goes on."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gpu_runner.operators.why import why
from headrace.runner_requests import Standing

FREE = Standing(
    job_id="0199e0a0-0000-7000-8000-000000000001",
    function="echo",
    attempt=1,
    path="job",
    body="main",
    phase="running",
    running_s=4.0,
    soft_s=6.0,
    deadline_s=20.0,
    kill_s=12.0,
    executor=0,
    pid=7,
    process="S",
    threads=1,
)
SOFT = "its soft limit of 2 s was used up"
STOPPED: dict[str, Any] = {"stop": "it was cancelled", "stopped_s": 3.0, "kill_s": 2.0}
INTERRUPTED = {**STOPPED, "interrupts": 5, "interrupted_s": 2.75}
ASKED = "It was asked to end 3.0 s ago, as it was cancelled, and"
KILL = "; its process is killed in 2.0 s."
LATER = " Nothing has asked it to end: its soft limit comes in 6.0 s; its process is killed in 12.0 s."
RAISED = "goes on: CallStopped was raised in it 2.8 s ago, and it catches that or cleans up for long"
CANCELLED = "goes on: its task was cancelled 2.8 s ago, and it catches that or doesn't come to an await"


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"phase": "waiting"}, "It hasn't started: it waits for a free slot."),
        ({"phase": "ahead"}, "It hasn't started: executor 0 runs another call first, and then this one."),
        ({"phase": "ended"}, "It has ended while it was looked at."),
        ({"process": ""}, "Its process has just ended; it is about to be settled."),
        ({"process": "Z", **INTERRUPTED}, "Its process has just ended; it is about to be settled."),
        (
            {"process": "T", **STOPPED},
            f"Its process is stopped by a signal or a debugger, and can't do anything{KILL}",
        ),
        ({}, f"It sleeps or waits for input, and uses no CPU.{LATER}"),
        ({"body": "pool", "cpu": 0.04}, f"It sleeps or waits for input, and uses no CPU.{LATER}"),
        ({"body": "async"}, f"It awaits something, or sleeps, and uses no CPU.{LATER}"),
        ({"cpu": 0.3}, f"It works, and waits in between.{LATER}"),
        ({"cpu": 1.96}, f"It computes, and gets 196% of a core.{LATER}"),
        ({"cpu": 0.3, "process": "R"}, f"It computes, and gets 30% of a core.{LATER}"),
        ({"process": "D"}, f"It waits in the kernel, for a device or a disk.{LATER}"),
        (
            {"deadline_s": 1.0},
            "It sleeps or waits for input, and uses no CPU. Nothing has asked it to end: its deadline comes "
            "in 1.0 s; its process is killed in 12.0 s.",
        ),
        (
            STOPPED,
            f"{ASKED} hasn't come to call.check() yet; CallStopped is raised in it in a moment{KILL}",
        ),
        (
            {**STOPPED, "body": "async"},
            f"{ASKED} hasn't come to an await yet; CallStopped is raised in it in a moment{KILL}",
        ),
        (
            {"stop": SOFT, "stopped_s": 300.0, "interrupts": 1, "interrupted_s": 299.75, "kill_s": 0.0},
            f"It was asked to end 300 s ago, as {SOFT}, and goes on: CallStopped was raised in it 300 s ago, "
            "and it catches that or cleans up for long; its process is being killed.",
        ),
        (INTERRUPTED, f"{ASKED} {RAISED}{KILL}"),
        ({**INTERRUPTED, "body": "pool", "signals_blocked": True}, f"{ASKED} {RAISED}{KILL}"),
        ({**INTERRUPTED, "body": "async"}, f"{ASKED} {CANCELLED}{KILL}"),
        (
            {**INTERRUPTED, "interrupted_s": 0.25},
            f"{ASKED} is about to end: CallStopped was raised in it 0.2 s ago{KILL}",
        ),
        (
            {**INTERRUPTED, "heard": False},
            f"{ASKED} can't be interrupted: C code holds the interpreter{KILL}",
        ),
        (
            {**INTERRUPTED, "body": "async", "heard": False},
            f"{ASKED} can't be interrupted: C code holds the interpreter{KILL}",
        ),
        (
            {**INTERRUPTED, "heard": False, "signals_blocked": True},
            f"{ASKED} can't be interrupted: it blocks the signal that would do so{KILL}",
        ),
        (
            {**INTERRUPTED, "process": "D"},
            f"{ASKED} can't be interrupted: it waits in the kernel, for a device or a disk{KILL}",
        ),
    ],
)
def test_the_sentence(facts: dict[str, Any], said: str) -> None:
    assert why(msgspec.structs.replace(FREE, **facts)) == said
