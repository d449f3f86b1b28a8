"""What gateway and runner say to each other: version 1 of the direct link.

Every frame is a msgpack array whose first element is its tag. Later versions may append fields: a reader
ignores what it doesn't know and takes defaults for what is missing. An unknown tag closes the link.
Times are remaining or elapsed milliseconds, never instants: the clocks of two machines differ.

The frame of idempotency (`Duplicate`) belongs to version 1, so that its place is fixed; no peer of this
release sends it, and one that receives it closes the link.
"""

from __future__ import annotations

import msgspec

from headrace.capacity import Capacity

VERSION = 1


class _Frame(msgspec.Struct, array_like=True):
    """Base of all frames."""


class Service(msgspec.Struct, array_like=True):
    """One function that a runner serves: its interface, and how many of its calls may run at once.

    `degraded` says why it can't run at present; empty when it can.
    """

    function: str
    interface: str
    slots: int
    degraded: str = ""


class Hello(_Frame, tag="HELLO"):
    """Both: version, a fresh nonce, and (once the other's nonce is known) the proof of the link secret.

    `hands_over`: from a runner that can record running calls as jobs; only it is sent a `Handover`.
    """

    version: int
    nonce: bytes
    proof: bytes = b""
    runner_id: str = ""
    services: tuple[Service, ...] = ()
    hands_over: bool = False


class Ping(_Frame, tag="PING"):
    """Both, each second: are you there?"""


class Pong(_Frame, tag="PONG"):
    """Both: yes. From a runner with the load (running and waiting calls) of each function's slots.

    `draining`, which a runner also says unasked, means that it leaves: the gateway sends it no more calls,
    and ends the link when those that it has sent are answered. `degraded` has the reason for each function
    that the runner can't run at present, and is said unasked when that changes. `means` has the mean
    execution time, in seconds, of each function that has run; `capacity` all that is known of each, which has
    these too.
    """

    loads: dict[str, int] = {}
    draining: bool = False
    degraded: dict[str, str] = {}
    means: dict[str, float] = {}
    capacity: dict[str, Capacity] = {}


class Call(_Frame, tag="CALL"):
    """Gateway: execute this. `job_id` is minted by the gateway and names the call on every link.

    `attempt` is the number of this start, `remaining_ms` what is left until the deadline, `wait_ms` how
    long the call may wait for its start here. `alone`: an earlier start was lost with its process, so nothing
    may run beside this one. `cost` is the input's, as the manifest prices it. `credit`: how many items of a
    stream may be sent at first (see `Credit`); 0 asks for what they are joined to alone.
    """

    job_id: str
    function: str
    interface: str
    input: bytes
    owner: str
    attempt: int
    remaining_ms: int
    wait_ms: int
    request_id: str = ""
    traceparent: str = ""
    digest: bytes = b""
    key: str = ""
    alone: bool = False
    cost: float = 0.0
    credit: int = 0


class Refused(_Frame, tag="REFUSED"):
    """Runner, before the start only: `full`, `draining`, `cold`, `degraded` or `unknown-interface`.

    `load` as in `Pong`; `retry_after_s` is when there should be room.
    """

    job_id: str
    reason: str
    load: int = 0
    retry_after_s: float = 1.0
    detail: str = ""


class Started(_Frame, tag="STARTED"):
    """Runner: the function runs. Said only of calls that aren't answered at once; an answer implies it."""

    job_id: str
    attempt: int


class Item(_Frame, tag="ITEM"):
    """Runner: one item of a stream."""

    job_id: str
    sequence: int
    item: bytes


class Progress(_Frame, tag="PROGRESS"):
    """Runner: how far the call is."""

    job_id: str
    fraction: float
    message: str = ""


class Credit(_Frame, tag="CREDIT"):
    """Gateway: how many more items of a stream may be sent.

    An item takes one credit for each 64 KiB of it, and one at least.
    """

    job_id: str
    items: int


class Result(_Frame, tag="RESULT"):
    """Runner: the function's output, as JSON.

    `load` as in `Pong`; `mean_s` is how long an execution takes on average by now, and `cost_s` how long one
    for a cost of 1; 0 where that isn't known, or inputs have no cost.
    """

    job_id: str
    output: bytes
    attempt: int
    queue_ms: float
    exec_ms: float
    load: int = 0
    mean_s: float = 0.0
    cost_s: float = 0.0


class Error(_Frame, tag="ERROR"):
    """Runner: the call failed. `category` is a problem code; `message` is fit for the public.

    `retryable` says that another start may succeed. `errors` are (JSON Pointer, message) pairs.
    `retry_after_s`: for so long no start would, as what the function needs is busy; 0: nobody says so.
    """

    job_id: str
    category: str
    message: str
    attempt: int
    queue_ms: float
    exec_ms: float
    retryable: bool = False
    errors: tuple[tuple[str, str], ...] = ()
    load: int = 0
    retry_after_s: float = 0.0


class Lost(_Frame, tag="LOST"):
    """Runner: the executor died under the call and nothing is recorded. `charged`: the start counts.

    `suspect`: the call may be the reason that its process ended, so its next start is alone. False where it
    never ran there, or where something else is known to have ended it.
    """

    job_id: str
    attempt: int
    charged: bool
    load: int = 0
    suspect: bool = True


class Duplicate(_Frame, tag="DUPLICATE"):
    """Runner: the idempotency key belongs to another call; join that one."""

    job_id: str
    original_id: str


class Handover(_Frame, tag="HANDOVER"):
    """Gateway: the hold is ending; record the call as a job.

    With what the ledger wants to know of a job and `Call` hasn't said: the API key's id, the SHA-256 of the
    input, `cost` and `weight` of the owner's share, and `queue_s`, how long the job may wait for a start.
    `charged` is how many starts were charged before the one that runs, and `accepted_ms` how long ago the
    call was accepted; 0: when it reached the runner.
    """

    job_id: str
    key_id: str = ""
    digest: bytes = b""
    cost: float = 0.0
    weight: float = 1.0
    queue_s: float = 0.0
    charged: int = 0
    accepted_ms: float = 0.0


class Handed(_Frame, tag="HANDED"):
    """Runner: recorded in the ledger, where its result will be; or `withdrawn`, as it hadn't started."""

    job_id: str
    withdrawn: bool = False


class Fenced(_Frame, tag="FENCED"):
    """Runner: the job exists under another token; the work here is stopped."""

    job_id: str


class Stop(_Frame, tag="STOP"):
    """Gateway: nobody waits for this call any more."""

    job_id: str


Frame = (
    Hello
    | Ping
    | Pong
    | Call
    | Refused
    | Started
    | Item
    | Progress
    | Credit
    | Result
    | Error
    | Lost
    | Duplicate
    | Handover
    | Handed
    | Fenced
    | Stop
)

Answer = Result | Error | Refused | Lost | Handed | Fenced
"""What ends a call on its link."""

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Frame).decode
