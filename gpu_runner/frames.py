"""What supervisor and executor say to each other, over a socket pair, with the framing of the link.

Both ends are of one release and one machine, so there is no version; monotonic instants are shared.
"""

from __future__ import annotations

import msgspec


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
    """Supervisor: nobody wants this call any more; ask the function to end."""

    job_id: str


class Ready(_Frame, tag="READY"):
    """Executor: models are loaded. `degraded` has the reason for each function that can't run."""

    device: str
    load_s: float
    degraded: dict[str, str]


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


ToExecutor = Run | Stop
FromExecutor = Ready | Done | Failed | Reported

decode_to_executor = msgspec.msgpack.Decoder(ToExecutor).decode
decode_from_executor = msgspec.msgpack.Decoder(FromExecutor).decode
