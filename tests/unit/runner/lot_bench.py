"""A bench whose executors are given joined calls."""

from __future__ import annotations

from typing import Any

from bench import Scripted

from gpu_runner.frames import BatchEnded, Done, Failed, RunBatch
from gpu_runner.lots import Lot


def lots(executor: Scripted) -> list[RunBatch]:
    """All that it was ever told to run as one."""
    return [frame for frame in executor.sent if isinstance(frame, RunBatch)]


def joined(executor: Scripted) -> list[list[str]]:
    """The ids of the calls of each."""
    return [[item.job_id for item in lot.items] for lot in lots(executor)]


def running(executor: Scripted) -> list[Lot]:
    """Those that run, or are about to."""
    return [call for call in executor.calls.values() if isinstance(call, Lot)]


def end(
    executor: Scripted, lot: Lot | None = None, seconds: float = 0.1, *, too_many: int = 0, **failed: str
) -> None:
    """A lot comes to its end; the calls named fail in that category, and memory ran out for so many."""
    lot = lot or running(executor)[0]
    (frame,) = [one for one in lots(executor) if one.job_id == lot.job_id]
    for item in frame.items:
        if item.job_id in lot.calls:
            answer(executor, item.job_id, seconds, failed.get(item.job_id, ""))
    executor.say(BatchEnded(lot.job_id, seconds, (len(frame.items),), too_many))


def answer(executor: Scripted, job_id: str, seconds: float = 0.1, category: str = "") -> None:
    """One of its calls comes to its end."""
    frame: Any = Failed(job_id, category, "", seconds) if category else Done(job_id, b'"done"', seconds)
    executor.say(frame)
