"""What names a call that a call has made, and who called whom."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

from gpu_runner.frames import Invoke

_ACTOR: Final = "call"
_TIME_BITS: Final = 48
_VERSION_AND_VARIANT: Final = 0x7000_8000_0000_0000_0000
_FREE: Final = 0xFFF_3FFF_FFFF_FFFF_FFFF
"""The 74 bits of a UUIDv7 that are neither time nor version nor variant."""


def child_id(asked: Invoke, again: int) -> str:
    """The job id of what a call has asked for: the same for each attempt that asks the same.

    So the ledger itself knows whether it has the job, and no key is needed that clients could hit upon. It is
    a UUIDv7 of the time of its parent, beside which it is listed.

    Args:
        asked: by the running call.
        again: how many jobs for the same have come to nothing in a way that passes.
    """
    parent = int(asked.job_id.replace("-", ""), 16)
    name = f"{asked.job_id}\0{asked.function}\0{asked.interface}\0{asked.same}\0{again}\0".encode()
    noise = int.from_bytes(hashlib.sha256(name + asked.digest).digest()[:10], "big") & _FREE
    time = parent >> (128 - _TIME_BITS) << (128 - _TIME_BITS)
    text = f"{time | _VERSION_AND_VARIANT | noise:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def actor_of(parent_id: str, chain: Sequence[str]) -> str:
    """Who submits a job that a call makes, for its events: the call, and the functions down to it."""
    return f"{_ACTOR}:{parent_id}:{'/'.join(chain)}"


def callers_in(actor: str | None) -> tuple[str, ...]:
    """The functions that `actor_of` has named; none where a client has submitted the job."""
    kind, _, rest = (actor or "").partition(":")
    return tuple(rest.partition(":")[2].split("/")) if kind == _ACTOR else ()
