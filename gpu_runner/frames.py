"""What supervisor and executor say to each other, over a socket pair, with the framing of the link.

Both ends are of one release and one machine, so there is no version; monotonic instants are shared.
"""

from __future__ import annotations

import signal
from typing import Final

import msgspec

INTERRUPT: Final = signal.SIGRTMIN + 7
"""Sent after an `Interrupt`, as the thread that would read it may be the one that runs the body. A real-time
signal: libraries leave those alone."""

DUMP: Final = signal.SIGRTMIN + 8
"""Asks for the stacks of all threads; works while C code holds the interpreter."""

STACKS: Final = "headrace-stacks"
"""The name of the file in memory that they are written to, each dump after the last."""


class _Frame(msgspec.Struct, array_like=True):
    """Base of all frames."""


class Run(_Frame, tag="RUN"):
    """Supervisor: run this call, after those that came before it if its thread is busy.

    `soft_s` counts from the start; `deadline_at` is a `time.monotonic()` instant.
    """

    job_id: str
    function: str
    input: bytes
    attempt: int
    soft_s: float
    deadline_at: float


class Stop(_Frame, tag="STOP"):
    """Supervisor: nobody wants this start of the call any more; ask the function to end."""

    job_id: str
    attempt: int


class Interrupt(_Frame, tag="INTERRUPT"):
    """Supervisor: the call hasn't ended by itself; raise `CallStopped` in its body, once."""

    job_id: str
    attempt: int


class Ready(_Frame, tag="READY"):
    """Executor: models are loaded. `degraded` has the reason for each function that can't run.

    `stacks_fd` is the executor's descriptor of the file that `DUMP` writes to, which the supervisor opens as
    `/proc/PID/fd/N` where that still is a link to a file named `STACKS`; -1: it has none, and mustn't be sent
    `DUMP`.
    """

    device: str
    load_s: float
    degraded: dict[str, str]
    stacks_fd: int = -1


class Done(_Frame, tag="DONE"):
    """Executor: the function's output, as JSON, after `exec_s` seconds."""

    job_id: str
    output: bytes
    exec_s: float


class Failed(_Frame, tag="FAILED"):
    """Executor: the call failed; fields as of the link's `Error`."""

    job_id: str
    category: str
    message: str
    exec_s: float
    retryable: bool = False
    errors: tuple[tuple[str, str], ...] = ()


class Reported(_Frame, tag="PROGRESS"):
    """Executor: `Call.progress` was called."""

    job_id: str
    fraction: float
    message: str


ToExecutor = Run | Stop | Interrupt
FromExecutor = Ready | Done | Failed | Reported

decode_to_executor = msgspec.msgpack.Decoder(ToExecutor).decode
decode_from_executor = msgspec.msgpack.Decoder(FromExecutor).decode
