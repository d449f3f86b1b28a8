"""How a running call stands, for people. Slow to load: inside command bodies."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Final

from headrace.cli._stacks import shortened
from headrace.cli._table import short_id
from headrace.cli.output import plain
from headrace.runner_requests import Standing

_STATES: Final = {
    "R": "running on a core",
    "S": "sleeping",
    "D": "waiting in the kernel, not to be interrupted",
    "T": "stopped",
    "Z": "ended",
}
_BODIES: Final = {"main": "the main thread", "pool": "a thread of a pool", "async": "the event loop"}
_NAME: Final = 10
_WIDEST: Final = 100
_ASYNC: Final = "Where an async body awaits can't be seen: it is on no thread's stack then."
_NO_STACKS: Final = "The stacks didn't come: it blocks the signal that asks for them, or can't do anything."


def described(runner_id: str, call: Standing, width: int | None = None, *, every: bool = False) -> str:
    """A page about it.

    Args:
        runner_id: where it is.
        call: how it stands.
        width: of the terminal: sentences are broken at spaces there.
        every: whether to show the executor's own threads, too.
    """
    sentence = call.why if width is None else textwrap.fill(call.why, min(width, _WIDEST))
    kind = "job" if call.path == "job" else "direct call"
    head = f"{kind} {call.job_id}: {call.function}, attempt {call.attempt}"
    lines = [f"{name:<{_NAME}}{value}" for name, value in _facts(runner_id, call)]
    parts = [head, plain_lines(sentence), "\n".join(lines)]
    if call.phase == "running":
        stacks = plain_lines(call.stacks).strip()
        parts.append((stacks if every else shortened(stacks)) or _NO_STACKS)
        if call.body == "async":
            parts.append(_ASYNC)
    return "\n\n".join(parts)


def plain_lines(text: str) -> str:
    """Several lines that somebody else wrote, made harmless."""
    return "\n".join(map(plain, text.split("\n")))


def _facts(runner_id: str, call: Standing) -> Iterator[tuple[str, str]]:
    where = f"runner {short_id(runner_id)}"
    if call.executor is not None:
        where += f", executor {call.executor}"
    if call.pid is not None:
        where += f", process {call.pid}, {_BODIES[call.body]}"
    yield "where", where
    if call.phase in ("waiting", "ahead"):
        yield "waits", f"for {_seconds(call.running_s)}"
        yield "limits", f"deadline {_due(call.deadline_s)}"
        return
    yield "runs", f"for {_seconds(call.running_s)}"
    limits = f"soft limit {_due(call.soft_s)}, deadline {_due(call.deadline_s)}, killed {_due(call.kill_s)}"
    yield "limits", limits
    if call.stop:
        stopped = f"asked to end {_seconds(call.stopped_s)} ago, as {call.stop}"
        if call.interrupts:
            stopped += f"; interrupted {_seconds(call.interrupted_s)} ago"
        yield "stop", stopped
    if call.process:
        state = _STATES.get(call.process, call.process)
        where = f" in {call.wchan}" if call.wchan else ""
        threads = f"{call.threads} thread{'' if call.threads == 1 else 's'}"
        yield "process", f"{state}{where}, {threads}, {call.cpu:.0%} of a core"
    if call.signals_blocked:
        yield "signals", "blocked or ignored: it can't be interrupted"


def _due(seconds: float) -> str:
    return f"in {_seconds(seconds)}" if seconds > 0 else f"{_seconds(-seconds)} ago"


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds:.0f} s"
