"""Why a call isn't ending, in a sentence for people."""

from __future__ import annotations

from typing import Final

from headrace.runner_requests import Standing

_IDLE: Final = 0.05  # of a core
_BUSY: Final = 0.5
_SOON_S: Final = 0.5  # an interruption is given so long to show


def why(call: Standing) -> str:
    """Why a call goes on."""
    match call.phase:
        case "waiting":
            return "It hasn't started: it waits for a free slot."
        case "ahead":
            return f"It hasn't started: executor {call.executor} runs another call first, and then this one."
        case "ended":
            return "It has ended while it was looked at."
        case "running":
            return f"{_running(call)}{_kill(call)}"


def _running(call: Standing) -> str:
    if call.process in ("", "Z", "X"):
        return "Its process has just ended; it is about to be settled."
    if call.process == "T":
        return "Its process is stopped by a signal or a debugger, and can't do anything"
    if not call.stop:
        return f"{_doing(call)}. Nothing has asked it to end: {_next_limit(call)}"
    return f"It was asked to end {_ago(call.stopped_s)}, as {call.stop}, and {_goes_on(call)}"


def _doing(call: Standing) -> str:
    """What the body does, as far as can be seen from outside."""
    if call.process == "D":
        return "It waits in the kernel, for a device or a disk"
    if call.cpu >= _BUSY or call.process == "R":
        return f"It computes, and gets {call.cpu:.0%} of a core"
    if call.cpu > _IDLE:
        return "It works, and waits in between"
    if call.body == "async":
        return "It awaits something, or sleeps, and uses no CPU"
    return "It sleeps or waits for input, and uses no CPU"


def _next_limit(call: Standing) -> str:
    limit, left = min(("soft limit", call.soft_s), ("deadline", call.deadline_s), key=lambda one: one[1])
    return f"its {limit} comes in {_seconds(left)}"


def _goes_on(call: Standing) -> str:
    """How a body that was asked to end doesn't."""
    if call.beside and not call.interrupts:
        others = "another call" if call.beside == 1 else f"{call.beside} other calls"
        return f"goes on while any of those it is joined with is wanted: {others}"
    if not call.interrupts:
        looked = "an await" if call.body == "async" else "call.check()"
        return f"hasn't come to {looked} yet; CallStopped is raised in it in a moment"
    if obstacle := _obstacle(call):
        return f"can't be interrupted: {obstacle}"
    raised = _ago(call.interrupted_s)
    if call.interrupted_s < _SOON_S:
        return f"is about to end: CallStopped was raised in it {raised}"
    if call.body == "async":
        return f"goes on: its task was cancelled {raised}, and it catches that or doesn't come to an await"
    return f"goes on: CallStopped was raised in it {raised}, and it catches that or cleans up for long"


def _obstacle(call: Standing) -> str:
    if call.process == "D":
        return "it waits in the kernel, for a device or a disk"
    if call.signals_blocked and call.body == "main":
        return "it blocks the signal that would do so"
    return "" if call.heard else "C code holds the interpreter"


def _kill(call: Standing) -> str:
    if call.process in ("", "Z", "X"):
        return ""
    if call.kill_s <= 0:
        return "; its process is being killed."
    return f"; its process is killed in {_seconds(call.kill_s)}."


def _ago(seconds: float) -> str:
    return f"{_seconds(seconds)} ago"


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds:.0f} s"
