"""What the kernel tells of a process, in `/proc`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """A process at one instant.

    Args:
        state: the liveliest of its threads' states: R, D, T or S; Z for one that has ended.
        threads: how many it has.
        wchan: the function of the kernel in which its main thread waits; empty where the kernel hides it.
        cpu_s: seconds of CPU time that it has used.
        deaf_to: the signals that its main thread blocks, or that it ignores, as bits from 1 on.
    """

    state: str
    threads: int
    wchan: str
    cpu_s: float
    deaf_to: int

    def is_deaf_to(self, number: int) -> bool:
        """Whether that signal doesn't reach its main thread, where Python handles all of them."""
        return bool(self.deaf_to >> (number - 1) & 1)


def look_at(pid: int) -> ProcessFacts | None:
    """How a process stands; None when there is none."""
    folder = Path(f"/proc/{pid}")
    try:
        cpu_s = _cpu_s((folder / "stat").read_text())
        tasks = [facts for task in (folder / "task").iterdir() if (facts := _status(task))]
    except OSError:
        return None
    if not tasks:
        return None
    states = {facts["State"][0] for facts in tasks}
    main = next((facts for facts in tasks if facts["Pid"] == str(pid)), tasks[0])
    deaf_to = int(main["SigBlk"], 16) | int(main["SigIgn"], 16)
    state = next((one for one in "RDTtSZX" if one in states), "S")
    return ProcessFacts(state.upper(), len(tasks), _wchan(folder), cpu_s, deaf_to)


def _status(task: Path) -> dict[str, str] | None:
    """The lines of a thread's status; None when it has just ended."""
    try:
        lines = (task / "status").read_text(errors="replace").splitlines()
    except OSError:
        return None
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _cpu_s(stat: str) -> float:
    fields = stat.rpartition(")")[2].split()  # the program's name before it may hold anything
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _wchan(folder: Path) -> str:
    try:
        name = (folder / "wchan").read_text()
    except OSError:
        return ""
    return "" if name == "0" else name
