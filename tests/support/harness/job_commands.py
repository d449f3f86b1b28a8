"""Jobs as a scripted site shows them, and the commands that ask for them."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from typing import Any

from harness.scripted_site import ScriptedSite, event

JOB = "0199e0a0-0000-7000-8000-000000000001"
OTHER = "0199e0a0-0000-7000-8000-000000000002"
PATH = f"/jobs/{JOB}"
QUEUED: dict[str, Any] = {
    "job_id": JOB,
    "status": "queued",
    "status_url": PATH,
    "function": "echo",
    "created_at": "2026-01-02T03:04:05.000Z",
    "queue_deadline": "2026-01-02T03:05:05.000Z",
    "deadline": "2026-01-02T03:06:05.000Z",
    "started_at": None,
    "finished_at": None,
    "attempt": 0,
    "progress": None,
    "error": None,
}
RUNNING = {
    **QUEUED,
    "status": "running",
    "attempt": 1,
    "started_at": "2026-01-02T03:04:05.250Z",
    "progress": {"fraction": 0.4, "message": "reading"},
}
DONE = {
    **RUNNING,
    "status": "succeeded",
    "progress": {"fraction": 1, "message": "done"},
    "finished_at": "2026-01-02T03:04:07.500Z",
    "result": {"text": "ä"},
}
FAILED = {
    **DONE,
    "status": "failed",
    "result": None,
    "error": {
        "category": "invalid-input",
        "message": "the moon",
        "errors": [{"path": "/phase", "message": "the moon"}],
    },
}
EXPIRED = {
    **QUEUED,
    "status": "expired",
    "finished_at": "2026-01-02T03:05:05.000Z",
    "error": {"category": "queue-deadline-exceeded", "message": "The job could not be started in time."},
}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "headrace", *arguments]


def run(site: ScriptedSite, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "/usr/bin:/bin", "HEADRACE_URL": site.url, "HEADRACE_KEY": "hr_x"}
    return subprocess.run(command(*arguments), env=environment, capture_output=True, text=True, check=False)


def states(*told: tuple[str, int]) -> list[bytes]:
    return [
        event(
            "state",
            number,
            {
                "status": status,
                "attempt": attempt,
                "at": f"2026-01-02T03:04:0{number}.000Z",
                "reason": f"reason {number}",
                "by": f"key:{number}",
            },
        )
        for number, (status, attempt) in enumerate(told, start=1)
    ]


def on_a_terminal(site: ScriptedSite, *arguments: str) -> tuple[str, int]:
    """What a person sees, and the exit status."""
    ours, theirs = pty.openpty()
    environment = {"PATH": "/usr/bin:/bin", "TERM": "xterm", "HEADRACE_URL": site.url, "HEADRACE_KEY": "hr_x"}
    process = subprocess.Popen(
        command(*arguments), env=environment, stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True
    )
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 4096):
            shown += part
    except OSError:  # how a terminal of Linux says that nobody is at its other end
        pass
    os.close(ours)
    return shown.decode(), process.wait()
