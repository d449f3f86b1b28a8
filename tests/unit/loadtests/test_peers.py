"""What benchmarks start ends with them, whatever becomes of it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import peers
import psutil
import pytest
from harness.site import free_port

_DIES = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open(sys.argv[1], "w").write(str(child.pid))
"""
_STAYS = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""


def is_over(pid: int) -> bool:
    """A zombie is over, too: whoever adopts it may not wait for it."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_service_that_dies_at_its_start_is_told_of_and_what_it_started_ends(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _DIES, str(tmp_path / "pid")]
    served = peers.served("the peer", command, free_port(), "/", b"{}")
    with pytest.raises(OSError, match="the peer doesn't answer"), served:
        raise AssertionError("it never answers")
    assert is_over(int((tmp_path / "pid").read_text()))


def test_what_doesnt_end_when_asked_is_killed_with_what_it_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "_SITE_END_S", 0.0)
    with subprocess.Popen([sys.executable, "-c", _STAYS], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        assert not is_over(child)
        peers.end(process, signal.SIGTERM)
        assert process.returncode == -signal.SIGKILL
        psutil.wait_procs([psutil.Process(child)] if not is_over(child) else [], 20)
        assert is_over(child)


def test_an_environment_with_another_version_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "ENVIRONMENT", tmp_path / "litserve")
    made: list[list[str]] = []
    monkeypatch.setattr(
        subprocess, "run", lambda command, **_: (made.append(command), peers.ENVIRONMENT.mkdir(exist_ok=True))
    )
    for version, expected in (("litserve==1", 2), ("litserve==1", 2), ("litserve==2", 4)):
        monkeypatch.setattr(peers, "LITSERVE", version)
        peers.litserve_python()
        assert len(made) == expected
