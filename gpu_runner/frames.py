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

    `soft_s` counts from the start; `deadline_at` is a `time.monotonic()` instant. `credit` is how many items
    of a stream may be sent at first; 0: none are wanted, only what they are joined to.
    """

    job_id: str
    function: str
    input: bytes
    attempt: int
    soft_s: float
    deadline_at: float
    credit: int = 0


class BatchItem(msgspec.Struct, array_like=True):
    """One call of a batch; its fields as of `Run`."""

    job_id: str
    input: bytes
    attempt: int
    deadline_at: float


class RunBatch(_Frame, tag="BATCH"):
    """Supervisor: run these calls of a batched function as one, in turn as `Run`.

    Each is answered by a `Done` or `Failed` of its own; a `BatchEnded` follows the last one. A `Stop` may
    name one of them; a `Stop` or `Interrupt` that names the batch, by its own id and attempt 1, means all.
    """

    job_id: str
    function: str
    items: tuple[BatchItem, ...]
    soft_s: float


class Credit(_Frame, tag="CREDIT"):
    """Supervisor: so many more items of a stream may be sent."""

    job_id: str
    attempt: int
    items: int


class Load(_Frame, tag="LOAD"):
    """Supervisor: load this model, in the main thread and in turn; it may take so many bytes, 0: any."""

    model: str
    limit: int = 0


class Unload(_Frame, tag="UNLOAD"):
    """Supervisor: let go of this model, in the main thread and in turn; no call here uses it."""

    model: str


class Stop(_Frame, tag="STOP"):
    """Supervisor: nobody wants this start of the call any more; ask the function to end."""

    job_id: str
    attempt: int


class Interrupt(_Frame, tag="INTERRUPT"):
    """Supervisor: the call hasn't ended by itself; raise `CallStopped` in its body, once."""

    job_id: str
    attempt: int


class Invoked(_Frame, tag="INVOKED"):
    """Supervisor: what has become of an `Invoke`: `output`, or the rest as of `InvocationError`."""

    job_id: str
    attempt: int
    number: int
    output: bytes | None = None
    category: str = ""
    message: str = ""
    child_id: str = ""
    is_passing: bool = False
    retry_after_s: float = 0.0
    errors: tuple[tuple[str, str], ...] = ()


class Invoke(_Frame, tag="INVOKE"):
    """Executor: a running call calls another function, and waits.

    `number` names it in the answer, among all that this start has made. `digest` is the SHA-256 of the input
    as JSON with sorted keys; `same` is how often this start has called that function with that input before.
    """

    job_id: str
    attempt: int
    number: int
    function: str
    interface: str
    input: bytes
    digest: bytes
    same: int = 0


class Uninvoke(_Frame, tag="UNINVOKE"):
    """Executor: the body doesn't wait for that any more."""

    job_id: str
    attempt: int
    number: int


class Ready(_Frame, tag="READY"):
    """Executor: it takes calls. `degraded` has the reason for each function that can't run.

    `stacks_fd` is the executor's descriptor of the file that `DUMP` writes to, which the supervisor opens as
    `/proc/PID/fd/N` where that still is a link to a file named `STACKS`; -1: it has none, and mustn't be sent
    `DUMP`. `memory` is what its device has in all, in bytes, where models are loaded on one; 0: on the CPU.
    """

    device: str
    load_s: float
    degraded: dict[str, str]
    stacks_fd: int = -1
    memory: int = 0


class Done(_Frame, tag="DONE"):
    """Executor: the function's output, as JSON, after `exec_s` seconds."""

    job_id: str
    output: bytes
    exec_s: float


class Failed(_Frame, tag="FAILED"):
    """Executor: the call failed; fields as of the link's `Error`.

    `retry_after_s`: for so long any call of the function would, as what it needs is busy; 0: nobody says so.
    """

    job_id: str
    category: str
    message: str
    exec_s: float
    retryable: bool = False
    errors: tuple[tuple[str, str], ...] = ()
    retry_after_s: float = 0.0


class BatchEnded(_Frame, tag="BATCH_ENDED"):
    """Executor: every call of the batch is answered, after `exec_s` seconds.

    `passes` has how many calls each run of the body had: one number, unless it ran out of memory or raised.
    `too_many` is the fewest calls, two at least, for which memory ran out; 0: it was enough for all.
    """

    job_id: str
    exec_s: float
    passes: tuple[int, ...]
    too_many: int = 0


class Reported(_Frame, tag="PROGRESS"):
    """Executor: `Call.progress` was called."""

    job_id: str
    fraction: float
    message: str


class Streamed(_Frame, tag="ITEM"):
    """Executor: an item of a stream, as JSON; the first is number 0."""

    job_id: str
    sequence: int
    item: bytes


class Loading(_Frame, tag="LOADING"):
    """Executor: it begins to load a model, at its start or as it was told to.

    `resident` is what the process has in memory by then, in bytes, where that is the memory that models are
    loaded into; -1: it is a device's.
    """

    model: str
    resident: int = -1


class Loaded(_Frame, tag="LOADED"):
    """Executor: the model is there, after so many seconds; `bytes` is what it has taken of its device."""

    model: str
    bytes: int
    seconds: float


class LoadFailed(_Frame, tag="LOAD_FAILED"):
    """Executor: the loader raised; `reason` is for people, the public included.

    `is_over`: the device had no room for it.
    """

    model: str
    reason: str
    is_over: bool = False


class Unloaded(_Frame, tag="UNLOADED"):
    """Executor: the model is gone, which has freed so many bytes of its device."""

    model: str
    bytes: int


ToExecutor = Run | RunBatch | Stop | Interrupt | Credit | Load | Unload | Invoked
AboutModels = Loading | Loaded | LoadFailed | Unloaded
FromExecutor = Ready | Done | Failed | BatchEnded | Reported | Streamed | AboutModels | Invoke | Uninvoke

LONGEST_BUSY_S: Final = 3600.0
"""What is said to be busy for longer is asked again after that."""

CREDIT_BYTES: Final = 64 * 2**10
"""An item takes one credit for each part of it of that size, and one at least."""

decode_to_executor = msgspec.msgpack.Decoder(ToExecutor).decode
decode_from_executor = msgspec.msgpack.Decoder(FromExecutor).decode
